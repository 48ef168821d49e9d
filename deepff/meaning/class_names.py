"""Class scores of factors, and the names of the classes that stand out.

A factor's scores are the network's logits for an image that is full of it: T(s·w) where what
follows the layer is a mean over its map and a linear map T, as after the last layer of most
convolutional networks. s is the factor's strength, the mean of its coefficients over the cells
where it is strong (:func:`strengths`), so that a factor that is all of A has the scores of the
images. For any other layer and network they come from the logits that fall when the factor is taken
out of the images where it is strongest, A − h w, scaled to a map that is full of it:

    scores = T(0) + s / mean(h) · (T(A) − T(A − h w)),

which is the same where T is linear. (The gradient along w at the strong cells, TCAV's direction,
names far fewer factors of earlier layers: docs/meaning.md.) The object of the recipe contrast is no
direction, and is named by its cells (:func:`scores_of_regions`).

A factor that stands out gets the name of the class that it most probably is *in this set*: images
of a set are mostly of a few classes, so a factor that alone looks like a beaver, among bears, is
weighed by how many of the images are of each class (:func:`standing_out`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.layers.later import (
    Edits,
    OpenLayer,
    is_linear_in_mean,
    later_outputs,
    outputs_for_noise,
    outputs_of_edits,
    small_noise,
)
from deepff.layers.layer import Layer
from deepff.meaning.open_network import check_directions, network_inputs, opened_layer
from deepff.networks.class_labels import checked_labels, class_labels
from deepff.options import RECIPE_OPTIONS
from deepff.pictures.figures import spread
from deepff.regions.regions import region_finder
from deepff.results.factorization import FactorClasses, Factorization
from deepff.results.run import Run
from deepff.results.sampling import cell_means

# Chosen on one half of 33 sets of images, and judged on the other (docs/meaning.md).
SURE = 0.5
STANDING_OUT = 6.5
# Among fewer classes no score can stand out that far.
FEW_CLASSES = 100

N_STRONGEST = 4
_STRONG = 0.5


class Names(NamedTuple):
    """What the network takes the factors for, by k, and why some have no names."""

    classes: dict[int, FactorClasses]
    unnamed: str | None


def name_factors(run: Run, progress: bool = False) -> Names:
    """What the network takes the factors of every factorization for, where it is not known; the run
    stays as it is. The network is opened where it is not open."""
    known = {k: f.classes for k, f in run.factorizations.items() if f.classes is not None}
    missing = {k: f for k, f in run.factorizations.items() if f.classes is None}
    try:
        return Names(known | _classes_of(run, missing, progress=progress), None)
    except InputError as error:
        return Names(known, str(error))


def factor_classes(
    run: Run, k: int | None = None, opened: OpenLayer | None = None
) -> FactorClasses:
    """What the network takes the factors of one factorization for, by default the largest. Raises
    InputError where there is no such k, where the components are no directions of one layer's
    activations, or where the network cannot be had, has no head or no class names."""
    factorization = run.factorization(k)
    key = len(factorization.components)
    return _classes_of(run, {key: factorization}, opened)[key]


def _classes_of(
    run: Run,
    factorizations: Mapping[int, Factorization],
    opened: OpenLayer | None = None,
    progress: bool = False,
) -> dict[int, FactorClasses]:
    if not factorizations:
        return {}
    if not run.is_object:
        check_directions(run)
    opened = opened or opened_layer(run)
    known, words = class_labels(opened.backbone), opened.backbone.words
    if words is not None:
        # The factor goes through the network first, and is compared with the words then.
        opened = replace(opened, backbone=replace(opened.backbone, words=None))
    with torch.no_grad():
        probes = outputs_for_noise(opened)
        images: dict[int, Tensor] = {}
        if run.is_object:
            scores = scores_of_regions(run, opened, factorizations, progress)
        else:
            by_mean = is_linear_in_mean(probes)
            scores, empty = (
                _scores_of_full_maps(opened, factorizations)
                if by_mean
                else _scores_by_removal(run, opened, factorizations, progress)
            )
            images = {k: _scores_of_images(factorizations[k], scores[k], empty) for k in scores}
    if words is not None:
        scores, images = (
            {k: words(outputs) for k, outputs in each.items()} for each in (scores, images)
        )
    classes = {}
    for k, factorization in factorizations.items():
        labels = checked_labels(known, scores[k].shape[1], opened.backbone.name)
        shares = images[k].softmax(1).mean(0) if k in images else None
        names = standing_out(scores[k], labels, shares)
        is_used = (factorization.heatmaps.coefficients != 0).any(0).tolist()
        classes[k] = FactorClasses(
            labels,
            scores[k].nan_to_num().cpu(),
            tuple(name if used else None for name, used in zip(names, is_used, strict=True)),
            None if words is None else words.scale,
        )
    return classes


def standing_out(
    scores: Tensor, labels: Sequence[str], shares: Tensor | None = None
) -> list[str | None]:
    """For each row of logits (k, classes) the most probable label if one stands out, by `SURE` and
    `STANDING_OUT` deviations, else None: the class of the largest p(class | factor) · share, where
    ``shares`` (classes,) is of the set. One class alone never stands out."""
    largest = scores.amax(1)
    probabilities = scores.softmax(1)
    sure = (probabilities.amax(1) >= SURE) & (len(labels) > 1)
    index = (probabilities if shares is None else probabilities * shares).argmax(1)
    if scores.shape[1] >= FEW_CLASSES:
        deviation = scores.std(1).clamp_min(torch.finfo(scores.dtype).tiny)
        sure &= (largest - scores.mean(1)) / deviation >= STANDING_OUT
    pairs = zip(index.tolist(), sure.tolist(), strict=True)
    return [labels[i] if is_sure else None for i, is_sure in pairs]


def strengths(coefficients: Tensor) -> Tensor:
    """How strong each factor is where it is strong, from H (rows, k): (k,). The mean over its cells
    of half its largest value or more; where that is negative, over those of half of it or less."""
    means = []
    for column in coefficients.T:
        largest = column[column.abs().argmax()]
        strong = column[column / largest >= _STRONG] if largest != 0 else column[:1]
        means.append(strong.mean())
    return torch.stack(means)


def _scores_of_images(factorization: Factorization, scores: Tensor, empty: Tensor) -> Tensor:
    """About the network's outputs for what the factors hold of the images, (n, classes):
    T(0) + Σ mean(hⱼ) / sⱼ · (scoresⱼ − T(0)), which is T(H W) where T is linear in the mean."""
    means = torch.stack([rows.mean(0) for rows in image_coefficients(factorization)])
    strength = strengths(factorization.coefficients)
    held = torch.where(strength == 0, 0.0, means / strength)
    return empty + held.to(scores) @ (scores - empty)


def _scores_of_full_maps(
    opened: OpenLayer, factorizations: Mapping[int, Factorization]
) -> tuple[dict[int, Tensor], Tensor]:
    """The outputs for maps full of each factor, (k, classes) by k, and for an empty map."""
    every = [(f.components, strengths(f.coefficients)) for f in factorizations.values()]
    full = [w * strength.to(w)[:, None] for w, strength in every]
    rows = torch.cat([torch.zeros_like(full[0][:1]), *full])
    empty, *outputs = later_outputs(
        opened,
        small_noise(opened),
        lambda maps: rows.to(maps)[:, :, None, None].expand(-1, -1, *maps.shape[2:]),
    ).split([1, *map(len, full)])
    return dict(zip(factorizations, outputs, strict=True)), empty


def _scores_by_removal(
    run: Run, opened: OpenLayer, factorizations: Mapping[int, Factorization], progress: bool
) -> tuple[dict[int, Tensor], Tensor]:
    """As :func:`_scores_of_full_maps`. Each image goes through the network once, for all factors
    of all k that are strongest on it."""
    means = {
        k: torch.stack([rows.mean(0) for rows in image_coefficients(factorization)]).cpu()
        for k, factorization in factorizations.items()
    }
    factors_on = _factors_on(means)
    falls: dict[tuple[int, int], Tensor] = {}
    held: dict[tuple[int, int], float] = {}
    why = ", and naming factors needs them"
    for i, image in network_inputs(run, opened, sorted(factors_on), "names", progress, why):
        edits = _removals([(factorizations[k], j) for k, j in factors_on[i]], i)
        empty, plain, *outputs = outputs_of_edits(opened, image, edits)
        for (k, j), output in zip(factors_on[i], outputs, strict=True):
            falls[k, j] = falls.get((k, j), 0) + plain - output
            held[k, j] = held.get((k, j), 0.0) + float(means[k][i, j])
    scores = {}
    for k, factorization in factorizations.items():
        strength = strengths(factorization.coefficients).tolist()
        rows = [
            empty + falls[k, j] * (strength[j] / held[k, j]) if (k, j) in falls else empty
            for j in range(k)
        ]
        scores[k] = torch.stack(rows)
    return scores, empty


def _factors_on(means: Mapping[int, Tensor]) -> dict[int, list[tuple[int, int]]]:
    """The (k, factor) that are strongest on each image, by mean coefficients (n, k) for each k."""
    factors_on: dict[int, list[tuple[int, int]]] = {}
    for k, of_k in means.items():
        for j, column in enumerate(of_k.abs().T):
            for i in column.argsort(descending=True, stable=True)[:N_STRONGEST].tolist():
                if column[i] > 0:
                    factors_on.setdefault(i, []).append((k, j))
    return factors_on


def _removals(factors: Sequence[tuple[Factorization, int]], image: int) -> Edits:
    """An image's map made empty, as it is, and without each factor: A − h w."""
    h = torch.stack([f.heatmaps.grid(image)[j] for f, j in factors])
    w = torch.stack([f.components[j] for f, j in factors])
    n = len(factors)
    kept, scales = torch.ones(n + 2), torch.cat([torch.zeros(2, n), -torch.eye(n)])
    kept[0] = 0
    return mixtures(h, w, kept, scales)


def mixtures(h: Tensor, w: Tensor, kept: Tensor, scales: Tensor) -> Edits:
    """The maps keptᵢ A + Σⱼ scalesᵢⱼ hⱼ wⱼ of an image whose map is A, for the factors' maps
    h (k, rows, columns) and components w (k, c); kept (n,) and scales (n, k)."""

    def make(maps: Tensor, part: slice) -> Tensor:
        weighted = scales[part].to(maps)[:, :, None] * w.to(maps)  # (those, k, c)
        held = (weighted.mT @ h.to(maps).flatten(1)).unflatten(2, maps.shape[1:])
        return held.add_(kept[part].to(maps)[:, None, None, None] * maps)

    return Edits(len(scales), make)


def image_coefficients(factorization: Factorization) -> list[Tensor]:
    """H image by image: (cells, k) each."""
    maps = factorization.heatmaps
    return [maps.rows(slice(i, i + 1)) for i in range(len(maps))]


# Over 4 and 8 images one more of twelve names was wrong; over all images as many as over 16.
N_IMAGES = 16
_FEWEST_OF_KIND = 4


def scores_of_regions(
    run: Run, opened: OpenLayer, factorizations: Mapping[int, Factorization], progress: bool
) -> dict[int, Tensor]:
    """The network's outputs for maps that are full of each region, by k: (k, classes). Regions are
    those of the recipe. One without any cell has NaN."""
    finders = [region_finder(run, k, RECIPE_OPTIONS[run.recipe]) for k in factorizations]
    empties: list[Tensor] = []
    gains: list[Tensor] = []
    sizes: list[Tensor] = []
    indices = _images_of_kinds(run) if len(run.of_kinds) > 1 else spread(len(run.images), N_IMAGES)
    for i, image in network_inputs(run, opened, indices, "names", progress):
        masks = torch.cat([find(i).masks for find in finders]).float()
        empty, *full = outputs_of_edits(opened, image, _insides(masks, opened.layer, image))
        empties.append(empty)
        gains.append(torch.stack(full) - empty)
        sizes.append(masks.mean((1, 2)).to(empty))
    gain, size = torch.stack(gains).sum(0), torch.stack(sizes).sum(0)
    scores = torch.stack(empties).mean(0) + gain / torch.where(size > 0, size, torch.nan)[:, None]
    return dict(zip(factorizations, scores.split([*factorizations]), strict=True))


def _images_of_kinds(run: Run) -> list[int]:
    """Some images of each kind of thing, spread evenly over those where it is strongest."""
    heatmaps = run.heatmaps
    strongest = [int(heatmaps.normalized(i).amax((1, 2)).argmax()) for i in range(len(heatmaps))]
    indices = []
    for kind in range(heatmaps.n_factors):
        of_kind = [i for i, strongest_kind in enumerate(strongest) if strongest_kind == kind]
        step = max(1, len(of_kind) // max(_FEWEST_OF_KIND, N_IMAGES // heatmaps.n_factors))
        indices += of_kind[::step]
    return sorted(indices)


def _insides(masks: Tensor, layer: Layer, image: Tensor) -> Edits:
    """A layer's map of an image made empty, and with only what is inside each mask (n, H, W)."""
    every = torch.cat([torch.zeros_like(masks[:1]), masks])

    def make(maps: Tensor, part: slice) -> Tensor:
        grid = (maps.shape[1], maps.shape[2])
        shape = (image.shape[2], image.shape[3])
        extent = layer.centers.extent(shape, grid) if layer.centers else None
        return maps * cell_means(every[part], grid, extent).to(maps)[:, None]

    return Edits(len(every), make)
