"""Whole objects with one factor: co-segmentation (Table 1, top) and co-localization (Table 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from deepff.activations.activations import ImageRecord
from deepff.evaluation.baselines import object_coefficients
from deepff.evaluation.datasets import VOC_CLASSES, load_voc
from deepff.evaluation.datasets.pascal_voc import check_classes
from deepff.evaluation.metrics import BoxCoordinates, box_iou, corloc, iou, jaccard
from deepff.evaluation.predictions import (
    CONTRAST,
    CONTRAST_CLASSIFIER,
    CONTRAST_CRF,
    CONTRAST_UNREFINED,
    DFF,
    DFF_CRF,
    Features,
    Network,
    Variant,
    attempt,
    collect,
    contrast_masks,
    count_by_variant,
    failure_notes,
    image_masks,
    read_each,
    require_success,
    to_stderr,
)
from deepff.evaluation.tables import Row, Table, mean_of_known, published_rows
from deepff.options import VocFilter
from deepff.pictures.figures import read_photo
from deepff.pictures.region_pictures import region_picture
from deepff.regions.components import Box, component_boxes

BASELINE_NOTE = (
    "k-means has two clusters, of which that with the longer centre is taken for the object; "
    "“Le et al.” is our reading of their k-means on max-pooled filters; on a layer that is never "
    "negative, PCA's first component is what NMF finds with one factor, so the two rows agree"
)


@dataclass(frozen=True)
class Scores:
    """A metric of each method on one class or group, one value a seed."""

    n_images: int
    by_method: Mapping[str, list[float]]
    counts: Mapping[str, int]
    poorest: Poorest


def table2(
    network: Network,
    root: str | Path,
    *,
    classes: Sequence[str] = VOC_CLASSES,
    filter: str = VocFilter.DIFFICULT_OR_TRUNCATED,
    crf: bool = True,
    seeds: int = 1,
    report: Callable[[str], None] = to_stderr,
) -> Table:
    """CorLoc on Pascal VOC 2007, class by class: a box around the largest component, k = 1.

    Parameters
    ----------
    network : Network
    root : path
        As for `deepff.evaluation.datasets.load_voc`.
    classes : sequence of str
    filter : str
        One of :class:`deepff.options.VocFilter`.
    crf : bool
        Whether there is a row for DFF-CRF.
    seeds : int
        How many seeds, from 0, the values are means over.
    report : callable
        Told of each class that is done or failed.

    Raises
    ------
    InputError
        A class or filter is unknown, or no class could be evaluated.
    """
    check_classes(classes, VOC_CLASSES)
    jobs = {name: partial(_corloc, network, root, name, filter, crf, seeds) for name in classes}
    failures: dict[str, str] = {}
    scores = {name: attempt(name, job, failures, report) for name, job in jobs.items()}
    require_success(scores, failures)
    count_rows = [_count_row(scores, name) for name in VocFilter]
    notes = [
        "CorLoc: share of images whose box has an IoU above 0.5 with a box of the class, difficult "
        "and truncated ones included. The box is around the largest component of the mask",
        f"The images are those with an instance that passes the filter {filter}; one that shows "
        "several classes counts in each",
        *common_notes(seeds, scores),
    ]
    return object_table(
        "table2",
        "Table 2: VOC 2007, co-localization, k = 1 (CorLoc)",
        network,
        scores,
        failures,
        notes,
        count_rows,
    )


def object_scores(features: Features, crf: bool, seeds: int) -> Scores:
    """Set-wide IoU of each method's mask with the object."""
    by_method: dict[str, list[float]] = {}
    poorest = Poorest()

    def judged(
        found_in_images: Iterator[dict[Variant, Tensor]],
    ) -> Iterator[dict[Variant, Tensor]]:
        for index, found in enumerate(found_in_images):
            labels = features.truth[index].labels()
            poorest.add(
                features.activations.images[index],
                {variant.method: own for variant, own in found.items()},
                {variant.method: jaccard(own[0], labels) for variant, own in found.items()},
            )
            yield found

    for seed in range(seeds):
        found = _all_masks(features, crf, seed)
        overlaps_of = count_by_variant(judged(found) if seed == 0 else found, features)
        for variant, overlaps in overlaps_of.items():
            by_method.setdefault(variant.method, []).append(float(iou(overlaps)[0, 1]))
    return Scores(len(features), by_method, {}, poorest)


def _all_masks(
    features: Features, crf: bool, seed: int, for_boxes: bool = False
) -> Iterator[dict[Variant, Tensor]]:
    """Masks of every method; the recipe contrast has no seed, so it comes with the first."""
    found = image_masks(features, object_coefficients(features.activations, seed), crf)
    if seed > 0:
        return found
    pairs = zip(found, contrast_masks(features, crf, for_boxes), strict=True)
    return (own | contrast for own, contrast in pairs)


def object_table(
    name: str,
    title: str,
    network: Network,
    scores: Mapping[str, Scores | None],
    failures: Mapping[str, str],
    notes: Sequence[str],
    count_rows: Sequence[Row] = (),
) -> Table:
    """One column a class or group, their mean, and a row a method."""
    columns = [*scores, "mean"]
    done = [score for score in scores.values() if score is not None]
    first = (DFF, DFF_CRF, CONTRAST_UNREFINED, CONTRAST_CRF, CONTRAST, CONTRAST_CLASSIFIER)
    methods = sorted(done[0].by_method, key=lambda m: first.index(m) if m in first else len(first))
    rows = [_method_row(scores, method) for method in methods]
    if not count_rows:
        counts = read_each(scores, lambda score: score.n_images)
        count_rows = [Row("images", [*counts, None])]
    published, published_notes = published_rows(name, columns)
    return Table(
        title,
        columns,
        [*count_rows, *rows, *published],
        network.describe(sum(score.n_images for score in done)),
        [*notes, *failure_notes(failures), *published_notes],
        {
            score.poorest.caption(name): score.poorest.picture()
            for name, score in scores.items()
            if score is not None
        },
    )


def common_notes(seeds: int, scores: Mapping[str, Scores | None]) -> list[str]:
    """What is said below every table of whole objects."""
    notes = [BASELINE_NOTE]
    if len([score for score in scores.values() if score is not None]) < len(scores):
        notes.append("The mean is over the columns that could be evaluated")
    if seeds > 1:
        spread = max(
            float(np.std(values))
            for score in scores.values()
            if score is not None
            for values in score.by_method.values()
        )
        notes.append(
            f"Means over {seeds} seeds; the largest standard deviation over seeds is {spread:.3f}"
        )
    return notes


def _corloc(
    network: Network, root: str | Path, class_name: str, filter: str, crf: bool, seeds: int
) -> Scores:
    counts = {
        str(name): len(load_voc(root, year=2007, classes=[class_name], filter=name)[0])
        for name in VocFilter
    }
    (truth,) = load_voc(root, year=2007, classes=[class_name], filter=filter)
    features = collect(truth, network)
    boxes = [item.boxes_of(class_name) for item in features.truth]
    poorest = Poorest()
    by_method: dict[str, list[float]] = {}
    for seed in range(seeds):
        predicted: dict[str, list] = {}
        for index, found in enumerate(_all_masks(features, crf, seed, for_boxes=True)):
            for variant, own in found.items():
                # the largest component comes first
                first = [*component_boxes(own[0]), None][0]
                predicted.setdefault(variant.method, []).append(first)
            if seed == 0:
                poorest.add(
                    features.activations.images[index],
                    {variant.method: own for variant, own in found.items()},
                    {method: _best_iou(own[-1], boxes[index]) for method, own in predicted.items()},
                )
        for method, own_boxes in predicted.items():
            by_method.setdefault(method, []).append(corloc(own_boxes, boxes))
    return Scores(len(features), by_method, counts, poorest)


def _best_iou(box: Box | None, boxes: Sequence[BoxCoordinates]) -> float:
    return 0.0 if box is None else float(box_iou([box], boxes).max())


def _count_row(scores: Mapping[str, Scores | None], filter: str) -> Row:
    counts = read_each(scores, lambda score: score.counts[filter])
    return Row(f"images, filter {filter}", [*counts, None])


def _method_row(scores: Mapping[str, Scores | None], method: str) -> Row:
    values = read_each(scores, lambda score: float(np.mean(score.by_method[method])))
    return Row(method, [*values, mean_of_known(values)])


N_SHOWN = 3
_COLUMNS = (DFF, DFF_CRF, CONTRAST_UNREFINED, CONTRAST_CRF, CONTRAST_CLASSIFIER, CONTRAST)


class Poorest:
    """The images of a set with the lowest scores of its last column's method.

    The columns are the paper's and the recipe contrast's of the methods that there are.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[float, ImageRecord, dict[str, Tensor]]] = []

    def add(
        self, image: ImageRecord, masks: Mapping[str, Tensor], scores: Mapping[str, float]
    ) -> None:
        """Look at one image: by method its mask (1, H, W) and its score."""
        shown = {method: masks[method] for method in _COLUMNS if method in masks}
        entry = (scores[list(shown)[-1]], image, shown)
        self._kept = sorted([*self._kept, entry], key=lambda kept: kept[0])[:N_SHOWN]

    def caption(self, name: str) -> str:
        """What the picture shows."""
        columns = list(self._kept[0][2])
        scores = ", ".join(f"{score:.2f}" for score, _, _ in self._kept)
        return (
            f"{name}, the images with the lowest IoU ({columns[-1]}: {scores}), from left to "
            f"right: {'; '.join(columns)}"
        )

    def picture(self) -> np.ndarray:
        """One row an image, one column a method: uint8 (H, W, 3)."""
        rows = []
        for _, image, masks in self._kept:
            photo, _ = read_photo(image)
            panels = [region_picture(photo, mask[0].int().cpu().numpy()) for mask in masks.values()]
            rows.append(np.concatenate(panels, axis=1))
        width = max(row.shape[1] for row in rows)
        padded = [
            np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255)
            for row in rows
        ]
        return np.concatenate(padded)
