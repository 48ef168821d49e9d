"""Parts inside the object, from a folder of images: the object first, then its parts."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from deepff.discovery.choose_k import select_k
from deepff.discovery.contrast import border_contrast, contrast_layers, fused_object
from deepff.discovery.discover import (
    Images,
    check_memory,
    factor_counts_of,
    given_files,
    opened_backbone,
)
from deepff.discovery.object_parts import (
    factorize_filled,
    factorize_inside,
    fills_frame,
    part_layer,
)
from deepff.errors import InputError
from deepff.factorization import KMeans
from deepff.features.activations import Activations
from deepff.features.backbone import Backbone
from deepff.features.extraction import extract_layers
from deepff.features.layers import resolve_layer
from deepff.features.source import FeatureSource
from deepff.regions.find import RECIPE_OPTIONS, object_probabilities
from deepff.regions.parts import object_shares
from deepff.results.result import Result
from deepff.runtime import distributed
from deepff.runtime.progress import track


def discover_parts(
    images: Images,
    n_components: int | Iterable[int] | Literal["auto"] = 3,
    *,
    model: str | nn.Module | Backbone = "efficientnet_lite0",
    layer: str | None = None,
    size: int = 448,
    weights: str | Path | None = None,
    num_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    interpolation: str | None = None,
    random_state: int = 0,
    batch_size: int = 8,
    cache: str | Path | None = None,
    memory: int | None = None,
    device: str = "auto",
    amp: bool = False,
    progress: bool = False,
) -> Result:
    """Find the object of a set of images by the recipe contrast, and its parts on its cells.

    Where the object cannot be told from the border of the images, objects are taken to fill the
    frame, and the parts are found on all cells, beside one cluster for the background.

    Parameters
    ----------
    images : path, glob, or sequence of these
        A folder is searched with its subfolders.
    n_components : int, iterable of int, or "auto"
        The number of parts; several give one factorization each. "auto" takes the largest up to 6
        on which two halves of the images agree (:func:`deepff.discovery.choose_k.select_k`).
    layer : str, optional
        Where parts are told apart; by default :func:`deepff.discovery.object_parts.part_layer`.
    model, size, weights, num_classes, mean, std, interpolation, random_state
        As for :func:`deepff.discover`.
    batch_size, cache, memory, device, amp, progress
        As for :func:`deepff.discover`.

    Returns
    -------
    Result
        With ``object``, the object's own result, and ``parts_of``, which way was taken. Its
        regions are one part a pixel, refined together.

    Raises
    ------
    InputError
        As :func:`deepff.discover`; or the object has too few cells for so many parts.
    """
    asked = "auto" if n_components == "auto" else factor_counts_of(n_components)
    if distributed.n_ranks() > 1:
        raise InputError("parts inside the object are found by one process; run it without others")
    check_memory(memory)
    files = given_files(images)
    started = time.perf_counter()
    backbone = opened_backbone(
        model,
        weights=weights,
        num_classes=num_classes,
        mean=mean,
        std=std,
        interpolation=interpolation,
        device=device,
    )
    object_layers = contrast_layers(backbone, size)
    own_layer = resolve_layer(backbone, layer, size) if layer else part_layer(backbone, size)
    if not own_layer.non_negative:
        raise InputError(
            f"layer {own_layer.name} of {backbone.name} goes down to {own_layer.minimum:.3g}; "
            "parts need a layer that is never negative"
        )
    layers = list({each.path: each for each in (own_layer, *object_layers)}.values())
    loaded = time.perf_counter()
    extracted, skipped = extract_layers(
        files,
        backbone,
        layers,
        size=size,
        batch_size=batch_size,
        amp=amp,
        cache=cache,
        memory=memory,
        progress=progress,
    )
    by_path = {each.path: found for each, found in zip(layers, extracted, strict=True)}
    networked = time.perf_counter()
    multiple = max(each.stride for each in layers)
    common: dict[str, Any] = {
        "skipped": skipped,
        "recipe": "contrast",
        "options": {"random_state": random_state},
        "command": f"deepff.discover_parts of {len(files)} images",
        "seconds": {"loading the network": loaded - started, "network": networked - loaded},
        "cache": None if cache is None else str(Path(cache).resolve()),
    }
    of_object = [by_path[each.path] for each in object_layers]
    contrasts = [border_contrast(activations) for activations in of_object]
    finer = of_object[0]
    whole = Result(
        images=finer.images,
        factorizations={1: fused_object(of_object, [each.weights for each in contrasts])},
        method="nmf",
        sources=tuple(
            FeatureSource.of(backbone, each, size, amp, multiple) for each in object_layers
        ),
        channel_weights=torch.cat([each.weights for each in contrasts]),
        separation=contrasts[-1].separation,
        **common,
    )
    activations = by_path[own_layer.path]
    filled = fills_frame(contrasts[-1].separation)
    cells = None if filled else _object_cells(whole, activations, progress)
    agreements = None
    if not isinstance(asked, list):
        selection = select_k(
            _part_rows(activations, cells),
            estimator=lambda k: KMeans(k, random_state=random_state),
            random_state=random_state,
            progress=progress,
        )
        asked, agreements = [selection.k], selection.agreements
    factorizations = {}
    with track("parts", len(asked), unit="runs", enabled=progress) as advance:
        for k in asked:
            found, _ = (
                factorize_filled(activations, k, random_state)
                if cells is None
                else factorize_inside(activations, cells, k, random_state)
            )
            factorizations[k] = found
            advance(1)
    common["seconds"]["object and parts"] = time.perf_counter() - networked
    return Result(
        images=activations.images,
        factorizations=factorizations,
        method="kmeans",
        sources=(FeatureSource.of(backbone, own_layer, size, amp, multiple),),
        agreements=agreements,
        separation=contrasts[-1].separation,
        object=whole,
        parts_of="frame" if filled else "object",
        activations=activations,
        **common,
    )


def _object_cells(whole: Result, activations: Activations, progress: bool) -> Tensor:
    """The share of each cell of ``activations`` that is object, (rows,)."""
    shares = []
    with track("object", len(activations.images), enabled=progress) as advance:
        found = object_probabilities(whole, RECIPE_OPTIONS["contrast"])
        for image, probability in zip(activations.images, found, strict=True):
            shares.append(object_shares(probability, image.grid))
            advance(1)
    return torch.cat(shares)


def _part_rows(activations: Activations, cells: Tensor | None) -> list[Tensor]:
    """What is clustered, image by image: (cells of the image that count, c)."""
    if cells is None:
        _, space = factorize_filled(activations, 1)
        return [space.rows(rows) for rows in activations.image_rows]
    _, space = factorize_inside(activations, cells, 1)
    return [
        space.rows(rows[own >= 0.5])
        for rows, own in zip(
            activations.image_rows,
            cells.split([image.n_cells for image in activations.images]),
            strict=True,
        )
    ]
