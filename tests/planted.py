"""Results whose heat maps are known."""

from pathlib import Path

import torch
from PIL import Image

from deepff.activations.activations import FeatureSource, ImageRecord
from deepff.result import Result
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps

NAMES = ["a.png", "ä b/<script>.png", "c.png"]


def result_of(maps: torch.Tensor, names: list[str], folder: Path) -> Result:
    """A result whose heat maps (n, k, h, w), on a grid of pixels, are those."""
    n, k, h, w = maps.shape
    images = [ImageRecord(name, folder / name, (h, w), (h, w)) for name in names]
    heatmaps = HeatMaps(maps.flatten(2).transpose(1, 2).reshape(-1, k), [(h, w)] * n, [(h, w)] * n)
    source = FeatureSource(
        "net", "random", "0" * 64, "layer", k, 1, 8, 1, (0, 0, 0), (1, 1, 1), "bilinear", False
    )
    found = Factorization(torch.eye(k), heatmaps, 0.0, 1)
    return Result(images, [], {k: found}, "nmf", (source,), {}, "deepff", {})


def planted(folder: Path, k: int = 3) -> Result:
    """Three images of 6 × 8 pixels, which factor 0 has on the left, 1 and 2 on the right."""
    maps = torch.zeros(3, 3, 6, 8)
    maps[:, 0, :, :3] = maps[:, 1, :3, 5:] = maps[:, 2, 3:, 5:] = 1
    result = result_of(maps[:, :k], NAMES, folder)
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(folder / name)
    return result
