"""Parts found without being named: labels by coverage, IoU of each factor with its parts (Table 4).

The same evaluation is the bottom of Table 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from deepff.benchmark.baselines import factor_coefficients
from deepff.benchmark.evaluation import (
    Features,
    Network,
    Variant,
    attempt,
    collect,
    count_by_variant,
    each,
    failure_notes,
    image_masks,
    require_success,
    to_stderr,
)
from deepff.benchmark.published import NOT_IN_PAPER, published_rows
from deepff.benchmark.tables import Row, Table, mean_of_known
from deepff.datasets import CAR_PARTS, MERGED_PARTS, GroundTruthSet, load_coco, load_pascal_part
from deepff.datasets.voc import check_classes
from deepff.metrics import Overlaps, associated_iou, association

# The paper's five are not known to us; these have heads, torsos, legs and tails in common.
TABLE4_CLASSES = ("cat", "cow", "dog", "horse", "sheep")

SUMMARY_NOTE = (
    "A part belongs to a factor that covers more than half of it over the set; a cell is the mean "
    "over the factors that have parts of their set-wide IoU with all their parts together, and – "
    "where no factor has any"
)


@dataclass(frozen=True)
class LabelledFactor:
    """A factor, the parts that belong to it, and its IoU with all of them together."""

    method: str
    k: int
    factor: int
    parts: tuple[str, ...]
    iou: float


@dataclass(frozen=True)
class PartScores:
    """What one class or group gives.

    Attributes
    ----------
    n_images : int
    means : dict of (method, k) to float or None
        Mean IoU over the factors with parts and over seeds; None where none has any.
    factors : list of LabelledFactor
        Of seed 0.
    """

    n_images: int
    means: dict[tuple[str, int], float | None]
    factors: list[LabelledFactor]


def table4(
    network: Network,
    root: str | Path,
    ks: Sequence[int] = (1, 2, 3, 4),
    *,
    classes: Sequence[str] = TABLE4_CLASSES,
    crf: bool = True,
    seeds: int = 1,
    report: Callable[[str], None] = to_stderr,
) -> dict[str, Table]:
    """Automatic part labels for k factors, class by class.

    Parameters
    ----------
    network : Network
    root : path
        As :func:`part_sets` takes it.
    ks : sequence of int
        Numbers of factors.
    classes : sequence of str
        PASCAL-Part's; the default is this project's choice, for the paper's five are not known to
        us.
    crf : bool
        Whether there are rows for DFF-CRF.
    seeds : int
        How many seeds, from 0, the means are over.
    report : callable
        Told of each class that is done or failed.

    Returns
    -------
    dict of str to Table
        "table4", and "table4-factors" with every factor of seed 0.

    Raises
    ------
    InputError
        A class is unknown, or no class could be evaluated.
    """
    failures: dict[str, str] = {}
    scores = {
        name: attempt(name, partial(_evaluate, load, network, ks, crf, seeds), failures, report)
        for name, load in part_sets(root, classes).items()
    }
    return part_tables(
        "table4",
        "Table 4: parts labelled automatically (IoU)",
        network,
        scores,
        failures,
        seeds,
        in_paper=not is_coco(root),
    )


def part_sets(root: str | Path, classes: Sequence[str]) -> dict[str, Callable[[], GroundTruthSet]]:
    """What loads each set of images with part masks.

    Parameters
    ----------
    root : path
        A COCO file whose categories are parts, or the folder of its `annotations.json`: one set,
        with Car Parts' categories merged into eight parts. Else PASCAL-Part over VOC 2010: one set
        a class.
    classes : sequence of str
        PASCAL-Part's.

    Raises
    ------
    InputError
        PASCAL-Part has no parts of a class.
    """
    root = Path(root)
    if is_coco(root):
        folder = root if root.is_dir() else root.parent
        return {folder.resolve().name: partial(load_coco, root, merge=CAR_PARTS)}
    check_classes(classes, list(MERGED_PARTS))
    return {name: partial(_load_pascal_class, root, name) for name in classes}


def is_coco(root: str | Path) -> bool:
    """Whether :func:`part_sets` takes `root` for a COCO file, which the paper has nothing of."""
    return Path(root).suffix == ".json" or (Path(root) / "annotations.json").is_file()


def part_scores(features: Features, ks: Sequence[int], crf: bool, seeds: int) -> PartScores:
    """Label the factors of every method and k by coverage, and measure them."""
    over_seeds: dict[tuple[str, int], list[float | None]] = {}
    factors: list[LabelledFactor] = []
    for k in ks:
        coefficients: dict[Variant, Tensor] = {}
        for seed in range(seeds):
            coefficients |= factor_coefficients(features.activations, k, seed)
        found = image_masks(features, coefficients, crf)
        for variant, overlaps in count_by_variant(found, features).items():
            labelled = label_factors(overlaps, variant.method, k, features.part_names)
            ious = [factor.iou for factor in labelled if factor.parts]
            over_seeds.setdefault((variant.method, k), []).append(mean_of_known(ious))
            factors += labelled if variant.seed == 0 else []
    means = {key: mean_of_known(values) for key, values in over_seeds.items()}
    return PartScores(len(features), means, factors)


def label_factors(
    overlaps: Overlaps, method: str, k: int, part_names: Sequence[str]
) -> list[LabelledFactor]:
    """The parts of each factor by coverage above one half; the background is not a part."""
    associated = association(overlaps)
    associated[:, 0] = False
    ious = associated_iou(overlaps, associated)
    return [
        LabelledFactor(
            method,
            k,
            factor,
            tuple(name for name, own in zip(part_names, row[1:], strict=True) if own),
            float(value),
        )
        for factor, (row, value) in enumerate(zip(associated, ious, strict=True))
    ]


def part_tables(
    name: str,
    title: str,
    network: Network,
    scores: Mapping[str, PartScores | None],
    failures: Mapping[str, str],
    seeds: int,
    in_paper: bool = True,
) -> dict[str, Table]:
    """A table of means with a column a set, and one of every factor with its parts."""
    require_success(scores, failures)
    done = {set_name: score for set_name, score in scores.items() if score is not None}
    columns = [*scores, "mean"]
    counts = each(scores, lambda score: score.n_images)
    rows = [Row("images", [*counts, None])]
    rows += [_mean_row(scores, method, k) for method, k in next(iter(done.values())).means]
    published, published_notes = published_rows(name, columns) if in_paper else NOT_IN_PAPER
    source = network.describe(sum(score.n_images for score in done.values()))
    over = [f"Means over {seeds} seeds"] if seeds > 1 else []
    notes = [SUMMARY_NOTE, *over, *failure_notes(failures), *published_notes]
    factor_rows = [
        Row(
            f"{set_name}, {factor.method}, k = {factor.k}, factor {factor.factor}",
            [", ".join(factor.parts) or None, factor.iou if factor.parts else None],
        )
        for set_name, score in done.items()
        for factor in score.factors
    ]
    return {
        name: Table(title, columns, [*rows, *published], source, notes),
        f"{name}-factors": Table(f"{title}: every factor", ["parts", "IoU"], factor_rows, source),
    }


def _mean_row(scores: Mapping[str, PartScores | None], method: str, k: int) -> Row:
    values = each(scores, lambda score: score.means[method, k])
    return Row(f"{method}, k = {k}", [*values, mean_of_known(values)])


def _load_pascal_class(root: Path, class_name: str) -> GroundTruthSet:
    return load_pascal_part(root, {class_name: MERGED_PARTS[class_name]})[0]


def _evaluate(
    load: Callable[[], GroundTruthSet],
    network: Network,
    ks: Sequence[int],
    crf: bool,
    seeds: int,
) -> PartScores:
    return part_scores(collect(load(), network), ks, crf, seeds)
