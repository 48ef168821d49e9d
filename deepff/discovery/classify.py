"""What the masks of a set teach: the pixel classifier of the object, or of its parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from torch import Tensor

from deepff.features.activations import Activations
from deepff.features.pixel_layers import cell_layer
from deepff.features.source import FeatureSource
from deepff.options import Threshold
from deepff.regions.dense_crf import CrfKernels, refined_by_kernels
from deepff.regions.guided_crf import refined_masks, without_holes
from deepff.regions.parts import refined_parts
from deepff.regions.pixel_classifier import (
    CellSample,
    classes_by_kernels,
    fit_pixel_classifier,
    sample_cells,
)
from deepff.regions.refine import photo_kernels, refined_densely
from deepff.regions.thresholds import thresholds
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
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
        Of the layers of :func:`deepff.features.pixel_layers.pixel_layers`, of this rank's images.
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
    n_labels = lesson.rounds * len(cells.sample.places)
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
    return replace(found, classifier=classifier, classified=maps)
