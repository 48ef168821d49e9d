"""Parts inside the object, from a folder of images: the object first, then its parts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepff.activations.activations import Activations, sources_of
from deepff.activations.extraction import extract_layers
from deepff.activations.feature_source import Preparation
from deepff.discovery.arguments import (
    FactorCounts,
    Model,
    check_activations,
    check_factor_counts,
    check_memory,
    factor_counts_of,
    opened_backbone,
    seed_of,
    shown_call,
    whole_number,
)
from deepff.discovery.choose_k import Selection, select_k
from deepff.discovery.contrast import (
    BorderWeights,
    contrast_layers,
    contrast_object,
    weighable,
)
from deepff.discovery.object_parts import (
    factorize_filled,
    factorize_inside,
    fills_frame,
    part_layer,
)
from deepff.discovery.teaching import Cells, classify_object, classify_parts
from deepff.errors import InputError
from deepff.factorization import KMeans
from deepff.images.image_set import Images, resolve_images
from deepff.layers.centers import with_centers
from deepff.layers.later import OpenLayer
from deepff.layers.layer_map import map_layers
from deepff.layers.pixel_layers import pixel_layers
from deepff.options import (
    BATCH_SIZE,
    MODEL,
    N_PARTS,
    SIZE,
    Device,
    Method,
    Recipe,
    Refinement,
    RegionOptions,
    Threshold,
)
from deepff.regions.refiners import object_shares
from deepff.regions.regions import object_probabilities
from deepff.result import Result
from deepff.results.factorization import Factorization
from deepff.runtime import distributed
from deepff.runtime.progress import Stopwatch, track

# Which cells are clustered: on Car Parts (every other image, k = 2, 4) the classifier's object
# gives a factor quality that is 0.01 lower.
_CELLS = RegionOptions(Threshold.OTSU_IMAGE, refine=Refinement.DENSE_CRF)


def discover_parts(
    images: Images,
    n_components: FactorCounts = N_PARTS,
    *,
    model: Model = MODEL,
    layer: str | None = None,
    size: int = SIZE,
    random_state: int = 0,
    batch_size: int = BATCH_SIZE,
    cache: str | Path | None = None,
    memory: int | None = None,
    device: str = Device.AUTO,
    amp: bool = False,
    stretch: bool = False,
    progress: bool = False,
) -> Result:
    """Find the object of a set of images by the recipe contrast, and its parts on its cells.

    Where the object cannot be told from the border of the images, objects are taken to fill the
    frame, and the parts are found on all cells, beside one cluster for the background.

    Parameters
    ----------
    images : path, glob, sequence of these, or images
        As for :func:`deepff.discover`.
    n_components : int, iterable of int, or "auto"
        The number of parts; several give one factorization each. "auto" takes the largest up to 6
        on which two halves of the images agree (:func:`deepff.discovery.choose_k.select_k`).
    layer : str, optional
        Where parts are told apart, by sign if it is signed; by default
        :func:`deepff.discovery.object_parts.part_layer`.
    model, size, random_state, batch_size, cache, memory, device, amp, stretch, progress
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

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> images = [data.chelsea(), data.chelsea()[:, ::-1].copy()]
    >>> parts = deepff.discover_parts(images, 2)
    >>> [regions.masks.shape for regions in parts.regions()]
    [torch.Size([2, 300, 451]), torch.Size([2, 300, 451])]
    """
    command = shown_call(discover_parts, locals())
    counts = factor_counts_of(n_components)
    if distributed.n_ranks() > 1:
        raise InputError("parts inside the object are found by one process; run it without others")
    check_memory(memory)
    size, batch_size = whole_number(size, "size", 1), whole_number(batch_size, "batch_size", 1)
    random_state = seed_of(random_state)
    files = resolve_images(images)
    watch = Stopwatch()
    backbone = opened_backbone(model, device)
    layer_map = map_layers(backbone, size)
    object_layers = contrast_layers(layer_map)
    own_layer = weighable([layer_map.resolve(layer) if layer else part_layer(layer_map)])[0]
    check_factor_counts(counts, [own_layer])
    check_activations(layer_map, [own_layer, *object_layers], by_nmf=False)
    classified = pixel_layers(layer_map)
    every = {layer.path: layer for layer in (own_layer, *object_layers, *classified)}
    watch.lap("loading the network")
    layers = with_centers(backbone, list(every.values()), cache)
    watch.lap("placing cells")
    extracted, skipped = extract_layers(
        files,
        backbone,
        layers,
        Preparation(size, stretch, amp),
        batch_size=batch_size,
        cache=cache,
        memory=memory,
        progress=progress,
    )
    watch.lap("network")
    by_path = {layer.path: found for layer, found in zip(layers, extracted, strict=True)}
    placed = {layer.path: layer for layer in layers}
    of_object = [by_path[layer.path] for layer in object_layers]
    found_object, border = contrast_object(of_object)
    of_cells = [by_path[layer.path] for layer in classified]
    taught = Cells.of(of_cells, sources_of(of_cells), progress)
    found_object = classify_object(found_object, taught)
    common: dict[str, Any] = {
        "skipped": skipped,
        "recipe": Recipe.CONTRAST,
        "options": {"random_state": random_state},
        "command": command,
        "seconds": watch.seconds,
        "cache": None if cache is None else str(Path(cache).resolve()),
        "separation": border.separation,
    }

    whole = Result(
        images=of_object[0].images,
        factorizations={1: found_object},
        method=Method.NMF,
        sources=sources_of(of_object),
        channel_weights=torch.cat(border.weights),
        opened=tuple(OpenLayer(backbone, placed[x.path]) for x in object_layers),
        **common,
    )
    activations = by_path[own_layer.path]
    cells = _object_cells(whole, activations, border, progress)
    agreements = None
    if counts == "auto":
        selection = _choose_k(activations, cells, random_state, progress)
        counts, agreements = [selection.k], selection.agreements
    factorizations = _parts(activations, cells, counts, random_state, progress)
    watch.lap("object and parts")
    of_which = None if cells is None else found_object
    factorizations = classify_parts(factorizations, of_which, taught)
    watch.lap("classifier")
    result = Result(
        images=activations.images,
        factorizations=factorizations,
        method=Method.KMEANS,
        sources=sources_of([activations]),
        agreements=agreements,
        object=whole,
        parts_of="frame" if cells is None else "object",
        activations=activations,
        **common,
    )
    whole.name_factors(progress)
    result.name_factors(progress)
    return result


def _object_cells(
    whole: Result, activations: Activations, border: BorderWeights, progress: bool
) -> Tensor | None:
    """The share of each cell of ``activations`` that is object; None where that fills the frame."""
    if fills_frame(border.separation, whole.sources[-1].by_sign):
        return None
    shares = []
    with track("object", len(activations.images), enabled=progress) as advance:
        found = object_probabilities(whole, _CELLS)
        for image, probability in zip(activations.images, found, strict=True):
            shares.append(object_shares(probability, image.grid, image.extent))
            advance(1)
    return torch.cat(shares)


def _choose_k(
    activations: Activations, cells: Tensor | None, random_state: int, progress: bool
) -> Selection:
    """How many parts, by the rows that are clustered."""
    _, space = (
        factorize_filled(activations, 1)
        if cells is None
        else factorize_inside(activations, cells, 1)
    )
    n_cells = [image.n_cells for image in activations.images]
    return select_k(
        activations,
        cells=None if cells is None else (cells >= 0.5).split(n_cells),
        transform=space.rows,
        estimator=lambda k: KMeans(k, random_state=random_state),
        random_state=random_state,
        progress=progress,
    )


def _parts(
    activations: Activations,
    cells: Tensor | None,
    counts: Sequence[int],
    random_state: int,
    progress: bool,
) -> dict[int, Factorization]:
    factorizations = {}
    with track("parts", len(counts), unit="runs", enabled=progress) as advance:
        for k in counts:
            factorizations[k], _ = (
                factorize_filled(activations, k, random_state)
                if cells is None
                else factorize_inside(activations, cells, k, random_state)
            )
            advance(1)
    return factorizations
