"""A network that is ready to run."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from deepff.errors import InputError, first_line
from deepff.options import Engine

# From a module's output and the input's (height, width) to a map (b, c, h, w); None for no map.
Reshape = Callable[[Any, tuple[int, int]], Tensor | None]
Tokens = int | Reshape


@dataclass(frozen=True)
class WordHead:
    """Zero-shot classification: one number per word from embeddings of images, (n, d). The cosine
    with the word's embedding times the network's scale (CLIP's, Radford et al. 2021)."""

    embeddings: Tensor  # of the words, (words, d), of length 1
    scale: float  # the exponential of the learned `logit_scale`

    def __call__(self, images: Tensor) -> Tensor:
        return self.scale * functional.normalize(images, dim=1) @ self.embeddings.to(images).T


@dataclass
class Backbone:
    """A network that is ready to run, and how its input is prepared."""

    name: str  # as `deepff models` lists it, or the class of a user's module
    network: nn.Module  # in evaluation mode, on its device
    mean: tuple[float, ...]  # per channel (red, green, blue; or gray), for pixels in [0, 1]
    std: tuple[float, ...]
    interpolation: str  # "bilinear" or "bicubic", for resizing images
    default_layer: str | None  # module path; None for the deepest map that outputs depend on
    weights: str  # where they came from, for people
    weights_digest: str  # SHA-256 of the state dict
    missing: tuple[str, ...] = ()  # what a file of weights did not fill, as the head: it is NaN
    # Where the network does not say how many tokens come before those of the grid: that number, or
    # a function that makes maps of outputs.
    tokens: Tokens | None = None
    structure: str = ""  # of a user's module: a fingerprint of how it is built
    labels: tuple[str, ...] | None = None  # the names of its outputs, or the words, if given
    words: WordHead | None = None  # the classifier by words, where these are the classes
    engine: str = Engine.AUTO  # what runs it over an image set

    @property
    def device(self) -> torch.device:
        """Where the network's parameters are."""
        parameter = next(self.network.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    @property
    def channels(self) -> int:
        """Channels of the images that it takes: 3, or 1 for gray ones."""
        return len(self.mean)

    @property
    def dtype(self) -> torch.dtype:
        """The type of its input: that of its first floating-point parameter."""
        floating = (p.dtype for p in self.network.parameters() if p.is_floating_point())
        return next(floating, torch.float32)


_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601


def normalized(backbone: Backbone, pixels: Tensor) -> Tensor:
    """Images of uint8 (b, 3, H, W) as the network takes them, in gray where it takes that."""
    batch = pixels.to(backbone.device).float()
    if backbone.channels == 1:
        batch = (batch * batch.new_tensor(_LUMA).view(3, 1, 1)).sum(1, keepdim=True)
    mean, std = (
        batch.new_tensor(values).view(-1, 1, 1) for values in (backbone.mean, backbone.std)
    )
    return torch.addcmul(-mean / std, batch, 1 / (255 * std)).to(backbone.dtype)


HOOKED = RLock()
"""Held while a network has hooks of ours, so that threads can share it."""


class StopForwardError(Exception):
    """Ends a network's forward pass; raised by a hook."""


class LayoutError(Exception):
    """The network takes views that need a batch which is contiguous, not channels-last."""


def run_network(backbone: Backbone, batch: Tensor) -> Any:
    """A network's output, with gradient where the batch requires it; InputError with advice."""
    # transformers' networks run at other sizes only with this option.
    option = "interpolate_pos_encoding"
    options = {option: True} if option in signature(backbone.network.forward).parameters else {}
    try:
        with torch.set_grad_enabled(batch.requires_grad):
            return backbone.network(batch, **options)
    except (StopForwardError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a user's network can raise anything
        if "view size is not compatible" in str(error) and not batch.is_contiguous():
            raise LayoutError from error
        height, width = batch.shape[2:]
        raise InputError(
            f"{backbone.name} cannot run on images of {height}×{width} pixels "
            f"({first_line(error)}); {_advice(backbone, error)}"
        ) from error


def _advice(backbone: Backbone, error: Exception) -> str:
    """What may help to run a network that failed."""
    first = next((m for m in backbone.network.modules() if isinstance(m, nn.Conv2d)), None)
    if first is not None and first.in_channels != backbone.channels:
        n = first.in_channels
        if n in (1, 3):
            return f"it takes {n} channel{'s' if n > 1 else ''}: load it with channels={n}"
        return f"it takes {n} channels, but images have 3, or 1 if gray"
    kinds = {p.dtype for p in backbone.network.parameters() if p.is_floating_point()}
    if len(kinds) > 1:
        names = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        return f"its parameters are {names}; convert them to one type"
    if "not implemented for" in str(error):
        return f"use network.float(), as {backbone.device} does not compute in this type"
    if any(isinstance(module, nn.Conv3d) for module in backbone.network.modules()):
        return "it takes volumes, not images"
    if isinstance(error, TypeError | AttributeError | LookupError):
        return "its forward must take just a batch of images"
    if any(word in str(error).lower() for word in ("cuda", "nvidia", "same device")):
        return f"its forward must stay on the network's device, {backbone.device}"
    made_for = input_size(backbone.network)
    return f"it is made for {made_for}×{made_for}" if made_for else "try another size"


def input_size(network: nn.Module) -> int | None:
    """The side of the square images that a network was made for; None where it does not say."""
    config = getattr(network, "pretrained_cfg", None)  # timm
    if config and config.get("input_size"):
        return int(config["input_size"][-1])
    # torchvision's vision transformers; open_clip's, transformers', and timm's made without a name.
    for path in ("image_size", "visual.image_size", "config.image_size", "patch_embed.img_size"):
        size: Any = network
        for name in path.split("."):
            size = getattr(size, name, None)
        if isinstance(size, tuple | list) and size:
            size = size[-1]
        if isinstance(size, int):
            return size
    first = next(iter(getattr(network, "blocks", ())), None)
    grid = getattr(first, "grid_size", None)  # torchvision's MaxViT, whose first cells are 4 pixels
    return 4 * grid[0] if isinstance(grid, tuple) else None


def paper_names(network: nn.Module) -> dict[str, str]:
    """The paper's names for VGG's layers, by the path of the ReLU; empty for other networks.
    ``conv5_4`` is the fourth convolution between the fourth and fifth pooling, after its ReLU."""
    features = getattr(network, "features", None)
    is_vgg = any(base.__name__ == "VGG" for base in type(network).__mro__)
    if not is_vgg or not isinstance(features, nn.Sequential):
        return {}
    names = {}
    block, convolution = 1, 0
    for index, module in features.named_children():
        if isinstance(module, nn.Conv2d):
            convolution += 1
        elif isinstance(module, nn.ReLU):
            names[f"features.{index}"] = f"conv{block}_{convolution}"
        elif isinstance(module, nn.MaxPool2d):
            block, convolution = block + 1, 0
    return names
