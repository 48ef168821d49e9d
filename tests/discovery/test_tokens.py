"""Vision transformers from images to heat maps, with random weights."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import deepff


def vit(**options) -> nn.Module:
    torch.manual_seed(0)
    network = timm.models.vision_transformer.VisionTransformer
    return network(img_size=64, patch_size=16, depth=2, embed_dim=24, num_heads=2, **options)


@pytest.fixture
def photos(tmp_path):
    """A square of noise in one place of each image, on grey: where is known."""
    rng = np.random.default_rng(0)
    for i in range(4):
        pixels = np.full((64, 96, 3), 128, np.uint8)
        pixels[16:32, 16 * i : 16 * i + 16] = rng.integers(0, 256, (16, 16, 3))
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    return tmp_path


@pytest.mark.parametrize("registers", [0, 4])
def test_the_map_of_a_transformer_lies_where_the_image_differs(photos, registers):
    network = vit(dynamic_img_size=True, reg_tokens=registers, pos_embed="none")
    result = deepff.discover(photos, 2, model=network, layer="blocks.0.norm1", size=96)
    assert result.method == "semi-nmf"
    assert result.grids == [(4, 6)] * 4
    for i in range(4):
        grid = result.heatmaps.grid(i).flatten(1)
        unlike_the_rest = (grid - grid.median(1, keepdim=True).values).abs().sum(0)
        assert int(unlike_the_rest.argmax()) == 6 + i


def test_blocks_and_batches_give_what_one_gives(photos):
    network = vit(dynamic_img_size=True, reg_tokens=2)
    options = {"model": network, "layer": "blocks.1.attn.qkv:keys", "size": 96}
    one = deepff.discover(photos, 3, batch_size=4, **options)
    many = deepff.discover(photos, 3, batch_size=1, cache=photos / "cache", **options)
    torch.testing.assert_close(one.coefficients, many.coefficients, rtol=1e-3, atol=1e-4)
    new = deepff.apply(one.bank, photos, model=network)
    torch.testing.assert_close(new.coefficients, one.coefficients, rtol=1e-3, atol=1e-4)


def test_a_transformer_of_one_size_takes_images_at_its_own(photos, tmp_path):
    network = vit()
    result = deepff.discover(photos, 2, model=network)
    assert result.layer == "blocks.1.attn.qkv:keys"
    assert result.grids == [(4, 4)] * 4
    assert result.sources[0].size == 64
    assert result.heatmaps[0].shape == (2, 64, 96)
    new = deepff.apply(result.bank, photos, model=network)
    assert new.grids == result.grids
    torch.testing.assert_close(new.coefficients, result.coefficients, rtol=1e-3, atol=1e-4)


def test_the_object_and_its_parts_by_the_tokens_of_a_transformer(tmp_path):
    """What is red in the middle of grey images is the object, on the one layer that there is."""
    rng = np.random.default_rng(0)
    for i in range(4):
        pixels = np.full((128, 128, 3), 128, np.uint8)
        pixels[48:96, 32:96] = np.array((200, 60, 40)) + rng.integers(0, 40, (48, 64, 3))
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    torch.manual_seed(0)
    network = timm.models.VisionTransformer(
        img_size=128, patch_size=16, depth=1, embed_dim=24, num_heads=2, pos_embed="none"
    )
    found = deepff.discover(tmp_path, model=network, recipe="contrast", size=128)
    assert found.layer == "blocks.0.attn.qkv:keys:signs" and found.components.shape == (1, 48)
    assert found.components.min() >= 0 and found.factorization(1).classifier is not None
    planted = torch.zeros(128, 128, dtype=torch.bool)
    planted[48:96, 32:96] = True
    for regions in found.regions():
        union = (regions.masks[0] | planted).sum()
        assert (regions.masks[0] & planted).sum() > 0.8 * union
    parts = deepff.discover_parts(tmp_path, 2, model=network, size=128)
    assert parts.layer == found.layer and parts.parts_of == "object"
    for regions in parts.regions():
        whole = regions.masks.any(0)
        assert (whole & planted).sum() > 0.7 * (whole | planted).sum()
