"""One network of each family from images to heat maps, small and with random weights."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.distributed as dist
import torchvision
from ranks import run_ranks
from torch import nn
from torchvision.models.convnext import CNBlockConfig

import deepff
from deepff.networks.loading import load_backbone

SIZE, CELL, N_RANKS = 96, 16, 2
SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 64,
    "patch_size": CELL,
}


def timm_vit(**options: Any) -> nn.Module:
    vit = timm.models.VisionTransformer
    return vit(img_size=64, patch_size=CELL, depth=2, embed_dim=24, num_heads=2, **options)


def timm_swin() -> nn.Module:
    options = {"embed_dim": 16, "depths": (1, 2, 1), "num_heads": (2, 2, 2), "window_size": 4}
    return timm.models.SwinTransformer(img_size=64, strict_img_size=False, **options)


def torchvision_convnext() -> nn.Module:
    blocks = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, 24, 1), CNBlockConfig(24, None, 1)]
    return torchvision.models.ConvNeXt(blocks, layer_scale=1.0)


def hugging_face(config: str) -> nn.Module:
    import transformers

    made = getattr(transformers, config)(**SMALL)
    return transformers.AutoModel.from_config(made, attn_implementation="eager")


def open_clip() -> nn.Module:
    from open_clip.model import CLIP

    vision = {"image_size": 64, "layers": 2, "width": 32, "head_width": 16, "patch_size": CELL}
    text = {"context_length": 8, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1}
    return CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text).visual


# What makes it, its default layer, and that one's stride; whether it takes squares of 64 only.
FAMILIES: dict[str, tuple[Callable[[], nn.Module], str, int, bool]] = {
    "ViT of timm": (
        lambda: timm_vit(dynamic_img_size=True),
        "blocks.1.attn.qkv:keys",
        16,
        False,
    ),
    "ViT of timm, registers": (
        lambda: timm_vit(dynamic_img_size=True, reg_tokens=4),
        "blocks.1.attn.qkv:keys",
        16,
        False,
    ),
    "ViT of timm, one size": (timm_vit, "blocks.1.attn.qkv:keys", 16, True),
    "ViT of torchvision": (
        lambda: torchvision.models.VisionTransformer(64, CELL, 2, 2, 24, 48),
        "encoder.layers.encoder_layer_1.self_attention:keys",
        16,
        True,
    ),
    "Swin of timm": (timm_swin, "norm", 16, False),
    "Swin of torchvision": (
        lambda: torchvision.models.SwinTransformer([4, 4], 16, [1, 2, 1], [2] * 3, [4, 4]),
        "permute",
        16,
        False,
    ),
    "ConvNeXt of timm": (
        lambda: timm.models.ConvNeXt(depths=(1,) * 4, dims=(8, 12, 16, 24), ls_init_value=1.0),
        "stages",
        32,
        False,
    ),
    "ConvNeXt of torchvision": (torchvision_convnext, "features", 16, False),
    "MaxViT of torchvision": (
        lambda: torchvision.models.MaxVit((64, 64), 8, 2, [8, 16, 24], [1, 1, 1], 8, 0.0),
        "blocks.2",
        16,
        True,
    ),
    "ViT of transformers": (
        lambda: hugging_face("ViTConfig"),
        "layers.1.attention.k_proj",
        16,
        False,
    ),
    "DINOv2 of transformers": (
        lambda: hugging_face("Dinov2Config"),
        "encoder.layer.1.attention.k_proj",
        16,
        False,
    ),
    "ViT of open_clip": (open_clip, "transformer.resblocks.1.attn:keys", 16, True),
}


def network_of(family: str) -> nn.Module:
    torch.manual_seed(0)
    return FAMILIES[family][0]()


def is_here(family: str) -> bool:
    module = family.rpartition(" of ")[2].partition(",")[0]
    return find_spec(module) is not None


# Where the bright cell is, and how wide the image; three are wider than high.
PLANTED = ((1, 1, 96), (2, 4, 96), (0, 2, 96), (2, 1, 64))


def photos(bright: int = 250) -> list[np.ndarray]:
    """Grey but for one bright cell, at another place in each."""
    arrays = []
    for row, column, width in PLANTED:
        pixels = np.full((64, width, 3), 100, np.uint8)
        pixels[CELL * row : CELL * (row + 1), CELL * column : CELL * (column + 1)] = bright
        arrays.append(pixels)
    return arrays


def found_by(family: str, **options: Any) -> deepff.Result:
    return deepff.discover(
        photos(), 3, model=load_backbone(network_of(family)), size=SIZE, **options
    )


def run_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=N_RANKS)
    found = {family: found_by(family).coefficients for family in filter(is_here, FAMILIES)}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def over_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(run_rank, (folder,), N_RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(N_RANKS)]


@pytest.mark.parametrize("family", FAMILIES)
def test_from_images_to_heat_maps(
    family: str, over_ranks: list[dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    if not is_here(family):
        pytest.skip("not installed")
    _, layer, stride, fixed = FAMILIES[family]
    result = found_by(family)
    source = result.sources[0]
    assert (source.layer, source.stride, source.square) == (layer, stride, fixed)
    assert result.method == "semi-nmf" and result.coefficients.min() >= 0
    assert source.size == (64 if fixed else SIZE)
    height, width = (64, 64) if fixed else (64, 96)
    square = (width // stride,) * 2  # of the image that is as high as wide
    assert result.grids == [(height // stride, width // stride)] * 3 + [square]
    assert [tuple(maps.shape) for maps in result.heatmaps] == [(3, 64, 96)] * 3 + [(3, 64, 64)]

    in_parts = found_by(family, batch_size=1, cache=tmp_path)
    scale = result.heatmaps.scale
    assert ((in_parts.coefficients - result.coefficients).abs() / scale).max() < 1e-3
    for coefficients in over_ranks:
        assert ((coefficients[family] - result.coefficients).abs() / scale).max() < 5e-3
    network = network_of(family)
    new = deepff.apply(result.bank, photos(), model=network)
    assert ((new.coefficients - result.coefficients).abs() / scale).max() < 1e-3

    if family.startswith("MaxViT"):  # no patches: its convolutions overlap, and are padded
        return
    plain = deepff.apply(result.bank, photos(bright=115), model=network)
    for i, (row, column, columns) in enumerate(PLANTED):
        changed = (result.heatmaps[i] - plain.heatmaps[i]).abs().sum(0)
        y, x = divmod(int(changed.argmax()), columns)
        cell_height, cell_width = 64 / result.grids[i][0], columns / result.grids[i][1]
        # A cell may be larger than the bright one, and share it with its neighbour.
        assert abs(y - CELL * (row + 0.5)) <= cell_height
        assert abs(x - CELL * (column + 0.5)) <= cell_width
