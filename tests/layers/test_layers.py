from dataclasses import replace

import pytest
import timm
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from one_layer import forward_to_layer, images, message
from torch import Tensor, nn

from deepff.errors import InputError
from deepff.layers.later import forward_to_layers
from deepff.layers.layer import Layer
from deepff.layers.layer_map import list_layers, map_layers
from deepff.networks.backbone import Backbone, paper_names
from deepff.networks.loading import load_backbone


class SmallNetwork(nn.Module):
    """Signed and non-negative maps, an in-place ReLU called twice, and outputs of other kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.kept = nn.Identity()
        self.tap = nn.Identity()
        self.last = nn.Conv2d(8, 5, 1)
        self.split = Split()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 2)
        self.unused = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        x = self.kept(self.relu(self.conv(x)))
        self.last(self.tap(x * 2))
        self.split(x)
        return self.head(self.pool(x).flatten(1))


class Split(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class AttentionWeights(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)[:, None]
        return (tokens @ tokens.transpose(2, 3)).softmax(-1)


@pytest.fixture(scope="module")
def lite() -> Backbone:
    return load_backbone("efficientnet_lite0")


@pytest.fixture
def small() -> Backbone:
    return load_backbone(SmallNetwork())


def by_path(layers: list[Layer]) -> dict[str, Layer]:
    return {layer.path: layer for layer in layers}


@pytest.mark.parametrize(
    ("name", "convolutions", "last"),
    [
        ("vgg11", [1, 1, 2, 2, 2], "features.19"),
        ("vgg13", [2, 2, 2, 2, 2], "features.23"),
        ("vgg16", [2, 2, 3, 3, 3], "features.29"),
        ("vgg19", [2, 2, 4, 4, 4], "features.35"),
        ("vgg11_bn", [1, 1, 2, 2, 2], "features.27"),
        ("vgg13_bn", [2, 2, 2, 2, 2], "features.33"),
        ("vgg16_bn", [2, 2, 3, 3, 3], "features.42"),
        ("vgg19_bn", [2, 2, 4, 4, 4], "features.51"),
    ],
)
@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_paper_names_are_those_of_the_vgg_paper(
    library: str, name: str, convolutions: list[int], last: str
) -> None:
    with torch.device("meta"):
        if library == "timm":
            network: nn.Module = timm.create_model(name)
        else:
            network = torchvision.models.get_model(name, weights=None, init_weights=False)
    names = paper_names(network)
    assert list(names.values()) == [
        f"conv{block}_{index}"
        for block, count in enumerate(convolutions, 1)
        for index in range(1, count + 1)
    ]
    assert all(isinstance(network.get_submodule(path), nn.ReLU) for path in names)
    assert list(names)[-1] == last


def test_only_vgg_has_paper_names() -> None:
    with torch.device("meta"):
        assert paper_names(torchvision.models.alexnet(weights=None)) == {}
        assert paper_names(torchvision.models.resnet18(weights=None)) == {}


def test_vgg_layers_carry_the_papers_name_and_are_found_by_either() -> None:
    backbone = load_backbone(torchvision.models.vgg11_bn(weights=None, init_weights=False))
    by_name = map_layers(backbone, 64).resolve("conv4_2")
    assert by_name == map_layers(backbone, 64).resolve("features.20")
    assert (by_name.path, by_name.name, by_name.channels) == ("features.20", "conv4_2", 512)
    assert (by_name.stride, by_name.grid, by_name.minimum) == (8, (8, 8), 0)
    # Its input, before the ReLU, is another layer, and signed.
    assert map_layers(backbone, 64).resolve("features.18").minimum < 0
    with pytest.raises(InputError) as error:
        map_layers(backbone, 64).resolve("conv5_3")
    assert message(error) == (
        "VGG has no layer 'conv5_3'; choose one that it has, such as "
        "conv5_2, conv5_1, conv4_2, conv4_1, conv3_2"
    )


def test_list_layers_on_a_network_made_by_hand(small: Backbone) -> None:
    layers = list_layers(small, size=64)
    summary = [(la.path, la.channels, la.stride, la.grid, la.calls) for la in layers]
    assert summary == [
        ("stem", 4, 2, (32, 32), 1),
        ("conv", 8, 4, (16, 16), 1),
        ("relu", 8, 4, (16, 16), 2),  # its second and last call
        ("tap", 8, 4, (16, 16), 1),  # an Identity that sees a map of its own
        ("last", 5, 4, (16, 16), 1),
        ("pool", 8, 64, (1, 1), 1),
    ]
    # An in-place ReLU follows both convolutions and sets what is negative to 0.
    assert [layer.path for layer in layers if not layer.non_negative] == ["stem", "conv", "last"]


def test_embedded_network_has_the_measured_layers(lite: Backbone) -> None:
    layers = by_path(list_layers(lite, size=224))
    assert (layers["bn2"].channels, layers["bn2"].stride) == (1280, 32)
    assert (layers["blocks.5.0.bn1"].channels, layers["blocks.5.0.bn1"].stride) == (672, 16)
    expanded = [p for p in layers if p.startswith("blocks.") and p.endswith((".bn1", ".bn2"))]
    assert len(expanded) == 2 * 16
    for path in ["bn2", *expanded]:
        # The first block has no expansion, and its bn2 is the projection's.
        assert layers[path].non_negative == (path != "blocks.0.0.bn2"), path
    assert all(layers[f"blocks.{stage}"].minimum < 0 for stage in range(7))
    assert layers["conv_head"].minimum < 0


def test_list_layers_is_the_same_each_time_and_leaves_no_hook(lite: Backbone) -> None:
    assert list_layers(lite, size=96) == list_layers(lite, size=96)
    assert not any(module._forward_hooks for module in lite.network.modules())


@settings(deadline=None, max_examples=40)
@given(size=st.integers(40, 300), halvings=st.integers(1, 4))
def test_stride_does_not_depend_on_whether_it_divides_the_size(size: int, halvings: int) -> None:
    convolutions = [nn.Conv2d(3, 3, 3, stride=2, padding=1) for _ in range(halvings)]
    backbone = load_backbone(nn.Sequential(*convolutions))
    layers = list_layers(backbone, size=size)
    assert [layer.stride for layer in layers] == [2**n for n in range(1, halvings + 1)]


def test_stride_that_is_no_power_of_two() -> None:
    backbone = load_backbone(nn.Sequential(nn.Conv2d(3, 2, 14, stride=14)))
    assert map_layers(backbone, 448).resolve("0").stride == 14


@pytest.mark.parametrize(
    ("layer", "fault"),
    [
        ("head", "gives shape (1, 2), not a map (batch, channels, height, width)"),
        ("split", "gives a tuple, not a map (batch, channels, height, width)"),
        ("unused", "is not used in the forward pass"),
        ("kept", "passes on its input map unchanged"),
    ],
)
def test_a_module_that_gives_no_map_is_refused(small: Backbone, layer: str, fault: str) -> None:
    with pytest.raises(InputError) as error:
        map_layers(small, 64).resolve(layer)
    assert message(error) == (
        f"layer '{layer}' of SmallNetwork {fault}; choose another, such as relu, tap, last"
    )


def test_attention_weights_are_not_taken_for_maps() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), AttentionWeights())
    with pytest.raises(InputError, match=r"gives shape \(1, 1, 16, 16\), attention weights"):
        map_layers(load_backbone(network), 32).resolve("1")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("bn3", ["bn2", "bn1"]),
        ("blocks.5.9.bn1", ["blocks.5.0.bn1", "blocks.5.1.bn1"]),
        ("blocks.3.zzz", ["blocks.3.0"]),
        ("nothing alike", ["bn2", "conv_head"]),
    ],
)
def test_unknown_layer_names_up_to_five_nearby(
    lite: Backbone, wanted: str, expected: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        map_layers(lite, 64).resolve(wanted)
    start = f"efficientnet_lite0 has no layer '{wanted}'; choose one that it has, such as "
    text = message(error)
    assert text.startswith(start)
    names = text.removeprefix(start).split(", ")
    assert len(names) <= 5
    assert set(expected) <= set(names)
    assert set(names) <= set(by_path(list_layers(lite, size=64)))


def test_images_too_small_for_the_network() -> None:
    backbone = load_backbone(torchvision.models.alexnet(weights=None))
    with pytest.raises(InputError) as error:
        list_layers(backbone, size=16)
    assert message(error).startswith("AlexNet cannot run on images of 16×16 pixels (")
    assert message(error).endswith("; try another size")


@pytest.mark.parametrize("path", ["stem", "relu", "tap", "last", "pool"])
@pytest.mark.parametrize("shape", [(1, 3, 64, 64), (3, 3, 32, 48), (2, 3, 50, 21)])
def test_forward_to_layer_gives_what_a_whole_forward_shows(
    small: Backbone, path: str, shape: tuple[int, ...]
) -> None:
    layer = map_layers(small, 64).resolve(path)
    batch = images(*shape)
    seen: list[Tensor] = []
    module = small.network.get_submodule(path)
    handle = module.register_forward_hook(lambda m, i, output: seen.append(output.clone()))
    with torch.no_grad():
        small.network(batch)
    handle.remove()
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            result = forward_to_layer(small, layer, batch)
        assert torch.equal(result, seen[-1])
        assert not result.requires_grad


@pytest.mark.parametrize(
    ("path", "ran"),
    [
        ("stem", ["stem"]),
        ("relu", ["stem", "relu", "conv", "relu"]),
        ("tap", ["stem", "relu", "conv", "relu", "kept", "tap"]),
    ],
)
def test_nothing_runs_after_the_layers_last_call(
    small: Backbone, path: str, ran: list[str]
) -> None:
    layer = map_layers(small, 64).resolve(path)
    started: list[str] = []
    for name, module in small.network.named_children():
        module.register_forward_pre_hook(lambda m, i, name=name: started.append(name))
    forward_to_layer(small, layer, images(1, 3, 64, 64))
    assert started == ran


def test_shared_relu_of_a_resnet_is_read_at_its_last_call() -> None:
    backbone = load_backbone(torchvision.models.resnet18(weights=None))
    layers = by_path(list_layers(backbone, size=64))
    assert layers["layer4.1.relu"].calls == 2
    assert layers["layer4.1"].calls == 1
    batch = images(2, 3, 64, 64)
    block_output = forward_to_layer(backbone, layers["layer4"], batch)
    assert torch.equal(forward_to_layer(backbone, layers["layer4.1.relu"], batch), block_output)


def test_forward_to_layer_removes_its_hook_whatever_happens(small: Backbone) -> None:
    layer = map_layers(small, 64).resolve("conv")
    forward_to_layer(small, layer, images(1, 3, 64, 64))
    with pytest.raises(InputError, match="SmallNetwork cannot run on images of 64×64 pixels"):
        forward_to_layer(small, layer, images(1, 5, 64, 64))
    assert not any(module._forward_hooks for module in small.network.modules())


@pytest.mark.parametrize("paths", [[], ["conv"]])
def test_a_layer_that_runs_less_often_than_on_the_probe(small: Backbone, paths: list[str]) -> None:
    layer_map = map_layers(small, size=64)
    layers = [*map(layer_map.resolve, paths), replace(layer_map.resolve("relu"), calls=3)]
    with pytest.raises(InputError, match="'relu' of SmallNetwork ran 2 times on these images"):
        forward_to_layers(small, layers, images(1, 3, 64, 64))


def test_forward_to_layer_is_the_same_to_the_bit(lite: Backbone) -> None:
    layer = map_layers(lite, 64).resolve()
    batch = images(2, 3, 96, 64)
    first = forward_to_layer(lite, layer, batch)
    assert first.shape == (2, 1280, 3, 2)
    assert torch.equal(first, forward_to_layer(lite, layer, batch))


def test_nearby_non_negative_layers(lite: Backbone) -> None:
    layer_map = map_layers(lite, size=224)
    signed = layer_map.by_path
    # In running order …, blocks.6.0.bn1, blocks.6.0.bn2, blocks.6.0 (signed), conv_head, bn2.
    expected = ["bn2", "blocks.6.0.bn2", "blocks.6.0.bn1"]
    assert layer_map.nearby_non_negative(signed["conv_head"]) == expected
    first = layer_map.layers[0]
    alone = replace(layer_map, by_path={first.path: first})
    assert alone.nearby_non_negative(first) == []


def test_several_layers_in_one_pass_are_what_each_alone_is(lite: Backbone) -> None:
    """An inner module, the one around it, and one whose output is overwritten in place."""
    paths = ["blocks.5.0.bn1", "blocks.5.0.bn1.act", "blocks.6.0.bn1", "bn2", "blocks.5.0"]
    layers = [map_layers(lite, 64).resolve(path) for path in paths]
    batch = images(2, 3, 96, 64)
    together = forward_to_layers(lite, layers, batch)
    for layer, output in zip(layers, together, strict=True):
        assert torch.equal(output, forward_to_layer(lite, layer, batch))
