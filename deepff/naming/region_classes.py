"""What the network takes regions for, such as the object: the class of the cells where they are.

The object's map is fused of several layers whose channels are weighted, so it is no direction of a
layer's activations. Its cells are the layers', though. The activations A of the coarsest of them
are multiplied with m, the share of each cell that is in the region, and what follows the layer
gives

    scores = T(0) + Σ (T(A m) − T(0)) / Σ mean(m)

summed over images spread over the set. Where T is a mean over the map and a linear map, these are
the logits of the mean of A over the region.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from deepff.features.later import Edit, OpenLayer, outputs_of_edits
from deepff.naming.network import spread_images
from deepff.options import RECIPE_OPTIONS
from deepff.regions.find import region_finder
from deepff.results.factorization import Factorization
from deepff.results.run import Run
from deepff.results.sampling import cell_means

# Over 4 and 8 images one more of twelve names was wrong; over all as many as over 16.
N_IMAGES = 16


def scores_of_regions(
    run: Run, opened: OpenLayer, wanted: Mapping[int, Factorization], progress: bool
) -> dict[int, Tensor]:
    """The network's outputs for maps that are full of each region, by k: (k, classes).

    Regions are those of the recipe. One without any cell has NaN.

    Raises
    ------
    InputError
        No image can be read any more; or as :func:`deepff.features.later.later_outputs`.
    """
    finders = {k: region_finder(run, k, RECIPE_OPTIONS[run.recipe]) for k in wanted}
    nothing: list[Tensor] = []
    gains: list[Tensor] = []
    sizes: list[Tensor] = []
    for i, image in spread_images(run, opened, N_IMAGES, "names", progress):
        masks = torch.cat([find(i).masks for find in finders.values()]).float()
        edits = [torch.zeros_like, *(_inside(mask) for mask in masks)]
        empty, *full = outputs_of_edits(opened, image, edits)
        nothing.append(empty)
        gains.append(torch.stack(full) - empty)
        sizes.append(masks.mean((1, 2)).to(empty))
    gain, size = torch.stack(gains).sum(0), torch.stack(sizes).sum(0)
    scores = torch.stack(nothing).mean(0) + gain / torch.where(size > 0, size, torch.nan)[:, None]
    return dict(zip(wanted, scores.split([*wanted]), strict=True))


def _inside(mask: Tensor) -> Edit:
    """What keeps of an image's map only what is in a mask, (H, W)."""

    def edit(maps: Tensor) -> Tensor:
        grid = (maps.shape[1], maps.shape[2])
        return maps * cell_means(mask[None], grid).to(maps)

    return edit
