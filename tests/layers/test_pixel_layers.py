"""Which layers tell pixels apart, for networks of several kinds."""

from functools import partial

import pytest
import torch
import torchvision
from paper_networks import random_network
from torch import nn

from deepff.layers.layer_map import map_layers
from deepff.layers.pixel_layers import cell_layer, pixel_layers
from deepff.networks.loading import load_backbone

EXPECTED = {
    "efficientnet_lite0": ["blocks.3.0.bn1", "blocks.5.0.bn1", "blocks.6.0.bn1"],
    "vgg19": ["conv4_4", "conv5_4"],
    "resnet18": ["layer2", "layer3", "layer4"],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_one_layer_of_each_stride(name: str) -> None:
    own = {"vgg19": partial(random_network, "vgg19"), "resnet18": torchvision.models.resnet18}
    backbone = load_backbone(own[name]() if name in own else name)
    layers = pixel_layers(map_layers(backbone, 224))
    assert [layer.name for layer in layers] == EXPECTED[name]
    assert layers[cell_layer(layers)].stride == 8


def test_signed_layers_serve_where_a_stride_has_no_others() -> None:
    """Stride 8 is a linear convolution; a head of stride 16 outside the stages is passed over."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stage = nn.Sequential(
                nn.Conv2d(3, 8, 3, 4, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1)
            )
            self.deep = nn.Sequential(
                nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 1), nn.ReLU()
            )
            self.head = nn.Conv2d(32, 64, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.deep(self.stage(x))).relu()

    torch.manual_seed(0)
    layers = pixel_layers(map_layers(load_backbone(Network().eval()), 64))
    assert [(layer.path, layer.stride) for layer in layers] == [("stage", 8), ("deep", 16)]
    assert layers[0].minimum < 0


def test_the_default_layer_alone_where_there_is_no_other() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU())
    layers = pixel_layers(map_layers(load_backbone(network.eval()), 64))
    assert [layer.stride for layer in layers] == [4]
    assert cell_layer(layers) == 0
