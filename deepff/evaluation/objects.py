"""Whole objects with one factor: Table 1 (co-segmentation, with parts below it) and Table 2
(co-localization).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image
from torch import Tensor

from deepff.activations.activations import ImageRecord
from deepff.discovery.presence import with_presence
from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import GroundTruthSet
from deepff.evaluation.datasets.mask_folders import icoseg_groups, load_icoseg, load_label_folder
from deepff.evaluation.datasets.pascal import VOC_CLASSES, check_classes, find_voc, load_voc
from deepff.evaluation.discovered_parts import part_scores, part_tables
from deepff.evaluation.metrics import Overlaps, best_iou, corloc, iou
from deepff.evaluation.predictions import (
    CONTRAST,
    CONTRAST_CRF,
    CONTRAST_UNREFINED,
    DFF,
    DFF_CRF,
    GUIDED_CRF,
    Features,
    Network,
    Variant,
    Work,
    collect,
    contrast_finders,
    count_masks,
    factor_finders,
    in_images,
    object_coefficients,
)
from deepff.evaluation.tables import Attempts, Scores, Table, score_table
from deepff.export.boxes import region_boxes
from deepff.options import VocFilter, chosen
from deepff.pictures.figures import read_photo, region_picture, stacked
from deepff.regions.components import Box
from deepff.regions.regions import Regions

PAPER_SETS = {
    "021": "Elephants",
    "017": "Taj Mahal",
    "018": "Taj Mahal",
    "020": "Pyramids",
    "036": "Gymnastics",
    "042": "Statue of Liberty",
}
"""Groups of iCoseg with the paper's five sets, by number; which Taj Mahal it used is not known."""

PART_FACTORS = (2, 3, 4)

BASELINE_NOTE = (
    "k-means has two clusters; the one with the longer center is the object. “Le et al.” is our "
    "reading of their k-means on max-pooled filters. On a layer that is never negative, PCA's "
    "first component equals NMF with one factor, so the two rows agree. The guided CRF is ours: "
    "its unary contains the threshold, and masks are where the probability is 1/2"
)

N_SHOWN = 3
_FIRST_ROWS = (DFF, DFF_CRF, GUIDED_CRF, CONTRAST_UNREFINED, CONTRAST_CRF, CONTRAST)
# The columns of pictures; images are chosen by the last there is.
_SHOWN = [method for method in _FIRST_ROWS if method != GUIDED_CRF]

M = TypeVar("M")


def table1(
    network: Network,
    root: str | Path,
    *,
    groups: Sequence[str] = tuple(PAPER_SETS),
    parts: Path | None = None,
    images: Path | None = None,
    crf: bool = True,
    seeds: int = 1,
) -> dict[str, Table]:
    """Set-wide IoU on groups of iCoseg (see `load_icoseg`; or ``["all"]``): the object with k = 1.
    ``parts``, a folder with a folder of label images per group, adds "table1-bottom", parts with k
    = 2, 3, 4. Values are means over ``seeds`` seeds."""
    groups = _listed_groups(root, groups, parts)
    attempts, part_attempts = Attempts(), Attempts()
    scores: dict[str, Scores | None] = {}
    of_parts: dict[str, Scores | None] = {}

    def evaluate(group: str) -> tuple[Features, Scores]:
        (truth,) = load_icoseg(root, [group], images)
        features = collect(truth, network)
        return features, overlap_scores(features, crf, seeds)

    def evaluate_parts(features: Features, folder: Path) -> Scores:
        truth = _labeled(features.truth, folder)
        return part_scores(replace(features, truth=truth), PART_FACTORS, crf, seeds, network)

    for group, label in zip(groups, column_names(groups), strict=True):
        evaluated = attempts.run(label, evaluate, group)
        scores[label] = evaluated and evaluated[1]
        if evaluated is not None and parts is not None:
            job = partial(evaluate_parts, evaluated[0], parts)
            of_parts[label] = part_attempts.run(f"{label}, parts", job)
    notes = [
        "Set-wide IoU of the object with the mask of the 75th percentile",
        "The paper has five sets; its Taj Mahal is shown next to both groups of iCoseg that fit",
        *_common_notes(scores, seeds),
        *part_attempts.notes(),
    ]
    title = "Table 1: iCoseg, whole object, k = 1 (IoU)"
    columns = {label: (label, "IoU") for label in scores}
    top = score_table("table1-top", title, scores, columns, attempts, network.describe, notes)
    tables = {"table1-top": top}
    if any(of_parts.values()):
        title = "Table 1, bottom: iCoseg, parts named automatically (IoU)"
        tables |= part_tables(
            "table1-bottom", title, network, of_parts, part_attempts, PART_FACTORS, seeds
        )
    return tables


def icoseg_part_sets(
    root: str | Path, parts: Path, groups: Sequence[str], images: Path | None = None
) -> dict[str, Callable[[], GroundTruthSet]]:
    """What loads the parts of each group of iCoseg, as `table1` takes them."""
    groups = _listed_groups(root, groups, parts)

    def load(group: str) -> GroundTruthSet:
        (truth,) = load_icoseg(root, [group], images)
        return _labeled(truth, parts)

    loaders = (partial(load, group) for group in groups)
    return dict(zip(column_names(groups), loaders, strict=True))


def _labeled(truth: GroundTruthSet, parts: Path) -> GroundTruthSet:
    """A group's images with its labels from a folder of parts."""
    return load_label_folder(parts / truth.name, [item.image for item in truth.images])


def _listed_groups(root: str | Path, groups: Sequence[str], parts: Path | None) -> Sequence[str]:
    """The groups, all of them for "all"; InputError if there is none, or no folder of parts."""
    if parts is not None and not parts.is_dir():
        raise InputError(f"there is no folder of part masks {parts}")
    if list(groups) == ["all"]:
        groups = icoseg_groups(Path(root))
        if not groups:
            folder = Path(root) / "images"
            raise InputError(
                f"iCoseg needs images/ and ground_truth/; there is no group in {folder}"
            )
    return groups


def table2(
    network: Network,
    root: str | Path,
    *,
    classes: Sequence[str] = VOC_CLASSES,
    filter: str = VocFilter.DIFFICULT_OR_TRUNCATED,
    crf: bool = True,
    seeds: int = 1,
) -> Table:
    """CorLoc on Pascal VOC 2007, class by class: a box around the largest component, k = 1.
    ``root`` and ``filter`` are as for `load_voc`, ``crf`` and ``seeds`` as for `table1`."""
    check_classes(classes, VOC_CLASSES)
    find_voc(root, year=2007)

    def evaluate(name: str) -> Scores:
        sets = {of: load_voc(root, year=2007, classes=[name], filter=of)[0] for of in VocFilter}
        features = collect(sets[chosen(VocFilter, filter, "filter")], network)
        if features.contrast is not None:
            whole = with_presence(features.contrast, features.activations)
            features = replace(features, contrast=whole)
        scores = box_scores(features, crf, seeds)
        counts = {f"images, filter {of}": len(truth) for of, truth in sets.items()}
        return replace(scores, counts=counts)

    attempts = Attempts()
    scores = {name: attempts.run(name, evaluate, name) for name in classes}
    notes = [
        "CorLoc: share of images whose box has an IoU above 0.5 with a box of the class, difficult "
        "and truncated ones included. The box is around the largest component of the mask; by the "
        "recipe contrast, around the component with the highest score",
        f"Only images with an instance that passes the filter {filter} are used. An image with "
        "several classes counts for each",
        *_common_notes(scores, seeds),
    ]
    title = "Table 2: VOC 2007, co-localization, k = 1 (CorLoc)"
    columns = {name: (name, "CorLoc") for name in classes}
    return score_table("table2", title, scores, columns, attempts, network.describe, notes)


def overlap_scores(features: Features, crf: bool, seeds: int) -> Scores:
    """Set-wide IoU of each method's mask with the object."""

    def of_set(images: Sequence[Overlaps]) -> float:
        return float(iou(sum(images[1:], images[0]))[0, 1])

    measure = partial(count_masks, features.truth)
    return _object_scores(
        features, "IoU", crf, seeds, measure, lambda _, one: of_set([one]), of_set
    )


def box_scores(features: Features, crf: bool, seeds: int) -> Scores:
    """CorLoc of each method's box with the boxes of the class."""
    true_boxes = [item.boxes_of(features.truth.name) for item in features.truth.images]

    def measure(index: int, regions: Mapping[Variant, Regions]) -> dict[Variant, Box | None]:
        best = {
            v: region_boxes(of, "", of.names, best=True, min_area=1) for v, of in regions.items()
        }
        return {variant: boxes[0].box if boxes else None for variant, boxes in best.items()}

    def of_image(index: int, box: Box | None) -> float:
        return best_iou(box, true_boxes[index])

    def of_set(images: Sequence[Box | None]) -> float:
        return corloc(images, true_boxes)

    return _object_scores(features, "CorLoc", crf, seeds, measure, of_image, of_set)


def _object_scores(
    features: Features,
    metric: str,
    crf: bool,
    seeds: int,
    measure: Work[Mapping[Variant, M]],
    of_image: Callable[[int, M], float],
    of_set: Callable[[Sequence[M]], float],
) -> Scores:
    """What is measured in each image makes the score of the set, and of the image, for pictures."""
    values: dict[str, list[float | None]] = {}
    poorest: list[Shown] = []
    for seed in range(seeds):
        coefficients = object_coefficients(features.activations, seed, features.solver)
        finders = factor_finders(features, coefficients, crf)
        if seed == 0:  # the recipe contrast has none
            finders |= contrast_finders(features, crf)
        measured: dict[str, list[M]] = {}
        each = in_images(features, finders, lambda index, of: (measure(index, of), of))
        for index, (measurements, regions) in enumerate(each):
            for variant, measurement in measurements.items():
                measured.setdefault(variant.method, []).append(measurement)
            if seed == 0:
                by_method = {variant.method: of.masks for variant, of in regions.items()}
                shown = {method: by_method[method] for method in _SHOWN if method in by_method}
                score = of_image(index, measured[list(shown)[-1]][-1])
                entry = (score, features.activations.images[index], shown)
                poorest = sorted([*poorest, entry], key=lambda shown: shown[0])[:N_SHOWN]
        for method, of_images in measured.items():
            values.setdefault(method, []).append(of_set(of_images))
    rows = [*(method for method in _FIRST_ROWS if method in values), *values]
    return Scores(
        len(features),
        {method: {metric: values[method]} for method in rows},
        {"images": len(features)},
        pictures=dict([poorest_picture(poorest)]),
    )


# An image's score by the last of the methods, and each method's mask (1, H, W).
Shown = tuple[float, ImageRecord, dict[str, Tensor]]


def poorest_picture(poorest: Sequence[Shown]) -> tuple[str, np.ndarray]:
    """A caption, and one row per image with one column per method: uint8 (H, W, 3)."""
    methods = list(poorest[0][2])
    scores = ", ".join(f"{score:.2f}" for score, _, _ in poorest)
    caption = (
        f"images with the lowest IoU ({methods[-1]}: {scores}), from left to right: "
        f"{'; '.join(methods)}"
    )
    rows = []
    for _, image, masks in poorest:
        photo, _ = read_photo(image)
        panels = [region_picture(photo, mask[0].int().cpu().numpy()) for mask in masks.values()]
        rows.append(Image.fromarray(np.concatenate(panels, axis=1)))
    return caption, np.asarray(stacked(rows))


def _common_notes(scores: Mapping[str, Scores | None], seeds: int) -> list[str]:
    """What is said below every table of whole objects."""
    evaluated = [score for score in scores.values() if score is not None]
    notes = [BASELINE_NOTE]
    if len(evaluated) < len(scores):
        notes.append("The mean is over the columns that could be evaluated")
    if seeds > 1 and evaluated:
        by_row = [row for score in evaluated for row in score.values.values()]
        spread = max(np.std(np.array([*row.values()], float)) for row in by_row)
        notes.append(
            f"Means over {seeds} seeds; the largest standard deviation over seeds is {spread:.3f}"
        )
    return notes


def column_names(groups: Sequence[str]) -> list[str]:
    """The paper's name of each group, with iCoseg's number, unless it is not theirs alone."""
    repeated = [group for group, count in Counter(groups).items() if count > 1]
    if repeated:
        raise InputError(f"the group {repeated[0]!r} is named twice; name each once")
    short = [_short_name(group) for group in groups]
    counts = Counter(short)
    return [name if counts[name] == 1 else group for name, group in zip(short, groups, strict=True)]


def _short_name(group: str) -> str:
    number, _, rest = group.partition(" ")
    if number in PAPER_SETS:
        return f"{PAPER_SETS[number]} ({number})"
    return f"{rest.partition('-')[0]} ({number})" if number.isdecimal() and rest else group
