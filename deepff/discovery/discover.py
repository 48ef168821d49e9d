"""From a folder of images to heat maps in one call."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Unpack, overload

from torch import nn

from deepff.discovery.activation_set import result_of
from deepff.discovery.arguments import (
    DiscoverOptions,
    Estimators,
    FactorCounts,
    Model,
    RunOptions,
    RunSettings,
    check_activations,
    check_factor_counts,
    factor_counts_of,
    shown_call,
    whole_number,
)
from deepff.discovery.contrast import (
    border_contrast,
    contrast_layers,
    discover_by_contrast,
    weighable,
)
from deepff.discovery.paper import discover_by_paper
from deepff.errors import InputError
from deepff.factorization import Factorizer
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_files import natural_key
from deepff.images.image_set import Images, SetImage
from deepff.layers.layer_map import LayerChoice, check_named_once, map_layers
from deepff.layers.pixel_layers import pixel_layers
from deepff.networks.backbone import Backbone
from deepff.options import (
    BATCH_SIZE,
    MODEL,
    N_COMPONENTS,
    SIZE,
    ChannelWeights,
    Device,
    Engine,
    Method,
    Recipe,
    chosen,
)
from deepff.result import ClassResults, Result
from deepff.results.run import Run
from deepff.runtime import distributed
from deepff.runtime.progress import Stopwatch


@overload
def discover(
    images: Images, n_components: FactorCounts | None = None, **options: Unpack[DiscoverOptions]
) -> Result: ...
@overload
def discover(
    images: Images,
    n_components: FactorCounts | None = None,
    *,
    classes: Iterable[Any],
    **options: Unpack[DiscoverOptions],
) -> ClassResults: ...
def discover(
    images: Images,
    n_components: FactorCounts | None = None,
    *,
    classes: Iterable[Any] | None = None,
    model: Model = MODEL,
    layer: LayerChoice | Sequence[LayerChoice] | None = None,
    method: str | Factorizer = Method.AUTO,
    recipe: str = Recipe.PAPER,
    channel_weights: str | None = None,
    kinds: int | Literal["auto"] = "auto",
    size: int | None = None,
    random_state: int = 0,
    batch_size: int = BATCH_SIZE,
    cache: str | Path | None = None,
    memory: int | None = None,
    device: str = Device.AUTO,
    amp: bool = False,
    stretch: bool = False,
    normalized: bool = False,
    progress: bool = False,
) -> Result | ClassResults:
    """Find what a network treats as the same thing across a set of images.

    Deep Feature Factorization (Collins, Achanta & Süsstrunk, ECCV 2018):
    :mod:`deepff.discovery.paper` has the method step by step.

    Parameters
    ----------
    images : path, glob, archive, address, sequence of these, or images
        A folder is searched with its subfolders; a list keeps its order. Addresses are fsspec's,
        such as "s3://bucket/photos". Images are PIL images, arrays (H, W, 3) uint8, tensors
        (3, H, W), anything with ``__len__`` and ``__getitem__`` that gives these, such as a
        Dataset, or an iterable (:mod:`deepff.images.image_set`).
    n_components : int, iterable of int, or "auto"
        k, the number of factors; several give one factorization each over the same activations.
        "auto" takes the largest k up to 6 whose factors two halves of the images agree on
        (:func:`deepff.discovery.choose_k.select_k`), which needs two images or more. By default
        the estimator's, else 4, and 1 where the recipe or several layers ask for one map of the
        object.
    classes : iterable, optional
        The class of each image, text or numbers: the images of each class are factorized apart, as
        if this were called for each, with one open network.
    model : str, torch.nn.Module or Backbone
        A name from ``deepff models``, your module in evaluation mode, or a network from
        :func:`deepff.load_backbone`.
    layer : str, torch.nn.Module, or sequence of these, optional
        Module path of the layer, the module itself (``network[6]``), or the paper's name for VGG
        ("conv5_4"); by default the network's default layer. Several layers give one map of the
        object, fused from theirs (:func:`deepff.discovery.contrast.fuse`).
    method : "auto", "nmf", "semi-nmf", "pca", "kmeans", or an estimator
        How A is factorized: "auto" is "nmf", or "semi-nmf" if the layer has negative values. An
        estimator, for example ``NMF(solver="mu")``, is copied and gets k factors.
    recipe : "paper" or "contrast"
        "contrast" stands for ``layer`` = the two of
        :func:`deepff.discovery.contrast.contrast_layers` and ``channel_weights="border"``, one map
        of the object; either can be overridden. It assumes that the background touches the
        images' border more than the object does. With these layers it also fits the pixel
        classifier that the object's masks teach (:mod:`deepff.regions.pixel_classifier`).
    channel_weights : "none" or "border", optional
        Weights of the channels of A. "border" weights a channel by how much more it fires inside
        the images than on their border (:func:`deepff.discovery.contrast.border_contrast`).
    kinds : int or "auto"
        For the recipe "contrast": how many kinds of objects the set shows. Each kind gets a
        factor, and each image has one kind. By default the images decide
        (:mod:`deepff.discovery.kinds`), and it is 1 if ``n_components`` is 1.
    size : int, optional
        The longer side of the resized images, in pixels. By default 448; for your own module, no
        larger than the images are.
    random_state : int
        Seed of the factorization. The same seed on the same machine gives the same result.
    batch_size : int
        Images per forward pass.
    cache : path, optional
        A folder for activations. Later runs are faster, and stopped runs resume.
    memory : int, optional
        Bytes that activations and coefficients may take in memory, each; what takes more is in
        temporary files, read block by block. At least 256 MiB; by default what the device has
        free.
    device : "auto", "cpu", "cuda" or "mps"
        Device to compute on. A Backbone stays on its device.
    amp : bool
        Run the network in automatic mixed precision; only on a CUDA device.
    stretch : bool
        Make the largest value white in images with more than 8 bits per channel. Use it for 10,
        12 or 14 bits in 16-bit files, which are nearly black otherwise.
    normalized : bool
        The images are tensors that are already normalized for the network, (x − mean) / std.
    progress : bool
        Show progress on standard error.

    Returns
    -------
    Result or ClassResults
        The result; with ``classes`` a dictionary of one for each class.

    Raises
    ------
    InputError
        If something in the request is not possible. The message says what to do.

    Notes
    -----
    Where `torch.distributed` is initialized, every rank calls this with the same arguments, runs
    the network on its share of the images (with a part of the cache for each), and gets the
    result of the whole set, without activations. Ranks exchange sums over rows.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> result = deepff.discover([data.chelsea(), data.astronaut()], n_components=2, size=224)
    >>> result.heatmaps[0].shape  # at the size of the image
    torch.Size([2, 300, 451])
    >>> result.heatmaps.grid(0).shape  # on the layer's grid
    torch.Size([2, 5, 7])
    >>> result.components.shape, result.coefficients.shape  # W and H
    (torch.Size([2, 1280]), torch.Size([84, 2]))
    """
    arguments = dict(locals())
    command = shown_call(discover, arguments)
    settings = RunSettings(
        **{name: arguments[name] for name in RunOptions.__annotations__}
    ).checked()
    if classes is not None:
        return _discover_each(arguments, settings)
    recipe = chosen(Recipe, recipe, "recipe")
    is_contrast = recipe == Recipe.CONTRAST
    by_recipe = ChannelWeights.BORDER if is_contrast else ChannelWeights.NONE
    weighting = chosen(ChannelWeights, channel_weights or by_recipe, "channel weighting")
    by_border = weighting == ChannelWeights.BORDER
    is_list = isinstance(layer, Sequence) and not isinstance(layer, str)
    layer_names: Any = layer if is_list or layer is None else [layer]
    if is_list and not layer_names:
        raise InputError("layer is empty; name one or more layers, or leave it out")
    estimators = Estimators.of(method, settings)
    is_fused = is_contrast if layer_names is None else len(layer_names) > 1
    n_kinds = None if kinds == "auto" else whole_number(kinds, "the number of kinds", 1)
    if n_components is not None and n_kinds is None:
        n_kinds = 1  # the one map that was asked for
    if n_components is None:
        preset = None if isinstance(method, str) else getattr(method, "n_components", None)
        n_components = 1 if is_fused or is_contrast else preset or N_COMPONENTS
    factor_counts = factor_counts_of(n_components)
    by_nmf = estimators.name in (Method.AUTO, Method.NMF) and not estimators.options
    if is_fused and not (factor_counts == [1] and by_nmf):
        raise InputError(
            "the recipe contrast and several layers make one map of the object; use one factor "
            "and the method nmf without a solver or other options, or name one layer"
        )
    if distributed.n_ranks() > 1 and factor_counts == "auto":
        raise InputError(
            "-k auto works in one process only; run a single process, or give numbers of factors"
        )

    watch = Stopwatch()
    files, backbone = settings.opened(images)
    settings = settings.with_size(backbone, files)
    layer_map = map_layers(backbone, settings.size or SIZE)
    if layer_names is None:
        layers = contrast_layers(layer_map) if is_contrast else [layer_map.resolve()]
    else:
        layers = [layer_map.resolve(name) for name in layer_names]
        check_named_once(layers)
    if is_fused or by_border:
        layers = weighable(layers)
    estimators = estimators.settled(layers, settings)
    check_factor_counts(factor_counts, layers)
    check_activations(layer_map, layers, estimators.for_k(1).needs_non_negative)
    watch.lap("loading the network")
    if is_fused:
        cell_layers = pixel_layers(layer_map) if layer_names is None else []
        findings = discover_by_contrast(
            files,
            backbone,
            layers,
            cell_layers,
            layer_map.resolve(),
            settings,
            watch,
            by_border,
            n_kinds if is_contrast else 1,
        )
    else:
        weigh = border_contrast if by_border else None
        findings = discover_by_paper(
            files, backbone, layers[0], factor_counts, estimators, settings, watch, weigh
        )
    return result_of(findings, settings, command=command, recipe=recipe, seconds=watch.seconds)


def _discover_each(arguments: dict[str, Any], settings: RunSettings) -> ClassResults:
    """:func:`discover` with these arguments for the images of each class, in natural order."""
    (files, backbone), classes = settings.opened(arguments["images"]), arguments["classes"]
    labels = classes.tolist() if hasattr(classes, "tolist") else list(classes)
    if len(labels) != len(files):
        raise InputError(f"there are {len(files)} images and {len(labels)} classes; give one each")
    of_class: dict[Any, list[SetImage]] = {}
    for label, file in zip(labels, files, strict=True):
        of_class.setdefault(label, []).append(file)
    shared = arguments | {"classes": None, "model": backbone}
    in_order = sorted(of_class, key=lambda label: natural_key(str(label)))
    return ClassResults({x: discover(**shared | {"images": of_class[x]}) for x in in_order})


def find_object(
    result: Result,
    *,
    model: nn.Module | Backbone | None = None,
    batch_size: int = BATCH_SIZE,
    device: str = Device.AUTO,
    progress: bool = False,
) -> Result:
    """The object in the images of a result, by the recipe "contrast" and with the same network.

    Parameters
    ----------
    result : Result
    model : torch.nn.Module or Backbone, optional
        The network, if it is yours or its weights came from a file.
    batch_size, device, progress
        As for :func:`discover`. The result's cache is used again.

    Returns
    -------
    Result
        With one factor. The result itself or its ``object``, if that exists and has all readable
        images. InputError if the network or the images cannot be read any more.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> images = [data.chelsea(), data.chelsea()[:, ::-1].copy()]
    >>> result = deepff.discover(images, n_components=3, size=224)
    >>> whole = deepff.find_object(result)
    >>> next(whole.regions()).names
    ('object',)
    """
    if result.is_object:
        return result
    if result.object is not None and not lacks_object(result):
        return result.object
    source = result.sources[0]
    engine = Engine.TORCH if source.engine == Engine.TORCH else Engine.AUTO
    backbone = source.backbone(model=model, device=device, engine=engine)
    return discover(
        [image.item for image in result.images],
        recipe=Recipe.CONTRAST,
        model=backbone,
        size=source.size,
        batch_size=batch_size,
        cache=result.cache,
        amp=source.runs_in_amp(backbone.device),
        stretch=source.stretch,
        progress=progress,
    )


def lacks_object(result: Run) -> bool:
    """Whether there is no object, or it lacks an image, or its size, that can be had now."""
    if result.object is None:
        return True
    held = {(image.name, image.size) for image in result.object.images}
    for image in result.images:
        if (image.name, image.size) not in held:
            with suppress(UnreadableImageError):
                if (image.name, image.read().shape[:2]) not in held:
                    return True
    return False
