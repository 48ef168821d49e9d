"""What each method says about a set: activations, coefficients H, and masks image by image.

Every method gives H (rows, k), with one column per map, and all become masks in the same way: maps
at the image's size, for DFF-CRF refined, and the 75th percentile over the set. Only the guided CRF
and the recipe contrast have masks of other kinds.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import Activations, FeatureSource, Preparation
from deepff.discovery.activation_set import ActivationSet
from deepff.discovery.arguments import Estimators, RunSettings
from deepff.discovery.contrast import contrast_layers, object_findings
from deepff.discovery.teaching import Cells, classify_object
from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import GroundTruthSet
from deepff.evaluation.metrics import Overlaps, count_overlaps
from deepff.evaluation.tables import to_stderr
from deepff.factorization import METHODS
from deepff.factorization.nmf import NMF
from deepff.layers.layer import Layer
from deepff.layers.layer_map import map_layers
from deepff.layers.pixel_layers import pixel_layers
from deepff.networks.backbone import Backbone
from deepff.options import SIZE, Method, Solver, Threshold
from deepff.regions.dense_crf import photo_kernels, refined_densely
from deepff.regions.guided_crf import guided_crf, refined_maps
from deepff.regions.pixel_classifier import classes_by_kernels
from deepff.regions.probabilities import refined_masks, without_holes
from deepff.regions.thresholds import masks, thresholds
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.runtime.parallel import in_parallel

T = TypeVar("T")
K = TypeVar("K")

# What a CRF takes in addition to the masks of an image.
_CRF_BYTES = 2**26

DFF, DFF_CRF, GUIDED_CRF = "DFF", "DFF-CRF", "DFF, guided CRF"
# The recipe with its defaults: for masks by its classifier, for boxes by the dense CRF.
CONTRAST = "contrast"
CONTRAST_UNREFINED, CONTRAST_CRF = "contrast, unrefined", "contrast, dense CRF"
CONTRAST_CLASSIFIER = "contrast, classifier"

FACTORIZATIONS = {DFF: "nmf", "PCA": "pca", "k-means": "kmeans"}
SOLVERS_IN_WORDS = {"hals": "HALS", "mu": "the paper's multiplicative updates"}


class Variant(NamedTuple):
    """One way to get masks: method, number of factors, seed."""

    method: str
    k: int
    seed: int = 0


@dataclass(frozen=True)
class Network:
    """Where activations come from, and how they are factorized. The layer is never negative."""

    backbone: Backbone
    layer: Layer
    size: int = SIZE  # the longer side of the resized images, in pixels
    cache: Path | None = None  # of activations; without it a set's are in memory
    solver: str = Solver.HALS
    # Those that the recipe contrast fuses, and those of its pixel classifier; none to leave it out.
    object_layers: Sequence[Layer] = ()
    cell_layers: Sequence[Layer] = ()

    @classmethod
    def of(
        cls,
        backbone: Backbone,
        layer: str | None = None,
        size: int = SIZE,
        cache: Path | None = None,
        contrast: bool = False,
        solver: str = Solver.HALS,
    ) -> "Network":
        """With the layer of this name or the default one; with ``contrast`` the recipe's too."""
        layer_map = map_layers(backbone, size)
        chosen = layer_map.resolve(layer)
        if not chosen.non_negative:
            raise InputError(
                f"layer {chosen.name} of {backbone.name} has values down to {chosen.minimum:.3g}, "
                "but DFF needs a layer that is never negative; see "
                f"`deepff layers {backbone.name}`"
            )
        of_contrast = (contrast_layers(layer_map), pixel_layers(layer_map)) if contrast else ()
        return cls(backbone, chosen, size, cache, solver, *of_contrast)

    def describe(self, n_images: int) -> str:
        """One line on network, layer, weights, size and number of images."""
        source = FeatureSource.of(self.backbone, self.layer, Preparation(self.size))
        return (
            f"{source.model}, layer {self.layer.name} ({source.channels} channels, stride "
            f"{source.stride}), weights {source.weights}, longer side {source.size} pixels, "
            f"{n_images} images, NMF by {SOLVERS_IN_WORDS[self.solver]}"
        )


@dataclass(frozen=True)
class Features:
    """Ground truth, and activations of the same images in the same order."""

    truth: GroundTruthSet
    activations: Activations
    contrast: Factorization | None = None  # the recipe's, where the network has layers for it
    solver: str = Solver.HALS  # of NMF

    def __len__(self) -> int:
        return len(self.truth)


def collect(truth: GroundTruthSet, network: Network) -> Features:
    """Run the network over a set; files that cannot be decoded are named and left out."""
    if not truth.images:
        raise InputError(f"{truth.name} has no images")
    activation_set = ActivationSet.extracted(
        [item.image for item in truth.images],
        network.backbone,
        [network.layer, *network.object_layers, *network.cell_layers],
        RunSettings(size=network.size, cache=network.cache),
    )
    for file in activation_set.skipped:
        to_stderr(f"{truth.name}: skipped {file.name} ({file.reason})")
    (activations,) = activation_set.of([network.layer])
    by_name = {item.image.name: item for item in truth.images}
    kept = tuple(by_name[image.name] for image in activations.images)
    whole = None
    if network.object_layers:
        whole = object_findings(activation_set, network.object_layers).factorizations[1]
    if whole is not None and network.cell_layers:
        whole = classify_object(whole, Cells.of(activation_set.of(network.cell_layers)))
    return Features(replace(truth, images=kept), activations, whole, network.solver)


# --- coefficients ---


def factor_coefficients(
    activations: Activations, k: int, seed: int = 0, solver: str = Solver.HALS
) -> dict[Variant, Tensor]:
    """H of DFF, PCA and k-means with k factors: (rows, k) each. With k = 1, on activations that are
    never negative, PCA's is what NMF finds (Perron and Frobenius): there their rows agree."""
    return {
        Variant(name, k, seed): factorize(activations, method, k, seed, solver)
        for name, method in FACTORIZATIONS.items()
    }


def object_coefficients(
    activations: Activations, seed: int = 0, solver: str = Solver.HALS
) -> dict[Variant, Tensor]:
    """One map of the whole object by every method, (rows, 1) each; two need no factorization."""
    return {
        **factor_coefficients(activations, 1, seed, solver),
        Variant("mean activation", 1, seed): mean_activation(activations),
        Variant("Le et al.", 1, seed): category_consistent(activations, seed=seed),
    }


def factorize(
    activations: Activations, method: str, k: int, seed: int, solver: str = Solver.HALS
) -> Tensor:
    """H (rows, k) of a method of `deepff.factorization`; k-means with k = 1 is `object_cluster`."""
    if method == "kmeans" and k == 1:
        return object_cluster(activations, seed)
    estimator = NMF(solver=solver) if method == Method.NMF else method
    estimators = Estimators.of(estimator, RunSettings(random_state=seed))
    return estimators.for_k(k).fit_transform(activations.blocks)


def object_cluster(activations: Activations, seed: int = 0) -> Tensor:
    """k-means with two clusters, of which the one with the longer center is the object, (rows, 1):
    a network trained to name objects responds to them more strongly than to what surrounds them."""
    estimator = METHODS["kmeans"](2, random_state=seed)
    membership = estimator.fit_transform(activations.blocks)
    cluster = int(estimator.components_.norm(dim=1).argmax())
    return membership[:, cluster : cluster + 1].clone()


def mean_activation(activations: Activations) -> Tensor:
    """The mean over channels: (rows, 1)."""
    return torch.cat([block.mean(1, keepdim=True) for block in activations.blocks])


def category_consistent(activations: Activations, n_clusters: int = 5, seed: int = 0) -> Tensor:
    """Sum of the channels that fire strongly in all images of the set, (rows, 1): of the channels'
    maxima in each image, clustered by k-means, the strongest cluster. After Le, Yu, Zelinsky &
    Samaras (ICCV Workshops 2017), of which only the abstract was available."""
    from sklearn.cluster import KMeans

    maxima = torch.stack([rows.amax(0) for rows in activations.image_rows], dim=1).cpu().numpy()
    clusters = KMeans(min(n_clusters, len(maxima)), n_init=4, random_state=seed).fit(maxima)
    strongest = clusters.cluster_centers_.mean(axis=1).argmax()
    kept = torch.from_numpy(clusters.labels_ == strongest)
    return torch.cat(
        [block[:, kept.to(block.device)].sum(1, keepdim=True) for block in activations.blocks]
    )


# --- masks ---

# From an image's index, its masks by variant, and the maps of those that may overlap, each relative
# to its maximum over the set.
Work = Callable[[int, dict[Variant, Tensor], dict[Variant, Tensor]], T]


def image_masks(
    features: Features, coefficients: Mapping[Variant, Tensor], crf: bool
) -> Iterator[dict[Variant, Tensor]]:
    """Masks of all methods, image by image, bool (k, H, W): the 75th percentile over the set."""
    return in_images(features, coefficients, crf, lambda index, masks, maps: masks)


def in_images(
    features: Features, coefficients: Mapping[Variant, Tensor], crf: bool, work: Work[T]
) -> Iterator[T]:
    """What ``work`` makes of each image's masks (`image_masks`); one image per core at a time."""
    images = features.activations.images
    widths = [h.shape[1] for h in coefficients.values()]
    maps = HeatMaps.of_images(torch.cat(list(coefficients.values()), dim=1), images)
    limits = thresholds(maps)[0]
    crf_limits = (limits / maps.scale).split(widths)
    refined = {
        variant: refined_maps(HeatMaps.of_images(H, images), images)
        for variant, H in coefficients.items()
        if crf and variant.method == DFF
    }
    refined_limits = {variant: thresholds(of_set)[0] for variant, of_set in refined.items()}

    def of_image(index: int) -> T:
        upsampled = maps[index]
        plain = masks(upsampled, limits).split(widths)
        relative = (upsampled / maps.scale[:, None, None]).split(widths)
        overlapping = dict(zip(coefficients, relative, strict=True))
        photo = images[index].read() if refined else None
        normalized = maps.normalized(index).split(widths)
        by_variant = {}
        for variant, mask, grid, limit in zip(
            coefficients, plain, normalized, crf_limits, strict=True
        ):
            by_variant[variant] = mask
            if photo is not None and variant in refined:
                dff_crf = variant._replace(method=DFF_CRF)
                overlapping[dff_crf] = refined[variant][index]
                by_variant[dff_crf] = masks(overlapping[dff_crf], refined_limits[variant])
                probabilities = guided_crf(photo, grid, limit)
                by_variant[variant._replace(method=GUIDED_CRF)] = refined_masks(probabilities)
        return work(index, by_variant, overlapping)

    costs = [_CRF_BYTES + 16 * sum(widths) * math.prod(image.size) for image in images]
    return in_parallel(of_image, costs)


def contrast_masks(
    features: Features, crf: bool, for_boxes: bool = False
) -> Iterator[dict[Variant, Tensor]]:
    """The object's mask by the recipe contrast, image by image: bool (1, H, W) each, if there is
    one. With ``crf`` also refined in two ways; ``for_boxes`` tells which is the default."""
    images = features.activations.images
    if features.contrast is None:
        return iter([{} for _ in images])
    maps, classified = features.contrast.heatmaps, features.contrast.probabilities
    limits = thresholds(maps, Threshold.OTSU_IMAGE)
    by_default = for_boxes or classified is None
    by_crf = Variant(CONTRAST if by_default else CONTRAST_CRF, 1)
    by_classifier = Variant(CONTRAST_CLASSIFIER if by_default else CONTRAST, 1)

    def of_image(index: int) -> dict[Variant, Tensor]:
        by_variant = {Variant(CONTRAST_UNREFINED, 1): masks(maps[index], limits[index])}
        if not crf:
            return by_variant
        size = images[index].size
        kernels = photo_kernels(images[index], limits.device)

        def finished(probabilities: Tensor) -> Tensor:
            full = functional.interpolate(probabilities, size, mode="bilinear")[0]
            return refined_masks(without_holes(full))

        limit = limits[index] / maps.scale
        by_variant[by_crf] = finished(refined_densely(kernels, maps.normalized(index)[None], limit))
        if classified is not None:
            probabilities = classes_by_kernels(kernels, classified.covering(index))
            by_variant[by_classifier] = finished(probabilities[None])
        return by_variant

    return in_parallel(of_image, [_CRF_BYTES + 16 * math.prod(image.size) for image in images])


def count_by_variant(
    masks_of_images: Iterable[Mapping[Variant, Tensor]], features: Features
) -> dict[Variant, Overlaps]:
    """Pixel counts of each method's masks against the set's labels, in one pass over the images."""
    pairs = zip(masks_of_images, features.truth.images, strict=True)
    return summed(count_masks(masks, item.labels(), features.truth) for masks, item in pairs)


def count_masks(
    by_variant: Mapping[Variant, Tensor], labels: np.ndarray, truth: GroundTruthSet
) -> dict[Variant, Overlaps]:
    """Pixel counts of each method's masks of one image."""
    n_parts = len(truth.part_names)
    return {
        variant: count_overlaps([(masks, labels)], n_parts) for variant, masks in by_variant.items()
    }


def summed(images: Iterable[Mapping[K, Overlaps]]) -> dict[K, Overlaps]:
    """The counts of all images together."""
    total: dict[K, Overlaps] = {}
    for counts in images:
        for key, overlaps in counts.items():
            total[key] = total[key] + overlaps if key in total else overlaps
    return total
