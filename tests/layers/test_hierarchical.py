"""transformers' Swin and Hiera on images of any size and shape."""

import copy

import pytest
import torch
from one_layer import forward_to_layer, images, message
from torch import nn

import deepff
from deepff.errors import InputError
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone

transformers = pytest.importorskip("transformers")


def swin(depths: list[int]) -> nn.Module:
    """For 64 × 64 pixels, where the last maps are one window of 4 × 4."""
    torch.manual_seed(0)
    config = transformers.SwinConfig(
        image_size=64, embed_dim=16, depths=depths, num_heads=[1, 2, 4], window_size=4
    )
    return transformers.SwinModel(config).eval()


def hiera() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.HieraConfig(
        image_size=[64, 64], embed_dim=16, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1]
    )
    return transformers.HieraModel(config).eval()


def own(network: nn.Module) -> Backbone:
    return deepff.load_backbone(network, device="cpu")


def tokens(maps: torch.Tensor) -> torch.Tensor:
    return maps.flatten(2).transpose(1, 2)


def test_swin_gives_what_transformers_gives_whatever_ran_before() -> None:
    network = swin([2, 2, 2])
    backbone = own(copy.deepcopy(network))
    layer = map_layers(backbone, 64).resolve("layernorm")
    assert (layer.stride, layer.input_size) == (16, None)
    for shape in [(64, 32), (128, 96), (64, 64), (96, 160), (48, 64), (128, 96)]:
        batch = images(1, 3, *shape)
        ours = forward_to_layer(backbone, layer, batch)
        assert ours.shape[2:] == (shape[0] // 16, shape[1] // 16)
        if min(shape) >= 64:  # on smaller images transformers fails
            with torch.no_grad():
                theirs = copy.deepcopy(network)(batch).last_hidden_state
            assert torch.allclose(tokens(ours), theirs, atol=1e-5)


@pytest.mark.parametrize("shape", [(64, 32), (48, 64), (16, 64)])
def test_swin_pads_small_maps_to_windows(shape: tuple[int, int]) -> None:
    """Without a shift that is what transformers' own backbone for detection does."""
    network = swin([1, 1, 1])
    backbone = own(copy.deepcopy(network))
    layer = map_layers(backbone, 64).resolve("layernorm")
    batch = images(1, 3, *shape)
    with torch.no_grad():
        theirs = network(batch, always_partition=True).last_hidden_state
    assert torch.allclose(tokens(forward_to_layer(backbone, layer, batch)), theirs, atol=1e-5)


@pytest.mark.parametrize("shape", [(64, 64), (96, 160), (128, 64)])
def test_hiera_draws_a_change_in_the_unit_where_it_is(shape: tuple[int, int]) -> None:
    backbone = own(hiera())
    layer = map_layers(backbone, 64).resolve("encoder")
    assert (layer.stride, layer.input_size) == (32, None)
    batch = images(1, 3, *shape)
    before = forward_to_layer(backbone, layer, batch)
    assert before.shape[2:] == (shape[0] // 32, shape[1] // 32)
    for row in range(shape[0] // 32):
        for column in range(shape[1] // 32):
            changed = batch.clone()
            changed[..., 32 * row : 32 * row + 32, 32 * column : 32 * column + 32] += 2
            change = (forward_to_layer(backbone, layer, changed) - before).norm(dim=1)[0]
            assert divmod(int(change.argmax()), change.shape[1]) == (row, column)


def test_hieras_tokens_in_another_order_are_no_map() -> None:
    layer_map = map_layers(own(hiera()), 64)
    assert {layer.stride for layer in layer_map.layers} == {4, 32}
    with pytest.raises(InputError) as error:
        layer_map.resolve("encoder.stages.1")
    assert "gives tokens in the order of units, not of the image; choose another" in message(error)


@pytest.mark.parametrize("network", [lambda: swin([1, 1, 2]), hiera], ids=["swin", "hiera"])
@pytest.mark.parametrize("size", [64, 128])
def test_discover_on_images_of_other_shapes(network, size: int) -> None:
    photos = [images(3, *shape).sigmoid() for shape in [(60, 90), (80, 80), (120, 40)]]
    backbone = own(network())
    layer = {"SwinModel": "layernorm", "HieraModel": "encoder"}[backbone.name]
    result = deepff.discover(photos, 2, model=backbone, layer=layer, size=size, random_state=0)
    stride = result.sources[0].stride
    cells = size // stride
    # Two thirds and a third of the longer side, rounded to cells, half a cell up.
    assert result.grids == [
        (int(2 / 3 * cells + 0.5), cells),
        (cells, cells),
        (cells, int(cells / 3 + 0.5)),
    ]
