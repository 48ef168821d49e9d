"""What the masks of a set teach: the pixel classifier of the object, its parts, or any classes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from deepff.activations.activations import Activations, FeatureSource, ImageRecord, sources_of
from deepff.discovery.activation_set import ActivationSet
from deepff.discovery.arguments import RunSettings
from deepff.errors import InputError
from deepff.images.image_set import ImageItem, SetImage
from deepff.layers.layer_map import map_layers
from deepff.layers.pixel_layers import cell_layer, pixel_layers
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
from deepff.results.classifier import PixelClassifier
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run
from deepff.results.sampling import cell_means, sampled
from deepff.runtime.distributed import rows_before
from deepff.runtime.progress import track

# Mean-field iterations while it is taught, fewer than for masks that are shown.
_TEACHING_ITERATIONS = 3
_OBJECT_ROUNDS, _PART_ROUNDS = 3, 2
# What shows classes of any size: cells of this stride.
_FINEST = 4
# At most so many images with masks, and without, of which all have some of so many cells.
_MAX_LESSON, _TAUGHT_BY = 25, (75, 60_000)
_AT_ONCE = 32  # images whose activations are held

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
    """The object with the pixel classifier that its masks teach, if any."""
    return _classified(factorization, _object_lesson(factorization, cells), cells)


def classify_parts(
    parts: Mapping[int, Factorization], whole: Factorization | None, cells: Cells
) -> dict[int, Factorization]:
    """Parts, by k, with the pixel classifiers that their masks, in ``whole`` if any, teach."""
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


@dataclass(frozen=True)
class _Mirrored:
    """Images, mirrored when they are read."""

    images: Sequence[ImageRecord]

    def __getitem__(self, index: int) -> np.ndarray:
        return np.ascontiguousarray(self.images[index].read()[:, ::-1])


def teach(
    run: Run,
    masks: Mapping[str, np.ndarray],
    n_classes: int,
    likely: HeatMaps | None = None,
    sources: Sequence[FeatureSource] = (),
    *,
    model: nn.Module | Backbone | None = None,
    batch_size: int = BATCH_SIZE,
    device: str = Device.AUTO,
) -> PixelClassifier:
    """Fit a classifier of any classes to masks of some images, and to their mirror images.
    ``masks`` are label maps (H, W) by image name: 0 is the background, c + 1 class c. ``likely``,
    the classes' probabilities in the run, count as much in other images. ``sources`` are the layers
    where another classifier of the object is taught again."""
    taught = _some([image for image in run.images if image.name in masks])
    if not taught:
        raise InputError(
            "none of the masks belongs to an image of the set; pass masks of its images"
        )
    others = [] if likely is None else _some([i for i in run.images if i.name not in masks])
    items = [image.item for image in [*taught, *others]]
    labels: dict[str, np.ndarray] = {}
    for index, image in enumerate(taught):
        items.append(ImageItem(_Mirrored(taught), index, f"{image.name} mirrored"))
        labels |= {image.name: masks[image.name], items[-1].name: masks[image.name][:, ::-1].copy()}
    source = [*sources, *run.sources][0]
    backbone = source.backbone(model=model, device=device)
    preparation = vars(source.preparation(backbone.device))
    settings = RunSettings(batch_size=batch_size, device=device, **preparation)
    if sources:
        activation_set = ActivationSet.prepared_as(sources, items, settings, backbone)
    else:
        layers = pixel_layers(map_layers(backbone, source.size), _FINEST)
        activation_set = ActivationSet.extracted(items, backbone, layers, settings)
    activations = list(activation_set.activations.values())
    sample = sample_cells(activations, sources_of(activations), _TAUGHT_BY)
    set_index = {name: index for index, name in enumerate(run.names)}
    rows, is_certain = [], []
    for index, drawn in sample.cell_indices.items():
        image = activations[cell_layer(sample.sources)].images[index]
        if image.name in labels:
            values = torch.tensor(labels[image.name]).to(sample.features.device)
            each = [(values == c + 1)[None].float() for c in range(n_classes)]
            shares = torch.cat([cell_means(one, image.grid, image.extent) for one in each])
        else:
            assert likely is not None
            number = set_index[image.name]
            before, extent = likely.grid(number).to(sample.features), likely.extents[number]
            shares = sampled(before, image.grid, extent, image.extent)
        with_confidence = torch.cat([shares, label_confidence(shares)[None]])
        rows.append(with_confidence.flatten(1).T[drawn.to(shares.device)])
        is_certain += [image.name in labels] * len(drawn)
    targets, certain = torch.cat(rows), torch.tensor(is_certain).to(sample.features.device)
    confidence = targets[:, -1]
    if others:
        confidence[certain] *= confidence[~certain].sum() / confidence[certain].sum()
    parameters = fit_logistic(sample.features, targets[:, :-1], confidence, by_hand=not sources)
    if parameters is None:
        raise InputError("the masks have no class or no background; pass masks that show both")
    return PixelClassifier(*sample.whole(parameters), sample.sources, by_hand=not sources)


def _some(images: Sequence[ImageRecord]) -> Sequence[ImageRecord]:
    """The images, evenly thinned where they are many."""
    return images[:: max(1, -(-len(images) // _MAX_LESSON))]


def classified(
    classifier: PixelClassifier,
    images: Sequence[SetImage],
    *,
    model: nn.Module | Backbone | None = None,
    device: str = Device.AUTO,
) -> dict[str, Tensor]:
    """How likely each cell of images is each class, (k, h, w) by name, a few images at a time."""
    backbone = classifier.sources[0].backbone(model=model, device=device)
    maps: dict[str, Tensor] = {}
    layer = cell_layer(classifier.sources)
    with track("lesson", len(images)) as advance:
        for first in range(0, len(images), _AT_ONCE):
            some = images[first : first + _AT_ONCE]
            of_some = ActivationSet.prepared_as(classifier.sources, some, RunSettings(), backbone)
            activations = list(of_some.activations.values())
            likely = classifier.heatmaps(activations)
            for index, image in enumerate(activations[layer].images):
                cells = likely.grid(index)
                if classifier.by_hand:
                    cells = sampled(cells, image.grid, image.extent)
                maps[image.name] = cells
            advance(len(some))
    return maps
