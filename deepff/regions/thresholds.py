"""From heat maps to masks: thresholds, masks, and label maps with one factor per pixel."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.results.histogram import OTSU_BINS, Levels

THRESHOLDS = ("percentile", "otsu", "otsu-image", "max-fraction")

PERCENTILE_BINS = 65_536


def thresholds(
    maps: Iterable[Tensor] | Levels, method: str = "percentile", value: float = 75.0
) -> Tensor:
    """Each factor's threshold for every image; a pixel is on where its value reaches it.

    Parameters
    ----------
    maps : iterable of (k, H, W) float tensors, or Levels
        The heat maps of the whole set, one tensor an image, sizes may differ. Read twice, one image
        in memory at a time: a `HeatMaps`, a list, anything that can be iterated over again. Or
        their histogram, which gives one row, for methods over the set.
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
    if not isinstance(maps, Levels) and iter(maps) is maps:
        raise InputError("the heat maps are read twice; give a list or HeatMaps, not an iterator")
    if method == "otsu-image":
        if isinstance(maps, Levels):
            raise InputError("Otsu per image needs the images' maps, not the set's histogram")
        rows = [thresholds([image], "otsu") for image in maps]
        if not rows:
            raise InputError("there are no heat maps to find a threshold for")
        return torch.cat(rows)

    bins = {"percentile": PERCENTILE_BINS, "otsu": OTSU_BINS, "max-fraction": 0}
    levels = maps if isinstance(maps, Levels) else Levels.of(maps, bins[method])
    if method == "max-fraction":
        row = levels.high * value
    else:
        row = levels.otsu() if method == "otsu" else levels.percentile(value)
    n_rows = 1 if isinstance(maps, Levels) else levels.n_images
    return row.masked_fill(levels.is_constant, math.inf).expand(n_rows, -1).clone()


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
