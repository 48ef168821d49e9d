"""A concept bank applied to new images: W fixed, H found."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepff.activations.activations import Activations
from deepff.activations.extraction import extract_layers
from deepff.discovery.arguments import shown_call
from deepff.discovery.contrast import fuse
from deepff.errors import InputError
from deepff.factorization import METHODS
from deepff.factorization.blocks import RowBlocks
from deepff.images.image_set import Images, SetImage, resolve_images
from deepff.layers.later import OpenLayer
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.options import BATCH_SIZE, Device
from deepff.result import Result
from deepff.results.concept_bank import ConceptBank, load_concepts
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run
from deepff.runtime.progress import Stopwatch


def apply(
    bank: ConceptBank | str | Path,
    images: Images,
    *,
    model: nn.Module | Backbone | None = None,
    batch_size: int = BATCH_SIZE,
    cache: str | Path | None = None,
    device: str = Device.AUTO,
    progress: bool = False,
) -> Result:
    """Find the factors of one set in other images, with network and preparation as recorded.

    Parameters
    ----------
    bank : ConceptBank, or path
        A result's ``bank``, or its ``concepts.safetensors``.
    images : path, glob, sequence of these, or images
        As for :func:`deepff.discover`.
    model : torch.nn.Module or Backbone, optional
        The network, where it is one's own or its weights were a file.
    batch_size, cache, device, progress
        As for :func:`deepff.discover`.

    Returns
    -------
    Result
        With the bank's components, H of the new images for them, and the relative error that they
        leave there. Full strength and thresholds over the set are those of the bank's own set, so
        that the same factor is on at the same coefficient; Otsu per image is of the image. Parts
        of the object are what their classifier finds: its probabilities stand for H, and there is
        no relative error.

    Raises
    ------
    InputError
        The bank, its network with the same weights, or the images cannot be had; or the bank's
        factors are parts that have no classifier.

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
            f"this bank was made by {bank.method}, which deepff cannot apply to other images; "
            f"apply one made by {', '.join(METHODS)}"
        )
    if bank.parts_of is not None and set(bank.classifiers) != set(bank.components):
        raise InputError(
            "the parts of this bank have no classifier that finds them in other images; run "
            "discover with --inside-object again, on more images"
        )
    files = resolve_images(images)
    watch = Stopwatch()
    source = bank.sources[0]
    backbone = source.backbone(model=model, device=device)
    layer_map = map_layers(backbone, source.size)
    of_cells = next((found.sources for found in bank.classifiers.values()), ())
    # Parts are found by their classifier alone.
    of_factors = () if bank.parts_of is not None else bank.sources
    sources = {source.layer: source for source in (*of_factors, *of_cells)}
    layers = [own.resolved(layer_map) for own in sources.values()]
    watch.lap("loading the network")
    extracted, skipped = extract_layers(
        files,
        backbone,
        layers,
        source.preparation(backbone.device),
        batch_size=batch_size,
        cache=cache,
        progress=progress,
    )
    watch.lap("network")
    by_path = dict(zip(sources, extracted, strict=True))
    activations = [by_path[source.layer] for source in of_factors]
    cells = [by_path[source.layer] for source in of_cells]
    factorizations = {
        k: _coefficients(bank, k, activations) for k in bank.components if activations
    }
    watch.lap("coefficients")
    for k, classifier in bank.classifiers.items():
        maps = classifier.heatmaps(cells)
        found = factorizations.get(k) or Factorization(
            bank.components[k], _rescaled(maps, bank.histograms[k].high), math.nan, 0
        )
        factorizations[k] = replace(found, classifier=classifier, probabilities=maps)
    factorizations = {
        k: replace(found, classes=bank.classes.get(k)) for k, found in factorizations.items()
    }
    watch.lap("classifier")
    finest = max(activations or cells, key=lambda a: sum(image.n_cells for image in a.images))
    result = Result(
        images=finest.images,
        skipped=skipped,
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
            OpenLayer(backbone, x) for x in layers if x.path in {s.layer for s in of_factors}
        ),
    )
    result.name_factors(progress)
    return result


def _coefficients(bank: ConceptBank, k: int, activations: list[Activations]) -> Factorization:
    """H of the bank's components with k factors, of every layer and fused."""
    channels = [source.channels for source in bank.sources]
    components = bank.components[k]
    weights = (
        [None] * len(channels)
        if bank.channel_weights is None
        else bank.channel_weights.split(channels)
    )
    maps, errors = [], []
    for own, w, g in zip(activations, components.split(channels, dim=1), weights, strict=True):
        rows = RowBlocks(own.blocks, transform=_scaled_by(g))
        estimator: Any = METHODS[bank.method](k)
        estimator.components_ = w.to(rows.device)
        H = estimator.transform(rows)
        errors.append(_relative_error(rows, H, estimator.components_))
        maps.append(HeatMaps.of_images(H, own.images))
    found = maps[0] if len(maps) == 1 else fuse(maps)
    heatmaps = _rescaled(found, bank.histograms[k].high)
    relative_error = math.sqrt(sum(error**2 for error in errors) / len(errors))
    return Factorization(components, heatmaps, relative_error, 0)


def _rescaled(maps: HeatMaps, scale: Tensor) -> HeatMaps:
    return HeatMaps(maps.coefficients, maps.grids, maps.image_sizes, scale, maps.extents)


def _scaled_by(weights: Tensor | None) -> Any:
    return None if weights is None else lambda place, rows: rows * weights.to(rows.device)


def _relative_error(rows: RowBlocks, H: Tensor, W: Tensor) -> float:
    residual = total = 0.0
    for place, block in rows:
        residual += float((block - H[place] @ W).square().sum())
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
    """Take images into a result as :func:`deepff.discovery.apply.apply` finds its factors in them.

    Parameters
    ----------
    result : Result
    images : sequence of ImageFile or ImageItem
        None of which the result has.
    model, batch_size, device
        As for :func:`deepff.discovery.apply.apply`.

    Returns
    -------
    Result
        The result's images, and after them the others. W and the maps of the former are as they
        were, and so are thresholds, which stay those of the set that W was found in. The relative
        error over all is not known.

    Raises
    ------
    InputError
        See :func:`deepff.discovery.apply.apply`.
    """
    network = model or result.sources[0].backbone(device=device)
    new = apply(result.bank, images, model=network, batch_size=batch_size, device=device)
    whole = result.object
    if whole is not None:
        more = apply(whole.bank, images, model=network, batch_size=batch_size, device=device)
        whole = _joined(whole, more)
    return replace(_joined(result, new), object=whole)


def _joined(result: Result, new: Run) -> Result:
    bank = result.bank
    return replace(
        result,
        images=[*result.images, *new.images],
        skipped=[*result.skipped, *new.skipped],
        factorizations={
            k: _joined_factorization(found, new.factorization(k))
            for k, found in result.factorizations.items()
        },
        applied=bank,
        activations=None,
    )


def _joined_factorization(found: Factorization, new: Factorization) -> Factorization:
    classified = None
    if found.probabilities is not None and new.probabilities is not None:
        classified = _joined_maps(found.probabilities, new.probabilities)
    return replace(
        found,
        heatmaps=_joined_maps(found.heatmaps, new.heatmaps),
        relative_error=math.nan,
        probabilities=classified,
    )


def _joined_maps(maps: HeatMaps, new: HeatMaps) -> HeatMaps:
    """Those of both, at the scale of the latter, which is that of the bank."""
    return HeatMaps(
        torch.cat([maps.coefficients, new.coefficients.to(maps.coefficients)]),
        [*maps.grids, *new.grids],
        [*maps.image_sizes, *new.image_sizes],
        new.scale,
    )
