"""From heat maps to masks: thresholds, masks, and label maps with one factor per pixel."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError

THRESHOLDS = ("percentile", "otsu", "otsu-image", "max-fraction")

PERCENTILE_BINS = 65_536
OTSU_BINS = 256  # skimage.filters.threshold_otsu's default

# Bilinear upsampling of equal float32 values returns them with an error of a few units in the last
# place, so a factor whose values differ by less than this, relatively, is constant.
_CONSTANT = 1e-6


def thresholds(maps: Iterable[Tensor], method: str = "percentile", value: float = 75.0) -> Tensor:
    """Each factor's threshold for every image; a pixel is on where its value reaches it.

    Parameters
    ----------
    maps : iterable of (k, H, W) float tensors
        The heat maps of the whole set, one tensor an image, sizes may differ. Read twice, one image
        in memory at a time: a `HeatMaps`, a list, anything that can be iterated over again.
    method : {"percentile", "otsu", "otsu-image", "max-fraction"}
        - ``"percentile"``: the `value`-th percentile of all the pixels of the factor's maps over
          the set, as `numpy.percentile` defines it (linear between order statistics). With
          ``value=75`` this is the rule of Collins et al. (ECCV 2018). It is read off a histogram of
          65,536 bins between the factor's minimum and maximum over the set, at the bins' lower
          edges, so it is never above the exact percentile and less than (max − min) / 65,536 below
          it (up to float32 rounding).
        - ``"otsu"``: Otsu's threshold (1979) of the factor's pixels over the set, as
          `skimage.filters.threshold_otsu` with 256 bins. `value` is not used.
        - ``"otsu-image"``: the same for each image on its own. `value` is not used.
        - ``"max-fraction"``: `value` times the factor's maximum over the set.
    value : float
        The percentile, in [0, 100], or the fraction of the maximum, in (0, 1].

    Returns
    -------
    Tensor, (n, k)
        float32, on the maps' device. Methods over the set repeat one row. A factor that has one
        value everywhere (over the set, or in the image for ``"otsu-image"``), such as a factor that
        is all zero, separates nothing: its threshold is infinite and its masks are empty.

    Raises
    ------
    InputError
        The method is unknown, the value out of its range, or there are no maps or maps that can be
        read only once.

    Notes
    -----
    Memory holds one image's maps and k × 65,536 counts, however large the set is.
    """
    if method not in THRESHOLDS:
        raise InputError(f"unknown threshold {method!r}; it is one of {', '.join(THRESHOLDS)}")
    if method == "percentile" and not 0 <= value <= 100:
        raise InputError(f"a percentile of {value:g} is out of range; it lies between 0 and 100")
    if method == "max-fraction" and not 0 < value <= 1:
        raise InputError(
            f"a fraction of {value:g} of the maximum is out of range; it is above 0 and at most 1"
        )
    if iter(maps) is maps:
        raise InputError("the heat maps are read twice; give a list or HeatMaps, not an iterator")
    if method == "otsu-image":
        rows = [thresholds([image], "otsu") for image in maps]
        if not rows:
            raise InputError("there are no heat maps to find a threshold for")
        return torch.cat(rows)

    n, low, high = _value_range(maps)
    if method == "max-fraction":
        row = high * value
    elif method == "otsu":
        row = _otsu(_histogram(maps, low, high, OTSU_BINS), low, high)
    else:
        row = _percentile(_histogram(maps, low, high, PERCENTILE_BINS), low, high, value)
    constant = high - low <= _CONSTANT * torch.maximum(low.abs(), high.abs())
    return row.masked_fill(constant, math.inf).expand(n, -1).clone()


def masks(maps: Tensor, thresholds: Tensor) -> Tensor:
    """Where each factor is on: value >= threshold and value > 0.

    The second condition settles what the paper's rule leaves open. Where more than three quarters
    of a factor's pixels are exactly 0, their 75th percentile is 0 and ``>=`` alone would turn on
    the whole set; but a pixel whose coefficient is 0 holds none of the factor. So the threshold 0
    means "every pixel that holds some of the factor". In the signed maps of PCA a negative value is
    not on either.

    Parameters
    ----------
    maps : Tensor, (k, H, W)
        One image's heat maps.
    thresholds : Tensor, (k,)
        That image's row of :func:`thresholds`, in the same units.

    Returns
    -------
    Tensor, (k, H, W)
        bool. Masks of different factors may overlap.
    """
    return (maps >= thresholds.to(maps.device)[:, None, None]) & (maps > 0)


def label_map(maps: Tensor, masks: Tensor, scale: Tensor | None = None) -> Tensor:
    """One factor per pixel: the arg-max among the factors whose mask holds the pixel.

    NMF fixes each factor only up to a scale, so raw coefficients of two factors can't be compared.
    They are compared as shares of the factor's maximum over the set. (Values relative to the
    thresholds would let a rare factor win everywhere it is barely on, because its percentile is
    close to 0.)

    Parameters
    ----------
    maps : Tensor, (k, H, W)
        One image's heat maps.
    masks : Tensor, (k, H, W), bool
        From :func:`masks`.
    scale : Tensor, (k,), optional
        Each factor's maximum over the set (`HeatMaps.scale`), by which its map is divided. None:
        the maps are on one scale already, as normalised maps are.

    Returns
    -------
    Tensor, (H, W)
        uint8, or int32 for k > 255: 0 is the background, factor j is j + 1. Of equal values the
        factor that comes first wins.
    """
    if scale is not None:
        maps = maps / scale.to(maps.device)[:, None, None]
    winner = maps.masked_fill(~masks, -math.inf).argmax(0) + 1
    dtype = torch.uint8 if len(maps) <= 255 else torch.int32
    return (winner * masks.any(0)).to(dtype)


def _value_range(maps: Iterable[Tensor]) -> tuple[int, Tensor, Tensor]:
    """The number of images and each factor's (k,) minimum and maximum over the set."""
    n, low, high = 0, None, None
    for image in maps:
        # amin and amax: aminmax along a dimension is many times slower than the two together
        pixels = image.float().flatten(1)
        image_low, image_high = pixels.amin(1), pixels.amax(1)
        low = image_low if low is None else torch.minimum(low, image_low)
        high = image_high if high is None else torch.maximum(high, image_high)
        n += 1
    if low is None or high is None:
        raise InputError("there are no heat maps to find a threshold for")
    return n, low, high


def _histogram(maps: Iterable[Tensor], low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Pixel counts over the set, (k, bins), each factor's bins equally wide from low to high."""
    counts = torch.zeros(len(low), bins, dtype=torch.int64, device=low.device)
    span = (high - low).clamp_min(torch.finfo(torch.float32).tiny)
    for image in maps:
        # One factor at a time stays in the processor's cache: three times as fast as all at once.
        for factor, values in enumerate(image.float().flatten(1)):
            share = (values - low[factor]).div_(span[factor])
            index = share.mul_(bins).clamp_(0, bins - 1).to(torch.int32)
            counts[factor] += torch.bincount(index, minlength=bins)
    return counts


def _percentile(counts: Tensor, low: Tensor, high: Tensor, percent: float) -> Tensor:
    """Percentiles (k,) interpolated between the lower edges of the order statistics' bins."""
    device, counts, low, high = low.device, counts.cpu(), low.cpu().double(), high.cpu().double()
    cumulative = counts.cumsum(1)
    rank = percent / 100 * (int(cumulative[0, -1]) - 1)
    ranks = torch.tensor([math.floor(rank), math.ceil(rank)]).repeat(len(counts), 1)
    bins = torch.searchsorted(cumulative, ranks, right=True).double()
    position = torch.lerp(bins[:, 0], bins[:, 1], rank % 1)
    return (low + position * (high - low) / counts.shape[1]).float().to(device)


def _otsu(counts: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Otsu's thresholds (k,) of histograms."""
    from skimage.filters import threshold_otsu

    bins = counts.shape[1]
    rows = []
    for factor, a, b in zip(counts.cpu().numpy(), low.tolist(), high.tolist(), strict=True):
        centers = a + (np.arange(bins) + 0.5) * (b - a) / bins
        # skimage fails on a histogram of one filled bin: a constant factor, masked out later
        one_bin = np.count_nonzero(factor) == 1
        rows.append(b if one_bin else float(threshold_otsu(hist=(factor, centers))))
    return torch.tensor(rows, dtype=torch.float32, device=low.device)
