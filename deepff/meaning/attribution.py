"""Where factors matter in one image, what each adds, and what a direction of one's own does.

* **Attribution**: where in an image a factor matters for a class, h(p) · w · ∂score/∂A(p), with the
  mean of the gradient over A − t h w for t in [0, 1] (integrated gradients, Sundararajan et al.
  2017), so that the cells sum to the fall of the score when the factor is taken out.
* **Faithfulness**: how the score falls when factors are taken out one after another (deletion), and
  rises when they come back (insertion; Petsiuk et al. 2018, for concepts Fel et al. 2023). Where
  the order by importance is right, it falls and rises faster than in random order.
* **TCAV** (Kim et al. 2018), along any direction of the layer's activations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from deepff.errors import InputError
from deepff.layers.later import AS_IS, gradients, outputs_of_edits
from deepff.meaning.importance import (
    N_IMAGES,
    data_frame,
    images_of,
    main_classes,
    opened_factors,
    outputs_on,
    sensitivities,
    taken_out,
)
from deepff.meaning.open_network import network_input
from deepff.meaning.similarity import image_index
from deepff.pictures.figures import attribution_figure
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run

if TYPE_CHECKING:
    import pandas

_N_STEPS = 16  # of the path from the image to the image without the factor
_N_ORDERS = 24  # random ones; all that there are of four factors or fewer


@dataclass(frozen=True)
class Attribution:
    """Where in one image the k factors matter for a class."""

    label: str  # the class
    image: int  # its index in the set
    heatmaps: HeatMaps  # of this one image
    run: Run = field(repr=False)

    @property
    def falls(self) -> Tensor:
        """How much the score falls when each factor is taken out, the sum of its cells: (k,)."""
        return self.heatmaps.coefficients.sum(0)

    def plot(self, height: int = 180) -> Image.Image:
        """Where each factor is, and below where it matters: striped where it lowers the score."""
        return attribution_figure(self.run, self.image, self.heatmaps, height)

    def _repr_html_(self) -> str:
        from deepff.images.painting import image_html

        return image_html(self.plot(), "Where factors matter")


def attribution(
    run: Run, image: int | str, class_name: str | int | None = None, k: int | None = None
) -> Attribution:
    """Where the factors of one k matter for a class in an image, by default its first choice."""
    index = image_index(run, image)
    factorization, opened, classes = opened_factors(run, k)
    pixels = network_input(run, opened, index)
    with torch.no_grad():
        first = int(outputs_of_edits(opened, pixels, AS_IS).argmax())
    column = first if class_name is None else classes.index(class_name)
    h, w = factorization.heatmaps.grid(index), factorization.components
    steps, maps = (torch.arange(_N_STEPS) + 0.5) / _N_STEPS, []
    for j, factor in enumerate(torch.eye(len(w))):
        path = taken_out(factorization, index, steps[:, None] * factor)
        slopes = gradients(opened, pixels, path, [column] * _N_STEPS).mean(0)
        maps.append(h[j].to(slopes) * torch.einsum("chw,c->hw", slopes, w[j].to(slopes)))
    values = torch.stack(maps).flatten(1).T.cpu()
    heatmaps = HeatMaps.of_images(values, [run.images[index]], values.abs().amax().expand(len(w)))
    return Attribution(classes.labels[column], index, heatmaps, run)


class Faithfulness(NamedTuple):
    """How a class's score changes as factors are taken out, and come back."""

    label: str  # the class
    order: tuple[int, ...]  # the factors, the largest fall first
    # The mean score with 0 to k factors out or back, (k + 1,), by "deletion" or "insertion" and the
    # order: "deletion, importance", and so on for "random" and "reverse".
    curves: dict[str, Tensor]

    @property
    def areas(self) -> dict[str, float]:
        """The area below each curve, over the share of the factors: its mean height."""
        k = len(self.order)
        return {name: float(torch.trapezoid(curve)) / k for name, curve in self.curves.items()}

    def to_dataframe(self) -> "pandas.DataFrame":
        """A column per curve, a row per number of factors; ``.plot()`` draws it."""
        columns = {name: curve.tolist() for name, curve in self.curves.items()}
        return data_frame(columns).rename_axis("factors")


def faithfulness(
    run: Run, class_name: str | int | None = None, k: int | None = None, n_images: int = N_IMAGES
) -> Faithfulness:
    """The curves of one class, by default of the first choice of most images. Insertion starts from
    what no factor holds of the map, A − H W: it is the deletion in the other order, backward."""
    factorization, opened, classes = opened_factors(run, k)
    n = len(factorization.components)
    one_or_none = torch.cat([torch.zeros(1, n), torch.eye(n)])
    indices, inputs, outputs = outputs_on(
        run, opened, lambda i: taken_out(factorization, i, one_or_none), n_images, "faithfulness"
    )
    plain = outputs[:, 0]
    column = main_classes(plain)[0] if class_name is None else classes.index(class_name)
    of_class = images_of(plain, [column])[:, 0].nonzero().flatten().tolist()
    falls = (plain[:, None] - outputs[:, 1:])[of_class][..., column].mean(0)
    order = falls.argsort(descending=True, stable=True)

    generator = torch.Generator().manual_seed(0)
    at_random = (
        torch.tensor([*permutations(range(n))])
        if n <= 4
        else torch.rand(_N_ORDERS, n, generator=generator).argsort(1)
    )
    orders = torch.cat([order[None], order.flip(0)[None], at_random])
    shares = torch.cat([torch.zeros(len(orders), 1, n), torch.eye(n)[orders].cumsum(1)], 1)
    subsets, places = shares.flatten(0, 1).unique(dim=0, return_inverse=True)
    scores = torch.zeros(len(subsets))
    with torch.no_grad():
        for at in of_class:
            edits = taken_out(factorization, indices[at], subsets)
            scores += outputs_of_edits(opened, inputs[at], edits)[:, column].cpu() / len(of_class)
    first, reverse, *random = scores[places.view(len(orders), n + 1)]
    deletion = {"importance": first, "random": torch.stack(random).mean(0), "reverse": reverse}
    curves = {f"deletion, {name}": curve for name, curve in deletion.items()}
    for name, curve in zip(deletion, reversed(deletion.values()), strict=True):
        curves[f"insertion, {name}"] = curve.flip(0)
    return Faithfulness(classes.labels[column], tuple(order.tolist()), curves)


class Tcav(NamedTuple):
    """How a class's score changes along a direction of the layer's activations."""

    score: float  # the share of the class's images where it rises, in [0, 1]
    sensitivity: float  # the mean slope, summed over the cells
    p_value: float  # how often a random direction's sensitivity is as large, in (0, 1]


def tcav(
    run: Run,
    direction: int | Sequence[float] | Tensor,
    class_name: str | int,
    k: int | None = None,
    n_images: int = N_IMAGES,
) -> Tcav:
    """TCAV's score of a class along a direction: a factor, or a vector of as many numbers as the
    layer has channels, of any length. Random directions are as in `importance`."""
    factorization, opened, classes = opened_factors(run, k)
    column, components = classes.index(class_name), factorization.components.cpu()
    vector = torch.as_tensor(direction).detach().cpu().float()
    if vector.ndim == 0 and 0 <= vector < len(components):
        vector = components[int(vector)]
    if vector.shape != components[0].shape or not vector.any():
        raise InputError(
            f"a direction is a factor, from 0 to {len(components) - 1}, or {components.shape[1]} "
            f"numbers that are not all 0, one per channel of {run.layer}"
        )
    _, inputs, outputs = outputs_on(run, opened, lambda _: AS_IS, n_images, "tcav")
    is_of = images_of(outputs[:, 0], [column])
    along = functional.normalize(vector[None], dim=1)
    values = sensitivities(opened, inputs, [column], along, is_of)
    return Tcav(*(float(values[name]) for name in ("agreement", "sensitivity", "p_values")))
