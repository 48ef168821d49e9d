"""A result is read back without writing anything."""

from pathlib import Path

import torch

import deepff
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
