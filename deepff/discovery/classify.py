"""What the masks of a set teach: the pixel classifier of the object, or of its parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from torch import Tensor

from deepff.features.activations import Activations, ImageRecord
from deepff.features.pixel_layers import cell_layer
from deepff.features.source import FeatureSource
from deepff.options import Refinement, Threshold
from deepff.regions.dense_crf import DENSE_CRF_SIZE, dense_crf
from deepff.regions.guided_crf import refined_masks, without_holes
from deepff.regions.parts import refined_parts
from deepff.regions.pixel_classifier import (
    fit_pixel_classifier,
    refined_classes,
    sampled_images,
)
from deepff.regions.refine import photo_of, refined
from deepff.regions.thresholds import thresholds
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.runtime.distributed import rows_before
from deepff.runtime.progress import track

# Pixels. Once it is taught, a quarter of the time is enough: cells of stride 8 need no finer masks.
# The first masks do: the object's IoU on the worst of twelve iCoseg groups fell by 0.013.
_TEACHING_SIZE = 128

# Rounds of teaching.
_OBJECT_ROUNDS, _PART_ROUNDS = 3, 2

# Of the index of an image on this rank.
Maps = Callable[[int], Tensor]


@dataclass(frozen=True)
class _Lesson:
    """What a classifier is taught by.

    Attributes
    ----------
    photo : callable
        The photograph, (3, H, W) in [0, 1].
    first : callable
        The probabilities of the classes before anything is taught, (k, H, W).
    doubt : callable
        As :func:`deepff.regions.pixel_classifier.fit_pixel_classifier` takes it.
    rounds : int
    """

    photo: Maps
    first: Maps
    doubt: Maps
    rounds: int


def classify_object(
    found: Factorization,
    activations: Sequence[Activations],
    sources: Sequence[FeatureSource],
    progress: bool = False,
) -> Factorization:
    """The object with the pixel classifier that its masks teach.

    Parameters
    ----------
    found : Factorization
        One factor, as :func:`deepff.discovery.contrast.contrast_object` gives it; over several
        ranks of all of their images.
    activations : sequence of Activations
        Of the layers of :func:`deepff.features.pixel_layers.pixel_layers`, of this rank's images.
    sources : sequence of FeatureSource
        Of these layers.
    progress : bool
        Show progress on standard error.

    Returns
    -------
    Factorization
        The same, with a classifier, unless its masks tell nothing apart.
    """
    lesson = _object_lesson(found, activations[cell_layer(sources)].images)
    return _classified(found, lesson, activations, sources, progress)


def classify_parts(
    found: Mapping[int, Factorization],
    whole: Factorization | None,
    activations: Sequence[Activations],
    sources: Sequence[FeatureSource],
    progress: bool = False,
) -> dict[int, Factorization]:
    """Parts with the pixel classifiers that their masks teach: a class a part, and the background.

    Parameters
    ----------
    found : mapping of int to Factorization
        By k, as :func:`deepff.discovery.object_parts.factorize_inside` or, without an object,
        :func:`deepff.discovery.object_parts.factorize_filled` gives them.
    whole : Factorization, optional
        The object, as for :func:`classify_object`.
    activations, sources, progress
        As for :func:`classify_object`.

    Returns
    -------
    dict of int to Factorization
        As :func:`classify_object`.
    """
    images = activations[cell_layer(sources)].images
    of_object = None if whole is None else _object_lesson(whole, images)
    photo = _photos(images) if of_object is None else of_object.photo
    # The same for every k.
    object_labels = None if of_object is None else cache(of_object.first)

    def lesson(shares: HeatMaps) -> _Lesson:
        def first(index: int) -> Tensor:
            if object_labels is None:
                return dense_crf(photo(index), shares.grid(index))
            return refined_parts(photo(index), object_labels(index), shares.grid(index))

        def doubt(index: int) -> Tensor:
            return shares.grid(index).sum(0) if of_object is None else of_object.doubt(index)

        return _Lesson(photo, first, doubt, _PART_ROUNDS)

    return {
        k: _classified(own, lesson(own.heatmaps), activations, sources, progress)
        for k, own in found.items()
    }


def _object_lesson(found: Factorization, images: Sequence[ImageRecord]) -> _Lesson:
    """By the recipe's masks from the object's map."""
    photo = _photos(images)
    before, _ = rows_before(len(images))
    heatmaps = found.heatmaps

    def first(index: int) -> Tensor:
        image = photo(index)
        shape = image.shape[-2], image.shape[-1]
        maps = heatmaps.normalized(before + index, shape)
        limit = thresholds([maps], Threshold.OTSU)[0]
        return refined(image, maps, limit, Refinement.DENSE_CRF)

    return _Lesson(
        photo, first, lambda index: heatmaps.normalized(before + index)[0], _OBJECT_ROUNDS
    )


def _classified(
    found: Factorization,
    lesson: _Lesson,
    activations: Sequence[Activations],
    sources: Sequence[FeatureSource],
    progress: bool,
) -> Factorization:
    n_images = len(sampled_images(len(activations[0].images)))
    with track("classifier", lesson.rounds * n_images, enabled=progress) as advance:

        def labels(index: int, last: Tensor | None) -> Tensor:
            probabilities = (
                lesson.first(index)
                if last is None
                else without_holes(refined_classes(lesson.photo(index), last, _TEACHING_SIZE))
            )
            advance(1)
            return refined_masks(probabilities).float()

        n_classes = found.heatmaps.n_factors
        classifier = fit_pixel_classifier(
            activations, sources, n_classes, labels, lesson.doubt, rounds=lesson.rounds
        )
    if classifier is None:
        return found
    return replace(found, classifier=classifier, classified=classifier.heatmaps(activations))


def _photos(images: Sequence[ImageRecord]) -> Maps:
    """What gives the photographs of a rank at the dense CRF's size, each read once."""

    @cache
    def reduced(index: int) -> Tensor:
        return (photo_of(images[index], DENSE_CRF_SIZE) * 255).round().byte()

    return lambda index: reduced(index).float() / 255
