"""The five networks of the paper without their weights: names of layers, grids and places."""

import pytest
import torch
from paper_networks import random_network
from torch import nn

from deepff.layers.later import forward_to_layers
from deepff.layers.layer_map import map_layers
from deepff.networks.loading import load_backbone

SIZE = 64
CONVOLUTIONS = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
CHANNELS = (64, 128, 256, 512, 512)


@pytest.mark.parametrize("name", ["vgg16", "vgg16_bn", "vgg19", "vgg19_bn"])
def test_vgg_by_the_papers_names(name: str) -> None:
    backbone = load_backbone(random_network(name))
    layer_map = map_layers(backbone, SIZE)
    convolutions = CONVOLUTIONS[name.removesuffix("_bn")]
    names = [f"conv{b}_{i}" for b, n in enumerate(convolutions, 1) for i in range(1, n + 1)]
    layers = [layer_map.resolve(one) for one in names]
    for layer in layers:
        block = int(layer.name[4]) - 1
        assert layer.stride == 2**block and layer.grid == (SIZE // layer.stride,) * 2
        assert layer.channels == CHANNELS[block] and layer.minimum == 0
    assert layer_map.resolve().name == f"conv5_{convolutions[-1]}"
    # With constant weights, which blur, one bright cell is brightest in its own place.
    for module in backbone.network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.constant_(module.weight, 1 / module.weight[0].numel())
    for layer in (layers[-1], layer_map.resolve("conv4_1")):
        cells, half = 160 // layer.stride, 80 // layer.stride
        bright = torch.zeros(1, 3, 160, 160)
        bright[..., 80 - layer.stride : 80, 80 : 80 + layer.stride] = 1
        (values,) = forward_to_layers(backbone, [layer], bright)
        assert values.shape[2:] == (cells, cells)
        assert divmod(int(values[0].sum(0).argmax()), cells) == (half - 1, half)


def test_resnet_by_its_stages() -> None:
    backbone = load_backbone(random_network("resnet101"))
    layer_map = map_layers(backbone, SIZE)
    for stage in range(1, 5):
        layer = layer_map.resolve(f"layer{stage}")
        assert (layer.stride, layer.channels) == (2 ** (stage + 1), 128 * 2**stage)
        assert layer.grid == (SIZE // layer.stride,) * 2 and layer.minimum >= 0
    assert layer_map.resolve().path == "layer4"
