"""Figures 3 and 5: heat maps over photos, for several k, and of parts with their IoUs."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from deepff.discovery.arguments import Estimators, RunSettings
from deepff.discovery.paper import factorize
from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import GroundTruthSet
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.discovered_parts import label_factors, part_sets
from deepff.evaluation.metrics import associated_iou, association
from deepff.evaluation.predictions import (
    DFF,
    Features,
    Network,
    Variant,
    collect,
    count_masks,
    image_masks,
)
from deepff.evaluation.tables import Attempts, Row, Table
from deepff.factorization.nmf import NMF
from deepff.pictures.figures import captioned_row, compose, read_photo, spread, stacked
from deepff.pictures.tree_drawing import colors_over_k
from deepff.results.factorization import Factorization

FIGURE5_CLASSES = ("aeroplane", "bird", "car", "motorbike", "cat", "cow")
"""Six classes; the paper does not list its own. Five are those of its Table 4."""

N_FACTORS = 3
N_SUCCESSES = 4


def figure3(
    network: Network,
    root: Path,
    ks: Sequence[int],
    groups: Sequence[str],
    images: Path | None = None,
) -> Image.Image:
    """For each group of iCoseg its photos, and a row of heat maps per k. ``root``, ``groups`` and
    ``images`` are as for `load_icoseg`."""
    pictures = []
    for truth in load_icoseg(root, groups, images):
        features = collect(truth, network)
        factorizations = {k: _factorization(features, k) for k in ks}
        shown = spread(len(features))
        colors = colors_over_k(factorizations)
        pictures.append(compose(factorizations, shown, _photos(features, shown), colors))
    return stacked(pictures)


def figure5(network: Network, root: str | Path, classes: Sequence[str] = FIGURE5_CLASSES) -> Table:
    """Each factor's parts and set-wide IoU, class by class, with a picture of examples.

    ``root`` and ``classes`` are as for `part_sets`. A class has the four images whose factors fit
    their parts best, and on the right the one where they fit worst: by the mean IoU, in the image,
    of the factors that have parts.
    """
    attempts = Attempts()
    examples = attempts.succeeded(
        {
            name: attempts.run(name, _examples, name, load, network)
            for name, load in part_sets(root, classes).items()
        }
    )
    pictures, rows, counts = zip(*examples.values(), strict=True)
    notes = [
        "Of each class the four images with the highest and, on the right, the one with the lowest "
        "mean IoU of the factors that have parts, which is written in them",
        *attempts.notes(),
    ]
    return Table(
        f"Figure 5: heat maps of parts, k = {N_FACTORS}",
        ["parts", "IoU"],
        [row for of_class in rows for row in of_class],
        network.describe(sum(counts)),
        notes,
        {"four successes and a failure of each class": np.asarray(stacked(pictures))},
    )


def _examples(
    name: str, load: Callable[[], GroundTruthSet], network: Network
) -> tuple[Image.Image, list[Row], int]:
    """A class's picture, a row per factor, and the number of images."""
    features = collect(load(), network)
    factorization, variant = _factorization(features, N_FACTORS), Variant(DFF, N_FACTORS)
    masks = image_masks(features, {variant: factorization.coefficients}, crf=False)
    counts = [
        count_masks(of_image, item.labels(), features.truth)[variant]
        for of_image, item in zip(masks, features.truth.images, strict=True)
    ]
    total = sum(counts[1:], counts[0])
    associated = association(total)
    associated[:, 0] = False
    has_parts = associated.any(1)
    if not has_parts.any():
        raise InputError(f"no factor of {name} covers more than half of a part")
    scores = {
        index: float(associated_iou(overlaps, associated)[has_parts].mean())
        for index, overlaps in enumerate(counts)
        if overlaps.truth[1:].any()
    }
    ranked = sorted(scores, key=lambda index: -scores[index])
    shown = [*ranked[:-1][:N_SUCCESSES], ranked[-1]]
    factors = label_factors(total, features.truth.part_names)
    picture = captioned_row(
        name,
        _photos(features, shown),
        factorization.heatmaps,
        shown,
        [f"IoU {scores[index]:.2f}" for index in shown],
        [f"{', '.join(factor.labels)} {factor.iou:.2f}" for factor in factors],
    )
    rows = [
        Row(f"{name}, factor {number}", [", ".join(factor.labels), factor.iou])
        for number, factor in enumerate(factors)
    ]
    return picture, rows, len(features)


def _factorization(features: Features, k: int) -> Factorization:
    estimators = Estimators.of(NMF(solver=features.solver), RunSettings())
    return factorize(features.activations, estimators.for_k(k))


def _photos(features: Features, indices: Sequence[int]) -> list[np.ndarray]:
    return [read_photo(features.activations.images[index])[0] for index in indices]
