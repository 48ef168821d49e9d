"""Parts that no person named: factors labeled by coverage (Table 4, and the bottom of Table 1)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepff.discovery.discover_parts import discover_parts
from deepff.errors import InputError
from deepff.evaluation.datasets.coco_parts import CAR_PARTS, coco_file, coco_folder, load_coco
from deepff.evaluation.datasets.ground_truth import BACKGROUND, UNNAMED, GroundTruthSet
from deepff.evaluation.datasets.pascal import TABLE4_PARTS, check_classes, load_pascal_part
from deepff.evaluation.metrics import (
    Overlaps,
    associated_iou,
    association,
    count_overlaps,
    factor_quality,
    normalized_mutual_information,
)
from deepff.evaluation.predictions import (
    DFF,
    DFF_CRF,
    GUIDED_CRF,
    Features,
    Network,
    Variant,
    collect,
    factor_coefficients,
    factor_finders,
    in_images,
    summed,
)
from deepff.evaluation.tables import (
    Attempts,
    Row,
    Scores,
    Table,
    labeled_remarks,
    mean_of_known,
    published_factors,
    score_table,
    to_stderr,
)
from deepff.options import RECIPE_OPTIONS
from deepff.regions.regions import Regions, region_finder
from deepff.result import Result

INSIDE = "inside object"
QUALITY_METHODS = (DFF, DFF_CRF, GUIDED_CRF, INSIDE)
QUALITY_METRICS = ("quality", "NMI", "FG-NMI")

TABLE4_CLASSES = ("aeroplane", "bird", "car", "motorbike", "cat")
"""The five classes that the paper prints."""

TABLE4_OTHERS = ("person",)
"""What a factor may be called after in addition to parts and the background, as in the paper."""

SUMMARY_NOTE = (
    "A part belongs to a factor that covers more than half of it over the set. A cell is the mean "
    "over the factors with parts: the set-wide IoU of each with all its parts together, or – if "
    "no factor has a part. Factors without parts are called background"
)

QUALITY_NOTES = (
    "Quality is the mean over the factors of the set-wide IoU with their best part",
    "NMI is the normalized mutual information (arithmetic mean) of factor and part over all "
    "pixels of the set, with the background as one more part. FG-NMI uses only pixels with a part "
    "(Choudhury et al., NeurIPS 2021). A pixel's factor is the one that is on and largest "
    "relative to its maximum over the set; pixels where none is on are one more group",
)


def table4(
    network: Network,
    root: str | Path,
    ks: Sequence[int] = (1, 2, 3, 4),
    *,
    classes: Sequence[str] = TABLE4_CLASSES,
    crf: bool = True,
    seeds: int = 1,
) -> dict[str, Table]:
    """Automatic part labels, class by class: "table4", "table4-factors" and "table4-quality". With
    ``crf`` rows for DFF-CRF, the guided CRF and parts inside the object."""
    attempts = Attempts()
    scores = {
        name: attempts.run(name, _evaluate, load, network, ks, crf, seeds)
        for name, load in part_sets(root, classes, TABLE4_OTHERS).items()
    }
    title = "Table 4: parts named automatically (IoU)"
    return part_tables("table4", title, network, scores, attempts, ks, seeds, not is_coco(root))


def part_sets(
    root: str | Path, classes: Sequence[str], others: Sequence[str] = ()
) -> dict[str, Callable[[], GroundTruthSet]]:
    """What loads each set of images with parts: of ``root``, a COCO file whose categories are parts
    or its data set's folder, else of PASCAL-Part; ``others`` are as for `load_pascal_part`."""
    root = Path(root)
    if is_coco(root):
        return {
            coco_folder(coco_file(root)).resolve().name: partial(load_coco, root, merge=CAR_PARTS)
        }
    check_classes(classes, list(TABLE4_PARTS))

    def load(name: str) -> GroundTruthSet:
        return load_pascal_part(root, {name: TABLE4_PARTS[name]}, others=others)[0]

    return {name: partial(load, name) for name in classes}


def is_coco(root: str | Path) -> bool:
    """Whether `part_sets` reads `root` as a COCO file, which the paper has no numbers for."""
    root = Path(root)
    return root.suffix == ".json" or (root.is_dir() and coco_file(root).is_file())


def part_scores(
    features: Features, ks: Sequence[int], crf: bool, seeds: int, network: Network
) -> Scores:
    """Measure the factors of every method and k, labeled by coverage, and with ``crf`` the parts
    that `discover_parts` finds inside the object."""
    truth = features.truth
    inside, remarks = _inside(features, network, ks, seeds) if crf else ([], [])
    values: dict[str, dict[str, list[float | None]]] = {}
    factors: list[Row] = []
    for k in ks:
        coefficients: dict[Variant, Tensor] = {}
        for seed in range(seeds):
            coefficients |= factor_coefficients(features.activations, k, seed, features.solver)
        finders = factor_finders(features, coefficients, crf)
        for seed, result in enumerate(inside):
            options = RECIPE_OPTIONS[result.recipe]
            finders[Variant(INSIDE, k, seed)] = region_finder(result, k, options)
        counts = summed(in_images(features, finders, partial(_counts, truth)))
        for (variant, overlapping), overlaps in counts.items():
            if not overlapping:
                continue
            pixels = counts[variant, False].intersection
            labeled = label_factors(overlaps, truth.part_names, truth.others)
            row = f"{variant.method}, k = {k}"
            for metric, value in (
                ("IoU", mean_of_known(factor.iou for factor in labeled if factor.has_parts)),
                ("quality", factor_quality(overlaps, len(truth.part_names))),
                ("NMI", normalized_mutual_information(pixels)),
                ("FG-NMI", normalized_mutual_information(pixels[:, 1:-1])),
            ):
                values.setdefault(row, {}).setdefault(metric, []).append(value)
            if variant.seed == 0:
                factors += [
                    Row(
                        f"{row}, factor {number}",
                        [", ".join(factor.labels), factor.iou] if factor.labels else [None, None],
                    )
                    for number, factor in enumerate(labeled)
                ]
    return Scores(len(features), values, {"images": len(features)}, factors, remarks)


@dataclass(frozen=True)
class LabeledFactor:
    """What belongs to a factor, and its set-wide IoU with all of that together."""

    labels: tuple[str, ...]  # parts, others, or the background alone; none without a pixel
    iou: float
    has_parts: bool


def label_factors(
    overlaps: Overlaps, part_names: Sequence[str], others: Sequence[str] = ()
) -> list[LabeledFactor]:
    """The labels of each factor: those that it covers more than half of, else the background (our
    reading of the paper). ``others`` are annotated things that are no part, such as "person"."""
    associated = association(overlaps)
    associated[:, 0] = False
    associated[:, 0] = ~associated.any(axis=1) & (overlaps.predicted > 0)
    names = np.array(["background", *part_names, *others])
    return [
        LabeledFactor(
            tuple(names[row].tolist()), float(value), bool(row[1 : len(part_names) + 1].any())
        )
        for row, value in zip(associated, associated_iou(overlaps, associated), strict=True)
    ]


def part_tables(
    name: str,
    title: str,
    network: Network,
    scores: Mapping[str, Scores | None],
    attempts: Attempts,
    ks: Sequence[int],
    seeds: int,
    in_paper: bool = True,
) -> dict[str, Table]:
    """Three tables: a column of means per set, every factor with its parts, and quality."""
    over = [f"Means over {seeds} seeds"] if seeds > 1 else []
    columns = {label: (label, "IoU") for label in scores}
    notes = [SUMMARY_NOTE, *over]
    means = score_table(name, title, scores, columns, attempts, network.describe, notes, in_paper)
    evaluated = attempts.succeeded(scores)
    factor_rows = [
        replace(row, label=f"{label}, {row.label}")
        for label, score in evaluated.items()
        for row in score.factors
    ]
    if in_paper:
        factor_rows += published_factors(name, list(scores))
    return {
        name: means,
        f"{name}-factors": Table(
            f"{title}: every factor", ["parts", "IoU"], factor_rows, means.source
        ),
        f"{name}-quality": Table(
            f"{title}: quality of the factors",
            [f"{label} {metric}" for label in evaluated for metric in QUALITY_METRICS],
            _quality_rows(evaluated, sorted(ks)),
            means.source,
            [*QUALITY_NOTES, *over, *labeled_remarks(evaluated)],
        ),
    }


def _quality_rows(scores: Mapping[str, Scores], ks: Sequence[int]) -> list[Row]:
    """A row for each k of the methods that are compared, then the mean over k of each."""
    rows: list[Row] = []
    for method in QUALITY_METHODS:
        labels = [f"{method}, k = {k}" for k in ks]
        # Parts inside the object may be missing, for all sets or for one.
        labels = [x for x in labels if any(x in score.values for score in scores.values())]
        values = [
            [score.mean(label, metric) for score in scores.values() for metric in QUALITY_METRICS]
            for label in labels
        ]
        rows += map(Row, labels, values)
        if labels:
            means = [mean_of_known(column) for column in zip(*values, strict=True)]
            rows.append(Row(f"{method}, mean over k", means))
    return rows


def _inside(
    features: Features, network: Network, ks: Sequence[int], seeds: int
) -> tuple[list[Result], list[str]]:
    """The parts inside the object for each seed, and a sentence on which way was taken."""
    files = [item.image for item in features.truth.images]
    discover = partial(
        discover_parts, files, ks, model=network.backbone, size=network.size, cache=network.cache
    )
    try:
        results = [discover(random_state=seed) for seed in range(seeds)]
    except InputError as error:
        return [], [f"no row for {INSIDE}: {error}"]
    first = results[0]
    way = (
        "parts are found on the cells of the object"
        if first.parts_of == "object"
        else "objects seem to fill the frame, so parts are found on all cells"
    )
    return results, [f"{way} (separation {first.separation:.2f}, layer {first.sources[0].layer})"]


def _counts(
    truth: GroundTruthSet, index: int, by_variant: Mapping[Variant, Regions]
) -> dict[tuple[Variant, bool], Overlaps]:
    """The pixel counts of one image. Those of (variant, True) are of masks, which may overlap;
    those of (variant, False) of one factor per pixel, or none (row 0)."""
    n_parts = len(truth.part_names)
    labels = truth.images[index].labels()
    parts = labels.astype(np.uint8)  # the smallest of the parts on a pixel
    parts[(parts > n_parts) & (parts < UNNAMED)] = BACKGROUND
    parts[labels == UNNAMED] = n_parts + 1
    counts = {}
    for variant, regions in by_variant.items():
        groups = torch.arange(len(regions.masks) + 1, device=regions.labels.device)[:, None, None]
        masks, tiles = (regions.masks, labels), (regions.labels == groups, parts)
        counts[variant, True] = count_overlaps([masks], n_parts + len(truth.others))
        counts[variant, False] = count_overlaps([tiles], n_parts + 1)
    return counts


def _evaluate(
    load: Callable[[], GroundTruthSet], network: Network, ks: Sequence[int], crf: bool, seeds: int
) -> Scores:
    truth = load()
    scores = part_scores(collect(truth, network), ks, crf, seeds, network)
    if not truth.missing:
        return scores
    n_missing = len(truth.missing)
    remark = (
        f"{n_missing} of {n_missing + len(truth)} annotated images, such as {truth.missing[0]}, "
        "are missing and left out"
    )
    to_stderr(f"{truth.name}: {remark}")
    return replace(scores, remarks=[*scores.remarks, remark])
