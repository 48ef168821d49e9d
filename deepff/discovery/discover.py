"""From a folder of images to heat maps: the whole way in one call."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

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
    own_cache,
    seed_of,
    shown_call,
    whole_number,
)
from deepff.discovery.choose_k import select_k
from deepff.discovery.contrast import (
    BorderWeights,
    border_weights,
    contrast_layers,
    fused_object,
    weighable,
)
from deepff.discovery.teaching import Cells, classify_object
from deepff.errors import InputError
from deepff.factorization import METHODS, Factorizer
from deepff.factorization.blocks import RowBlocks
from deepff.images.image_set import Images, own_share, resolve_images
from deepff.layers.centers import with_centers
from deepff.layers.later import OpenLayer
from deepff.layers.layer import Layer
from deepff.layers.layer_map import LayerMap, check_named_once, map_layers
from deepff.layers.pixel_layers import pixel_layers
from deepff.options import (
    BATCH_SIZE,
    MODEL,
    N_COMPONENTS,
    SIZE,
    ChannelWeights,
    Device,
    Method,
    Recipe,
    chosen,
)
from deepff.result import Result
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.runtime import distributed
from deepff.runtime.distributed import gather_rows
from deepff.runtime.progress import Stopwatch, track


def discover(
    images: Images,
    n_components: FactorCounts | None = None,
    *,
    model: Model = MODEL,
    layer: str | Sequence[str] | None = None,
    method: str | Factorizer = Method.AUTO,
    recipe: str = Recipe.PAPER,
    channel_weights: str | None = None,
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
    """Find what a network sees as alike in a set of images (Collins et al., ECCV 2018).

    Parameters
    ----------
    images : path, glob, sequence of these, or images
        A folder is searched with its subfolders; a list keeps its order. Images are PIL images,
        arrays (H, W, 3) uint8, tensors (3, H, W), or anything with ``__len__`` and
        ``__getitem__`` that gives these, such as a Dataset (:mod:`deepff.images.image_set`).
    n_components : int, iterable of int, or "auto"
        k, the number of factors; several give one factorization each over the same activations.
        "auto" takes the largest k up to 6 whose factors two halves of the images agree on
        (:func:`deepff.discovery.choose_k.select_k`), which needs two images or more. By default
        an estimator's own, else 4, and 1 where the recipe or several layers ask for one map of the
        object.
    model : str, torch.nn.Module or Backbone
        A network's name as ``deepff models`` lists it, one's own in evaluation mode, or what
        :func:`deepff.load_backbone` gives.
    layer : str or sequence of str, optional
        Module path of the layer, or the paper's name for VGG ("conv5_4"); by default the
        network's own default layer. Several layers give one map of the object, fused from theirs
        (:func:`deepff.discovery.contrast.fuse`).
    method : "auto", "nmf", "semi-nmf", "pca", "kmeans", or an estimator
        How A is factorised: "auto" takes "nmf", but "semi-nmf" where the layer goes negative. An
        estimator such as ``NMF(solver="mu")`` is copied, and its number of factors set to k.
    recipe : "paper" or "contrast"
        "contrast" stands for ``layer`` = the two of
        :func:`deepff.discovery.contrast.contrast_layers` and ``channel_weights="border"``, one map
        of the object; either can be overridden. It assumes that the background touches the
        images' border more than the object does. With its own layers it also fits the pixel
        classifier that the object's masks teach (:mod:`deepff.regions.pixel_classifier`).
    channel_weights : "none" or "border", optional
        What the channels of A are multiplied with before it is factorised: "border" by how much
        more they fire inside the images than on their border
        (:func:`deepff.discovery.contrast.border_contrast`).
    size : int
        The longer side of the resized images, in pixels.
    random_state : int
        Seed of the factorization. The same seed on the same machine gives the same result.
    batch_size : int
        Images per forward pass.
    cache : path, optional
        A folder in which activations are kept for further runs and for resuming.
    memory : int, optional
        Bytes that activations and coefficients may take in memory, each; what takes more is in
        temporary files, read block by block. At least 256 MiB; by default what the device has
        free.
    device : "auto", "cpu", "cuda" or "mps"
        Where to compute; a Backbone stays where it is.
    amp : bool
        Run the network in automatic mixed precision; only on a CUDA device.
    stretch : bool
        Of images of more than 8 bits a channel, make the largest value white: for 10, 12 or 14
        bits in files of 16, which are nearly black else.
    progress : bool
        Show progress on standard error.

    Returns
    -------
    Result

    Raises
    ------
    InputError
        If something that was asked for cannot be had: the message says what would be right.

    Notes
    -----
    Where `torch.distributed` is initialised, every rank calls this with the same arguments, runs
    the network on its share of the images (with a part of the cache of its own), and gets the
    result of the whole set, without activations. Ranks exchange sums over rows.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> result = deepff.discover([data.chelsea(), data.astronaut()], n_components=2, size=224)
    >>> result.heatmaps[0].shape  # at the image's own size
    torch.Size([2, 300, 451])
    >>> result.heatmaps.grid(0).shape  # on the layer's grid
    torch.Size([2, 5, 7])
    >>> result.components.shape, result.coefficients.shape  # W and H
    (torch.Size([2, 1280]), torch.Size([84, 2]))
    """
    command = shown_call(discover, locals())
    progress = progress and distributed.rank() == 0
    check_memory(memory)
    size, batch_size = whole_number(size, "size", 1), whole_number(batch_size, "batch_size", 1)
    random_state = seed_of(random_state)
    plan = _plan(n_components, layer, method, recipe, channel_weights, random_state, memory)
    files = resolve_images(images)
    watch = Stopwatch()
    backbone = opened_backbone(model, device)
    layer_map = map_layers(backbone, size)
    layers = _layers(layer_map, layer, plan)
    plan = _settled(plan, layers, random_state, memory)
    check_factor_counts(plan.factor_counts, layers)
    check_activations(layer_map, layers, plan.estimator(1).needs_non_negative)
    classified = pixel_layers(layer_map) if plan.is_classified else []
    every = list({x.path: x for x in (*layers, *classified)}.values())
    watch.lap("loading the network")
    every = with_centers(backbone, every, own_cache(cache))
    placed = {x.path: x for x in every}
    layers, classified = ([placed[x.path] for x in given] for given in (layers, classified))
    watch.lap("placing cells")
    extracted, skipped = extract_layers(
        own_share(files, size),
        backbone,
        every,
        Preparation(size, stretch, amp),
        batch_size=batch_size,
        cache=own_cache(cache),
        memory=memory,
        progress=progress,
    )
    by_path = {x.path: found for x, found in zip(every, extracted, strict=True)}
    activations = [by_path[x.path] for x in layers]
    watch.lap("network")
    border = border_weights(activations) if plan.weighting == ChannelWeights.BORDER else None
    counts, agreements = plan.factor_counts, None
    if counts == "auto":
        weights = None if border is None else border.weights[0]
        selection = select_k(
            activations[0],
            transform=None if weights is None else lambda rows: rows * weights,
            estimator=plan.estimator,
            random_state=random_state,
            progress=progress,
        )
        counts, agreements = [selection.k], selection.agreements
    watch.lap("choosing k")
    factorizations = _factorizations(activations, border, counts, plan, backbone.device, progress)
    watch.lap("factorization")
    if classified:
        of_cells = [by_path[x.path] for x in classified]
        cells = Cells.of(of_cells, sources_of(of_cells), progress)
        factorizations[1] = classify_object(factorizations[1], cells)
        watch.lap("classifier")
    finest = min(range(len(layers)), key=lambda index: layers[index].stride)
    is_shared = distributed.n_ranks() > 1
    result = Result(
        images=distributed.gather(activations[finest].images),
        skipped=distributed.gather(skipped),
        factorizations=factorizations,
        method=plan.method,
        sources=sources_of(activations),
        options={"random_state": random_state, **plan.options},
        command=command,
        seconds=watch.seconds,
        agreements=agreements,
        channel_weights=None if border is None else torch.cat(border.weights),
        recipe=recipe,
        separation=None if border is None else border.separation,
        cache=None if cache is None or is_shared else str(Path(cache).resolve()),
        activations=None if plan.is_fused or is_shared else activations[0],
        opened=tuple(OpenLayer(backbone, x) for x in layers),
    )
    result.name_factors(progress)
    return result


def factorize(
    activations: Activations,
    estimator: Factorizer,
    channel_weights: Tensor | None = None,
    device: torch.device | None = None,
) -> Factorization:
    """Factorise A, or A·diag(channel_weights), with an estimator of :mod:`deepff.factorization`.

    It computes on ``device``, by default where A is. Over several ranks the heat maps are those of
    all of them.
    """
    rows = RowBlocks(
        activations.blocks,
        device,
        None if channel_weights is None else lambda _, rows: rows * channel_weights.to(rows.device),
    )
    coefficients = gather_rows(estimator.fit_transform(rows))
    heatmaps = HeatMaps.of_images(coefficients, distributed.gather(activations.images))
    return Factorization(
        estimator.components_, heatmaps, float(estimator.relative_err_), int(estimator.n_iter_)
    )


@dataclass(frozen=True)
class _Plan:
    """What the arguments of discover come to before the network is known."""

    factor_counts: list[int] | Literal["auto"]
    method: str
    options: dict[str, Any]
    estimator: Callable[[int], Factorizer]
    recipe: str
    weighting: ChannelWeights
    is_fused: bool
    is_classified: bool


def _plan(
    n_components: FactorCounts | None,
    layer: str | Sequence[str] | None,
    method: str | Factorizer,
    recipe: str,
    channel_weights: str | None,
    random_state: int,
    memory: int | None,
) -> _Plan:
    recipe = chosen(Recipe, recipe, "recipe")
    by_recipe = ChannelWeights.BORDER if recipe == Recipe.CONTRAST else ChannelWeights.NONE
    weighting = chosen(ChannelWeights, channel_weights or by_recipe, "channel weighting")
    if layer is not None and not isinstance(layer, str) and not list(layer):
        raise InputError("no layer was named; name one or several, or leave the choice open")
    n_layers = 1 if isinstance(layer, str | None) else len(list(layer))
    is_fused = n_layers > 1 or (layer is None and recipe == Recipe.CONTRAST)
    estimator, name, options = _estimator(method, random_state, memory)
    if n_components is None:
        is_object = is_fused or recipe == Recipe.CONTRAST
        own = None if isinstance(method, str) else getattr(method, "n_components", None)
        n_components = 1 if is_object else own or N_COMPONENTS
    counts = factor_counts_of(n_components)
    if is_fused and (counts != [1] or name not in (Method.AUTO, Method.NMF) or options):
        raise InputError(
            "the recipe contrast and several layers give one map of the object: use one factor and "
            "the method nmf without a solver or other options, or name one layer"
        )
    if distributed.n_ranks() > 1 and counts == "auto":
        raise InputError(
            "several processes can share a run with given numbers of factors; run -k auto in one "
            "process"
        )
    is_classified = recipe == Recipe.CONTRAST and layer is None
    return _Plan(counts, name, options, estimator, recipe, weighting, is_fused, is_classified)


def _estimator(
    method: str | Any, random_state: int, memory: int | None
) -> tuple[Callable[[int], Factorizer], str, dict[str, Any]]:
    """A maker of estimators for k, the method's name, and its options that are not the default."""
    if isinstance(method, str):
        name = chosen(Method, method, "method")
        seed = {} if name == Method.PCA else {"random_state": random_state}
        return (lambda k: METHODS[name](k, **seed, memory=memory)), name, {}
    from sklearn.base import clone

    given = clone(method)
    names = {cls: name for name, cls in METHODS.items()}
    parameters = inspect.signature(type(method)).parameters
    held = given.get_params()
    options = {
        name: value
        for name, value in held.items()
        if name not in ("n_components", "memory") and value != parameters[name].default
    }
    ours = {"random_state": random_state, "memory": memory}
    missing = {name: value for name, value in ours.items() if held.get(name, 0) is None}

    def estimator(k: int) -> Factorizer:
        return clone(given).set_params(n_components=k, **missing)

    return estimator, names.get(type(method), type(method).__name__), options


def _layers(layer_map: LayerMap, layer: str | Sequence[str] | None, plan: _Plan) -> list[Layer]:
    if layer is None and plan.recipe == Recipe.CONTRAST:
        return contrast_layers(layer_map)
    if isinstance(layer, str | None):
        layers = [layer_map.resolve(layer)]
    else:
        layers = [layer_map.resolve(name) for name in layer]
        check_named_once(layers)
    return weighable(layers) if plan.is_fused or plan.weighting == ChannelWeights.BORDER else layers


def _settled(plan: _Plan, layers: Sequence[Layer], random_state: int, memory: int | None) -> _Plan:
    """The plan with "auto" replaced by the method for these layers."""
    if plan.method != Method.AUTO:
        return plan
    is_signed = not all(layer.non_negative for layer in layers)
    name = Method.SEMI_NMF if is_signed else Method.NMF
    estimator, method, options = _estimator(name, random_state, memory)
    return replace(plan, method=method, options=options, estimator=estimator)


def _factorizations(
    activations: Sequence[Activations],
    border: BorderWeights | None,
    counts: Sequence[int],
    plan: _Plan,
    device: torch.device,
    progress: bool,
) -> dict[int, Factorization]:
    if plan.is_fused:
        ones = [torch.ones(a.channels, device=device) for a in activations]
        return {1: fused_object(activations, ones if border is None else border.weights)}
    factorizations = {}
    weights = None if border is None else border.weights[0]
    with track("factorization", len(counts), unit="runs", enabled=progress) as advance:
        for k in counts:
            factorizations[k] = factorize(activations[0], plan.estimator(k), weights, device)
            advance(1)
    return factorizations
