"""A network run on a batch, and why it cannot be."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from deepff.errors import InputError
from deepff.features.checkpoints import first_line

if TYPE_CHECKING:
    from deepff.features.backbone import Backbone


class StopForwardError(Exception):
    """Ends a network's forward pass; raised by a hook."""


class LayoutError(Exception):
    """The network takes views that need a batch which is contiguous, not channels-last."""


def run_network(backbone: Backbone, batch: Tensor) -> None:
    """Run a network, whose hooks take what they need; with gradient where the batch requires it.

    Parameters
    ----------
    backbone : Backbone
    batch : Tensor
        (b, channels, height, width), of the network's type and on its device.

    Raises
    ------
    InputError
        The network cannot run on images of this shape; the message says what may help.
    LayoutError
        It needs a contiguous batch.
    """
    try:
        with torch.set_grad_enabled(batch.requires_grad):
            backbone.network(batch, **_options(backbone.network))
    except (StopForwardError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # one's own network can raise anything
        if "view size is not compatible" in str(error) and not batch.is_contiguous():
            raise LayoutError from error
        height, width = batch.shape[2:]
        raise InputError(
            f"{backbone.name} cannot run on images of {height}×{width} pixels "
            f"({first_line(error)}); {_advice(backbone, error)}"
        ) from error


def _advice(backbone: Backbone, error: Exception) -> str:
    """What may make a network run that did not."""
    first = next((m for m in backbone.network.modules() if isinstance(m, nn.Conv2d)), None)
    if first is not None and first.in_channels != backbone.channels:
        n = first.in_channels
        if n in (1, 3):
            return f"it takes {n} channel{'s' if n > 1 else ''}: load it with channels={n}"
        return f"it takes {n} channels, but images have 3, or 1 where they are taken as grey"
    kinds = {p.dtype for p in backbone.network.parameters() if p.is_floating_point()}
    if len(kinds) > 1:
        names = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        return f"its parameters are {names}: bring them to one type"
    if "not implemented for" in str(error):
        return f"use network.float(), as {backbone.device} does not compute in this type"
    if any(isinstance(module, nn.Conv3d) for module in backbone.network.modules()):
        return "it takes volumes, and not images"
    if isinstance(error, TypeError | AttributeError | LookupError):
        return "its forward must take a batch of images alone"
    if any(word in str(error).lower() for word in ("cuda", "nvidia", "same device")):
        return f"its forward must stay on the network's device, {backbone.device}"
    made_for = input_size(backbone.network)
    return f"it is made for {made_for}×{made_for}" if made_for else "try another size"


def _options(network: nn.Module) -> dict[str, bool]:
    """transformers' networks run at other sizes than their own only when told to."""
    name = "interpolate_pos_encoding"
    return {name: True} if name in signature(network.forward).parameters else {}


def input_size(network: nn.Module) -> int | None:
    """The side of the square images that a network was made for; None where it does not say."""
    config = getattr(network, "pretrained_cfg", None)  # timm
    if config and config.get("input_size"):
        return int(config["input_size"][-1])
    # torchvision's vision transformers; open_clip's, transformers', and timm's made without a name.
    for inner in (None, "visual", "config", "patch_embed"):
        owner = network if inner is None else getattr(network, inner, None)
        size = getattr(owner, "img_size" if inner == "patch_embed" else "image_size", None)
        if isinstance(size, tuple | list) and size:
            size = size[-1]
        if isinstance(size, int):
            return size
    first = next(iter(getattr(network, "blocks", ())), None)
    grid = getattr(first, "grid_size", None)  # torchvision's MaxViT, whose first cells are 4 pixels
    return 4 * grid[0] if isinstance(grid, tuple) else None
