"""Parts inside the object: the object first, then a factorization of its cells only.

Where the object is known, no factor is spent on what surrounds it. Rows of A are scaled to length
1, the mean over the object is subtracted and what is negative set to 0, so that a row says what its
cell has more of than the rest of the object; k-means then gives the parts.

Where objects fill the frame (:func:`fills_frame`) nothing tells them from the background, and
:func:`factorize_filled` takes one factor more over all cells, of which that on the border is
background.

Labels of one image, one part per pixel:
``refined_labels(refined_parts(crf_kernels(photo[None]), object_probability, maps.grid(index)))``,
with ``maps`` the factorization's heat maps.
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
    """What finds the parts in images: those that were factorised, and others of the same layer.

    Attributes
    ----------
    components : Tensor, (k, c)
        W: the parts' centres, nowhere negative.
    mean : Tensor, (c,)
        Subtracted from rows scaled to length 1: their mean over the object.
    variance : float
        Mean squared distance of the fitted rows from their nearest centre.
    background : Tensor (c,) or None
        One more centre, whose rows are not object, where objects fill the frame.
    """

    components: Tensor
    mean: Tensor
    variance: float
    background: Tensor | None = None

    def rows(self, rows: Tensor) -> Tensor:
        """B: rows of A, (m, c), at length 1 less `mean`, what is negative set to 0."""
        return (_unit_rows(rows) - self.mean.to(rows)).clamp_min(0)

    @torch.no_grad()
    def coefficients(self, activations: Activations, object_cells: Tensor | None = None) -> Tensor:
        """H (rows, k): how likely each cell is each part.

        softmax(−8 d² / variance) over the distances d from the centres.

        Parameters
        ----------
        activations : Activations
            A (rows, c), nowhere negative, of the layer that was factorised.
        object_cells : Tensor, (rows,), optional
            The share of each cell that is object, or bool. Rows without any are 0.

        Returns
        -------
        Tensor, (rows, k)
            Rows sum to 1, to less where there is a background.
        """
        rows = RowBlocks(activations.blocks)
        centers = self.components
        if self.background is not None:
            centers = torch.cat([centers, self.background[None]])
        H = torch.empty(rows.n_rows, len(self.components), device=rows.device)
        for place, block in rows:
            squared = torch.cdist(self.rows(block), centers.to(rows.device)).square()
            likely = (squared * (-_SHARPNESS / self.variance)).softmax(1)
            H[place] = likely[:, : H.shape[1]]
        return H if object_cells is None else H * (object_cells > 0).to(H)[:, None]


def factorize_inside(
    activations: Activations, object_cells: Tensor, k: int, random_state: int | None = 0
) -> tuple[Factorization, PartSpace]:
    """The parts of an object whose cells are known.

    Parameters
    ----------
    activations : Activations
        A (rows, c), nowhere negative, of :func:`part_layer`.
    object_cells : Tensor, (rows,)
        The share of each cell that is object (:func:`object_shares`), or bool. Cells that are so by
        half or more are fitted; all that are so at all are given parts. An image may have none.
    k : int
        Number of parts, at most the cells that are fitted.
    random_state : int or None
        Seed of k-means.

    Returns
    -------
    factorization : Factorization
        B ≈ H W, where B is A's rows scaled to length 1, less their mean over the object, without
        what is negative, and 0 off the object. H holds probabilities, the largest part's first; its
        rows sum to 1 on the object and are 0 off it.
    space : PartSpace
        ``space.coefficients(activations, object_cells)`` gives the same parts in other images.

    Raises
    ------
    InputError
        The object has fewer cells than k, `object_cells` do not fit the rows, or A is negative
        somewhere.
    """
    space, n_iter = _fit(activations, object_cells >= _OBJECT_SHARE, k, random_state)
    H = space.coefficients(activations, object_cells)
    return _factorization(activations, H, space, n_iter, object_cells > 0), space


def factorize_filled(
    activations: Activations, k: int, random_state: int | None = 0
) -> tuple[Factorization, PartSpace]:
    """The parts of objects that fill the frame, of k + 1 clusters over all cells.

    The cluster that takes up more of the border than of the whole, by the largest factor, is the
    background (:func:`deepff.discovery.contrast.border_cells`). What the parts' probabilities sum
    to is the object's.

    Parameters and errors are those of :func:`factorize_inside`.

    Returns
    -------
    factorization : Factorization
        As :func:`factorize_inside` gives it; what rows of H lack of 1 is the background's.
    space : PartSpace
    """
    everything = torch.ones(sum(image.n_cells for image in activations.images), dtype=torch.bool)
    space, n_iter = _fit(activations, everything, k + 1, random_state)
    H = space.coefficients(activations)
    on_border = torch.cat([border_cells(image.grid).flatten() for image in activations.images])
    background = int((H[on_border.to(H.device)].mean(0) / H.mean(0)).nan_to_num().argmax())
    parts = torch.arange(k + 1, device=H.device) != background
    space = replace(
        space, components=space.components[parts], background=space.components[background]
    )
    return _factorization(activations, H[:, parts], space, n_iter, everything), space


def fills_frame(separation: float, by_sign: bool = False) -> bool:
    """Whether the objects of a set fill the frame, for which :func:`factorize_filled` is.

    The middles of annotated boxes lie below the limit, nearly all sets of whole objects above it
    (``benchmarks/objects.py --only separation``). On crops of Car Parts that leave out a tenth of
    each box at each side, parts of all cells fit the annotated ones better than parts inside the
    object do. On the boxes themselves, whose corners show surroundings, they do as well, though
    these are taken not to fill the frame.

    Parameters
    ----------
    separation : float
        `deepff.discovery.contrast.BorderContrast.separation` of the coarser layer of
        `contrast_layers`.
    by_sign : bool
        Whether that layer is taken by sign.
    """
    return separation < least_separation(by_sign)


def part_layer(layer_map: LayerMap) -> Layer:
    """The layer whose activations tell parts apart.

    Of the stage and stride of the coarser of :func:`deepff.discovery.contrast.contrast_layers` the
    last map that is nowhere negative, depthwise ones included: ``blocks.6.0.bn2`` of
    EfficientNet-Lite0, ``conv5_4`` of VGG-19, ``layer4`` of ResNet-101. Where that is signed, it
    is the part layer itself, by sign.
    """
    coarser = contrast_layers(layer_map)[-1]
    stage = coarser.path.partition(".")[0]
    suitable = [
        layer
        for layer in layer_map.layers
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
    if fitted.shape != (rows.n_rows,):
        raise InputError(
            f"{tuple(fitted.shape)} object cells do not fit {rows.n_rows} rows; give one each"
        )
    places = fitted.cpu().nonzero()[:, 0]
    if len(places) < k:
        raise InputError(
            f"the object has {len(places)} cells in these images, too few for {k} parts; choose "
            "fewer parts or a larger image size"
        )
    on_object = fitted.to(rows.device, torch.float32)
    total = torch.zeros(rows.n_channels, dtype=torch.float64)
    for place, block in rows:
        check_non_negative(*(float(x) for x in block.aminmax()))
        total += (on_object[place] @ _unit_rows(block)).cpu()
    mean = (total / len(places)).float().to(rows.device)

    space = PartSpace(torch.empty(0, rows.n_channels), mean, variance=0.0)
    # Evenly over the set: the same rows whatever the seed is.
    step = max(1, -(-len(places) // _SAMPLE_ROWS))
    sample = space.rows(rows.take(places[::step]))
    estimator = KMeans(k, random_state=random_state).fit(sample)
    distances = torch.cdist(sample, estimator.components_).amin(1)
    variance = max(float(distances.square().mean()), _LEAST_VARIANCE)
    return replace(space, components=estimator.components_, variance=variance), estimator.n_iter_


def _factorization(
    activations: Activations, H: Tensor, space: PartSpace, n_iter: int, cells: Tensor
) -> Factorization:
    loss = total = 0.0
    inside = cells.to(H)[:, None]
    for place, block in RowBlocks(activations.blocks):
        block = space.rows(block) * inside[place]
        loss += float((block - H[place] @ space.components).double().square().sum())
        total += float(block.double().square().sum())
    maps = HeatMaps.of_images(H, activations.images)
    return Factorization(
        space.components, maps, (loss / total) ** 0.5 if total > 0 else 0.0, n_iter
    )


def _unit_rows(rows: Tensor) -> Tensor:
    return functional.normalize(rows, dim=1, eps=torch.finfo(torch.float32).tiny)
