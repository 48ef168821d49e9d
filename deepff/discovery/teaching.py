"""What the masks of a set teach: the pixel classifier of the object, or of its parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from deepff.activations.activations import Activations, sources_of
from deepff.discovery.activation_set import ActivationSet
from deepff.discovery.arguments import RunSettings
from deepff.errors import InputError
from deepff.layers.pixel_layers import cell_layer
from deepff.networks.backbone import Backbone
from deepff.options import BATCH_SIZE, Device, Threshold
from deepff.regions.dense_crf import (
    CrfKernels,
    photo_kernels,
    refined_by_kernels,
    refined_densely,
    refined_parts,
)
from deepff.regions.pixel_classifier import (
    CellSample,
    classes_by_kernels,
    fit_logistic,
    fit_pixel_classifier,
    label_confidence,
    sample_cells,
)
from deepff.regions.probabilities import refined_masks, without_holes
from deepff.regions.thresholds import thresholds
from deepff.results.classifier import PixelClassifier, interpolated, unit_rows
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run
from deepff.results.sampling import cell_means
from deepff.runtime.distributed import rows_before
from deepff.runtime.progress import track

# Mean-field iterations while it is taught, fewer than for masks that are shown.
_TEACHING_ITERATIONS = 3
_OBJECT_ROUNDS, _PART_ROUNDS = 3, 2
# How much all cells of images that somebody has looked at count, in relation to the sampled cells
# of the others.
_CERTAIN = 1.0

# From the index of an image on this rank to its maps, (k, h, w) or (h, w).
Maps = Callable[[int], Tensor]


@dataclass(frozen=True)
class Cells:
    """The cells of a set that are classified, for the object and for its parts."""

    activations: Sequence[Activations]  # of pixel_layers, for this rank's images
    sample: CellSample  # those that are fitted
    progress: bool

    @classmethod
    def of(cls, activations: Sequence[Activations], progress: bool = False) -> "Cells":
        """The cells of the layers of these activations."""
        return cls(activations, sample_cells(activations, sources_of(activations)), progress)

    def kernels(self, index: int) -> CrfKernels:
        """The dense CRF's, of an image of this rank."""
        layer = self.activations[cell_layer(self.sample.sources)]
        return photo_kernels(layer.images[index], layer.blocks[0].device)


@dataclass(frozen=True)
class _Lesson:
    """What teaches a classifier."""

    first: Maps  # the classes' probabilities before anything is taught
    doubt: Maps  # as fit_pixel_classifier takes it
    rounds: int


def classify_object(factorization: Factorization, cells: Cells) -> Factorization:
    """The object with the pixel classifier that its masks teach.

    It is returned without one if the masks tell nothing apart. Over several ranks its maps are of
    all their images.
    """
    return _classified(factorization, _object_lesson(factorization, cells), cells)


def classify_parts(
    parts: Mapping[int, Factorization], whole: Factorization | None, cells: Cells
) -> dict[int, Factorization]:
    """Parts, by k, with the pixel classifiers that their masks teach: one class per part.

    ``whole`` is the object; None where it fills the frame.
    """
    of_object = None if whole is None else _object_lesson(whole, cells)
    # The same for every k.
    object_labels = None if of_object is None else cache(of_object.first)

    def lesson(shares: HeatMaps) -> _Lesson:
        def first(index: int) -> Tensor:
            kernels = cells.kernels(index)
            if object_labels is None:
                return refined_by_kernels(kernels, shares.covering(index)[None])[0]
            return refined_parts(kernels, object_labels(index), shares.covering(index))

        def doubt(index: int) -> Tensor:
            return shares.covering(index).sum(0) if of_object is None else of_object.doubt(index)

        return _Lesson(first, doubt, _PART_ROUNDS)

    return {k: _classified(part, lesson(part.heatmaps), cells) for k, part in parts.items()}


def _object_lesson(factorization: Factorization, cells: Cells) -> _Lesson:
    """By the recipe's masks from the object's map."""
    before, _ = rows_before(len(cells.activations[0].images))
    heatmaps = factorization.heatmaps

    def first(index: int) -> Tensor:
        kernels = cells.kernels(index)
        maps = heatmaps.normalized(before + index, kernels.shape)
        limit = thresholds([maps], Threshold.OTSU)[0]
        return without_holes(refined_densely(kernels, maps[None], limit)[0])

    return _Lesson(first, lambda index: heatmaps.normalized(before + index)[0], _OBJECT_ROUNDS)


def _classified(factorization: Factorization, lesson: _Lesson, cells: Cells) -> Factorization:
    n_labels = lesson.rounds * len(cells.sample.cell_indices)
    with track("classifier", n_labels, enabled=cells.progress) as advance:

        def labels(index: int, last: Tensor | None) -> Tensor:
            if last is None:
                probabilities = lesson.first(index)
            else:
                kernels = cells.kernels(index)
                refined = classes_by_kernels(kernels, last, _TEACHING_ITERATIONS)
                probabilities = without_holes(refined)
            advance(1)
            return refined_masks(probabilities).float()

        classifier = fit_pixel_classifier(
            cells.activations,
            cells.sample,
            factorization.heatmaps.n_factors,
            labels,
            lesson.doubt,
            rounds=lesson.rounds,
        )
    if classifier is None:
        return factorization
    maps = classifier.heatmaps(cells.activations)
    return replace(factorization, classifier=classifier, probabilities=maps)


def teach_object(
    whole: Run,
    masks: Mapping[str, np.ndarray],
    *,
    model: nn.Module | Backbone | None = None,
    batch_size: int = BATCH_SIZE,
    device: str = Device.AUTO,
    progress: bool = False,
) -> dict[str, Tensor]:
    """Fit the object's classifier again, with some images' masks as certain.

    One logistic regression on cells of the whole set: all cells of the images in ``masks``, labeled
    by their masks, (H, W) bool by image name; a sample of the others, labeled by the classifier
    that the object has. The former together count as much as the latter. Returns how likely each
    cell is the object now, (h, w) by name, for the images that could be read.
    """
    factorization = whole.factorization(1)
    if factorization.classifier is None or factorization.probabilities is None:
        raise InputError("the object has no pixel classifier that could be taught")
    if not masks.keys() & set(whole.names):
        raise InputError("no mask of an image of the set was given to teach by")
    sources = factorization.classifier.sources
    settings = RunSettings(
        batch_size=batch_size, cache=whole.cache, device=device, progress=progress
    )
    images = [image.item for image in whole.images]
    activation_set = ActivationSet.prepared_as(sources, images, settings, model)
    activations = list(activation_set.activations.values())
    sample = sample_cells(activations, sources)
    records = activations[cell_layer(sources)].images
    set_index = {name: index for index, name in enumerate(whole.names)}
    certain: list[_Cells] = []
    others: list[_Cells] = []
    for index, image in enumerate(records):
        if image.name in masks:
            mask = torch.from_numpy(masks[image.name])[None].to(sample.features)
            shares = cell_means(mask, image.grid, image.extent)
            features = _features(activations, index, sample)
            certain.append((features, shares.flatten(), label_confidence(shares).flatten()))
        elif index in sample.cell_indices:
            shares = factorization.probabilities.grid(set_index[image.name]).to(sample.features)
            drawn = sample.cell_indices[index].to(shares.device)
            features = _features(activations, index, sample)[drawn]
            confidence = label_confidence(shares)
            others.append((features, shares.flatten()[drawn], confidence.flatten()[drawn]))
    parameters = _fitted(certain, others)
    if parameters is None:
        raise InputError("the masks to teach by have no object, or nothing but object, in them")
    maps = PixelClassifier(*sample.whole(parameters), sources).heatmaps(activations)
    return {image.name: maps.grid(index)[0] for index, image in enumerate(records)}


# Of an image's cells: features (m, d), shares of the object and how much they count, (m,) each.
_Cells = tuple[Tensor, Tensor, Tensor]


def _features(activations: Sequence[Activations], index: int, sample: CellSample) -> Tensor:
    """All cells of an image as the sample has them, (cells, d)."""
    image = activations[cell_layer(sample.sources)].images[index]
    by_layer = [
        interpolated(
            (unit_rows(layer.image_rows[index]) - mean) @ basis, layer.images[index], image
        )
        for layer, mean, basis in zip(activations, sample.means, sample.bases, strict=True)
    ]
    return torch.cat(by_layer).flatten(1).T


def _fitted(certain: Sequence[_Cells], others: Sequence[_Cells]) -> Tensor | None:
    features, shares, confidence = (torch.cat(x) for x in zip(*certain, *others, strict=True))
    n_certain = sum(len(shares) for _, shares, _ in certain)
    if others:
        ratio = confidence[n_certain:].sum() / confidence[:n_certain].sum()
        confidence[:n_certain] *= _CERTAIN * ratio
    return fit_logistic(features, shares[:, None], confidence)
