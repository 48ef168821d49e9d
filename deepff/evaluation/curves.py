"""Figure 5: factor quality over k, for several layers of a network or for several networks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from deepff.errors import InputError
from deepff.evaluation.baselines import factorize
from deepff.evaluation.datasets import GroundTruthSet
from deepff.evaluation.discovered_parts import TABLE4_CLASSES, is_coco, part_sets
from deepff.evaluation.metrics import factor_quality
from deepff.evaluation.predictions import (
    DFF,
    DFF_CRF,
    Features,
    Network,
    Variant,
    attempt,
    collect,
    count_by_variant,
    failure_notes,
    image_masks,
    require_success,
    to_stderr,
)
from deepff.evaluation.tables import NOT_IN_PAPER, Row, Table, published_rows
from deepff.runtime.files import atomic_path

COLUMNS = ("k", "quality", "spread over seeds", "images")


@dataclass(frozen=True)
class Curve:
    """Factor quality of one layer of one network.

    Attributes
    ----------
    qualities : ndarray, (ks, seeds)
        Means over the classes.
    source : str
        What made it.
    """

    qualities: np.ndarray
    n_images: int
    source: str


def figure5(
    name: str,
    networks: Mapping[str, Callable[[], Network]],
    root: str | Path,
    ks: Sequence[int],
    *,
    classes: Sequence[str] = TABLE4_CLASSES,
    crf: bool = False,
    seeds: int = 3,
    report: Callable[[str], None] = to_stderr,
) -> tuple[Table, dict[str, Curve]]:
    """Factor quality of DFF over k, a curve a network.

    Parameters
    ----------
    name : "figure5a" or "figure5b"
    networks : mapping
        A curve's label to what loads its network.
    root : path
        As `deepff.evaluation.discovered_parts.part_sets` takes it.
    ks : sequence of int
        Numbers of factors.
    classes : sequence of str
        PASCAL-Part's, over which the quality is averaged.
    crf : bool
        Whether masks are those of DFF-CRF.
    seeds : int
        How many seeds, from 0, give the mean and the spread (the standard deviation).
    report : callable
        Told of each curve that is done or failed.

    Returns
    -------
    table : Table
        One row a curve and k.
    curves : dict of str to Curve
        Those that could be made.

    Raises
    ------
    InputError
        No curve could be made.
    """
    failures: dict[str, str] = {}
    sets = part_sets(root, classes)
    outcomes = {
        label: attempt(
            label,
            partial(_curve, label, load, sets, ks, crf, seeds, failures, report),
            failures,
            report,
        )
        for label, load in networks.items()
    }
    require_success(outcomes, failures)
    curves = {label: curve for label, curve in outcomes.items() if curve is not None}
    rows = [
        Row(label, [k, float(of_seeds.mean()), float(of_seeds.std()), curve.n_images])
        for label, curve in curves.items()
        for k, of_seeds in zip(ks, curve.qualities, strict=True)
    ]
    published, published_notes = NOT_IN_PAPER if is_coco(root) else published_rows(name, COLUMNS)
    method = DFF_CRF if crf else DFF
    notes = [
        f"Factor quality of {method}: mean over the factors of the set-wide IoU with their best "
        f"part, background aside; mean over {', '.join(sets)}",
        f"Mean and standard deviation over {seeds} seeds",
        *failure_notes(failures),
        *published_notes,
    ]
    source = "; ".join(curve.source for curve in curves.values())
    title = f"{name.replace('figure', 'Figure ')}: factor quality over k"
    return Table(title, COLUMNS, [*rows, *published], source, notes), curves


def qualities(features: Features, ks: Sequence[int], crf: bool, seeds: int) -> np.ndarray:
    """Factor quality of DFF for each k and seed: (ks, seeds)."""
    method = DFF_CRF if crf else DFF
    found = []
    for k in ks:
        coefficients = {
            Variant(DFF, k, seed): factorize(features.activations, "nmf", k, seed)
            for seed in range(seeds)
        }
        counts = count_by_variant(image_masks(features, coefficients, crf), features)
        found.append([factor_quality(counts[Variant(method, k, seed)]) for seed in range(seeds)])
    return np.array(found)


def require_matplotlib() -> None:
    """Raise InputError with the command that installs matplotlib, if it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError("the plot needs matplotlib: pip install 'deepff[plot]'") from error


def write_plot(curves: Mapping[str, Curve], ks: Sequence[int], title: str, path: Path) -> Path:
    """Plot the curves' means, with a band of one standard deviation over seeds; gives the PNG."""
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for label, curve in curves.items():
        mean, spread = curve.qualities.mean(1), curve.qualities.std(1)
        (line,) = axes.plot(ks, mean, marker="o", label=label)
        axes.fill_between(ks, mean - spread, mean + spread, alpha=0.2, color=line.get_color())
    axes.set(title=title, xlabel="factors, k", ylabel="factor quality")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.legend()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
    return path


def _curve(
    label: str,
    load: Callable[[], Network],
    sets: Mapping[str, Callable[[], GroundTruthSet]],
    ks: Sequence[int],
    crf: bool,
    seeds: int,
    failures: dict[str, str],
    report: Callable[[str], None],
) -> Curve:
    network = load()

    def evaluate(load_set: Callable[[], GroundTruthSet]) -> tuple[int, np.ndarray]:
        features = collect(load_set(), network)
        return len(features), qualities(features, ks, crf, seeds)

    outcomes = {
        f"{label}, {set_name}": attempt(
            f"{label}, {set_name}", partial(evaluate, load_set), failures, report
        )
        for set_name, load_set in sets.items()
    }
    require_success(outcomes, failures)
    done = [outcome for outcome in outcomes.values() if outcome is not None]
    n_images = sum(count for count, _ in done)
    mean = np.mean([of_set for _, of_set in done], axis=0)
    return Curve(mean, n_images, network.describe(n_images))
