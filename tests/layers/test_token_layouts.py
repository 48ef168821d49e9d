"""Layers that are tokens or have their channels last, beside what the network itself gives."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torchvision
from one_layer import images
from torch import Tensor, nn

from deepff.errors import InputError
from deepff.layers.later import forward_to_layers
from deepff.layers.layer_map import LayerMap, map_layers
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone


def timm_vit(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    vit = timm.models.vision_transformer.VisionTransformer
    return vit(img_size=64, patch_size=16, depth=2, embed_dim=24, num_heads=2, **options)


def torchvision_vit() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.VisionTransformer(64, 16, 2, 2, hidden_dim=16, mlp_dim=32)


def swin() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("swin_tiny_patch4_window7_224", strict_img_size=False)


# What they are given, their size, and of one layer: its name, layout, stride and channels.
FAMILIES: dict[str, tuple[Callable[[], nn.Module], str, str, int, int]] = {
    "timm ViT": (lambda: timm_vit(dynamic_img_size=True), "blocks.1", "tokens after 1", 16, 24),
    "with registers": (
        lambda: timm_vit(dynamic_img_size=True, reg_tokens=4),
        "blocks.1",
        "tokens after 5",
        16,
        24,
    ),
    "without a class token": (
        lambda: timm_vit(dynamic_img_size=True, class_token=False, global_pool="avg"),
        "blocks.1",
        "tokens",
        16,
        24,
    ),
    "before its class token": (
        lambda: timm_vit(dynamic_img_size=True),
        "patch_embed",
        "channels last",
        16,
        24,
    ),
    "Swin of timm": (swin, "layers.1", "channels last", 8, 192),
    "Swin of torchvision": (
        lambda: torchvision.models.swin_t(weights=None),
        "features.3",
        "channels last",
        8,
        192,
    ),
    "ConvNeXt": (
        lambda: timm.create_model("convnext_atto", conv_mlp=False),
        "stages.1.blocks.0.mlp.fc1",
        "channels last",
        8,
        320,
    ),
    "PVT": (lambda: timm.create_model("pvt_v2_b0"), "stages.2.norm", "tokens", 16, 160),
}


def hooked(network: nn.Module, path: str, batch: Tensor) -> Any:
    seen: list[Any] = []
    handle = network.get_submodule(path).register_forward_hook(lambda m, i, out: seen.append(out))
    with torch.no_grad():
        network(batch)
    handle.remove()
    return seen[-1]


def as_rows(output: Tensor, n_prefix: int) -> Tensor:
    """(b, cells, c), row by row."""
    return output[:, n_prefix:] if output.ndim == 3 else output.flatten(1, 2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(64, 64), (64, 128)])
def test_a_layers_map_is_the_networks_own_rows(family: str, shape: tuple[int, int]) -> None:
    build, path, layout, stride, channels = FAMILIES[family]
    backbone = load_backbone(build())
    layer = map_layers(backbone, 64).resolve(path)
    assert (str(layer.layout), layer.stride, layer.channels) == (layout, stride, channels)
    assert layer.grid == (64 // stride, 64 // stride) and layer.input_size is None
    batch = images(2, 3, *shape)
    (found,) = forward_to_layers(backbone, [layer], batch)
    assert found.shape == (2, channels, shape[0] // stride, shape[1] // stride)
    prefix = int(layout.rpartition("after ")[2]) if "after" in layout else 0
    expected = as_rows(hooked(backbone.network, path, batch), prefix)
    torch.testing.assert_close(found.flatten(2).mT, expected)


@pytest.mark.parametrize("registers", [0, 4])
def test_cells_lie_where_the_patches_do(registers: int) -> None:
    """What changes in one patch changes its own cell most, before any attention."""
    backbone = load_backbone(timm_vit(dynamic_img_size=True, reg_tokens=registers))
    layer = map_layers(backbone, 64).resolve("blocks.0.norm1")
    batch = images(1, 3, 64, 96)
    changed = batch.clone()
    changed[..., 16:32, 64:80] += 1
    (before,), (after,) = (forward_to_layers(backbone, [layer], x) for x in (batch, changed))
    difference = (after - before).abs().sum(1)[0]
    assert difference[1, 4] > 0
    assert (difference > 1e-4).sum() == 1


def test_queries_keys_and_values_are_layers_of_their_own() -> None:
    network = timm_vit(dynamic_img_size=True, reg_tokens=2)
    backbone = load_backbone(network)
    layer_map = map_layers(backbone, 64)
    names = [f"blocks.1.attn.qkv:{part}" for part in ("queries", "keys", "values")]
    layers = [layer_map.resolve(name) for name in names]
    assert [layer.channels for layer in layers] == [24] * 3
    assert {layer.module for layer in layers} == {"blocks.1.attn.qkv"}
    batch = images(2, 3, 64, 32)
    found = forward_to_layers(backbone, layers, batch)
    # As timm's attention takes them apart.
    output = hooked(network, "blocks.1.attn.qkv", batch)
    heads = output.reshape(2, 4 * 2 + 3, 3, 2, 12).permute(2, 0, 3, 1, 4)
    for part, own in zip(heads, found, strict=True):
        expected = part.transpose(1, 2).flatten(2)[:, 3:]
        torch.testing.assert_close(own.flatten(2).mT, expected)
    assert layer_map.resolve().path == "blocks.1.attn.qkv:keys"
    with pytest.raises(InputError, match=r"name one of them, as in .*:values"):
        layer_map.resolve("blocks.1.attn.qkv")


def test_queries_keys_and_values_of_torchs_own_attention() -> None:
    """As `nn.MultiheadAttention` makes them of its input, in torchvision's and open_clip's ViTs."""
    network = torchvision_vit()
    backbone = load_backbone(network)
    layer_map = map_layers(backbone, 64)
    attention = "encoder.layers.encoder_layer_1.self_attention"
    assert layer_map.resolve().path == f"{attention}:keys"
    names = [attention, *(f"{attention}:{part}" for part in ("queries", "keys", "values"))]
    batch = images(2, 3, 64, 64)
    whole, *found = forward_to_layers(backbone, [layer_map.resolve(x) for x in names], batch)
    given = hooked(network, "encoder.layers.encoder_layer_1.ln_1", batch)
    module = network.get_submodule(attention)
    with torch.no_grad():
        q, k, v = (
            nn.functional.linear(given, *pair)
            for pair in zip(
                module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3), strict=True
            )
        )
        heads = [x.unflatten(2, (2, 8)).transpose(1, 2) for x in (q, k, v)]
        attended = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        expected = module.out_proj(attended)
    for own, tokens in zip((whole, *found), (expected, q, k, v), strict=True):
        torch.testing.assert_close(own.flatten(2).mT, tokens[:, 1:])


@pytest.mark.parametrize("version", [1, 2])
def test_tokens_of_windows_are_no_map(version: int) -> None:
    options = {"embed_dim": 8, "depths": (1, 2), "num_heads": (2, 2), "window_size": 4}
    swins = {1: timm.models.SwinTransformer, 2: timm.models.SwinTransformerV2}
    torch.manual_seed(0)
    network = swins[version](img_size=64, patch_size=4, strict_img_size=False, **options)
    for path, parameter in network.named_parameters():
        if "norm" in path:  # which is zero at first in the second version
            nn.init.normal_(parameter)
    layer_map = map_layers(load_backbone(network), 64)
    with pytest.raises(InputError, match=r"shape \(4, 16, 16\) .* window by window"):
        layer_map.resolve("layers.1.blocks.0.attn.proj")
    # Neither is what the second version makes of relative positions, whatever the image is.
    assert layer_map.resolve().path == "norm"
    assert not any("cpb_mlp" in path for path in layer_map.by_path)


def test_a_layer_by_sign_has_both_parts_of_every_channel() -> None:
    backbone = load_backbone(timm_vit(dynamic_img_size=True))
    layer_map = map_layers(backbone, 64)
    layers = [layer_map.resolve(name) for name in ("blocks.0", "blocks.0:signs")]
    signed, apart = forward_to_layers(backbone, layers, images(2, 3, 64, 32))
    assert layers[0].minimum < 0 == layers[1].minimum and layers[1].channels == 48
    torch.testing.assert_close(apart, torch.cat([signed.relu(), (-signed).relu()], dim=1))
    layout, output = layers[1].layout, torch.randn(2, 4 * 2 + 1, 24)
    again = layout.to_output(layout.to_map(output, (64, 32), 16), output)
    torch.testing.assert_close(again, output)
    keys = layer_map.resolve("blocks.0.attn.qkv:keys:signs")
    assert (keys.module, keys.channels) == ("blocks.0.attn.qkv", 48)


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (timm_vit, "blocks.1.mlp"),
        (torchvision_vit, "encoder.layers.encoder_layer_1.self_attention"),
    ],
)
def test_a_network_of_one_size_runs_at_its_own(build: Callable[[], nn.Module], path: str) -> None:
    backbone = load_backbone(build())
    layer_map = map_layers(backbone, 448)
    assert layer_map.size == 64
    layer = layer_map.resolve(path)
    assert (layer.stride, layer.grid, layer.input_size) == (16, (4, 4), 64)
    (found,) = forward_to_layers(backbone, [layer], images(2, 3, 64, 64))
    assert found.shape == (2, layer.channels, 4, 4)
    with pytest.raises(InputError, match="it is made for 64×64"):
        forward_to_layers(backbone, [layer], images(1, 3, 96, 96))


def test_networks_of_timm_by_name_take_any_size() -> None:
    for name in ("vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"):
        backbone = load_backbone(f"timm/{name}", pretrained=False)
        assert {x.input_size for x in map_layers(backbone, 96).layers} == {None}
    patch14 = load_backbone("timm/vit_small_patch14_reg4_dinov2", pretrained=False)
    layer = map_layers(patch14, 112).resolve("norm")
    assert (layer.stride, layer.grid, str(layer.layout)) == (14, (8, 8), "tokens after 5")


def test_windows_of_one_size_take_squares_only() -> None:
    network = timm.create_model("maxvit_rmlp_pico_rw_256")
    layer_map = map_layers(load_backbone(network), 256)
    assert layer_map.has_windows
    assert layer_map.resolve("stages.3").input_size == 256


class Tokens(nn.Module):
    """Tokens of patches after some that it does not tell of."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 8, stride=8)
        self.before = before
        self.joined = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        return self.joined(torch.cat([tokens[:, : self.before] * 0, tokens], 1))


def joined(layer_map: LayerMap) -> str:
    return str(layer_map.resolve("joined").layout)


@pytest.mark.parametrize("before", [1, 2, 5])
def test_tokens_of_an_unknown_network_are_guessed_and_said_to_be(before: int) -> None:
    layer_map = map_layers(load_backbone(Tokens(before)), 64)
    assert joined(layer_map) == f"tokens after {before} (guessed)"


def test_tokens_can_be_declared() -> None:
    # 17 before 8 × 8 are 81, which is a square as it is.
    assert joined(map_layers(load_backbone(Tokens(17)), 64)) == "tokens"
    backbone = load_backbone(Tokens(17), tokens=17)
    layer = map_layers(backbone, 64).resolve("joined")
    assert (str(layer.layout), layer.grid) == ("tokens after 17", (8, 8))
    batch = images(1, 3, 64, 48)
    (found,) = forward_to_layers(backbone, [layer], batch)
    torch.testing.assert_close(found, backbone.network.patches(batch))


def test_a_function_of_ones_own_makes_the_maps() -> None:
    def reshape(output: Any, shape: tuple[int, int]) -> Tensor | None:
        if output.ndim != 3:
            return None
        return output[:, 17:].mT.unflatten(2, (shape[0] // 8, shape[1] // 8))

    backbone = load_backbone(Tokens(17), tokens=reshape)
    layer_map = map_layers(backbone, 64)
    assert list(layer_map.by_path) == ["joined"]
    layer = layer_map.resolve("joined")
    assert (str(layer.layout), layer.stride, layer.grid) == ("own", 8, (8, 8))
    batch = images(2, 3, 64, 48)
    (found,) = forward_to_layers(backbone, [layer], batch)
    torch.testing.assert_close(found, backbone.network.patches(batch))
    with pytest.raises(InputError, match="gives no output that can become a map"):
        layer_map.resolve("patches")


class Halving(nn.Module):
    """Tokens of a square, of which a second image's are no map."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 8, stride=8)
        self.kept = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        return self.kept(tokens if x.shape[-1] == x.shape[-2] else tokens[:, 1:])


def test_a_map_that_other_sizes_do_not_give_is_told() -> None:
    backbone: Backbone = load_backbone(Halving())
    layer = map_layers(backbone, 64).resolve("kept")
    with pytest.raises(InputError, match=r"has no map for images of 64×48 pixels"):
        forward_to_layers(backbone, [layer], images(1, 3, 64, 48))
