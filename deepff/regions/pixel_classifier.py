"""What an image set teaches itself: a linear classifier of cells, fitted on the set's own masks.

Masks that come from one layer's map miss what the map only half covers. Over a whole set these
errors differ from image to image, while what the object looks like does not; so a classifier with
few weights, fitted on all of the masks at once, is right where many of them are wrong. Its
probabilities, along the edges of the images, are better masks, on which it is fitted anew.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import Activations
from deepff.activations.feature_source import FeatureSource
from deepff.layers.pixel_layers import cell_layer
from deepff.regions.dense_crf import (
    DENSE_CRF_SIZE,
    CrfKernels,
    crf_kernels,
    refined_by_kernels,
)
from deepff.regions.guided_crf import as_image_batch
from deepff.results.classifier import PixelClassifier, image_records, interpolated, unit_rows
from deepff.results.sampling import cell_means, covering, sampled
from deepff.runtime.distributed import from_first_rank, gather_rows, rows_before
from deepff.runtime.parallel import in_parallel

_DIMENSIONS = 64  # principal components a layer
_PENALTY = 1e-3
_ITERATIONS = 40
# The most images and cells of the whole set that are fitted, and the rows of a layer whose
# principal components are taken.
_MAX_IMAGES, _MAX_CELLS, _MAX_ROWS = 50, 20_000, 4_000
# What labels of one image take while they are made, and a pixel of its photograph.
_CRF_BYTES, _PHOTO_BYTES = 2**26, 16


@dataclass(frozen=True)
class CellSample:
    """The cells that are fitted, of this rank's images and of all.

    Attributes
    ----------
    cell_indices : dict of int to Tensor
        By the image's index on this rank, which of its cells.
    features : Tensor, (cells of all ranks, d)
        Principal components of the layers, side by side.
    means, bases : list of Tensor, (c,) and (c, d)
        Of each layer, what the features are: (x − mean) · basis.
    sources : tuple of FeatureSource
        The layers.
    """

    cell_indices: dict[int, Tensor]
    features: Tensor
    means: list[Tensor]
    bases: list[Tensor]
    sources: tuple[FeatureSource, ...]

    def whole(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and bias of the features, (k, d + 1), as those of the layers' own channels."""
        *split, bias = parameters.split([*(basis.shape[1] for basis in self.bases), 1], dim=1)
        per_layer = [own @ basis.T for own, basis in zip(split, self.bases, strict=True)]
        shift = sum(own @ mean for own, mean in zip(per_layer, self.means, strict=True))
        return torch.cat(per_layer, dim=1), bias[:, 0] - shift


def fit_pixel_classifier(
    activations: Sequence[Activations],
    sample: CellSample,
    n_classes: int,
    labels: Callable[[int, Tensor | None], Tensor],
    doubts: Callable[[int], Tensor],
    *,
    rounds: int,
) -> PixelClassifier | None:
    """Fit a classifier to the set's own labels, and again to what these become by it.

    Each round is a logistic regression (:func:`fit_logistic`) on a sample of cells. On how many
    ranks the set is spread makes no difference but for rounding.

    Parameters
    ----------
    activations : sequence of Activations
        Of the layers of :func:`deepff.layers.pixel_layers.pixel_layers`, for the same images;
        over several ranks, this rank's.
    sample : CellSample
        Of these layers, by :func:`sample_cells`.
    n_classes : int
        k, without the background.
    labels : callable
        Of the index of an image and the last classifier's probabilities in it, (k, h, w), or None
        in the first round: how much of each pixel is each class, (k, H, W), at any size.
    doubts : callable
        Of the index of an image: a map in [0, 1], (h, w), of how little its background can be
        relied on. In the first round background counts (1 − doubt)⁴, so that what the first labels
        half cover is left open; worth 0.02 IoU on iCoseg.
    rounds : int
        How often to fit.

    Returns
    -------
    PixelClassifier or None
        None where the first labels have no object or no background, and nothing can be told apart.
    """
    cells = cell_layer(sample.sources)
    layers = [layer.image_rows for layer in activations]
    records = image_records(activations)
    indices = list(sample.cell_indices)
    images = activations[cells].images
    costs = [_CRF_BYTES + _PHOTO_BYTES * math.prod(images[index].size) for index in indices]
    classifier: PixelClassifier | None = None
    parameters: Tensor | None = None

    def cell_labels(position: int) -> Tensor:
        """The shares of the classes in the sampled cells of an image, and how much they count."""
        index = indices[position]
        image = images[index]
        last = None
        if classifier is not None:
            found = classifier.probabilities([rows[index] for rows in layers], records[index])
            last = covering(found, image.extent)
        shares = cell_means(labels(index, last), image.grid, image.extent)
        confidence = label_confidence(shares)
        if last is None:
            doubt = sampled(doubts(index)[None], image.grid, onto=image.extent)[0].clamp(0, 1)
            confidence = torch.where(shares.sum(0) < 0.5, confidence * (1 - doubt) ** 4, confidence)
        both = torch.cat([shares, confidence[None]]).flatten(1).T
        return both[sample.cell_indices[index].to(both.device)]

    for _ in range(rounds):
        # A rank may have no image of the sample.
        none = sample.features.new_zeros(0, n_classes + 1)
        found = gather_rows(torch.cat([none, *in_parallel(cell_labels, costs)]))
        parameters = fit_logistic(sample.features, found[:, :-1], found[:, -1], parameters)
        if parameters is None:
            break
        classifier = PixelClassifier(*sample.whole(parameters), sample.sources)
    return classifier


def refined_classes(
    image: Tensor | np.ndarray, probabilities: Tensor, size: int = DENSE_CRF_SIZE
) -> Tensor:
    """A classifier's probabilities along the edges of one image.

    The dense CRF's bilateral weight is 8 here for one class, where maps of one layer have 5: of the
    two it gave the better masks on iCoseg. For several classes it is 5, better on half of the
    images of Car Parts.

    Parameters
    ----------
    image : ndarray uint8 (H, W, 3), or Tensor float (3, H, W) in [0, 1]
    probabilities : Tensor, (k, h, w)
    size : int
        The longer side in pixels that the CRF works at.

    Returns
    -------
    Tensor, (k, H, W)
    """
    images = as_image_batch(image, probabilities)
    found = classes_by_kernels(classes_kernels(images, size), probabilities)
    return functional.interpolate(found[None], images.shape[-2:], mode="bilinear")[0]


def classes_kernels(images: Tensor, size: int) -> CrfKernels:
    """The kernels of :func:`refined_classes`, of images (B, 3, H, W); at the dense CRF's own size
    those of :func:`deepff.regions.dense_crf.dense_crf`.
    """
    return crf_kernels(images, smoothness_sigma=2 * size / DENSE_CRF_SIZE, size=size)


def classes_by_kernels(kernels: CrfKernels, probabilities: Tensor, n_iter: int = 5) -> Tensor:
    """:func:`refined_classes` by kernels that serve several maps: (k, *kernels.shape)."""
    weight = 8.0 if len(probabilities) == 1 else 5.0
    found = refined_by_kernels(kernels, probabilities[None], bilateral_weight=weight, n_iter=n_iter)
    return found[0]


def label_confidence(shares: Tensor) -> Tensor:
    """How far the largest share of a cell exceeds the next, (k, h, w) to (h, w), in [0, 1].

    What the shares lack of 1 is the background's; for one class of share y it is |2y − 1|.
    """
    every = torch.cat([1 - shares.sum(0, keepdim=True), shares])
    first, second = every.topk(2, dim=0).values
    return first - second


def fit_logistic(
    features: Tensor, targets: Tensor, confidence: Tensor, start: Tensor | None = None
) -> Tensor | None:
    """Multinomial logistic regression against the background, whose logit is 0, by L-BFGS.

    Minimises Σ c_i · CE(y_i, softmax(0, W x_i + b)) + 10⁻³ · ‖W‖², where the confidences c of the
    cells that are object, and those of the others, each sum to 1/2.

    Parameters
    ----------
    features : Tensor, (m, d)
    targets : Tensor, (m, k)
        Shares of the classes; what they lack of 1 is the background's.
    confidence : Tensor, (m,)
        How much a cell counts among its own kind; not negative.
    start : Tensor, (k, d + 1), optional
        Where to start from; by default zeros.

    Returns
    -------
    Tensor (k, d + 1), or None
        W, and b in the last column. None where no confidence lies on object, or none on background.
    """
    is_object = targets.sum(1) > 0.5
    on_object, elsewhere = confidence[is_object].sum(), confidence[~is_object].sum()
    if on_object <= 0 or elsewhere <= 0:
        return None
    weighted = (confidence / torch.where(is_object, on_object, elsewhere) / 2)[:, None]
    every = torch.cat([1 - targets.sum(1, keepdim=True), targets], dim=1)
    with_ones = functional.pad(features, (0, 1), value=1.0)
    if start is None:
        start = torch.zeros(targets.shape[1], with_ones.shape[1], device=features.device)
    parameters = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([parameters], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    @torch.no_grad()
    def loss() -> Tensor:
        logits = functional.pad(with_ones @ parameters.T, (1, 0))
        log_likely = logits.log_softmax(1)
        penalised = functional.pad(parameters[:, :-1], (0, 1))
        wrong = weighted * (log_likely.exp() - every)[:, 1:]
        parameters.grad = wrong.T @ with_ones + 2 * _PENALTY * penalised
        return _PENALTY * penalised.square().sum() - (weighted * every * log_likely).sum()

    optimizer.step(loss)
    return from_first_rank(parameters.detach())


def _sampled_images(n_images: int) -> list[int]:
    """Which of this rank's images are fitted: evenly over the set of all ranks, at most 50."""
    before, total = rows_before(n_images)
    step = max(1, -(-total // _MAX_IMAGES))
    return [index for index in range(n_images) if (before + index) % step == 0]


@torch.no_grad()
def sample_cells(
    activations: Sequence[Activations], sources: Sequence[FeatureSource]
) -> CellSample:
    """Draw images evenly over the set of all ranks, and cells of these, from a fixed seed.

    At most 50 images and 20,000 cells.

    Parameters
    ----------
    activations : sequence of Activations
        As for :func:`fit_pixel_classifier`.
    sources : sequence of FeatureSource
        Of the same layers.
    """
    cells = cell_layer(sources)
    images = activations[cells].images
    before, _ = rows_before(len(images))
    chosen = _sampled_images(len(images))
    _, n_images = rows_before(len(chosen))
    layers = [layer.image_rows for layer in activations]
    places = {
        index: _drawn(images[index].n_cells, _MAX_CELLS // n_images, seed=before + index)
        for index in chosen
    }
    means, bases, features = [], [], []
    for layer, rows in zip(activations, layers, strict=True):
        drawn = [
            unit_rows(rows[index][_drawn(len(rows[index]), _MAX_ROWS // n_images, before + index)])
            for index in chosen
        ]
        nothing = layer.blocks[0][:0]
        mean, basis = principal_components(gather_rows(torch.cat([nothing, *drawn])))
        projected = [nothing @ basis]
        for index in chosen:
            own = (unit_rows(rows[index]) - mean) @ basis
            own = interpolated(own, layer.images[index], images[index])
            projected.append(own.flatten(1).T[places[index].to(own.device)])
        means.append(mean)
        bases.append(basis)
        features.append(gather_rows(torch.cat(projected)))
    return CellSample(places, torch.cat(features, dim=1), means, bases, tuple(sources))


def principal_components(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (c,) of rows (m, c), and a basis (c, d) of their first 64 principal components.

    Scaled by the standard deviation along the first, so that a penalty weighs on what varies less.
    """
    from scipy.linalg import eigh

    mean = rows.mean(0)
    # Not every device has doubles.
    centred = (rows - mean).cpu().double()
    covariance = (centred.T @ centred / len(rows)).numpy()
    c = len(covariance)
    variances, vectors = eigh(covariance, subset_by_index=(max(0, c - _DIMENSIONS), c - 1))
    scale = max(variances[-1], np.finfo(np.float32).tiny) ** 0.5
    return mean, torch.from_numpy(vectors[:, ::-1] / scale).to(mean)


def _drawn(n: int, k: int, seed: int) -> Tensor:
    """At least one and at most k of n places."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(n, generator=generator)[: max(1, k)]
