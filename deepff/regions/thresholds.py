"""From heat maps to masks: thresholds, masks, and label maps with one factor per pixel."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from deepff.options import Threshold, threshold_value
from deepff.results.heatmaps import HeatMaps
from deepff.results.histogram import OTSU_BINS, Histogram

PERCENTILE_BINS = 65_536


def thresholds(
    maps: Iterable[Tensor] | Histogram,
    method: str = Threshold.PERCENTILE,
    value: float | None = None,
) -> Tensor:
    """Each factor's threshold in every image, (n, k); a pixel is on where its value reaches it.
    ``maps`` are the set's heat maps, (k, H, W) for each image, read twice, or their histogram,
    which gives one row. ``value`` is the percentile of the paper (Collins et al., ECCV 2018), read
    off a histogram of 65,536 bins, or the fraction of the maximum. A factor with one value
    everywhere separates nothing: its threshold is infinite."""
    value = threshold_value(method, value)
    if method == Threshold.OTSU_IMAGE:
        assert not isinstance(maps, Histogram), "Otsu per image needs the images' maps"
        return torch.cat([thresholds(image, Threshold.OTSU) for image in _one_by_one(maps)])

    bins: dict[str, int] = {Threshold.PERCENTILE: PERCENTILE_BINS, Threshold.OTSU: OTSU_BINS}
    histogram = maps if isinstance(maps, Histogram) else Histogram.of(maps, bins.get(method, 0))
    if value is None:
        row = histogram.otsu()
    elif method == Threshold.MAX_FRACTION:
        row = histogram.high * value
    else:
        row = histogram.percentile(value)
    n_rows = 1 if isinstance(maps, Histogram) else histogram.n_images
    return row.masked_fill(histogram.is_constant, math.inf).expand(n_rows, -1).clone()


def _one_by_one(maps: Iterable[Tensor]) -> Iterator[Iterable[Tensor]]:
    """The maps of each image as those of a set of one."""
    if isinstance(maps, HeatMaps):
        yield from (maps.alone(index) for index in range(len(maps)))
    else:
        yield from ([image] for image in maps)


def masks(maps: Tensor, thresholds: Tensor) -> Tensor:
    """Where each factor is on, value >= threshold and value > 0: (k, H, W) bool, may overlap.
    ``maps`` (k, H, W) are one image's, ``thresholds`` (k,) its row of :func:`thresholds`."""
    # The second condition settles what the paper's rule leaves open. Where more than three quarters
    # of a factor's pixels are exactly 0, their 75th percentile is 0 and >= alone would turn on the
    # whole set; but a pixel whose coefficient is 0 has none of the factor. In the signed maps of
    # PCA a negative value is not on either.
    return (maps >= thresholds.to(maps.device)[:, None, None]) & (maps > 0)


def label_map(maps: Tensor, masks: Tensor, scale: Tensor | None = None) -> Tensor:
    """One factor per pixel (H, W), j + 1, the largest of those whose mask has the pixel, or 0. Maps
    (k, H, W) are shares of ``scale`` (k,), each factor's maximum over the set, if given."""
    # NMF fixes each factor only up to a scale, so raw coefficients of two factors can't be
    # compared. Values relative to the thresholds would let a rare factor win everywhere it is
    # barely on, because its percentile is close to 0.
    if scale is not None:
        maps = maps / scale.to(maps.device)[:, None, None]
    return largest_factor(maps.masked_fill(~masks, -math.inf), masks.any(0))


def largest_factor(values: Tensor, foreground: Tensor) -> Tensor:
    """Labels (H, W) from values (k, H, W): j + 1 where factor j is the first of the largest, 0
    outside the ``foreground`` (H, W); uint8, or int32 for k > 255."""
    # max gives the first of equal ones too, in a ninth of argmax's time.
    dtype = torch.uint8 if len(values) <= 255 else torch.int32
    return ((values.max(0).indices + 1) * foreground).to(dtype)
