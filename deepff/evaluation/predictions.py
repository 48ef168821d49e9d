"""What every table needs: activations beside their ground truth, masks of many methods at once."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import Activations
from deepff.activations.extraction import extract_layers
from deepff.activations.feature_source import FeatureSource
from deepff.discovery.contrast import contrast_object
from deepff.discovery.teaching import Cells, classify_object
from deepff.errors import InputError
from deepff.evaluation.datasets import GroundTruthImage, GroundTruthSet
from deepff.evaluation.metrics import Overlaps, count_overlaps
from deepff.layers.centers import with_centers
from deepff.layers.layer import Layer
from deepff.networks.backbone import Backbone
from deepff.options import Threshold
from deepff.regions.guided_crf import guided_crf, refined_masks, without_holes
from deepff.regions.pixel_classifier import classes_by_kernels
from deepff.regions.refine import photo_kernels, refined_densely
from deepff.regions.thresholds import masks, thresholds
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.runtime.parallel import in_parallel

T = TypeVar("T")
U = TypeVar("U")

# What a CRF takes beside the masks of an image.
_CRF_BYTES = 2**26

DFF, DFF_CRF = "DFF", "DFF-CRF"
# The recipe as it is by default: for masks by its classifier, for boxes by the dense CRF.
CONTRAST = "contrast"
CONTRAST_UNREFINED, CONTRAST_CRF = "contrast, unrefined", "contrast, dense CRF"
CONTRAST_CLASSIFIER = "contrast, classifier"


class Variant(NamedTuple):
    """One way to get masks: method, number of factors, seed."""

    method: str
    k: int
    seed: int = 0


@dataclass(frozen=True)
class Network:
    """Where activations come from.

    Attributes
    ----------
    backbone, layer
        What `load_backbone` and `LayerMap.resolve` give. The layer must not be negative anywhere.
    object_layers : sequence of Layer
        Those that the recipe contrast fuses; none where it is left out.
    cell_layers : sequence of Layer
        Those of its pixel classifier; none where it is left out.
    size : int
        The longer side of the resized images, in pixels.
    cache : path or None
        The folder of the activation cache; without it a set's activations are in memory.
    progress : bool
        Show the network's progress on standard error.
    """

    backbone: Backbone
    layer: Layer
    size: int = 448
    cache: Path | None = None
    progress: bool = False
    object_layers: Sequence[Layer] = ()
    cell_layers: Sequence[Layer] = ()

    def __post_init__(self) -> None:
        if not self.layer.non_negative:
            raise InputError(
                f"layer {self.layer.name} of {self.backbone.name} goes down to "
                f"{self.layer.minimum:.3g}, and DFF needs a layer that is never negative: see "
                f"`deepff layers {self.backbone.name}`"
            )

    def describe(self, n_images: int) -> str:
        """One line on network, layer, weights, size and number of images."""
        source = FeatureSource.of(self.backbone, self.layer, self.size, amp=False)
        return (
            f"{source.model}, layer {self.layer.name} ({source.channels} channels, stride "
            f"{source.stride}), weights {source.weights}, longer side {source.size} pixels, "
            f"{n_images} images"
        )


@dataclass(frozen=True)
class Features:
    """Activations of a set and the ground truth of the same images, in the same order.

    With ``object``, the recipe contrast's, where the network has layers for it.
    """

    name: str
    activations: Activations
    truth: tuple[GroundTruthImage, ...]
    part_names: tuple[str, ...]
    object: Factorization | None = None
    beside: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.truth)


def collect(truth: GroundTruthSet, network: Network) -> Features:
    """Run the network over a set; files that cannot be decoded are named and left out.

    Raises
    ------
    InputError
        The set has no image, or none that can be read.
    """
    if not truth.images:
        raise InputError(f"{truth.name} has no images")
    every = (network.layer, *network.object_layers, *network.cell_layers)
    layers = with_centers(
        network.backbone, list({one.path: one for one in every}.values()), network.cache
    )
    extracted, skipped = extract_layers(
        [item.image for item in truth.images],
        network.backbone,
        layers,
        size=network.size,
        cache=network.cache,
        progress=network.progress,
    )
    for file in skipped:
        to_stderr(f"{truth.name}: skipped {file.name} ({file.reason})")
    by_name = {item.image.name: item for item in truth.images}
    kept = tuple(by_name[image.name] for image in extracted[0].images)
    by_path = {x.path: found for x, found in zip(layers, extracted, strict=True)}
    found = None
    if network.object_layers:
        found, _ = contrast_object([by_path[x.path] for x in network.object_layers])
    if found is not None and network.cell_layers:
        coarsest_stride = max(layer.stride for layer in layers)
        placed = {layer.path: layer for layer in layers}
        sources = [
            FeatureSource.of(
                network.backbone,
                placed[x.path],
                network.size,
                multiple=coarsest_stride,
                engine=extracted[0].engine,
            )
            for x in network.cell_layers
        ]
        of_cells = [by_path[x.path] for x in network.cell_layers]
        found = classify_object(found, Cells.of(of_cells, sources, network.progress))
    return Features(truth.name, extracted[0], kept, truth.part_names, found, truth.beside)


def image_masks(
    features: Features, coefficients: Mapping[Variant, Tensor], crf: bool
) -> Iterator[dict[Variant, Tensor]]:
    """Masks of all methods, image by image, by the paper's rule: the 75th percentile over the set.

    Parameters
    ----------
    features : Features
    coefficients : mapping
        Each method's H, (rows, k), k of its own.
    crf : bool
        Add DFF-CRF after each DFF.

    Yields
    ------
    dict of Variant to bool Tensor (k, H, W)
        Factors of DFF-CRF do not overlap, others may.
    """
    return in_images(features, coefficients, crf, lambda index, masks, maps: masks)


# Of an image's index, its masks by variant, and the maps of those that may overlap, each relative
# to its maximum over the set.
Work = Callable[[int, dict[Variant, Tensor], dict[Variant, Tensor]], T]


def in_images(
    features: Features, coefficients: Mapping[Variant, Tensor], crf: bool, work: Work[T]
) -> Iterator[T]:
    """What work makes of each image's masks; several images at once, one a core.

    Parameters
    ----------
    features, coefficients, crf
        As for :func:`image_masks`.
    work : callable
        Of the image's index, its masks as :func:`image_masks` gives them, and their maps (k, H, W),
        relative to the factors' maxima over the set, without those of DFF-CRF.
    """
    images = features.activations.images
    widths = [h.shape[1] for h in coefficients.values()]
    maps = HeatMaps.of_images(torch.cat(list(coefficients.values()), dim=1), images)
    limits = thresholds(maps)[0]
    crf_limits = (limits / maps.scale).split(widths)

    def done(index: int) -> T:
        upsampled = maps[index]
        plain = masks(upsampled, limits).split(widths)
        photo = images[index].read() if crf else None
        normalized = maps.normalized(index).split(widths)
        found = {}
        for variant, own, grid, limit in zip(
            coefficients, plain, normalized, crf_limits, strict=True
        ):
            found[variant] = own
            if photo is not None and variant.method == DFF:
                refined = refined_masks(guided_crf(photo, grid, limit))
                found[variant._replace(method=DFF_CRF)] = refined
        relative = (upsampled / maps.scale[:, None, None]).split(widths)
        return work(index, found, dict(zip(coefficients, relative, strict=True)))

    bytes_a_pixel = 16 * sum(widths)
    costs = [_CRF_BYTES + bytes_a_pixel * math.prod(image.size) for image in images]
    return in_parallel(done, costs)


def contrast_masks(
    features: Features, crf: bool, for_boxes: bool = False
) -> Iterator[dict[Variant, Tensor]]:
    """The object's mask by the recipe contrast, image by image: bool (1, H, W) each.

    With ``crf`` also refined by dense CRF and by the classifier; which of the two is the recipe's
    own way depends on ``for_boxes``. Nothing where the features have no object.
    """
    images = features.activations.images
    if features.object is None:
        return iter([{} for _ in images])
    maps, classified = features.object.heatmaps, features.object.probabilities
    limits = thresholds(maps, Threshold.OTSU_IMAGE)
    by_default = for_boxes or classified is None
    by_crf = Variant(CONTRAST if by_default else CONTRAST_CRF, 1)
    by_classifier = Variant(CONTRAST_CLASSIFIER if by_default else CONTRAST, 1)

    def found(index: int) -> dict[Variant, Tensor]:
        own = {Variant(CONTRAST_UNREFINED, 1): masks(maps[index], limits[index])}
        if not crf:
            return own
        size = images[index].size
        kernels = photo_kernels(images[index], limits.device)

        def finished(probabilities: Tensor) -> Tensor:
            full = functional.interpolate(probabilities, size, mode="bilinear")[0]
            return refined_masks(without_holes(full))

        limit = limits[index] / maps.scale
        own[by_crf] = finished(refined_densely(kernels, maps.normalized(index)[None], limit))
        if classified is not None:
            probabilities = classes_by_kernels(kernels, classified.covering(index))
            own[by_classifier] = finished(probabilities[None])
        return own

    return in_parallel(found, [_CRF_BYTES + 16 * math.prod(image.size) for image in images])


def count_by_variant(
    masks_of_images: Iterable[Mapping[Variant, Tensor]], features: Features
) -> dict[Variant, Overlaps]:
    """Pixel counts of each method's masks against the set's labels, in one pass over the images."""
    widths: dict[Variant, int] = {}

    def stacked() -> Iterator[tuple[Tensor, np.ndarray]]:
        for found, item in zip(masks_of_images, features.truth, strict=True):
            widths.update({variant: len(own) for variant, own in found.items()})
            yield torch.cat(list(found.values())), item.labels()

    total = count_overlaps(stacked(), len(features.part_names))
    counts, first = {}, 0
    for variant, width in widths.items():
        rows = slice(first, first + width)
        counts[variant] = Overlaps(total.intersection[rows], total.predicted[rows], total.truth)
        first += width
    return counts


def attempt(
    label: str,
    job: Callable[[], T],
    failures: dict[str, str],
    report: Callable[[str], None],
) -> T | None:
    """Do one class or group; where it fails, say so, note it in `failures` and return None.

    Whatever the cause: hours of other classes should not be lost to one.
    """
    started = time.perf_counter()
    try:
        outcome = job()
    except Exception as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        reason = f"{kind}{error}"
        told_before = reason in failures.values()
        failures[label] = reason
        report(f"{label} failed{' for the same reason' if told_before else f': {reason}'}")
        return None
    report(f"{label}: {time.perf_counter() - started:.0f} s")
    return outcome


def read_each(outcomes: Mapping[str, T | None], read: Callable[[T], U | None]) -> list[U | None]:
    """What `read` makes of each outcome, None where there is none."""
    return [None if outcome is None else read(outcome) for outcome in outcomes.values()]


def require_success(outcomes: Mapping[str, object | None], failures: Mapping[str, str]) -> None:
    """Raise InputError with the first failure if nothing succeeded."""
    if not outcomes:
        raise InputError("there is nothing to evaluate: name a class or group")
    if all(outcome is None for outcome in outcomes.values()):
        label, reason = next(iter(failures.items()))
        alike = len(failures) > 1 == len(set(failures.values()))
        whole = "" if alike else f"; the first, {label}, failed"
        raise InputError(f"nothing could be evaluated{whole}: {reason}")


def failure_notes(failures: Mapping[str, str]) -> list[str]:
    """A note on each class or group that failed."""
    return [f"**{label} failed**: {reason}" for label, reason in failures.items()]


def to_stderr(message: str) -> None:
    """Print a message as the command line does."""
    print(f"deepff: {message}", file=sys.stderr)
