"""What the masks of a set teach: the pixel classifier of the object, or of its parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from deepff.activations.activations import Activations
from deepff.activations.extraction import extract_layers
from deepff.activations.feature_source import FeatureSource
from deepff.errors import InputError
from deepff.layers.layer_map import map_layers
from deepff.layers.pixel_layers import cell_layer
from deepff.networks.backbone import Backbone
from deepff.options import BATCH_SIZE, Device, Threshold
from deepff.regions.dense_crf import CrfKernels, refined_by_kernels, refined_densely
from deepff.regions.pixel_classifier import (
    CellSample,
    classes_by_kernels,
    fit_logistic,
    fit_pixel_classifier,
    label_confidence,
    sample_cells,
)
from deepff.regions.probabilities import refined_masks, without_holes
from deepff.regions.refiners import photo_kernels, refined_parts
from deepff.regions.thresholds import thresholds
from deepff.results.classifier import PixelClassifier, interpolated, unit_rows
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run
from deepff.results.sampling import cell_means
from deepff.runtime.distributed import rows_before
from deepff.runtime.progress import track

# Mean-field iterations once it is taught, fewer than for masks that are shown.
_TEACHING_ITERATIONS = 3

# Rounds of teaching.
_OBJECT_ROUNDS, _PART_ROUNDS = 3, 2

# Of the index of an image on this rank.
Maps = Callable[[int], Tensor]


@dataclass(frozen=True)
class Cells:
    """The cells of a set that are classified, for the object and its parts alike.

    Attributes
    ----------
    activations : sequence of Activations
        Of the layers of :func:`deepff.layers.pixel_layers.pixel_layers`, of this rank's images.
    sample : CellSample
        Those that are fitted.
    progress : bool
        Show progress on standard error.
    """

    activations: Sequence[Activations]
    sample: CellSample
    progress: bool

    @classmethod
    def of(
        cls,
        activations: Sequence[Activations],
        sources: Sequence[FeatureSource],
        progress: bool = False,
    ) -> "Cells":
        """The cells of activations that come from `sources`."""
        return cls(activations, sample_cells(activations, sources), progress)

    def kernels(self, index: int) -> CrfKernels:
        """The dense CRF's, of an image of this rank."""
        layer = self.activations[cell_layer(self.sample.sources)]
        return photo_kernels(layer.images[index], layer.blocks[0].device)


@dataclass(frozen=True)
class _Lesson:
    """What a classifier is taught by.

    Attributes
    ----------
    first : callable
        The probabilities of the classes before anything is taught, (k, h, w).
    doubt : callable
        As :func:`deepff.regions.pixel_classifier.fit_pixel_classifier` takes it.
    rounds : int
    """

    first: Maps
    doubt: Maps
    rounds: int


def classify_object(found: Factorization, cells: Cells) -> Factorization:
    """The object with the pixel classifier that its masks teach.

    Parameters
    ----------
    found : Factorization
        One factor, as :func:`deepff.discovery.contrast.contrast_object` gives it; over several
        ranks of all of their images.
    cells : Cells

    Returns
    -------
    Factorization
        The same, with a classifier, unless its masks tell nothing apart.
    """
    return _classified(found, _object_lesson(found, cells), cells)


def classify_parts(
    found: Mapping[int, Factorization], whole: Factorization | None, cells: Cells
) -> dict[int, Factorization]:
    """Parts with the pixel classifiers that their masks teach: a class a part, and the background.

    Parameters
    ----------
    found : mapping of int to Factorization
        By k, as :func:`deepff.discovery.object_parts.factorize_inside` or, without an object,
        :func:`deepff.discovery.object_parts.factorize_filled` gives them.
    whole : Factorization, optional
        The object, as for :func:`classify_object`.
    cells : Cells

    Returns
    -------
    dict of int to Factorization
        As :func:`classify_object`.
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

    return {k: _classified(own, lesson(own.heatmaps), cells) for k, own in found.items()}


def _object_lesson(found: Factorization, cells: Cells) -> _Lesson:
    """By the recipe's masks from the object's map."""
    before, _ = rows_before(len(cells.activations[0].images))
    heatmaps = found.heatmaps

    def first(index: int) -> Tensor:
        kernels = cells.kernels(index)
        maps = heatmaps.normalized(before + index, kernels.shape)
        limit = thresholds([maps], Threshold.OTSU)[0]
        return without_holes(refined_densely(kernels, maps[None], limit)[0])

    return _Lesson(first, lambda index: heatmaps.normalized(before + index)[0], _OBJECT_ROUNDS)


def _classified(found: Factorization, lesson: _Lesson, cells: Cells) -> Factorization:
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
            found.heatmaps.n_factors,
            labels,
            lesson.doubt,
            rounds=lesson.rounds,
        )
    if classifier is None:
        return found
    maps = classifier.heatmaps(cells.activations)
    return replace(found, classifier=classifier, probabilities=maps)


# Beside all sampled cells of images that nobody has looked at, how much those of the others count.
_CERTAIN = 1.0


def teach_object(
    whole: Run,
    masks: Mapping[str, np.ndarray],
    *,
    model: nn.Module | Backbone | None = None,
    batch_size: int = BATCH_SIZE,
    device: str = Device.AUTO,
    progress: bool = False,
) -> dict[str, Tensor]:
    """Fit the object's classifier anew, with some images' masks as certain.

    One logistic regression (:func:`deepff.regions.pixel_classifier.fit_logistic`) on cells of the
    whole set: of images that somebody has looked at all cells, as their masks say; of the others a
    sample, as the classifier that there is says. Together the former count
    as much as the latter.

    Parameters
    ----------
    whole : Run
        The object, with a classifier.
    masks : mapping of str to ndarray, (H, W) bool
        By an image's name: where the object is, at the image's own size.
    model, batch_size, device, progress
        As for :func:`deepff.discovery.find_object.find_object`.

    Returns
    -------
    dict of str to Tensor, (h, w)
        By name, how likely each cell is the object now, of the images that could be read.

    Raises
    ------
    InputError
        There is no classifier or no such image, the masks tell nothing apart, or the network or
        the images cannot be had any more.
    """
    found = whole.factorization(1)
    if found.classifier is None or found.probabilities is None:
        raise InputError("the object has no pixel classifier that could be taught")
    if not masks.keys() & set(whole.names):
        raise InputError("no mask of an image of the set was given to teach by")
    sources = found.classifier.sources
    activations = _activations(
        whole, sources, model=model, batch_size=batch_size, device=device, progress=progress
    )
    sample = sample_cells(activations, sources)
    images = activations[cell_layer(sources)].images
    places = {name: place for place, name in enumerate(whole.names)}
    certain: list[_Cells] = []
    others: list[_Cells] = []
    for index, image in enumerate(images):
        if image.name in masks:
            mask = torch.from_numpy(masks[image.name])[None].to(sample.features)
            shares = cell_means(mask, image.grid, image.extent)
            features = _features(activations, index, sample)
            certain.append((features, shares.flatten(), label_confidence(shares).flatten()))
        elif index in sample.cell_indices:
            shares = found.probabilities.grid(places[image.name]).to(sample.features)
            drawn = sample.cell_indices[index].to(shares.device)
            features = _features(activations, index, sample)[drawn]
            doubted = label_confidence(shares)
            others.append((features, shares.flatten()[drawn], doubted.flatten()[drawn]))
    parameters = _fitted(certain, others)
    if parameters is None:
        raise InputError("the masks to teach by have no object, or nothing but object, in them")
    maps = PixelClassifier(*sample.whole(parameters), sources).heatmaps(activations)
    return {image.name: maps.grid(index)[0] for index, image in enumerate(images)}


# Of an image's cells: features (m, d), shares of the object and how much they count, (m,) each.
_Cells = tuple[Tensor, Tensor, Tensor]


def _activations(
    whole: Run,
    sources: Sequence[FeatureSource],
    *,
    model: nn.Module | Backbone | None,
    batch_size: int,
    device: str,
    progress: bool,
) -> list[Activations]:
    """Those of the classifier's layers, of the images that can still be read."""
    source = sources[0]
    backbone = source.backbone(model=model, device=device)
    layer_map = map_layers(backbone, source.size)
    extracted, _ = extract_layers(
        [image.item for image in whole.images],
        backbone,
        [own.resolved(layer_map) for own in sources],
        source.preparation(backbone.device),
        batch_size=batch_size,
        cache=whole.cache,
        progress=progress,
    )
    return extracted


def _features(activations: Sequence[Activations], index: int, sample: CellSample) -> Tensor:
    """All cells of an image as the sample has them, (cells, d)."""
    image = activations[cell_layer(sample.sources)].images[index]
    own = [
        interpolated(
            (unit_rows(layer.image_rows[index]) - mean) @ basis, layer.images[index], image
        )
        for layer, mean, basis in zip(activations, sample.means, sample.bases, strict=True)
    ]
    return torch.cat(own).flatten(1).T


def _fitted(certain: Sequence[_Cells], others: Sequence[_Cells]) -> Tensor | None:
    features, shares, confidence = (torch.cat(of) for of in zip(*certain, *others, strict=True))
    n_certain = sum(len(shares) for _, shares, _ in certain)
    if others:
        ratio = confidence[n_certain:].sum() / confidence[:n_certain].sum()
        confidence[:n_certain] *= _CERTAIN * ratio
    return fit_logistic(features, shares[:, None], confidence)
