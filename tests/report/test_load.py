"""A result is read back without writing anything."""

from pathlib import Path

import pytest
import torch
from skimage import data
from torch import nn

import deepff
from deepff.errors import InputError
from deepff.images.samples import photographs


def files_in(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_loading_writes_nothing_and_does_not_take_a_damaged_cache(tmp_path: Path) -> None:
    images = list(photographs().values())[:3]
    cache, folder = tmp_path / "cache", tmp_path / "result"
    result = deepff.discover(images, 2, size=128, cache=cache)
    result.save(folder)
    before = files_in(tmp_path)
    loaded = deepff.load(folder)
    assert torch.equal(loaded.activations.rows, result.activations.rows)
    assert files_in(tmp_path) == before

    data = next(cache.glob("*/activations.f32"))
    content = data.read_bytes()
    for damaged in (
        content[: len(content) // 2],
        content[: len(content) // 2] + bytes(len(content) // 2),
    ):
        data.write_bytes(damaged)
        before = files_in(tmp_path)
        assert deepff.load(folder).activations is None
        assert files_in(tmp_path) == before
    again = deepff.discover(images, 2, size=128, cache=cache)
    assert torch.equal(again.activations.rows, result.activations.rows)
    assert torch.equal(deepff.load(folder).activations.rows, result.activations.rows)


def test_a_result_of_an_own_network_runs_it_again_where_it_is_given(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 4, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    )
    images = [data.chelsea(), data.coffee()]
    backbone = deepff.load_backbone(network, labels=["one", "two", "three"])
    result = deepff.discover(images, 2, model=backbone, size=64)
    result.save(tmp_path / "result")
    again = deepff.load(tmp_path / "result", images=images, model=backbone)
    assert torch.equal(again.importance().falls, result.importance().falls)
    maps, expected = (found.similar(0, (99, 99)).heatmaps for found in (again, result))
    assert torch.equal(maps.coefficients, expected.coefficients)
    without = deepff.load(tmp_path / "result", images=images)
    with pytest.raises(InputError, match=r"your network Sequential, .*; pass it as model"):
        without.importance()
    network[0].weight.data += 1
    with pytest.raises(InputError, match="differ"):
        deepff.load(tmp_path / "result", images=images, model=network)
