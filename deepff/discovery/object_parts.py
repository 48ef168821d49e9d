"""Parts inside the object: the object first, then k-means of its cells only.

Where the object is known, no factor is spent on what surrounds it. Rows of A are scaled to length
1, the mean over the object is subtracted and what is negative set to 0, so that a row says what its
cell has more of than the rest of the object. Where objects fill the frame (:func:`fills_frame`),
:func:`factorize_filled` takes one factor more over all cells, of which the one on the border is
background.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import Activations
from deepff.discovery.contrast import border_cells, contrast_layers, least_separation
from deepff.errors import InputError
from deepff.factorization import KMeans
from deepff.factorization.blocks import RowBlocks, check_non_negative
from deepff.layers.layer import Layer
from deepff.layers.layer_map import LayerMap
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps

# The share of a cell that must be object for the cell to be fitted.
_OBJECT_SHARE = 0.5
# The most rows that k-means, which copies them, is given.
_SAMPLE_ROWS = 20_000
_SHARPNESS = 8.0
# Of squared distances between rows of length 1 at most: equal rows have none.
_LEAST_VARIANCE = 1e-6


@dataclass(frozen=True)
class PartSpace:
    """What finds the parts in images: those that were factorized, and others of the same layer."""

    components: Tensor  # W (k, c): the parts' centroids, nowhere negative
    mean: Tensor  # (c,), of the object's rows at length 1, from which it is subtracted
    variance: float  # mean squared distance of the fitted rows from their nearest centroid
    background: Tensor | None = None  # (c,), one more centroid, where objects fill the frame

    def rows(self, rows: Tensor) -> Tensor:
        """B: rows of A, (m, c), at length 1 less `mean`, what is negative set to 0."""
        return (_unit_rows(rows) - self.mean.to(rows)).clamp_min(0)

    @torch.no_grad()
    def coefficients(self, activations: Activations, object_cells: Tensor | None = None) -> Tensor:
        """H (rows, k): how likely each cell is each part, softmax(−8 d² / variance). d is the
        distance from the centroids. Rows sum to 1, to less where there is a background; those
        without any object (``object_cells``, the share of each cell, or bool) are 0."""
        rows = RowBlocks(activations.blocks)
        centroids = self.components
        if self.background is not None:
            centroids = torch.cat([centroids, self.background[None]])
        H = torch.empty(rows.n_rows, len(self.components), device=rows.device)
        for index, block in rows:
            squared = torch.cdist(self.rows(block), centroids.to(rows.device)).square()
            likely = (squared * (-_SHARPNESS / self.variance)).softmax(1)
            H[index] = likely[:, : H.shape[1]]
        return H if object_cells is None else H * (object_cells > 0).to(H)[:, None]


def factorize_inside(
    activations: Activations, object_cells: Tensor, k: int, random_state: int | None = 0
) -> tuple[Factorization, PartSpace]:
    """The parts of an object, and what finds them in other images. ``object_cells`` (rows,) is the
    share of each cell that is object: those with at least half are fitted, all with any get
    parts."""
    space, n_iter = _fit(activations, object_cells >= _OBJECT_SHARE, k, random_state)
    H = space.coefficients(activations, object_cells)
    return _factorization(activations, H, space, n_iter, object_cells > 0), space


def factorize_filled(
    activations: Activations, k: int, random_state: int | None = 0
) -> tuple[Factorization, PartSpace]:
    """As :func:`factorize_inside`, for objects that fill the frame: of k + 1 clusters the one that
    takes up most more of the border than of the whole is the background."""
    everything = torch.ones(sum(image.n_cells for image in activations.images), dtype=torch.bool)
    space, n_iter = _fit(activations, everything, k + 1, random_state)
    H = space.coefficients(activations)
    on_border = torch.cat([border_cells(x.grid, x.extent).flatten() for x in activations.images])
    background = int((H[on_border.to(H.device)].mean(0) / H.mean(0)).nan_to_num().argmax())
    parts = torch.arange(k + 1, device=H.device) != background
    space = replace(
        space, components=space.components[parts], background=space.components[background]
    )
    return _factorization(activations, H[:, parts], space, n_iter, everything), space


def fills_frame(separation: float, by_sign: bool = False) -> bool:
    """Whether the objects of a set fill the frame, by the separation of the coarser object layer.
    The middles of annotated boxes lie below the limit, nearly all sets of whole objects above it
    (``benchmarks/objects.py --only separation``)."""
    return separation < least_separation(by_sign)


def part_layer(layer_map: LayerMap) -> Layer:
    """The layer whose activations tell parts apart (``conv5_4``, ``layer4``): in the stage and
    stride of the coarser contrast layer the last map that is nowhere negative, or itself by
    sign."""
    coarser = contrast_layers(layer_map)[-1]
    stage = coarser.path.partition(".")[0]
    suitable = [
        layer
        for layer in layer_map.suitable
        if layer.non_negative
        and layer.stride == coarser.stride
        and layer.path.partition(".")[0] == stage
    ]
    return suitable[-1] if suitable else coarser


def _fit(
    activations: Activations, fitted: Tensor, k: int, random_state: int | None
) -> tuple[PartSpace, int]:
    """The space of k clusters of the rows that are `fitted`, (rows,) bool; and iterations."""
    rows = RowBlocks(activations.blocks)
    indices = fitted.cpu().nonzero()[:, 0]
    if len(indices) < k:
        raise InputError(
            f"the object has {len(indices)} cells in these images, too few for {k} parts; choose "
            "fewer parts or a larger image size"
        )
    on_object = fitted.to(rows.device, torch.float32)
    total = torch.zeros(rows.n_channels, dtype=torch.float64)
    for index, block in rows:
        check_non_negative(*(float(x) for x in block.aminmax()))
        total += (on_object[index] @ _unit_rows(block)).cpu()
    mean = (total / len(indices)).float().to(rows.device)

    space = PartSpace(torch.empty(0, rows.n_channels), mean, variance=0.0)
    # Evenly over the set: the same rows whatever the seed is.
    step = max(1, -(-len(indices) // _SAMPLE_ROWS))
    sample = space.rows(rows.take(indices[::step]))
    estimator = KMeans(k, random_state=random_state).fit(sample)
    distances = torch.cdist(sample, estimator.components_).amin(1)
    variance = max(float(distances.square().mean()), _LEAST_VARIANCE)
    return replace(space, components=estimator.components_, variance=variance), estimator.n_iter_


def _factorization(
    activations: Activations, H: Tensor, space: PartSpace, n_iter: int, cells: Tensor
) -> Factorization:
    loss = total = 0.0
    inside = cells.to(H)[:, None]
    for index, block in RowBlocks(activations.blocks):
        block = space.rows(block) * inside[index]
        loss += float((block - H[index] @ space.components).double().square().sum())
        total += float(block.double().square().sum())
    maps = HeatMaps.of_images(H, activations.images)
    return Factorization(
        space.components, maps, (loss / total) ** 0.5 if total > 0 else 0.0, n_iter
    )


def _unit_rows(rows: Tensor) -> Tensor:
    return functional.normalize(rows, dim=1, eps=torch.finfo(torch.float32).tiny)
