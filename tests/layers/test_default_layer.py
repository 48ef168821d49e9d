"""The default layer: the deepest map that a network's outputs depend on."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from one_layer import message
from paper_networks import random_network
from torch import Tensor, nn

import deepff
from deepff.errors import InputError
from deepff.layers.layer_map import list_layers, map_layers
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone


def swinv2() -> nn.Module:
    """With normalizations that are zero at first, so that blocks add nothing."""
    return timm.models.SwinTransformerV2(
        img_size=64, patch_size=4, window_size=4, embed_dim=8, depths=(1, 2), num_heads=(2, 2)
    )


def timm_vgg() -> nn.Module:
    return timm.models.vgg.VGG([8, "M", 8, "M", 8, "M"], num_classes=5)


def transformers_swin() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.SwinConfig(embed_dim=8, depths=[1, 1, 1, 1], num_heads=[2, 2, 2, 2])
    return transformers.AutoModel.from_config(config)


# What is loaded, the size of the images, the layer, its stride, and whether it goes negative.
ARCHITECTURES: dict[str, tuple[str | Callable[[], nn.Module], int, str, int, bool]] = {
    "EfficientNet-Lite0": ("efficientnet_lite0", 64, "bn2", 32, False),
    "VGG-11": (partial(random_network, "vgg11"), 64, "features.19", 16, False),
    "VGG of timm, with its head as convolutions": (timm_vgg, 128, "features.7", 4, False),
    "AlexNet": (partial(torchvision.models.alexnet, weights=None), 128, "features.11", 16, False),
    "SqueezeNet": ("torchvision/squeezenet1_1", 128, "classifier.2", 16, False),
    "ResNet": ("torchvision/resnet18", 64, "layer4", 32, False),
    "DenseNet, with a ReLU that is no module": ("timm/densenet121", 64, "features", 32, False),
    "ShuffleNet": ("torchvision/shufflenet_v2_x0_5", 64, "conv5", 32, False),
    "MobileNetV2": ("torchvision/mobilenet_v2", 64, "features", 32, False),
    "MobileNetV3": ("torchvision/mobilenet_v3_small", 64, "features", 32, True),
    "MobileNetV3 of timm": ("timm/mobilenetv3_small_050", 64, "blocks", 32, True),
    "HardCoRe-NAS": ("timm/hardcorenas_a", 64, "blocks", 32, True),
    "EfficientFormer": ("timm/efficientformer_l1", 224, "norm", 32, True),
    "MobileViT": ("timm/mobilevit_xxs", 64, "final_conv", 32, True),
    "ConvNeXt without a head": (
        lambda: timm.create_model("convnext_atto", num_classes=0), 64, "stages", 32, True
    ),
    "Mixer, whose head is zero at first": ("timm/mixer_s32_224", 224, "norm", 32, True),
    "Swin 2": (swinv2, 64, "norm", 8, True),
    "Swin of transformers": (transformers_swin, 224, "layernorm", 32, True),
    # Only the class token is read after the last attention, and there are no values apart.
    "ViT": ("timm/vit_tiny_patch16_224", 64, "blocks.11.attn.qkv:keys", 16, True),
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_default_of_known_architectures(name: str) -> None:
    model, size, path, stride, is_signed = ARCHITECTURES[name]
    torch.manual_seed(0)
    made = model if isinstance(model, str) else model()
    layer = map_layers(load_backbone(made, pretrained=False), size).resolve()
    assert (layer.path, layer.stride, layer.minimum < 0) == (path, stride, is_signed)


class Pieces(nn.Module):
    """Two convolutions with ReLUs, of strides 2 and 4, and what a subclass makes of their maps."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
        self.late = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        self.extra = nn.Conv2d(8, 8, 3, 2, 1)
        self.gate = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Sigmoid())
        self.table = nn.Linear(2, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.features(self.late(self.early(x))).mean((2, 3)))

    def features(self, maps: Tensor) -> Tensor:
        return maps


class DeadBranch(Pieces):
    def features(self, maps: Tensor) -> Tensor:
        self.extra(maps).relu()
        return maps


class ZeroMap(Pieces):
    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.extra.weight)

    def features(self, maps: Tensor) -> Tensor:
        return maps + nn.functional.interpolate(self.extra(maps), maps.shape[2:])


class Gated(Pieces):
    def features(self, maps: Tensor) -> Tensor:
        return maps * self.gate(maps)


class GatedByItself(Gated):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sigmoid()


class Table(Pieces):
    """Gives the positions of cells a vector each, whatever the image shows."""

    def features(self, maps: Tensor) -> Tensor:
        height, width = maps.shape[2:]
        positions = torch.stack(
            torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1
        )
        return maps + self.table(positions[None].float()).permute(0, 3, 1, 2)


class Frozen(Pieces):
    """No parameter has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class WithoutGradient(Pieces):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class ZeroHead(DeadBranch):
    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)


class MapAlone(Pieces):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.late(self.early(x))}


class Overwritten(Pieces):
    def features(self, maps: Tensor) -> Tensor:
        return maps.mul_(2)


PIECES = [
    Pieces, DeadBranch, ZeroMap, Gated, GatedByItself, Table, Frozen, WithoutGradient, ZeroHead,
    MapAlone, Overwritten,
]  # fmt: skip


@pytest.mark.parametrize("network", PIECES)
def test_what_is_no_feature_is_never_the_default(network: type[nn.Module]) -> None:
    torch.manual_seed(0)
    assert map_layers(load_backbone(network()), 32).resolve().path == "late"


def test_default_is_the_last_map_where_every_layer_is_signed() -> None:
    backbone = load_backbone(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.AvgPool2d(2)))
    assert map_layers(backbone, 32).resolve().path == "1"


def test_no_default_of_single_cells() -> None:
    backbone = load_backbone(nn.Sequential(nn.Conv2d(3, 4, 32), nn.GELU()))
    with pytest.raises(InputError) as error:
        map_layers(backbone, 32).resolve()
    assert message(error) == (
        "every layer of Sequential is pooled, constant, a gate or a single cell at 32×32 pixels, "
        "so there is no default; name a layer, or use a larger size"
    )


def test_a_map_of_zeros_that_a_residual_is_added_to_in_place_is_a_feature() -> None:
    """As in residual blocks whose last normalization is zero at first (open_clip's ResNet)."""

    class ZeroResidual(Pieces):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Conv2d(8, 8, 1, bias=False)
            nn.init.zeros_(self.extra.weight)
            self.act = nn.ReLU(inplace=True)

        def features(self, maps: Tensor) -> Tensor:
            added = self.extra(maps)
            added += maps
            return self.act(added)

    assert map_layers(load_backbone(ZeroResidual()), 32).resolve().path == "act"


def test_no_default_where_all_maps_are_gates() -> None:
    with pytest.raises(InputError, match="every layer of Sequential is pooled, constant, a gate"):
        map_layers(load_backbone(nn.Sequential(nn.Sigmoid(), nn.AvgPool2d(2))), 32).resolve()


def test_list_layers_marks_the_default() -> None:
    layers = list_layers(load_backbone(DeadBranch()), 32)
    assert [layer.path for layer in layers if layer.is_default] == ["late"]
    # Where there is none, such as a single cell, the others are listed all the same.
    layers = list_layers(load_backbone(nn.Sequential(nn.Conv2d(3, 4, 32))), 32)
    assert [(layer.path, layer.is_default) for layer in layers] == [("0", False)]


def without_bias(weight: float) -> Backbone:
    network = nn.Sequential(nn.Conv2d(3, 4, 8, 8, bias=False), nn.ReLU())
    nn.init.constant_(network[0].weight, weight)
    return load_backbone(network, mean=(0.5, 0.5, 0.5), std=(1, 1, 1))


# Below the mean everywhere, and above it.
RAMP = np.linspace(0, 100, 32).astype(np.uint8)
DARK, BRIGHT = (np.broadcast_to(RAMP[:, None, None] + least, (32, 32, 3)) for least in (0, 140))


@pytest.mark.parametrize("method", ["nmf", "semi-nmf", "pca", "kmeans"])
@pytest.mark.parametrize("layer", ["0", "1"])
def test_activations_that_are_all_zero_are_an_error(layer: str, method: str) -> None:
    with pytest.raises(InputError) as error:
        deepff.discover([BRIGHT], 1, model=without_bias(0), layer=layer, method=method, size=32)
    assert message(error) == (
        f"the activations of layer {layer} of Sequential are zero in all images; choose another "
        "layer, or check the weights and their preprocessing"
    )


@pytest.mark.filterwarnings("ignore:.*nearly black")
def test_one_image_that_is_not_zero_is_enough_and_a_bank_needs_one_too() -> None:
    backbone = without_bias(0.1)
    bank = deepff.discover([DARK, BRIGHT], 1, model=backbone, layer="1", size=32).bank
    with pytest.raises(InputError, match="are zero in all images"):
        deepff.apply(bank, [DARK], model=backbone)
