"""The paper's figures: heat maps over photos for several k (3), factor quality over k (4), and heat
maps of parts with their IoUs (5).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import GroundTruthSet
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.discovered_parts import label_factors, part_sets
from deepff.evaluation.metrics import associated_iou, association, factor_quality
from deepff.evaluation.predictions import (
    DFF,
    DFF_CRF,
    Features,
    Network,
    Variant,
    as_run,
    collect,
    count_by_variant,
    count_masks,
    factor_finders,
    factorize,
    in_images,
)
from deepff.evaluation.tables import NOT_IN_PAPER, Attempts, Row, Table, published_rows
from deepff.options import Method
from deepff.pictures.figures import figure, stacked
from deepff.runtime.files import atomic_path

COLUMNS = ("k", "quality", "spread over seeds", "images")
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
    """For each group of iCoseg (see `load_icoseg`) its photos, and a row of heat maps per k."""
    pictures = []
    for truth in load_icoseg(root, groups, images):
        features = collect(truth, network)
        pictures.append(figure(as_run(features, *(_coefficients(features, k) for k in ks))))
    return stacked(pictures)


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
    """Factor quality over k: a table with a row per curve and k, and the curves; ``networks`` and
    ``sets`` have what loads each."""
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
        f"part, without the background; mean over {', '.join(sets)}",
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
            Variant(DFF, k, seed): _coefficients(features, k, seed) for seed in range(seeds)
        }
        counts = count_by_variant(features, factor_finders(features, coefficients, crf))
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


def figure5(network: Network, root: str | Path, classes: Sequence[str] = FIGURE5_CLASSES) -> Table:
    """Each factor's parts and set-wide IoU, class by class (`part_sets`), with a picture of the
    four images whose factors fit their parts best and, on the right, the one where they fit worst:
    by the mean IoU, in the image, of the factors that have parts, which the caption says."""
    attempts = Attempts()
    examples = attempts.succeeded(
        {
            name: attempts.run(name, _examples, name, load, network)
            for name, load in part_sets(root, classes).items()
        }
    )
    pictures, rows, counts = zip(*examples.values(), strict=True)
    notes = [
        "For each class, the four images with the highest mean IoU of the factors that have parts "
        "and, on the right, the one with the lowest",
        *attempts.notes(),
    ]
    return Table(
        f"Figure 5: heat maps of parts, k = {N_FACTORS}",
        ["parts", "IoU"],
        [row for of_class in rows for row in of_class],
        network.describe(sum(counts)),
        notes,
        dict(pictures),
    )


def _examples(
    name: str, load: Callable[[], GroundTruthSet], network: Network
) -> tuple[tuple[str, np.ndarray], list[Row], int]:
    """A class's picture after its caption, a row per factor, and the number of images."""
    features = collect(load(), network)
    H, variant = _coefficients(features, N_FACTORS), Variant(DFF, N_FACTORS)
    finders = factor_finders(features, {variant: H}, crf=False)
    of_images = in_images(features, finders, partial(count_masks, features.truth))
    counts = [of_image[variant] for of_image in of_images]
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
    caption = f"{name}, mean IoU: {', '.join(f'{scores[index]:.2f}' for index in shown)}"
    picture = np.asarray(figure(as_run(features, H), shown))
    rows = [
        Row(f"{name}, factor {number}", [", ".join(factor.labels), factor.iou])
        for number, factor in enumerate(label_factors(total, features.truth.part_names))
    ]
    return (caption, picture), rows, len(features)


def _coefficients(features: Features, k: int, seed: int = 0) -> Tensor:
    return factorize(features.activations, Method.NMF, k, seed, features.solver)
