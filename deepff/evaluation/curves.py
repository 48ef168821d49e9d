"""Figure 4: factor quality over k, for several layers of a network or for several networks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import GroundTruthSet
from deepff.evaluation.metrics import factor_quality
from deepff.evaluation.predictions import (
    DFF,
    DFF_CRF,
    Features,
    Network,
    Variant,
    collect,
    count_by_variant,
    factorize,
    image_masks,
)
from deepff.evaluation.tables import NOT_IN_PAPER, Attempts, Row, Table, published_rows
from deepff.runtime.files import atomic_path

COLUMNS = ("k", "quality", "spread over seeds", "images")


@dataclass(frozen=True)
class Curve:
    """Factor quality of one layer of one network."""

    qualities: np.ndarray  # means over the classes, (ks, seeds)
    n_images: int
    source: str


def figure4(
    name: str,
    networks: Mapping[str, Callable[[], Network]],
    sets: Mapping[str, Callable[[], GroundTruthSet]],
    ks: Sequence[int],
    *,
    crf: bool = False,
    seeds: int = 3,
    in_paper: bool = False,
) -> tuple[Table, dict[str, Curve]]:
    """Factor quality of DFF, or DFF-CRF, over k: a table with a row per curve and k, and the
    curves. ``networks`` and ``sets`` have what loads each curve's network and each set of images
    with parts."""
    attempts = Attempts()

    def evaluate_curve(label: str) -> Curve:
        network = networks[label]()

        def evaluate(load: Callable[[], GroundTruthSet]) -> tuple[int, np.ndarray]:
            features = collect(load(), network)
            return len(features), qualities(features, ks, crf, seeds)

        outcomes = {
            name: attempts.run(f"{label}, {name}", evaluate, load) for name, load in sets.items()
        }
        counts, of_sets = zip(*attempts.succeeded(outcomes).values(), strict=True)
        return Curve(np.mean(of_sets, axis=0), sum(counts), network.describe(sum(counts)))

    curves = attempts.succeeded(
        {label: attempts.run(label, evaluate_curve, label) for label in networks}
    )
    rows = [
        Row(label, [k, float(of_seeds.mean()), float(of_seeds.std()), curve.n_images])
        for label, curve in curves.items()
        for k, of_seeds in zip(ks, curve.qualities, strict=True)
    ]
    published, published_notes = published_rows(name, COLUMNS) if in_paper else NOT_IN_PAPER
    method = DFF_CRF if crf else DFF
    notes = [
        f"Factor quality of {method}: mean over the factors of the set-wide IoU with their best "
        f"part, the background being none; mean over {', '.join(sets)}",
        f"Mean and standard deviation over {seeds} seeds",
        *attempts.notes(),
        *published_notes,
    ]
    source = "; ".join(curve.source for curve in curves.values())
    title = f"{name.replace('figure', 'Figure ')}: factor quality over k"
    return Table(title, COLUMNS, [*rows, *published], source, notes), curves


def qualities(features: Features, ks: Sequence[int], crf: bool, seeds: int) -> np.ndarray:
    """Factor quality of DFF for each k and seed: (ks, seeds)."""
    method = DFF_CRF if crf else DFF
    of_ks = []
    for k in ks:
        coefficients = {
            Variant(DFF, k, seed): factorize(features.activations, "nmf", k, seed, features.solver)
            for seed in range(seeds)
        }
        counts = count_by_variant(image_masks(features, coefficients, crf), features)
        of_ks.append([factor_quality(counts[Variant(method, k, seed)]) for seed in range(seeds)])
    return np.array(of_ks)


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
