"""Parts inside the object: the object first, then a factorization of its cells only.

Where the object is known, no factor is spent on what surrounds it. Rows of A are scaled to length
1, the mean over the object is subtracted and what is negative set to 0, so that a row says what its
cell has more of than the rest of the object; k-means then gives the parts.

Where objects fill the frame (:func:`fills_frame`) nothing tells them from the background, and
:func:`factorize_filled` takes one factor more over all cells, of which that on the border is
background.

Labels of one image, one part per pixel:
``refined_labels(refined_parts(photo, object_probability, factorization.heatmaps.grid(index)))``.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations import Activations
from deepff.backbones import Backbone
from deepff.dense_crf import dense_crf
from deepff.errors import InputError
from deepff.factorization import KMeans
from deepff.factorization.blocks import RowBlocks, check_non_negative
from deepff.foreground import MIN_SEPARATION, border_cells, contrast_layers
from deepff.heatmaps import HeatMaps
from deepff.layers import Layer, list_layers
from deepff.result import Factorization

# The share of a cell that must be object for the cell to be fitted.
_OBJECT_SHARE = 0.5
# The most rows that k-means, which copies them, is given.
_SAMPLE_ROWS = 20_000
_SHARPNESS = 8.0
# Of squared distances between rows of length 1 at most: equal rows have none.
_LEAST_VARIANCE = 1e-6
# A pixel's share of a part is never 0, so that the image's edges can overrule it.
_EVEN_SHARE = 0.02


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
    background (:func:`deepff.foreground.border_cells`). What the parts' probabilities sum to is
    the object's.

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


def part_probabilities(object_probability: Tensor, maps: Tensor) -> Tensor:
    """Share the object's probability among the parts, pixel by pixel.

    Parameters
    ----------
    object_probability : Tensor, (1, H, W)
        In [0, 1].
    maps : Tensor, (k, h, w)
        Nowhere negative, and in the same unit for all parts; they cover the whole image. They are
        upsampled bilinearly.

    Returns
    -------
    Tensor, (k, H, W)
        In proportion to the maps, but for 2 % shared evenly; evenly where all maps are 0. Sums to
        `object_probability`.
    """
    upsampled = functional.interpolate(
        maps[None], object_probability.shape[-2:], mode="bilinear", align_corners=False
    )[0]
    upsampled = upsampled + torch.finfo(upsampled.dtype).tiny
    share = upsampled / upsampled.sum(0)
    even = torch.full_like(share, 1 / len(share))
    return object_probability * torch.lerp(share, even, _EVEN_SHARE)


def refined_parts(image: Tensor | np.ndarray, object_probability: Tensor, maps: Tensor) -> Tensor:
    """The parts of one image, refined together along its edges; the object is left as it is.

    A dense CRF over the k parts alone shares the object's probability, which is refined already:
    beside the background as one more label, the parts would lose pixels to it at every edge for
    being several (Car Parts, every other image, k = 2, 4, 6: factor quality 0.375, and 0.378 so;
    mutual information with the parts 0.348 and 0.354).

    Parameters
    ----------
    image : ndarray uint8 (H, W, 3), or Tensor float (3, H, W) in [0, 1]
    object_probability : Tensor, (1, H, W)
    maps : Tensor, (k, h, w)
        As for :func:`part_probabilities`.

    Returns
    -------
    Tensor, (k, H, W)
        Sums to `object_probability`.
    """
    refined = dense_crf(image, part_probabilities(torch.ones_like(object_probability), maps))
    return object_probability * refined / refined.sum(0)


def object_shares(object_probability: Tensor, grid: tuple[int, int]) -> Tensor:
    """The share of each cell of a grid that is object: where its probability is 1/2 or more.

    Parameters
    ----------
    object_probability : Tensor, (1, H, W)
    grid : (h, w)
        In cells.

    Returns
    -------
    Tensor, (h · w,)
        Row-major, as rows of A.
    """
    mask = (object_probability >= 0.5).float()
    return functional.adaptive_avg_pool2d(mask, grid).flatten()


def fills_frame(separation: float) -> bool:
    """Whether the objects of a set fill the frame, for which :func:`factorize_filled` is.

    The separation was 0.17 to 0.32 on eight classes of VOC 2007 and 0.21 on the cars of Car Parts;
    on crops that leave out a tenth of their boxes at each side 0.05 to 0.08, on the boxes
    themselves, whose corners show surroundings, 0.08 to 0.18 (EfficientNet-Lite0). On such crops
    of Car Parts factor quality, mean over k = 2 to 6, was 0.22 inside the object and 0.36 on all
    cells; on its boxes, which are taken not to fill the frame (0.13), 0.31 and 0.36.

    Parameters
    ----------
    separation : float
        `deepff.foreground.BorderContrast.separation` of the coarser layer of `contrast_layers`.
    """
    return separation < MIN_SEPARATION


def part_layer(backbone: Backbone, size: int = 448) -> Layer:
    """The layer whose activations tell parts apart.

    Of the stage and stride of the coarser of :func:`deepff.foreground.contrast_layers` the last map
    that is nowhere negative, depthwise ones included: ``blocks.6.0.bn2`` of EfficientNet-Lite0,
    ``conv5_4`` of VGG-19, ``layer4`` of ResNet-101.
    """
    _, coarser = contrast_layers(backbone, size)
    stage = coarser.path.partition(".")[0]
    return [
        layer
        for layer in list_layers(backbone, size)
        if layer.non_negative
        and layer.stride == coarser.stride
        and layer.path.partition(".")[0] == stage
    ][-1]


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
