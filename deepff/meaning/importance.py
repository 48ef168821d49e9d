"""How much factors matter to the network: measured by running its later part without them.

Three measures, for the classes that the network sees in the images:

* the fall of the class's score when a factor is taken out of an image, A − h w;
* total Sobol indices, as in CRAFT (Fel et al. 2023, "CRAFT: Concept Recursive Activation
  FacTorization for Explainability", section 3.3): the share of the variance of the score that a
  factor has a part in, when each factor of an image is scaled by a number drawn evenly from [0, 1]
  (Halton's sequence), A = Σ mⱼ hⱼ wⱼ, estimated by Jansen's formula (1999);
* TCAV's signed sensitivity (Kim et al. 2018): the derivative of the score along the factor, w at
  length 1 in every cell, against random directions. These are w with its channels permuted, which
  are as long and as sparse.

Images go through the network one by one, as a whole, because of what bypasses the layer; what
follows the layer runs on all changed maps of an image together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from deepff.errors import InputError
from deepff.images.painting import factor_colors, hex_colors
from deepff.layers.later import Edits, OpenLayer, gradients, outputs_for_noise, outputs_of_edits
from deepff.meaning.class_names import factor_classes, mixtures
from deepff.meaning.open_network import check_directions, network_inputs, opened_layer
from deepff.pictures.figures import spread
from deepff.pictures.tree_drawing import DRAWINGS
from deepff.results.factorization import FactorClasses, Factorization, color_slots
from deepff.results.run import Run

if TYPE_CHECKING:
    import pandas

N_IMAGES = 32
N_CLASSES = 3
N_DESIGN = 32  # as CRAFT's
N_RANDOM = 200


def importance(
    run: Run,
    k: int | None = None,
    classes: Sequence[str | int] | None = None,
    n_images: int = N_IMAGES,
    progress: bool = False,
) -> "Importance":
    """Measure how much the factors of one factorization, by default the largest, matter for the
    ``classes``, by label or index; by default the three that are first on most images. At most
    ``n_images`` are run, spread evenly over the set."""
    is_list = isinstance(classes, Sequence) and not isinstance(classes, str)
    if classes is not None and not (is_list and classes):
        raise InputError(f"classes is {classes!r}: pass a list of one class or more, or None")
    factorization, opened, names = opened_factors(run, k)
    columns = None if classes is None else [*map(names.index, classes)]
    n_factors = len(factorization.components)
    masks = sobol_masks(n_factors)

    # The map as it is, without each factor, and of the scaled factors alone.
    kept = torch.cat([torch.ones(1 + n_factors), torch.zeros(len(masks))])
    scales = torch.cat([torch.zeros(1, n_factors), -torch.eye(n_factors), masks])

    def edits_on(i: int) -> Edits:
        return mixtures(factorization.heatmaps.grid(i), factorization.components, kept, scales)

    indices, inputs, outputs = outputs_on(run, opened, edits_on, n_images, "importance", progress)
    plain = outputs[:, 0]
    if columns is None:
        columns = main_classes(plain)
    is_of = images_of(plain, columns)
    several = outputs[..., columns]
    sobol = torch.stack([sobol_indices(x[1 + n_factors :], n_factors) for x in several])
    directions = functional.normalize(factorization.components, dim=1)
    return Importance(
        labels=tuple(names.labels[c] for c in columns),
        names=names.names,
        color_slots=tuple(color_slots(run.factorizations)[n_factors]),
        images=tuple(indices),
        logits=several[:, 0],
        falls=several[:, :1] - several[:, 1 : 1 + n_factors],
        is_of=is_of,
        sobol=_mean_over(is_of, sobol),
        **sensitivities(opened, inputs, columns, directions.cpu(), is_of),
    )


def opened_factors(run: Run, k: int | None) -> tuple[Factorization, OpenLayer, FactorClasses]:
    """The factors of one k, the layer that they are directions of, and what the network takes them
    for. Raises InputError where what follows the layer says nothing of them."""
    check_directions(run)
    factorization, opened = run.factorization(k), opened_layer(run)
    with torch.no_grad():
        outputs_for_noise(opened)  # raises InputError where the map is not read
    return factorization, opened, factorization.classes or factor_classes(run, k, opened)


def outputs_on(
    run: Run,
    opened: OpenLayer,
    edits_on: Callable[[int], Edits],
    n_images: int,
    stage: str,
    progress: bool = False,
) -> tuple[list[int], list[Tensor], Tensor]:
    """Indices and inputs of at most ``n_images`` that can be read, spread evenly over the set, and
    the network's outputs for each with its edits: (n, edits, classes)."""
    if n_images < 1:
        raise InputError(f"the number of images must be 1 or more, not {n_images}")
    indices, inputs, outputs = [], [], []
    with torch.no_grad():
        chosen = spread(len(run.images), n_images)
        for i, image in network_inputs(run, opened, chosen, stage, progress):
            indices.append(i)
            inputs.append(image)
            outputs.append(outputs_of_edits(opened, image, edits_on(i)).cpu())
    return indices, inputs, torch.stack(outputs)


def images_of(logits: Tensor, columns: Sequence[int]) -> Tensor:
    """Which of n images count for each of m classes, (n, m) bool: those whose first choice it is,
    or all where there are none."""
    is_of = logits.argmax(1)[:, None] == torch.tensor(columns)
    return is_of | ~is_of.any(0)


def sobol_masks(k: int, n_design: int = N_DESIGN) -> Tensor:
    """Scales of factors for :func:`sobol_indices`: ((k + 2) · n_design, k), in [0, 1]. Two designs
    of ``n_design`` rows each, A and B, then for each factor A with its column from B."""
    from scipy.stats.qmc import Halton

    # The first point of Halton's sequence is 0 everywhere.
    points = Halton(2 * k, scramble=False).random(n_design + 1)[1:]
    both = torch.from_numpy(points).float()
    a, b = both[:, :k], both[:, k:]
    return torch.cat([a, b, *(torch.where(column, b, a) for column in torch.eye(k).bool())])


def sobol_indices(values: Tensor, k: int) -> Tensor:
    """Total Sobol indices (k, m) of m functions with ``values`` ((k + 2) · n, m) at `sobol_masks`.

    By Jansen's formula (1999, "Analysis of variance designs for model output"): for each factor
    Σ (f(A) − f(A with its column from B))² / (2 n var f(A)); 0 where the function is constant.
    """
    a, _, *exchanged = values.split(len(values) // (k + 2))
    variance = a.var(0).clamp_min(torch.finfo(values.dtype).tiny)
    return torch.stack([(a - other).square().mean(0) / (2 * variance) for other in exchanged])


def taken_out(factorization: Factorization, image: int, shares: Tensor) -> Edits:
    """The edits that take shares of the factors out of an image's map, A − Σ mⱼ hⱼ wⱼ, for each row
    m of ``shares``."""
    h, w = factorization.heatmaps.grid(image), factorization.components
    return mixtures(h, w, torch.ones(len(shares)), -shares)


def main_classes(logits: Tensor) -> list[int]:
    """The first choices of most images; of equals, the more probable over all."""
    chosen, counts = logits.argmax(1).unique(return_counts=True)
    probable = logits.softmax(1).mean(0)[chosen]
    order = sorted(range(len(chosen)), key=lambda i: (-int(counts[i]), -float(probable[i])))
    return [int(chosen[i]) for i in order[:N_CLASSES]]


def sensitivities(
    opened: OpenLayer,
    inputs: Sequence[Tensor],
    columns: Sequence[int],
    directions: Tensor,
    is_of: Tensor,
) -> dict[str, Tensor]:
    """TCAV's sensitivity, agreement and p-values of m classes along k directions: (k, m) each."""
    edits = Edits(len(columns), lambda maps, _: maps.expand(len(columns), -1, -1, -1))
    # The classes' gradients, summed over the cells: (n, m, c).
    slopes = torch.stack(
        [gradients(opened, image, edits, columns).sum((2, 3)).cpu() for image in inputs]
    )
    of_images = torch.einsum("nmc,kc->nkm", slopes, directions)
    sensitivity = _mean_over(is_of, of_images)
    mean_slopes = _mean_over(is_of, slopes.transpose(1, 2))  # (c, m)
    generator = torch.Generator().manual_seed(0)
    as_large = torch.ones_like(sensitivity)
    for _ in range(N_RANDOM):
        order = torch.randperm(directions.shape[1], generator=generator)
        as_large += (directions[:, order] @ mean_slopes).abs() >= sensitivity.abs()
    return {
        "sensitivity": sensitivity,
        "agreement": _mean_over(is_of, (of_images > 0).float()),
        "p_values": as_large / (N_RANDOM + 1),
    }


def _mean_over(is_of: Tensor, values: Tensor) -> Tensor:
    """The mean of (n, ·, m) over each class's images: (·, m)."""
    of = is_of[:, None].to(values)
    return (values * of).sum(0) / of.sum(0)


@dataclass(frozen=True, repr=False)
class Importance:
    """How much the k factors of one factorization matter for m of the network's classes."""

    labels: tuple[str, ...]  # the m classes, the most frequent first or as asked for
    names: tuple[str | None, ...]  # the k factors' names
    color_slots: tuple[int, ...]  # which color of the palette each factor has
    images: tuple[int, ...]  # which n images of the set were run
    logits: Tensor  # (n, m): the classes' scores on the images
    falls: Tensor  # (n, k, m): how much they fall when the factor is taken out
    is_of: Tensor  # (n, m) bool: the image counts for the class, its first choice or no image's
    sobol: Tensor  # (k, m): total Sobol indices, the mean over the class's images; at least 0
    sensitivity: Tensor  # (k, m): how much the score rises along the factor, by the gradient
    agreement: Tensor  # (k, m): the share of the class's images where it rises, TCAV's score
    p_values: Tensor  # (k, m): how often a random direction's sensitivity is as large, in (0, 1]

    def __repr__(self) -> str:
        of, over = len(self.names), len(self.images)
        return f"<Importance of {of} factors for {', '.join(self.labels)}, over {over} images>"

    @property
    def mean_falls(self) -> Tensor:
        """The mean of the falls over the class's images: (k, m)."""
        return _mean_over(self.is_of, self.falls)

    def to_dataframe(self) -> "pandas.DataFrame":
        """One row per class and factor, the class's most important factor first.

        Its columns are ``class``, ``factor``, ``name``, ``fall``, ``sobol``, ``sensitivity``,
        ``agreement`` and ``p_value``. Raises InputError where pandas is not installed.
        """
        return data_frame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; :meth:`from_dict` is the inverse."""
        return {
            field.name: value.tolist() if isinstance(value, Tensor) else list(value)
            for field in fields(self)
            for value in [getattr(self, field.name)]
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Importance":
        """From what :meth:`to_dict` gave."""
        plain = ("labels", "names", "color_slots", "images")
        held: dict[str, Any] = {
            name: tuple(value) if name in plain else torch.tensor(value)
            for name, value in values.items()
        }
        importance = cls(**held)
        n, k, m = map(len, (importance.images, importance.names, importance.labels))
        shapes = [(n, m), (n, k, m), (n, m), *[(k, m)] * 4]
        if [value.shape for value in held.values() if isinstance(value, Tensor)] != shapes:
            raise InputError(
                "the importance is for other images, factors or classes; measure it again"
            )
        return importance

    def rows(self) -> list[dict[str, Any]]:
        """The rows of :meth:`to_dataframe`."""
        falls = self.mean_falls
        return [
            {
                "class": label,
                "factor": j,
                "name": self.names[j],
                "fall": float(falls[j, c]),
                "sobol": float(self.sobol[j, c]),
                "sensitivity": float(self.sensitivity[j, c]),
                "agreement": float(self.agreement[j, c]),
                "p_value": float(self.p_values[j, c]),
            }
            for c, label in enumerate(self.labels)
            for j in torch.argsort(-falls[:, c], stable=True).tolist()
        ]

    def _repr_html_(self) -> str:
        rows = self.rows()
        return DRAWINGS.get_template("importance.html").render(
            rows=rows,
            colors=hex_colors(factor_colors(len(self.color_slots))[[*self.color_slots]]),
            longest=max((abs(row["fall"]) for row in rows), default=0) or 1,
        )


def data_frame(data: Any) -> "pandas.DataFrame":
    """As pandas has it; InputError where it is not installed."""
    try:
        import pandas
    except ImportError:
        raise InputError("a table needs pandas: pip install 'deepff[notebook]'") from None
    return pandas.DataFrame(data)
