"""A concept bank applied to new images: W is fixed, and H is solved for."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepff.activations.activations import Activations
from deepff.discovery.activation_set import ActivationSet
from deepff.discovery.arguments import (
    RunSettings,
    normalized_images,
    shown_call,
    whole_number,
)
from deepff.discovery.contrast import fuse, scaled_by
from deepff.discovery.presence import negatives_in, with_scores
from deepff.errors import InputError, warn_user
from deepff.factorization import METHODS
from deepff.factorization.blocks import RowBlocks
from deepff.images.image_set import Images, SetImage, resolve_images
from deepff.layers.later import OpenLayer
from deepff.networks.backbone import Backbone
from deepff.options import BATCH_SIZE, Device
from deepff.result import Result
from deepff.results.concept_bank import ConceptBank, load_concepts
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.runtime.progress import Stopwatch


def apply(
    bank: ConceptBank | str | Path,
    images: Images,
    *,
    without: Images | None = None,
    size: int | None = None,
    model: nn.Module | Backbone | None = None,
    batch_size: int = BATCH_SIZE,
    cache: str | Path | None = None,
    device: str = Device.AUTO,
    normalized: bool = False,
    progress: bool = False,
) -> Result:
    """Find the factors of one set in other images, with the same network and preparation.

    Parameters
    ----------
    bank : ConceptBank, or path
        A result's ``bank``, or its ``concepts.safetensors``.
    images : path, glob, sequence of these, or images
        As for :func:`deepff.discover`.
    without : path, glob, sequence of these, or images, optional
        Images that do not show the object. The bank learns from them what the object is not, and
        its scores become stricter. The result's bank keeps this.
    size : int, optional
        Longer side of the resized images in pixels, by default the bank's. At about 1.4 times the
        bank's, it finds more of the objects that are small or touch, in twice the time.
    model : torch.nn.Module or Backbone, optional
        The network, if it is yours or its weights came from a file.
    batch_size, cache, device, normalized, progress
        As for :func:`deepff.discover`.

    Returns
    -------
    Result
        With the bank's components, and H and the relative error for the new images. Full strength
        and thresholds over the set are those of the bank's set, so the same factor is on at the
        same coefficient; Otsu per image uses the image. Parts of the object come from their
        classifier: its probabilities replace H, and there is no relative error.

    Raises
    ------
    InputError
        The bank, its network with the same weights, or the images cannot be read; the bank's
        factors are parts without a classifier; or ``without`` is given, but the bank has no
        scores.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> result = deepff.discover([data.chelsea(), data.astronaut()], n_components=2, size=224)
    >>> new = deepff.apply(result.bank, [data.coffee()])
    >>> bool((new.components == result.components).all())
    True
    >>> new.heatmaps[0].shape
    torch.Size([2, 400, 600])
    """
    command = shown_call(apply, locals())
    bank = bank if isinstance(bank, ConceptBank) else load_concepts(bank)
    if bank.method not in METHODS:
        raise InputError(
            f"this bank was made with {bank.method}, which deepff cannot apply to other images; "
            f"use one made with {', '.join(METHODS)}"
        )
    if bank.parts_of is not None and set(bank.classifiers) != set(bank.components):
        raise InputError(
            "the parts of this bank have no classifier that finds them in other images; run "
            "discover with --inside-object again, on more images"
        )
    if size is not None:
        bank = bank.at_size(whole_number(size, "size", 1))
    settings = RunSettings(batch_size=batch_size, cache=cache, device=device, progress=progress)
    watch = Stopwatch()
    resolve = partial(normalized_images, by=bank.sources[0]) if normalized else resolve_images
    if without is not None:
        model = bank.sources[0].backbone(model=model, device=device)
        bank = _told_by(bank, resolve(without), settings, model, watch)
    # Parts are found by their classifier alone.
    sources = () if bank.parts_of is not None else bank.sources
    known_sources = () if bank.known is None else (bank.known.source,)
    classifier_sources = next((each.sources for each in bank.classifiers.values()), ())
    activation_set = ActivationSet.prepared_as(
        [*sources, *classifier_sources, *known_sources],
        resolve(images),
        settings,
        model,
        watch,
    )
    by_layer = activation_set.activations
    activations = [by_layer[source.layer] for source in sources]
    cells = [by_layer[source.layer] for source in classifier_sources]
    find = _factorizations if len(bank.of_kinds) == 1 else _kinds
    factorizations = find(bank, activations, cells)
    watch.lap("factors")
    if bank.known is not None:
        head = by_layer[bank.known.source.layer]
        factorizations = {
            k: with_scores(each, head, bank.known) for k, each in factorizations.items()
        }
        watch.lap("scores")
    finest = max(activations or cells, key=lambda a: sum(image.n_cells for image in a.images))
    result = Result(
        images=finest.images,
        skipped=activation_set.skipped,
        factorizations=factorizations,
        method=bank.method,
        sources=bank.sources,
        options={},
        command=command,
        seconds=watch.seconds,
        cache=None if cache is None else str(Path(cache).resolve()),
        channel_weights=bank.channel_weights,
        recipe=bank.recipe,
        parts_of=bank.parts_of,
        applied=bank,
        activations=activations[0] if len(activations) == 1 else None,
        opened=tuple(
            OpenLayer(activation_set.backbone, activation_set.layers[source.layer])
            for source in sources
        ),
    )
    result.name_factors(progress)
    return result


def _told_by(
    bank: ConceptBank,
    without: Sequence[SetImage],
    settings: RunSettings,
    model: Backbone,
    watch: Stopwatch,
) -> ConceptBank:
    """The bank with what it finds in images that do not show the object."""
    if bank.known is None:
        raise InputError(
            "this bank has no scores, so it cannot use images without the object; make the bank "
            "with the recipe contrast"
        )
    sources = [*bank.sources, bank.known.source]
    activation_set = ActivationSet.prepared_as(sources, without, settings, model, watch)
    by_layer = activation_set.activations
    unclassified = replace(bank, classifiers={})
    find = _factorizations if len(bank.of_kinds) == 1 else _kinds
    (objects,) = find(unclassified, [by_layer[s.layer] for s in bank.sources], []).values()
    head = by_layer[bank.known.source.layer]
    negatives, n_likely = negatives_in(objects.heatmaps, head, bank.known)
    if n_likely * 2 > len(head.images):
        warn_user(
            f"{n_likely} of the {len(head.images)} images without the object seem to show it; "
            "remove those that do, or the object will be missed in other images",
            above=2,
        )
    watch.lap("images without the object")
    before = bank.known.negatives
    negatives = before.joined(negatives) if before else negatives
    return replace(bank, known=replace(bank.known, negatives=negatives))


def _factorizations(
    bank: ConceptBank,
    activations: list[Activations],
    cells: list[Activations],
) -> dict[int, Factorization]:
    """The bank's factors in other images, with its classifiers and class names."""
    factorizations = {
        k: _coefficients(bank, k, activations) for k in bank.components if activations
    }
    for k, classifier in bank.classifiers.items():
        maps = classifier.heatmaps(cells)
        factorization = factorizations.get(k) or Factorization(
            bank.components[k], maps.replace(scale=bank.histograms[k].high), math.nan, 0
        )
        factorizations[k] = replace(factorization, classifier=classifier, probabilities=maps)
    return {
        k: replace(factorization, classes=bank.classes.get(k))
        for k, factorization in factorizations.items()
    }


def _kinds(
    bank: ConceptBank, activations: list[Activations], cells: list[Activations]
) -> dict[int, Factorization]:
    """Each kind of object as if there were no other, as the factors of one factorization."""
    every = [_factorizations(each, activations, cells)[1] for each in bank.of_kinds]
    probabilities = [each.probabilities for each in every if each.probabilities is not None]
    ((k, components),) = bank.components.items()
    whole = Factorization(
        components,
        _side_by_side([each.heatmaps for each in every]),
        math.nan,
        0,
        classifier=bank.classifiers.get(k),
        probabilities=_side_by_side(probabilities) if probabilities else None,
        classes=bank.classes.get(k),
    )
    return {k: whole}


def _side_by_side(maps: Sequence[HeatMaps]) -> HeatMaps:
    """Maps of the same images as factors of one."""
    coefficients = torch.cat([each.coefficients for each in maps], dim=1)
    return maps[0].replace(
        coefficients=coefficients, scale=torch.cat([each.scale for each in maps])
    )


def _coefficients(bank: ConceptBank, k: int, activations: list[Activations]) -> Factorization:
    """H of the bank's k components, from every layer and fused."""
    channels = [source.channels for source in bank.sources]
    components = bank.components[k]
    weights = (
        [None] * len(channels)
        if bank.channel_weights is None
        else bank.channel_weights.split(channels)
    )
    maps, errors = [], []
    for layer, w, g in zip(activations, components.split(channels, dim=1), weights, strict=True):
        rows = RowBlocks(layer.blocks, transform=scaled_by(g))
        estimator: Any = METHODS[bank.method](k)
        estimator.components_ = w.to(rows.device)
        H = estimator.transform(rows)
        errors.append(_relative_error(rows, H, estimator.components_))
        maps.append(HeatMaps.of_images(H, layer.images))
    fused = maps[0] if len(maps) == 1 else fuse(maps)
    relative_error = math.sqrt(sum(error**2 for error in errors) / len(errors))
    return Factorization(
        components, fused.replace(scale=bank.histograms[k].high), relative_error, 0
    )


def _relative_error(rows: RowBlocks, H: Tensor, W: Tensor) -> float:
    residual = total = 0.0
    for index, block in rows:
        residual += float((block - H[index] @ W).square().sum())
        total += float(block.square().sum())
    return math.sqrt(residual / total) if total > 0 else 0.0


def extend(
    result: Result,
    images: Sequence[SetImage],
    *,
    model: nn.Module | Backbone | None = None,
    batch_size: int = BATCH_SIZE,
    device: str = Device.AUTO,
) -> Result:
    """The result with more images, in which :func:`apply` looks for its factors.

    None of the images may be in the result. W and the maps of the former images stay, and so do
    thresholds over the set, which are those of the set that W comes from. The relative error over
    all images is not known.
    """
    network = model or result.sources[0].backbone(device=device)
    new = apply(result.bank, images, model=network, batch_size=batch_size, device=device)
    whole = result.object
    if whole is not None:
        more = apply(whole.bank, images, model=network, batch_size=batch_size, device=device)
        whole = _joined(whole, more)
    return replace(_joined(result, new), object=whole)


def _joined(result: Result, new: Result) -> Result:
    return replace(
        result,
        images=[*result.images, *new.images],
        skipped=[*result.skipped, *new.skipped],
        factorizations={
            k: _joined_factorization(factorization, new.factorization(k))
            for k, factorization in result.factorizations.items()
        },
        applied=result.bank,
        activations=None,
    )


def _joined_factorization(old: Factorization, new: Factorization) -> Factorization:
    probabilities = None
    if old.probabilities is not None and new.probabilities is not None:
        probabilities = old.probabilities.extended(new.probabilities)
    scores = old.scores and new.scores and old.scores.extended(new.scores)
    return replace(
        old,
        heatmaps=old.heatmaps.extended(new.heatmaps),
        relative_error=math.nan,
        probabilities=probabilities,
        scores=scores,
    )
