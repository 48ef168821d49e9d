"""Maps sampled on another grid, whatever part of the image the grids cover."""

import math
from bisect import bisect_right
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from deepff.layers.layer import WHOLE, Extent

# How much finer maps become that are brought to a grid which covers the image.
_FINER = 4


def sampled(
    maps: Tensor, shape: tuple[int, int], extent: Extent | None = None, onto: Extent | None = None
) -> Tensor:
    """Maps (k, h, w) at the cell centers of another grid, (k, *shape), bilinearly. ``extent`` and
    ``onto`` are what the two grids cover. Beyond the outermost centers values are those there."""
    if extent == onto:
        return functional.interpolate(maps[None], shape, mode="bilinear", align_corners=False)[0]
    for axis, n in enumerate(shape):
        position = positions(
            n, maps.shape[axis + 1], (extent or WHOLE)[axis], (onto or WHOLE)[axis]
        )
        before = position.long()
        after = (before + 1).clamp_max(maps.shape[axis + 1] - 1)
        weight = position.frac().to(maps)
        weight = weight.view(-1, 1) if axis == 0 else weight
        lower, upper = (maps.index_select(axis + 1, i.to(maps.device)) for i in (before, after))
        maps = torch.lerp(lower, upper, weight)
    return maps


def positions(
    n: int, cells: int, ends: tuple[float, float], onto: tuple[float, float] = (0.0, 1.0)
) -> Tensor:
    """The centers of n equal steps along one side, in cells from the center of the first, clamped
    to the cells; ``ends`` of the cells and steps (``onto``) are shares of the image's side."""
    share = onto[0] + (torch.arange(n, dtype=torch.float64) + 0.5) / n * (onto[1] - onto[0])
    position = (share - ends[0]) / (ends[1] - ends[0]) * cells - 0.5
    return position.clamp(0, cells - 1).float()


def covering(maps: Tensor, extent: Extent | None) -> Tensor:
    """Maps on a grid that covers the image: as they are, or where theirs does not, on a finer one.
    It is four times as fine, so that upsampling these bilinearly is nearly upsampling the maps."""
    if extent is None:
        return maps
    return sampled(maps, (_FINER * maps.shape[1], _FINER * maps.shape[2]), extent)


def cell_means(maps: Tensor, grid: tuple[int, int], extent: Extent | None = None) -> Tensor:
    """The mean of maps (k, H, W), which cover the image, over the cells of a grid: (k, *grid)."""
    if extent is not None:
        sides = zip(maps.shape[1:], grid, strict=True)
        height, width = (cells * math.ceil(side / cells) for side, cells in sides)
        maps = sampled(maps, (height, width), None, extent)
    return functional.adaptive_avg_pool2d(maps[None], grid)[0]


Band = tuple[slice, Tensor]

BAND_BYTES = 2**23


def bands(maps: Tensor, shape: tuple[int, int], extent: Extent | None = None) -> Iterator[Band]:
    """Upsample maps (k, h, w) to shape (H, W) as :func:`sampled` does, never holding them whole:
    yields some rows' slice at a time, from top to bottom, and the maps there, (k, rows, W)."""
    height, width = shape
    n_rows = max(1, BAND_BYTES // (4 * len(maps) * width))
    if n_rows >= height:
        yield slice(0, height), sampled(maps, shape, extent)
        return
    across = None if extent is None else (WHOLE[0], extent[1])
    wide = sampled(maps, (maps.shape[1], width), across)
    # Across first, then down, as torch does it.
    last = maps.shape[1] - 1
    position = (
        ((torch.arange(height) + 0.5) * (maps.shape[1] / height) - 0.5).clamp(0, last)
        if extent is None
        else positions(height, maps.shape[1], extent[0])
    )
    weight = position.frac().to(maps.device)[:, None]
    above = position.long().tolist()
    first = 0
    while first < height:
        # Rows between the same two of the wide maps: no copies of these are made.
        stop = bisect_right(above, above[first], hi=min(first + n_rows, height))
        upper, lower = (wide[:, i : i + 1] for i in (above[first], min(above[first] + 1, last)))
        rows = slice(first, stop)
        yield rows, torch.lerp(upper, lower, weight[rows])
        first = stop
