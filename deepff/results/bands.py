"""Maps upsampled some rows at a time, so that memory never holds those of a large image whole."""

from bisect import bisect_right
from collections.abc import Iterator

import torch
from torch import Tensor

from deepff.features.places import Extent
from deepff.results.sampling import WHOLE, positions, sampled

Band = tuple[slice, Tensor]

BAND_BYTES = 2**23


def bands(maps: Tensor, shape: tuple[int, int], extent: Extent | None = None) -> Iterator[Band]:
    """Upsample maps bilinearly, as :func:`deepff.results.sampling.sampled` does.

    Parameters
    ----------
    maps : Tensor, (k, h, w), float32
    shape : (H, W)
        In pixels.
    extent : Extent, optional
        What the maps' grid lies on; by default the image.

    Yields
    ------
    rows : slice
        From top to bottom.
    maps : Tensor, (k, rows, W)
        Those rows of the upsampled maps.
    """
    height, width = shape
    n_rows = max(1, BAND_BYTES // (4 * len(maps) * width))
    if n_rows >= height:
        yield slice(0, height), sampled(maps, shape, extent)
        return
    across = None if extent is None else (WHOLE[0], extent[1])
    wide = sampled(maps, (maps.shape[1], width), across)
    # Across first, then down, as torch does it.
    last = maps.shape[1] - 1
    place = (
        ((torch.arange(height) + 0.5) * (maps.shape[1] / height) - 0.5).clamp(0, last)
        if extent is None
        else positions(height, maps.shape[1], extent[0])
    )
    weight = place.frac().to(maps.device)[:, None]
    above = place.long().tolist()
    first = 0
    while first < height:
        # Rows between the same two of the wide maps: no copies of these are made.
        stop = bisect_right(above, above[first], hi=min(first + n_rows, height))
        upper, lower = (wide[:, i : i + 1] for i in (above[first], min(above[first] + 1, last)))
        rows = slice(first, stop)
        yield rows, torch.lerp(upper, lower, weight[rows])
        first = stop
