"""What runs a network over a set: PyTorch, or OpenVINO where it is installed and pays."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from deepff.activations.folding import folded
from deepff.activations.openvino_engine import (
    ConversionError,
    Forward,
    openvino_forward,
    openvino_version,
)
from deepff.errors import InputWarning
from deepff.layers.layer import Layer
from deepff.layers.layer_map import forward_to_layers
from deepff.networks.backbone import Backbone, normalized
from deepff.options import Engine
from deepff.runtime.distributed import all_reduce_sum

# What a conversion takes, 3 to 10 s, is gained on about so many images by the embedded network.
# Not the clock but the set decides, so that the same set gives the same bits.
AUTO_LEAST_IMAGES = 100


def torch_forward(backbone: Backbone, layers: Sequence[Layer]) -> Forward:
    """What runs batches by PyTorch, with batch normalisation folded."""
    ours = folded(backbone, layers)

    def forward(pixels: Tensor) -> Callable[[], list[Tensor]]:
        # With the channels last convolutions are faster, and rows are copied in one piece.
        batch = normalized(backbone, pixels).to(memory_format=torch.channels_last)
        maps = forward_to_layers(ours, layers, batch)
        return lambda: maps

    return forward


def chosen_engine(
    backbone: Backbone,
    layers: Sequence[Layer],
    n_images: int,
    cache: str | Path | None,
    is_held: Callable[[str], bool],
) -> tuple[str, Forward | None]:
    """What runs the network, with its version where bits depend on it, and OpenVINO's forward.

    "auto" takes OpenVINO on the CPU for sets of `AUTO_LEAST_IMAGES` or more, of all processes
    together, and networks of convolutions with batch normalisation: others gain nothing.

    Parameters
    ----------
    backbone, layers
    n_images : int
        How many this process has.
    cache : path, optional
        Where conversions are kept; by default beside the weights that torch downloads.
    is_held : callable
        Whether everything is there already as an engine of that name gave it.

    Returns
    -------
    engine : str
        "torch", or "openvino" and its version.
    forward : callable or None
        None for torch, and where everything is there.
    """
    installed = openvino_version()
    n_all = int(all_reduce_sum(torch.tensor(n_images, device=backbone.device)))
    obstacle = _obstacle(backbone)
    if backbone.engine == Engine.TORCH or installed is None:
        return Engine.TORCH, None
    if backbone.engine == Engine.AUTO:
        pays = n_all >= AUTO_LEAST_IMAGES and _gains(backbone, layers)
        if obstacle is not None or not pays:
            return Engine.TORCH, None
    engine = f"{Engine.OPENVINO} {installed}"
    if obstacle is None:
        if is_held(engine):
            return engine, None
        try:
            return engine, openvino_forward(backbone, layers, _conversions(cache))
        except ConversionError as error:
            obstacle = str(error)
    warnings.warn(
        f"{backbone.name} runs in torch, as OpenVINO cannot run it: {obstacle}",
        InputWarning,
        stacklevel=2,
    )
    return Engine.TORCH, None


def _obstacle(backbone: Backbone) -> str | None:
    """Why OpenVINO is not even tried."""
    if backbone.device.type != "cpu":
        return f"it is on {backbone.device}"
    if backbone.dtype != torch.float32:
        return f"its weights are {str(backbone.dtype).removeprefix('torch.')}"
    if any(m._forward_hooks or m._forward_pre_hooks for m in backbone.network.modules()):
        return "it has hooks, which only torch calls"
    return None


def _gains(backbone: Backbone, layers: Sequence[Layer]) -> bool:
    are_maps = all(layer.layout.kind == "channels first" for layer in layers)
    return are_maps and any(isinstance(m, nn.BatchNorm2d) for m in backbone.network.modules())


def _conversions(cache: str | Path | None) -> Path:
    return Path(torch.hub.get_dir() if cache is None else cache, "openvino")
