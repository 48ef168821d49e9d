"""What tells activations apart: no two ways to make rows share an entry of the cache."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import deepff
from deepff.activations.activations import FeatureSource, Preparation
from deepff.activations.cache import ActivationCache
from deepff.activations.extraction import extract_layers
from deepff.errors import InputError
from deepff.images.image_set import resolve_images
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.networks.checkpoints import structure_fingerprint
from deepff.networks.loading import load_backbone

SIZE = 64


class Tokens(nn.Module):
    """17 tokens before those of the grid, of which it does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 8, stride=8)
        self.joined = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        return self.joined(torch.cat([tokens[:, :17] + 1, tokens], 1))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return Tokens()


@pytest.fixture(scope="module")
def arrays() -> list[Any]:
    rng = np.random.default_rng(0)
    return list(rng.integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8))


def rows_of(backbone: Backbone, arrays: list[Any], cache: Path | None = None) -> Tensor:
    layer = map_layers(backbone, SIZE).resolve("joined")
    (activations,), _ = extract_layers(
        resolve_images(arrays), backbone, [layer], Preparation(SIZE), cache=cache
    )
    return activations.rows


def first_and_last(first: int, flipped: bool, output: Any, shape: tuple[int, int]) -> Tensor | None:
    """The 64 tokens from an index on as a map, which may be upside down."""
    if output.ndim != 3:
        return None
    grid = output[:, first : first + 64].mT.unflatten(2, (shape[0] // 8, shape[1] // 8))
    return grid.flip(2) if flipped else grid


def test_each_way_to_read_tokens_has_a_cache_of_its_own(
    network: nn.Module, arrays: list[Any], tmp_path: Path
) -> None:
    ways = {
        "declared": 17,
        "own": partial(first_and_last, 17, False),
        "own, from the start": partial(first_and_last, 0, False),
        "own, upside down": partial(first_and_last, 17, True),
    }
    backbones = {way: load_backbone(network, tokens=tokens) for way, tokens in ways.items()}
    cached = {way: rows_of(b, arrays, tmp_path / "cache") for way, b in backbones.items()}
    for way, backbone in backbones.items():
        assert torch.equal(cached[way], rows_of(backbone, arrays))
        assert torch.equal(cached[way], rows_of(backbone, arrays, tmp_path / "cache"))
    # What a function does may change: nothing of it is kept.
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert torch.equal(cached["declared"], cached["own"])
    by_image = cached["own"].unflatten(0, (2, 8, 8))
    assert torch.equal(cached["own, upside down"].unflatten(0, (2, 8, 8)), by_image.flip(1))


def test_what_has_no_weights_tells_networks_apart(arrays: list[Any], tmp_path: Path) -> None:
    rows = []
    for slope in (0.1, 0.5):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), nn.LeakyReLU(slope))
        backbone = load_backbone(network)
        layer = map_layers(backbone, SIZE).resolve("1")
        (activations,), _ = extract_layers(
            resolve_images(arrays), backbone, [layer], Preparation(SIZE), cache=tmp_path
        )
        rows.append(activations.rows.clone())
    assert torch.equal(rows[0].clamp_min(0), rows[1].clamp_min(0))
    torch.testing.assert_close(rows[0].clamp_max(0) * 5, rows[1].clamp_max(0))


def test_squares_are_told_from_images_of_their_own_shape() -> None:
    def source(**options: Any) -> FeatureSource:
        torch.manual_seed(0)
        network = timm.models.vision_transformer.VisionTransformer(
            img_size=SIZE, patch_size=16, depth=1, embed_dim=8, num_heads=2, **options
        )
        backbone = load_backbone(network)
        return FeatureSource.of(
            backbone, map_layers(backbone, SIZE).resolve("blocks.0"), Preparation(SIZE)
        )

    fixed, free = source(), source(dynamic_img_size=True)
    assert (fixed.square, free.square) == (True, False)
    assert fixed.weights_digest == free.weights_digest and fixed.layout == "tokens after 1"
    assert ActivationCache("c", fixed).folder != ActivationCache("c", free).folder


def test_sources_of_before_there_were_layouts_have_the_same_cache() -> None:
    old = FeatureSource(
        "net", "random", "0" * 64, "layer", 4, 8, 64, 8, (0, 0, 0), (1, 1, 1), "bilinear", False
    )
    # The name that the version before gave it.
    assert ActivationCache("c", old).folder.name == "net_layer_64-d15acd2153ac7a34"


def test_a_bank_needs_what_made_its_maps(network: nn.Module, arrays: list[Any]) -> None:
    declared = load_backbone(network, tokens=17)
    result = deepff.discover(arrays, 2, model=declared, layer="joined", size=SIZE)
    assert deepff.apply(result.bank, arrays, model=network).grids == result.grids
    own = load_backbone(network, tokens=partial(first_and_last, 17, True))
    result = deepff.discover(arrays, 2, model=own, layer="joined", size=SIZE)
    with pytest.raises(InputError, match=r"load_backbone\(network, tokens=function\)"):
        deepff.apply(result.bank, arrays, model=network)
    again = deepff.apply(result.bank, arrays, model=own)
    torch.testing.assert_close(again.coefficients, result.coefficients, rtol=1e-3, atol=1e-4)


def test_networks_are_told_apart_by_how_they_are_built() -> None:
    def printed(slope: float) -> str:
        return structure_fingerprint(nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(slope)))

    assert printed(0.1) == printed(0.1) != printed(0.2)
