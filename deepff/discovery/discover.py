"""From a folder of images to heat maps: the whole way in one call."""

import inspect
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from deepff.discovery.choose_k import select_k
from deepff.discovery.contrast import border_contrast, contrast_layers, fused_object
from deepff.errors import InputError
from deepff.factorization import METHODS
from deepff.factorization.blocks import RowBlocks
from deepff.features.activations import Activations
from deepff.features.backbone import Backbone
from deepff.features.extraction import extract_layers
from deepff.features.layers import Layer, list_layers, nearby_non_negative, resolve_layer
from deepff.features.loading import load_backbone, select_device
from deepff.features.shares import own_share
from deepff.features.source import FeatureSource
from deepff.images.files import ImageFile, find_images
from deepff.images.reading import UnreadableImageError, read_image
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.result import Result
from deepff.runtime import distributed
from deepff.runtime.distributed import gather_rows
from deepff.runtime.progress import track

CHANNEL_WEIGHTS = ("none", "border")
RECIPES = ("paper", "contrast")
MIN_MEMORY = 256 * 2**20

Images = str | Path | Sequence[str | Path] | Sequence[ImageFile]


def discover(
    images: Images,
    n_components: int | Iterable[int] | Literal["auto"] | None = None,
    *,
    recipe: str = "paper",
    model: str | nn.Module | Backbone = "efficientnet_lite0",
    layer: str | Sequence[str] | None = None,
    channel_weights: str | None = None,
    size: int = 448,
    weights: str | Path | None = None,
    num_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    interpolation: str | None = None,
    method: str = "nmf",
    random_state: int = 0,
    method_options: dict[str, Any] | None = None,
    batch_size: int = 8,
    cache: str | Path | None = None,
    memory: int | None = None,
    device: str = "auto",
    amp: bool = False,
    progress: bool = False,
) -> Result:
    """Find what a network sees as alike in a set of images (Collins et al., ECCV 2018).

    Parameters
    ----------
    images : path, glob, or sequence of these
        A folder is searched with its subfolders.
    n_components : int, iterable of int, or "auto"
        k, the number of factors; several give one factorization each over the same activations.
        "auto" takes the largest k up to 6 whose factors two halves of the images agree on
        (:func:`deepff.discovery.choose_k.select_k`), which needs two images or more. By default 4,
        and 1 where the recipe or several layers ask for one map of the object.
    recipe : "paper" or "contrast"
        "contrast" stands for ``layer`` = the two of
        :func:`deepff.discovery.contrast.contrast_layers` and ``channel_weights="border"``, one map
        of the object; either can be overridden. It assumes that the background touches the images'
        border more than the object does.
    model : str, torch.nn.Module or Backbone
        A network's name as ``deepff models`` lists it, or one's own in evaluation mode.
    layer : str or sequence of str, optional
        Module path of the layer, or the paper's name for VGG ("conv5_4"); by default the
        network's own default layer. Several layers give one map of the object, fused from theirs
        (:func:`deepff.discovery.contrast.fuse`).
    channel_weights : "none" or "border", optional
        What the channels of A are multiplied with before it is factorised: "border" by how much
        more they fire inside the images than on their border
        (:func:`deepff.discovery.contrast.border_contrast`).
    size : int
        The longer side of the resized images, in pixels.
    weights : path, optional
        A state dict to use instead of the pretrained weights.
    num_classes : int, optional
        Outputs of the classifier, where ``weights`` has another number than ImageNet's.
    mean, std, interpolation : optional
        Override the network's own preprocessing.
    method : "nmf", "pca" or "kmeans"
        How A is factorised.
    random_state : int
        Seed of the factorization. The same seed on the same machine gives the same result.
    method_options : dict, optional
        Further arguments of the method's estimator, such as ``{"solver": "mu"}``.
    batch_size : int
        Images a forward pass.
    cache : path, optional
        A folder in which activations are kept for further runs and for resuming.
    memory : int, optional
        Bytes that activations and coefficients may take in memory, each; what takes more is in
        temporary files, read block by block. At least 256 MiB; by default what the device has
        free.
    device : "auto", "cpu", "cuda" or "mps"
        Where to compute.
    amp : bool
        Run the network in automatic mixed precision; only on a CUDA device.
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
    >>> result = deepff.discover("photos/", n_components=4)  # doctest: +SKIP
    >>> result.heatmaps[0].shape  # doctest: +SKIP
    torch.Size([4, 375, 500])
    """
    command = _call(locals())
    progress = progress and distributed.rank() == 0
    if recipe not in RECIPES:
        raise InputError(f"there is no recipe {recipe!r}; choose one of {', '.join(RECIPES)}")
    weighting = channel_weights or ("border" if recipe == "contrast" else "none")
    if weighting not in CHANNEL_WEIGHTS:
        raise InputError(
            f"there are no channel weights {weighting!r}; choose one of "
            f"{', '.join(CHANNEL_WEIGHTS)}"
        )
    is_fused = not isinstance(layer, str | None) or (layer is None and recipe == "contrast")
    if n_components is None:
        n_components = 1 if is_fused or recipe == "contrast" else 4
    asked = "auto" if n_components == "auto" else factor_counts_of(n_components)
    if is_fused and (asked != [1] or method != "nmf" or method_options):
        raise InputError(
            "the recipe contrast and several layers give one map of the object: use one factor and "
            "the method nmf without a solver or other options, or name one layer"
        )

    if distributed.n_ranks() > 1 and asked == "auto":
        raise InputError(
            "several processes can share a run with given numbers of factors; run -k auto in one "
            "process"
        )

    def estimator(k: int) -> Any:
        return _estimator(method, k, random_state, memory, method_options or {})

    check_memory(memory)
    estimator(1)  # so that a mistake in the options is told before the network runs
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
    layers = _layers(backbone, layer, recipe, size)
    if method == "nmf":
        _check_non_negative(backbone, layers, size)
    loaded = time.perf_counter()
    activations, skipped = extract_layers(
        own_share(files, size),
        backbone,
        layers,
        size=size,
        batch_size=batch_size,
        amp=amp,
        cache=_own_cache(cache),
        memory=memory,
        progress=progress,
    )
    extracted = time.perf_counter()
    contrasts = [border_contrast(a) for a in activations] if weighting == "border" else []
    applied = [contrast.weights for contrast in contrasts]
    agreements = None
    if isinstance(asked, list):
        factor_counts = asked
    else:
        selection = select_k(
            activations[0] if not applied else [r * applied[0] for r in activations[0].image_rows],
            estimator=estimator,
            random_state=random_state,
            progress=progress,
        )
        factor_counts, agreements = [selection.k], selection.agreements
    selected = time.perf_counter()
    factorizations = {}
    with track("factorization", len(factor_counts), unit="runs", enabled=progress) as advance:
        for k in factor_counts:
            if len(layers) > 1:
                ones = [torch.ones(x.channels, device=backbone.device) for x in layers]
                factorizations[k] = fused_object(activations, applied or ones)
            else:
                factorizations[k] = factorize(
                    activations[0],
                    estimator(k),
                    applied[0] if applied else None,
                    backbone.device,
                )
            advance(1)
    finest = min(range(len(layers)), key=lambda index: layers[index].stride)
    coarsest = max(range(len(layers)), key=lambda index: layers[index].stride)
    multiple = layers[coarsest].stride
    is_shared = distributed.n_ranks() > 1
    return Result(
        images=distributed.gather(activations[finest].images),
        skipped=distributed.gather(skipped),
        factorizations=factorizations,
        method=method,
        sources=tuple(FeatureSource.of(backbone, x, size, amp, multiple) for x in layers),
        options={"random_state": random_state, **(method_options or {})},
        command=command,
        seconds={
            "loading the network": loaded - started,
            "network": extracted - loaded,
            "choosing k": selected - extracted,
            "factorization": time.perf_counter() - selected,
        },
        agreements=agreements,
        channel_weights=torch.cat(applied) if applied else None,
        recipe=recipe,
        separation=contrasts[coarsest].separation if contrasts else None,
        cache=None if cache is None or is_shared else str(Path(cache).resolve()),
        activations=None if is_fused or is_shared else activations[0],
    )


def factorize(
    activations: Activations,
    estimator: Any,
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


def find_object(
    result: Result,
    *,
    model: nn.Module | None = None,
    weights: str | Path | None = None,
    num_classes: int | None = None,
    batch_size: int = 8,
    device: str = "auto",
    progress: bool = False,
) -> Result:
    """The object in the images of a result, by the recipe "contrast" and with the same network.

    Parameters
    ----------
    result : Result
    model, weights, num_classes
        As for :meth:`deepff.features.source.FeatureSource.backbone`.
    batch_size, device, progress
        As for :func:`discover`; a cache that the result has is used again.

    Returns
    -------
    Result
        With one factor; the result itself, or its ``object``, where it is there already and lacks
        no image that can be had.

    Raises
    ------
    InputError
        The network or the images cannot be had any more.
    """
    if result.recipe == "contrast" and result.parts_of is None:
        return result
    if result.object is not None and not _has_come_back(result, result.object):
        return result.object
    source = result.sources[0]
    backbone = source.backbone(
        model=model, weights=weights, num_classes=num_classes, device=select_device(device)
    )
    return discover(
        [ImageFile(image.path, image.name) for image in result.images],
        recipe="contrast",
        model=backbone,
        size=source.size,
        batch_size=batch_size,
        cache=result.cache,
        amp=source.amp,
        progress=progress,
    )


def _has_come_back(result: Result, whole: Result) -> bool:
    """Whether an image that the object lacks, or has at another size, can be had now."""
    held = {(image.name, image.size) for image in whole.images}
    for image in result.images:
        if (image.name, image.size) in held:
            continue
        try:
            height, width = read_image(image.path).shape[:2]
        except UnreadableImageError:
            continue
        if (image.name, (height, width)) not in held:
            return True
    return False


def check_memory(memory: int | None) -> None:
    """Raise InputError for a bound too small for the sample of rows that factors start from."""
    if memory is not None and memory < MIN_MEMORY:
        raise InputError(
            f"{memory} bytes are too little memory; give {MIN_MEMORY // 2**20} MiB or more"
        )


def opened_backbone(model: str | nn.Module | Backbone, *, device: str, **options: Any) -> Backbone:
    """A network by name, or one's own, on the device; one that is open already as it is."""
    if isinstance(model, Backbone):
        return model
    return load_backbone(model, device=select_device(device), **options)


def _layers(
    backbone: Backbone, layer: str | Sequence[str] | None, recipe: str, size: int
) -> list[Layer]:
    if layer is None and recipe == "contrast":
        layers = list(contrast_layers(backbone, size))
    elif isinstance(layer, str | None):
        layers = [resolve_layer(backbone, layer, size)]
    else:
        layers = [resolve_layer(backbone, name, size) for name in layer]
    for chosen in layers:
        if math.isnan(chosen.minimum):
            raise InputError(
                f"the activations of layer {chosen.name} are NaN; check the weights of "
                f"{backbone.name}"
            )
    return layers


def _check_non_negative(backbone: Backbone, layers: Sequence[Layer], size: int) -> None:
    for layer in layers:
        if layer.non_negative:
            continue
        nearby = nearby_non_negative(list_layers(backbone, size), layer)
        alternatives = (
            f"choose a layer that does not, such as {', '.join(nearby)}, or " if nearby else ""
        )
        raise InputError(
            f"layer {layer.name} of {backbone.name} goes down to {layer.minimum:.3g}, and NMF "
            f"needs activations that are never negative; {alternatives}use the method pca"
        )


def factor_counts_of(n_components: int | Iterable[int] | str) -> list[int]:
    """Numbers of factors, ascending; InputError where they are none, or below 1."""
    if isinstance(n_components, str):
        raise InputError(f'n_components is {n_components!r}; give a number, several, or "auto"')
    counts = [n_components] if isinstance(n_components, int) else sorted(set(n_components))
    if not counts or counts[0] < 1:
        raise InputError(f"the number of factors must be 1 or more, not {n_components}")
    return counts


def _own_cache(cache: str | Path | None) -> str | Path | None:
    """The folder of this rank: several processes do not share one index."""
    if cache is None or distributed.n_ranks() == 1:
        return cache
    return Path(cache) / f"rank-{distributed.rank()}-of-{distributed.n_ranks()}"


def _estimator(
    method: str, k: int, random_state: int, memory: int | None, options: dict[str, Any]
) -> Any:
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}; choose one of {', '.join(METHODS)}")
    seed = {} if method == "pca" else {"random_state": random_state}
    try:
        return METHODS[method](k, **seed, memory=memory, **options)
    except TypeError as error:
        raise InputError(f"method {method} does not take these options: {error}") from error


def _call(arguments: dict[str, Any]) -> str:
    """The call of :func:`discover` with these arguments, without those that are the default."""

    def shown(value: Any) -> str:
        if isinstance(value, str | Path):
            return repr(str(value))
        if isinstance(value, Backbone | nn.Module):
            return value.name if isinstance(value, Backbone) else type(value).__name__
        if isinstance(value, ImageFile):
            return repr(str(value.path))
        if isinstance(value, Sequence):
            return f"[{', '.join(map(shown, value))}]"
        return repr(value)

    parameters = inspect.signature(discover).parameters
    given = [
        shown(value) if name == "images" else f"{name}={shown(value)}"
        for name, value in arguments.items()
        if name == "images"
        or (value is not parameters[name].default and value != parameters[name].default)
    ]
    return f"deepff.discover({', '.join(given)})"


def given_files(images: Images) -> list[ImageFile]:
    """The image files that paths, globs, or files found before stand for.

    Raises
    ------
    InputError
        There are none, or something else was given.
    """
    if isinstance(images, str | Path):
        return find_images(images)
    others = [image for image in images if not isinstance(image, str | Path | ImageFile)]
    if others:
        raise InputError(
            f"images are given as paths or globs, not as {type(others[0]).__name__}; save them as "
            "files first"
        )
    if images and all(isinstance(image, ImageFile) for image in images):
        return list(images)  # type: ignore[arg-type]
    return find_images(images)  # type: ignore[arg-type]
