"""What the network takes the object for, by hand and on real groups."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import deepff
from deepff.meaning.class_names import scores_of_regions
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ReLU()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean((2, 3)))


def test_scores_are_the_heads_for_the_mean_of_a_over_the_region():
    """A region is the left half, red in one image and green in the other: (1/2, 1/2, 0), whatever
    is right of it; where there is no region, NaN."""
    images = np.full((2, 32, 32, 3), 255, np.uint8)
    images[0, :, :16] = (255, 0, 0)
    images[1, :, :16] = (0, 255, 0)
    backbone = deepff.load_backbone(
        Linear(), mean=(0, 0, 0), std=(1, 1, 1), labels=["a", "b"], device="cpu"
    )
    result = deepff.discover(list(images), 1, model=backbone, layer="layer", size=32)
    left = torch.zeros(2, 32, 32, 2)
    left[:, :, :16, 0] = 1
    heatmaps = HeatMaps.of_images(left.flatten(0, 2), result.images)
    result.factorizations = {2: Factorization(torch.zeros(2, 3), heatmaps, 0.0, 1)}
    result.recipe = "contrast"
    with torch.no_grad():
        found = scores_of_regions(result, result.opened[0], result.factorizations, False)[2]
        expected = backbone.network.head(torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)
    assert found[1].isnan().all()
    assert result.classes().names[1] is None


def photos(data_root: Path, number: str) -> list[Path]:
    folder = next((data_root / "icoseg/images").glob(f"{number} *"))
    return sorted(folder.glob("*.jpg"))[::2][:5]


def test_the_object_is_named_and_its_parts_are_not(data_root: Path, tmp_path: Path):
    parts = deepff.discover_parts(photos(data_root, "021"), 2)
    assert parts.object.factor_names == ["African elephant"]
    assert parts.factor_names == [None, None]
    assert "parts of the object" in parts.unnamed
    parts.save(tmp_path / "parts")
    manifest = json.loads((tmp_path / "parts/object/manifest.json").read_text())
    assert manifest["factor_names"] == {"1": ["African elephant"]}
    assert deepff.load(tmp_path / "parts").object.factor_names == ["African elephant"]


def test_an_object_of_no_class_has_no_name(data_root: Path):
    """ImageNet has no kites."""
    result = deepff.discover(photos(data_root, "033"), recipe="contrast")
    assert (result.factor_names, result.unnamed) == ([None], None)
