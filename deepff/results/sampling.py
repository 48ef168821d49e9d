"""Maps sampled at places of an image, whatever part of it their grids lie on."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from deepff.features.places import Extent

WHOLE: Extent = ((0.0, 1.0), (0.0, 1.0))

# How much finer maps become that are brought to a grid which covers the image.
_FINER = 4


def sampled(
    maps: Tensor, shape: tuple[int, int], extent: Extent | None = None, onto: Extent | None = None
) -> Tensor:
    """Maps at the centres of another grid's cells, bilinearly between the centres of their own.

    Beyond the outermost centres values are those there.

    Parameters
    ----------
    maps : Tensor, (k, h, w)
    shape : (int, int)
        Of the other grid.
    extent, onto : Extent, optional
        What the maps' grid and the other lie on; by default the image.

    Returns
    -------
    Tensor, (k, *shape)
    """
    if extent == onto:
        return functional.interpolate(maps[None], shape, mode="bilinear", align_corners=False)[0]
    for axis, n in enumerate(shape):
        place = positions(n, maps.shape[axis + 1], (extent or WHOLE)[axis], (onto or WHOLE)[axis])
        before = place.long()
        after = (before + 1).clamp_max(maps.shape[axis + 1] - 1)
        weight = place.frac().to(maps).view(-1, 1) if axis == 0 else place.frac().to(maps)
        lower, upper = (maps.index_select(axis + 1, i.to(maps.device)) for i in (before, after))
        maps = torch.lerp(lower, upper, weight)
    return maps


def positions(
    n: int, cells: int, ends: tuple[float, float], onto: tuple[float, float] = (0.0, 1.0)
) -> Tensor:
    """Where n equal steps along one side have their centres, in cells from the first one's centre.

    Both sides' ends are shares of the image's; never before the first cell or beyond the last.
    """
    share = onto[0] + (torch.arange(n, dtype=torch.float64) + 0.5) / n * (onto[1] - onto[0])
    place = (share - ends[0]) / (ends[1] - ends[0]) * cells - 0.5
    return place.clamp(0, cells - 1).float()


def covering(maps: Tensor, extent: Extent | None) -> Tensor:
    """Maps on a grid that lies on the image: their own, or where that lies elsewhere a finer one.

    Four times as fine, so that upsampling these bilinearly is nearly upsampling the maps.
    """
    if extent is None:
        return maps
    return sampled(maps, (_FINER * maps.shape[1], _FINER * maps.shape[2]), extent)


def cell_means(maps: Tensor, grid: tuple[int, int], extent: Extent | None = None) -> Tensor:
    """The mean of maps (k, H, W), which cover the image, over the cells of a grid: (k, *grid)."""
    if extent is not None:
        height, width = (
            cells * math.ceil(side / cells)
            for side, cells in zip(maps.shape[1:], grid, strict=True)
        )
        maps = sampled(maps, (height, width), None, extent)
    return functional.adaptive_avg_pool2d(maps[None], grid)[0]
