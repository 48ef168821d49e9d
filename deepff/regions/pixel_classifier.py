"""What an image set teaches itself: a linear classifier of cells, fitted on the set's own masks.

Masks that come from one layer's map miss what the map only half covers. Over a whole set these
errors differ from image to image, while what the object looks like does not; so a classifier with
few weights, fitted on all of the masks at once, is right where many of them are wrong. Its
probabilities, along the edges of the images, are better masks, and it is fitted to these again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import Activations, FeatureSource
from deepff.layers.pixel_layers import cell_layer
from deepff.regions.dense_crf import (
    DENSE_CRF_SIZE,
    CrfKernels,
    crf_kernels,
    mean_field,
    refined_by_kernels,
)
from deepff.results.classifier import PixelClassifier, image_records, interpolated, unit_rows
from deepff.results.sampling import cell_means, covering, sampled
from deepff.runtime.distributed import from_first_rank, gather_rows, rows_before
from deepff.runtime.parallel import in_parallel

_DIMENSIONS = 64  # principal components of each layer
_PENALTY = 1e-3
_ITERATIONS = 40
# The most images and cells of the whole set that are fitted, and the rows of a layer whose
# principal components are taken.
_MAX_IMAGES, _MAX_CELLS, _MAX_ROWS = 50, 20_000, 4_000
# Bytes that labels of one image take while they are made, and a pixel of its photograph.
_CRF_BYTES, _PHOTO_BYTES = 2**26, 16


@dataclass(frozen=True)
class CellSample:
    """The cells that are fitted: on this rank by image, and their features on all ranks."""

    cell_indices: dict[int, Tensor]  # by the image's index on this rank
    features: Tensor  # (cells of all ranks, d): principal components of the layers, concatenated
    means: list[Tensor]  # of each layer, (c,)
    bases: list[Tensor]  # of each layer, (c, d): the features are (x − mean) · basis
    sources: tuple[FeatureSource, ...]

    def whole(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (k, c) and bias (k,) for the layers' channels, from (k, d + 1) for features."""
        *split, bias = parameters.split([*(basis.shape[1] for basis in self.bases), 1], dim=1)
        weights = [part @ basis.T for part, basis in zip(split, self.bases, strict=True)]
        shift = sum(of_layer @ mean for of_layer, mean in zip(weights, self.means, strict=True))
        return torch.cat(weights, dim=1), bias[:, 0] - shift


def fit_pixel_classifier(
    activations: Sequence[Activations],
    sample: CellSample,
    n_classes: int,
    labels: Callable[[int, Tensor | None], Tensor],
    doubts: Callable[[int], Tensor],
    *,
    rounds: int,
) -> PixelClassifier | None:
    """Fit a classifier to the set's labels, and again to what these become by it; None without any.
    ``labels(index, last)`` are each class's shares of an image's pixels, (k, H, W) at any size,
    from the last round's probabilities, (k, h, w), or None. ``doubts(index)`` is how unreliable the
    image's background is, (h, w) in [0, 1]."""
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
            maps = classifier.probabilities([rows[index] for rows in layers], records[index])
            last = covering(maps, image.extent)
        shares = cell_means(labels(index, last), image.grid, image.extent)
        confidence = label_confidence(shares)
        if last is None:
            # What the first labels half cover is left open; worth 0.02 IoU on iCoseg.
            doubt = sampled(doubts(index)[None], image.grid, onto=image.extent)[0].clamp(0, 1)
            confidence = torch.where(shares.sum(0) < 0.5, confidence * (1 - doubt) ** 4, confidence)
        both = torch.cat([shares, confidence[None]]).flatten(1).T
        return both[sample.cell_indices[index].to(both.device)]

    for _ in range(rounds):
        # A rank may have no image of the sample.
        none = sample.features.new_zeros(0, n_classes + 1)
        rows = gather_rows(torch.cat([none, *in_parallel(cell_labels, costs)]))
        parameters = fit_logistic(sample.features, rows[:, :-1], rows[:, -1], parameters)
        if parameters is None:
            break
        classifier = PixelClassifier(*sample.whole(parameters), sample.sources)
    return classifier


def refined_classes(
    image: Tensor, probabilities: Tensor, size: int, by_hand: bool = False
) -> Tensor:
    """A classifier's probabilities (k, h, w) along the edges of an image (3, H, W): (k, H, W)."""
    # At the dense CRF's own size the kernels are those of its maps.
    images = image[None].to(probabilities.device)
    kernels = crf_kernels(images, size, smoothness_sigma=2 * size / DENSE_CRF_SIZE)
    if by_hand:
        # At the other weights small parts vanish: mean IoU of seven parts of cars 0.425 and 0.458.
        unary = functional.interpolate(probabilities[None], kernels.shape, mode="bilinear")
        refined = mean_field(unary, [(1.0, kernels.smoothness), (2.0, kernels.bilateral)], 5)[0]
    else:
        refined = classes_by_kernels(kernels, probabilities)
    return functional.interpolate(refined[None], image.shape[-2:], mode="bilinear")[0]


def classes_by_kernels(kernels: CrfKernels, probabilities: Tensor, n_iter: int = 5) -> Tensor:
    """:func:`refined_classes` by kernels that serve several maps: (k, *kernels.shape)."""
    # Where maps of one layer have a bilateral weight of 5, 8 gave the better masks on iCoseg for
    # one class; for several classes 5 was better on half of the images of Car Parts.
    weight = 8.0 if len(probabilities) == 1 else 5.0
    return refined_by_kernels(kernels, probabilities[None], weight, n_iter)[0]


def label_confidence(shares: Tensor) -> Tensor:
    """By how much the largest share of a cell exceeds the next, (k, h, w) to (h, w), in [0, 1].
    What the shares lack of 1 is the background's; for one class of share y it is |2y − 1|."""
    every = torch.cat([1 - shares.sum(0, keepdim=True), shares])
    first, second = every.topk(2, dim=0).values
    return first - second


def fit_logistic(
    features: Tensor,
    targets: Tensor,
    confidence: Tensor,
    start: Tensor | None = None,
    by_hand: bool = False,
) -> Tensor | None:
    """Minimize Σ c_i · CE(y_i, softmax(0, W x_i + b)) + 10⁻³ · ‖W‖² by L-BFGS, from features (m, d)
    to targets (m, k), shares: W with b as the last column, (k, d + 1), like ``start``; None without
    confidence on object or background. Confidences c of each sum to 1/2; by hand those of each
    class are in proportion to the fourth root of what they were, and the penalty is 10⁻⁴."""
    every = torch.cat([1 - targets.sum(1, keepdim=True), targets], dim=1)
    group = every.argmax(1) if by_hand else (targets.sum(1) > 0.5).long()
    sums = functional.one_hot(group).T.to(confidence) @ confidence
    if sums[0] <= 0 or sums[1:].sum() <= 0:
        return None
    shares = sums**0.25 if by_hand else torch.ones_like(sums)
    of_group = shares / shares.sum() / sums.clamp_min(torch.finfo(sums.dtype).tiny)
    weighted = (confidence * of_group[group])[:, None]
    penalty = _PENALTY / 10 if by_hand else _PENALTY
    with_ones = functional.pad(features, (0, 1), value=1.0)
    if start is None:
        start = torch.zeros(targets.shape[1], with_ones.shape[1], device=features.device)
    parameters = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([parameters], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    @torch.no_grad()
    def loss() -> Tensor:
        logits = functional.pad(with_ones @ parameters.T, (1, 0))
        log_likely = logits.log_softmax(1)
        penalized = functional.pad(parameters[:, :-1], (0, 1))
        wrong = weighted * (log_likely.exp() - every)[:, 1:]
        parameters.grad = wrong.T @ with_ones + 2 * penalty * penalized
        return penalty * penalized.square().sum() - (weighted * every * log_likely).sum()

    optimizer.step(loss)
    return from_first_rank(parameters.detach())


@torch.no_grad()
def sample_cells(
    activations: Sequence[Activations],
    sources: Sequence[FeatureSource],
    most: tuple[int, int] = (_MAX_IMAGES, _MAX_CELLS),
) -> CellSample:
    """Draw images evenly over the set of all ranks, and cells of these, from a fixed seed."""
    cells = cell_layer(sources)
    images = activations[cells].images
    before, total = rows_before(len(images))
    step = max(1, -(-total // most[0]))
    chosen = [index for index in range(len(images)) if (before + index) % step == 0]
    _, n_images = rows_before(len(chosen))
    layers = [layer.image_rows for layer in activations]
    n_each = most[1] // n_images
    cell_indices = {i: _drawn(images[i].n_cells, n_each, seed=before + i) for i in chosen}
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
            projection = (unit_rows(rows[index]) - mean) @ basis
            maps = interpolated(projection, layer.images[index], images[index])
            projected.append(maps.flatten(1).T[cell_indices[index].to(maps.device)])
        means.append(mean)
        bases.append(basis)
        features.append(gather_rows(torch.cat(projected)))
    return CellSample(cell_indices, torch.cat(features, dim=1), means, bases, tuple(sources))


def principal_components(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (c,) of rows (m, c), and a basis (c, d) of their first 64 principal components. It
    is scaled by the standard deviation along the first, so that a penalty falls on what varies
    less."""
    from scipy.linalg import eigh

    mean = rows.mean(0)
    # Not every device has doubles.
    centered = (rows - mean).cpu().double()
    covariance = (centered.T @ centered / len(rows)).numpy()
    c = len(covariance)
    variances, vectors = eigh(covariance, subset_by_index=(max(0, c - _DIMENSIONS), c - 1))
    scale = max(variances[-1], np.finfo(np.float32).tiny) ** 0.5
    return mean, torch.from_numpy(vectors[:, ::-1] / scale).to(mean)


def _drawn(n: int, k: int, seed: int) -> Tensor:
    """At least one and at most k of the numbers below n."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(n, generator=generator)[: max(1, k)]
