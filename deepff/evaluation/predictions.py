"""What each method says about a set: activations, coefficients H, and masks image by image.

Every method gives H (rows, k), with one column per map. Masks are found as those of users are: by
the 75th percentile over the set, or as the recipe contrast makes them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from deepff.activations.activations import Activations
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
from deepff.options import SIZE, Method, Refinement, RegionOptions, Solver, Threshold
from deepff.regions.regions import Regions, region_finder
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run
from deepff.runtime.parallel import in_parallel

T = TypeVar("T")
K = TypeVar("K")

# What a CRF takes in addition to the masks of an image.
_CRF_BYTES = 2**26

DFF, DFF_CRF, GUIDED_CRF = "DFF", "DFF-CRF", "DFF, guided CRF"
CONTRAST = "contrast"  # the recipe with its defaults
CONTRAST_UNREFINED, CONTRAST_CRF = "contrast, unrefined", "contrast, dense CRF"

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
        layer, size = self.layer, self.layer.input_size or self.size
        return (
            f"{self.backbone.name}, layer {layer.name} ({layer.channels} channels, stride "
            f"{layer.stride}), weights {self.backbone.weights}, longer side {size} pixels, "
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

# From an image's index to its regions by one variant.
Finder = Callable[[int], Regions]
# From an image's index and its regions by variant.
Work = Callable[[int, dict[Variant, Regions]], T]


def factor_finders(
    features: Features, coefficients: Mapping[Variant, Tensor], crf: bool
) -> dict[Variant, Finder]:
    """What finds each method's masks, bool (k, H, W): the 75th percentile over the set. With
    ``crf`` also DFF's masks refined in two ways."""
    finders: dict[Variant, Finder] = {}
    for variant, H in coefficients.items():
        run = as_run(features, H)
        refinements = {variant.method: Refinement.NONE}
        if crf and variant.method == DFF:
            refinements |= {DFF_CRF: Refinement.DFF_CRF, GUIDED_CRF: Refinement.GUIDED_CRF}
        for method, refine in refinements.items():
            options = RegionOptions(refine=refine)
            finders[variant._replace(method=method)] = region_finder(run, None, options)
    return finders


def contrast_finders(features: Features, crf: bool) -> dict[Variant, Finder]:
    """What finds the object's mask by the recipe contrast, bool (1, H, W), if there is one. With
    ``crf`` also refined, by default by the classifier if there is one."""
    if features.contrast is None:
        return {}
    refinements = {CONTRAST_UNREFINED: Refinement.NONE}
    if crf:
        refinements[CONTRAST] = Refinement.DENSE_CRF
        if features.contrast.probabilities is not None:
            refinements |= {CONTRAST_CRF: Refinement.DENSE_CRF, CONTRAST: Refinement.CLASSIFIER}
    run = as_run(features, features.contrast)
    return {
        Variant(method, 1): region_finder(
            run, 1, RegionOptions(Threshold.OTSU_IMAGE, None, refine, min_score=0)
        )
        for method, refine in refinements.items()
    }


def as_run(features: Features, *factorizations: Factorization | Tensor) -> Run:
    """Factorizations of the set, or H alone, as a run, whose regions and pictures can be made."""
    images, by_k = features.activations.images, {}
    for each in factorizations:
        if isinstance(each, Tensor):
            unknown = each.new_zeros(each.shape[1], 0)
            each = Factorization(unknown, HeatMaps.of_images(each, images), math.nan, 0)
        by_k[each.heatmaps.n_factors] = each
    return Run(images, [], by_k, "", (), {}, "", {})


def in_images(features: Features, finders: Mapping[Variant, Finder], work: Work[T]) -> Iterator[T]:
    """What ``work`` makes of each image's regions; one image per core at a time."""

    def of_image(index: int) -> T:
        return work(index, {variant: find(index) for variant, find in finders.items()})

    n_maps = sum(variant.k for variant in finders)
    sizes = (math.prod(image.size) for image in features.activations.images)
    return in_parallel(of_image, [_CRF_BYTES + 16 * n_maps * size for size in sizes])


def count_by_variant(
    features: Features, finders: Mapping[Variant, Finder]
) -> dict[Variant, Overlaps]:
    """Pixel counts of each method's masks against the set's labels, in one pass over the images."""
    return summed(in_images(features, finders, partial(count_masks, features.truth)))


def count_masks(
    truth: GroundTruthSet, index: int, by_variant: Mapping[Variant, Regions]
) -> dict[Variant, Overlaps]:
    """Pixel counts of each method's masks of one image."""
    labels, n_parts = truth.images[index].labels(), len(truth.part_names)
    return {
        variant: count_overlaps([(regions.masks, labels)], n_parts)
        for variant, regions in by_variant.items()
    }


def summed(images: Iterable[Mapping[K, Overlaps]]) -> dict[K, Overlaps]:
    """The counts of all images together."""
    total: dict[K, Overlaps] = {}
    for counts in images:
        for key, overlaps in counts.items():
            total[key] = total[key] + overlaps if key in total else overlaps
    return total
