"""Parts found without being named: labels by coverage, IoU of each factor with its parts (Table 4).

The same evaluation is the bottom of Table 1.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from deepff.discovery.discover_parts import discover_parts
from deepff.errors import InputError
from deepff.evaluation.baselines import factor_coefficients
from deepff.evaluation.datasets import (
    CAR_PARTS,
    TABLE4_PARTS,
    GroundTruthSet,
    load_coco,
    load_pascal_part,
)
from deepff.evaluation.datasets.ground_truth import BACKGROUND, IGNORED, UNNAMED
from deepff.evaluation.datasets.pascal_voc import check_classes
from deepff.evaluation.factor_labels import LabelledFactor, label_factors
from deepff.evaluation.metrics import Overlaps, count_overlaps, factor_quality
from deepff.evaluation.predictions import (
    DFF,
    DFF_CRF,
    Features,
    Network,
    Variant,
    Work,
    attempt,
    collect,
    failure_notes,
    in_images,
    read_each,
    require_success,
    to_stderr,
)
from deepff.evaluation.tables import (
    NOT_IN_PAPER,
    Row,
    Table,
    mean_of_known,
    published_factors,
    published_rows,
)
from deepff.options import RECIPE_OPTIONS
from deepff.regions.regions import region_finder
from deepff.regions.thresholds import label_map
from deepff.result import Result

INSIDE = "inside object"
QUALITY_METHODS = (DFF, DFF_CRF, INSIDE)

TABLE4_CLASSES = ("aeroplane", "bird", "car", "motorbike", "cat")
"""The five classes that the paper prints."""

TABLE4_BESIDE = ("person",)
"""What a factor may be called after besides parts and the background, as in the paper."""

SUMMARY_NOTE = (
    "A part belongs to a factor that covers more than half of it over the set; a cell is the mean "
    "over the factors that have parts of their set-wide IoU with all their parts together, and – "
    "where no factor has any; factors that nothing belongs to are called background"
)

QUALITY_NOTES = (
    "Quality is the mean over the factors of the set-wide IoU with their best part",
    "NMI is the normalised mutual information (arithmetic mean) of factor and part over all pixels "
    "of the set, where the background is one more part, and FG-NMI over those that have a part "
    "(Choudhury et al., NeurIPS 2021); a pixel's factor is the largest relative to its maximum "
    "over the set among those that are on, and pixels that are on in none are one more group",
)


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
    quality, nmi, fg_nmi : dict of (method, k) to float
        Factor quality and normalised mutual information, means over seeds.
    remarks : list of str
        How the parts inside the object were found, or why not.
    """

    n_images: int
    means: dict[tuple[str, int], float | None]
    factors: list[LabelledFactor]
    quality: dict[tuple[str, int], float]
    nmi: dict[tuple[str, int], float]
    fg_nmi: dict[tuple[str, int], float]
    remarks: list[str]


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
        PASCAL-Part's; by default the five that the paper prints.
    crf : bool
        Whether there are rows for DFF-CRF, and for parts inside the object, which are refined too.
    seeds : int
        How many seeds, from 0, the means are over.
    report : callable
        Told of each class that is done or failed.

    Returns
    -------
    dict of str to Table
        "table4", "table4-factors" with every factor of seed 0, and "table4-quality".

    Raises
    ------
    InputError
        A class is unknown, or no class could be evaluated.
    """
    failures: dict[str, str] = {}
    scores = {
        name: attempt(name, partial(_evaluate, load, network, ks, crf, seeds), failures, report)
        for name, load in part_sets(root, classes, TABLE4_BESIDE).items()
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


def part_sets(
    root: str | Path, classes: Sequence[str], beside: Sequence[str] = ()
) -> dict[str, Callable[[], GroundTruthSet]]:
    """What loads each set of images with part masks.

    Parameters
    ----------
    root : path
        A COCO file whose categories are parts, or the folder of its `annotations.json`: one set,
        with Car Parts' categories merged into eight parts. Else PASCAL-Part over VOC 2010: one set
        a class.
    classes : sequence of str
        PASCAL-Part's.
    beside : sequence of str
        As :func:`deepff.evaluation.datasets.load_pascal_part` takes it; COCO files have none.

    Raises
    ------
    InputError
        PASCAL-Part has no parts of a class.
    """
    root = Path(root)
    if is_coco(root):
        folder = root if root.is_dir() else root.parent
        return {folder.resolve().name: partial(load_coco, root, merge=CAR_PARTS)}
    check_classes(classes, list(TABLE4_PARTS))
    return {name: partial(_load_pascal_class, root, name, beside) for name in classes}


def is_coco(root: str | Path) -> bool:
    """Whether :func:`part_sets` takes `root` for a COCO file, which the paper has nothing of."""
    return Path(root).suffix == ".json" or (Path(root) / "annotations.json").is_file()


def part_scores(
    features: Features,
    ks: Sequence[int],
    crf: bool,
    seeds: int,
    network: Network | None = None,
) -> PartScores:
    """Label the factors of every method and k by coverage, and measure them.

    With a network and ``crf`` also the parts that
    :func:`deepff.discovery.discover_parts.discover_parts` finds inside the object.
    """
    inside, remarks = _inside(features, network, ks, seeds) if crf and network else ([], [])
    means: dict[tuple[str, int], list[float | None]] = {}
    quality: dict[tuple[str, int], list[float]] = {}
    nmi: dict[tuple[str, int], list[float]] = {}
    fg_nmi: dict[tuple[str, int], list[float]] = {}
    factors: list[LabelledFactor] = []
    for k in ks:
        coefficients: dict[Variant, Tensor] = {}
        for seed in range(seeds):
            coefficients |= factor_coefficients(features.activations, k, seed)
        judged = _judge(features, inside, k)
        for variant, (overlaps, pixels) in _summed(
            in_images(features, coefficients, crf, judged)
        ).items():
            labelled = label_factors(
                overlaps, variant.method, k, features.part_names, features.beside
            )
            ious = [factor.iou for factor in labelled if factor.has_parts]
            of = variant.method, k
            means.setdefault(of, []).append(mean_of_known(ious))
            quality.setdefault(of, []).append(factor_quality(overlaps, len(features.part_names)))
            nmi.setdefault(of, []).append(normalized_mutual_information(pixels))
            fg_nmi.setdefault(of, []).append(normalized_mutual_information(pixels[:, 1:-1]))
            factors += labelled if variant.seed == 0 else []
    return PartScores(
        len(features),
        {key: mean_of_known(values) for key, values in means.items()},
        factors,
        {key: float(np.mean(values)) for key, values in quality.items()},
        {key: float(np.mean(values)) for key, values in nmi.items()},
        {key: float(np.mean(values)) for key, values in fg_nmi.items()},
        remarks,
    )


def normalized_mutual_information(counts: np.ndarray) -> float:
    """Mutual information of rows and columns over the mean of their entropies, in [0, 1].

    As `sklearn.metrics.normalized_mutual_info_score`, which takes labels and not counts.

    Parameters
    ----------
    counts : ndarray, (groups, parts)
        Pixels of each group in each part.

    Returns
    -------
    float
        1 where there is a single group and a single part.
    """
    from scipy.stats import entropy
    from sklearn.metrics import mutual_info_score

    if not counts.any():
        return 0.0
    mean_entropy = (entropy(counts.sum(0)) + entropy(counts.sum(1))) / 2
    if mean_entropy == 0:
        return 1.0
    return float(mutual_info_score(None, None, contingency=counts) / mean_entropy)


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
    counts = read_each(scores, lambda score: score.n_images)
    rows = [Row("images", [*counts, None])]
    # One set may lack the parts inside the object.
    computed = dict.fromkeys(key for score in done.values() for key in score.means)
    rows += [_mean_row(scores, method, k) for method, k in computed]
    published, published_notes = published_rows(name, columns) if in_paper else NOT_IN_PAPER
    source = network.describe(sum(score.n_images for score in done.values()))
    over = [f"Means over {seeds} seeds"] if seeds > 1 else []
    notes = [SUMMARY_NOTE, *over, *failure_notes(failures), *published_notes]
    factor_rows = [
        Row(
            f"{set_name}, {factor.method}, k = {factor.k}, factor {factor.factor}",
            [", ".join(factor.labels) or None, factor.iou if factor.labels else None],
        )
        for set_name, score in done.items()
        for factor in score.factors
    ]
    if in_paper:
        factor_rows += published_factors(name, columns)
    remarks = [f"{label}: {text}" for label, score in done.items() for text in score.remarks]
    return {
        name: Table(title, columns, [*rows, *published], source, [*notes, *remarks]),
        f"{name}-factors": Table(f"{title}: every factor", ["parts", "IoU"], factor_rows, source),
        f"{name}-quality": Table(
            f"{title}: quality of the factors",
            [
                f"{set_name} {metric}"
                for set_name in done
                for metric in ("quality", "NMI", "FG-NMI")
            ],
            _quality_rows(done, list(computed)),
            source,
            [*QUALITY_NOTES, *over, *remarks],
        ),
    }


def _mean_row(scores: Mapping[str, PartScores | None], method: str, k: int) -> Row:
    values = read_each(scores, lambda score: score.means.get((method, k)))
    return Row(f"{method}, k = {k}", [*values, mean_of_known(values)])


def _quality_rows(
    scores: Mapping[str, PartScores], computed: Sequence[tuple[str, int]]
) -> list[Row]:
    """A row for each k of the methods that are compared, then the mean over k of each."""
    by_method: dict[str, list[Row]] = {}
    for method, k in sorted(computed, key=lambda key: key[1]):
        values = [
            of.get((method, k))
            for score in scores.values()
            for of in (score.quality, score.nmi, score.fg_nmi)
        ]
        by_method.setdefault(method, []).append(Row(f"{method}, k = {k}", values))
    rows = []
    for method in QUALITY_METHODS:
        own = by_method.get(method, [])
        columns = zip(*(row.values for row in own), strict=True)
        rows += own
        rows += [Row(f"{method}, mean over k", list(map(mean_of_known, columns)))] if own else []
    return rows


def _inside(
    features: Features, network: Network, ks: Sequence[int], seeds: int
) -> tuple[list[Result], list[str]]:
    """The parts inside the object for each seed, and a sentence on which way was taken."""
    files = [item.image for item in features.truth]
    try:
        results = [
            discover_parts(
                files,
                ks,
                model=network.backbone,
                size=network.size,
                cache=network.cache,
                random_state=seed,
                progress=network.progress,
            )
            for seed in range(seeds)
        ]
    except InputError as error:
        return [], [f"no row for {INSIDE}: {error}"]
    first = results[0]
    way = (
        "parts are found on the cells of the object"
        if first.parts_of == "object"
        else "objects are taken to fill the frame, and parts are found on all cells"
    )
    return results, [f"{way} (separation {first.separation:.2f}, layer {first.sources[0].layer})"]


# By variant: counts of its masks in the parts, which may overlap, and of one factor a pixel, or
# none, in each part. The first column of the latter is the background, the last what is on the
# object but on no named part.
_Counts = dict[Variant, tuple[Overlaps, np.ndarray]]


def _judge(features: Features, inside: Sequence[Result], k: int) -> Work[_Counts]:
    """What counts the pixels of one image, of the parts inside the object too."""
    finders = [region_finder(of, k, RECIPE_OPTIONS[of.recipe]) for of in inside]
    n_parts = len(features.part_names)
    n_labels = n_parts + len(features.beside)

    def counted(index: int, masks: dict[Variant, Tensor], maps: dict[Variant, Tensor]) -> _Counts:
        truth = features.truth[index].labels()
        # Factors that do not overlap are the largest where they are on.
        labels = {
            v: label_map(maps[v] if v in maps else own.float(), own) for v, own in masks.items()
        }
        for seed, find in enumerate(finders):
            regions = find(index)
            masks[Variant(INSIDE, k, seed)] = regions.masks
            labels[Variant(INSIDE, k, seed)] = regions.labels
        return {
            variant: (
                count_overlaps([(own, truth)], n_labels),
                _contingency(labels[variant].cpu().numpy(), truth, len(own), n_parts),
            )
            for variant, own in masks.items()
        }

    return counted


def _contingency(factors: np.ndarray, truth: np.ndarray, k: int, n_parts: int) -> np.ndarray:
    """Pixels of each factor, or none, in each part: (k + 1, n_parts + 2)."""
    judged = truth != IGNORED
    parts = truth[judged].astype(np.int64)
    parts[(parts > n_parts) & (parts != UNNAMED)] = BACKGROUND
    parts[parts == UNNAMED] = n_parts + 1
    cells = factors[judged].astype(np.int64) * (n_parts + 2) + parts
    return np.bincount(cells, minlength=(k + 1) * (n_parts + 2)).reshape(k + 1, n_parts + 2)


def _summed(images: Iterable[_Counts]) -> _Counts:
    total: _Counts = {}
    for counts in images:
        for variant, (overlaps, pixels) in counts.items():
            if variant in total:
                overlaps, pixels = total[variant][0] + overlaps, total[variant][1] + pixels
            total[variant] = overlaps, pixels
    return total


def _load_pascal_class(root: Path, class_name: str, beside: Sequence[str]) -> GroundTruthSet:
    return load_pascal_part(root, {class_name: TABLE4_PARTS[class_name]}, beside=beside)[0]


def _evaluate(
    load: Callable[[], GroundTruthSet],
    network: Network,
    ks: Sequence[int],
    crf: bool,
    seeds: int,
) -> PartScores:
    truth = load()
    scores = part_scores(collect(truth, network), ks, crf, seeds, network)
    if not truth.missing:
        return scores
    n_missing = len(truth.missing)
    remark = (
        f"{n_missing} of {n_missing + len(truth)} annotated images, such as {truth.missing[0]}, "
        "are not there and left out"
    )
    to_stderr(f"{truth.name}: {remark}")
    return replace(scores, remarks=[*scores.remarks, remark])
