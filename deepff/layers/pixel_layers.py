"""The layers of a network that separate pixels: one per stride, from fine to coarse."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from deepff.layers.layer import Layer
from deepff.layers.layer_map import LayerMap
from deepff.networks.backbone import Backbone

CELL_STRIDE = 8
_MIXING = nn.Conv2d | nn.Linear  # a linear layer is a convolution of single cells


def pixel_layers(layer_map: LayerMap, finest: int = CELL_STRIDE) -> list[Layer]:
    """The :func:`stride_layers` of ``finest`` pixels or more, at least the last one: of 8, those of
    EfficientNet-Lite0 are blocks.3.0.bn1, blocks.5.0.bn1 and blocks.6.0.bn1."""
    # Another layer of stride 4 gave 0.850 on twelve iCoseg groups instead of 0.851, and takes as
    # much memory as the three together.
    layers = stride_layers(layer_map)
    return [layer for layer in layers if layer.stride >= finest] or layers[-1:]


def stride_layers(layer_map: LayerMap) -> list[Layer]:
    """One layer per stride up to the default layer's, from fine to coarse: the last suitable map
    that is nowhere negative, or the last one. Of a single stride, as in a ViT, the default."""
    deepest = layer_map.resolve()
    suitable = [layer for layer in _suitable(layer_map) if layer.stride <= deepest.stride]
    strides = sorted({layer.stride for layer in suitable})
    if len(strides) < 2:
        return [deepest]
    chosen = []
    for stride in strides:
        same = [layer for layer in suitable if layer.stride == stride]
        chosen.append(([layer for layer in same if layer.non_negative] or same)[-1])
    return chosen


def cell_layer(layers: Sequence[Any]) -> int:
    """The index of the layer, or source, whose grid is classified: that of the smallest stride."""
    return min(range(len(layers)), key=lambda index: layers[index].stride)


def _suitable(layer_map: LayerMap) -> list[Layer]:
    """Suitable maps in a stage, without those of depthwise convolutions, whose zero padding makes
    every channel weaker on the border: `border_contrast` would treat that as background."""
    backbone = layer_map.backbone
    maps = [layer for layer in layer_map.suitable if not _is_depthwise(backbone, layer)]

    def in_a_stage(layer: Layer) -> bool:  # which mixes channels several times, a head only once
        top = backbone.network.get_submodule(layer.module.partition(".")[0])
        return sum(isinstance(module, _MIXING) for module in top.modules()) > 1

    # A network that is one flat sequence has no stages to leave a head outside of.
    return [layer for layer in maps if in_a_stage(layer)] or maps


def _is_depthwise(backbone: Backbone, layer: Layer) -> bool:
    """Whether the last convolution in the layer, or before it, is depthwise."""
    last = None
    reached = False
    for path, module in backbone.network.named_modules():
        within = f"{path}.".startswith(f"{layer.module}.")
        if reached and not within:
            break
        reached = within
        if isinstance(module, _MIXING):
            last = module
    return isinstance(last, nn.Conv2d) and 1 < last.groups == last.in_channels
