"""Activations of real images: order, batching, skipping, and the cache that resumes."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from network_rounding import assert_equal_but_for_rounding
from PIL import Image

from deepff.activations import batches
from deepff.activations.activations import Preparation
from deepff.activations.extraction import extract_layers
from deepff.errors import InputError
from deepff.images.image_files import find_images
from deepff.images.image_set import resolve_images
from deepff.layers.layer import Layer
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone

SIZE = 128


@pytest.fixture(scope="module")
def layer(backbone: Backbone) -> Layer:
    return map_layers(backbone, SIZE).resolve()


@pytest.fixture(scope="module")
def photographs(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine photographs, landscape, portrait and square, of several shapes."""
    folder = tmp_path_factory.mktemp("photographs")
    images = sorted((data_root / "VOCdevkit/VOC2007/JPEGImages").glob("*.jpg"))[:9]
    for number, path in enumerate(images):
        with Image.open(path) as image:
            upright = image.transpose(Image.Transpose.ROTATE_90) if number % 3 == 1 else image
            cut = upright.crop((0, 0, 300, 300)) if number % 3 == 2 else upright
            cut.save(folder / f"{number}.png")
    return folder


@pytest.fixture
def mixed_set(photographs: Path, tmp_path: Path) -> Path:
    """A copy of the photographs, to change."""
    return shutil.copytree(photographs, tmp_path / "photos")


def extract(files, backbone, layer, size=SIZE, **options):
    """The activations of one layer, and the skipped files."""
    (activations,), skipped = extract_layers(files, backbone, [layer], Preparation(size), **options)
    return activations, skipped


def count_images(backbone: Backbone, counts: list[int]) -> torch.utils.hooks.RemovableHandle:
    return backbone.network.register_forward_pre_hook(
        lambda module, inputs: counts.append(len(inputs[0]))
    )


def test_rows_are_the_networks_own_output_in_the_sets_order(backbone, layer, mixed_set):
    files = find_images(mixed_set)
    activations, skipped = extract(files, backbone, layer, batch_size=4)
    assert not skipped
    assert [image.name for image in activations.images] == [f"{n}.png" for n in range(9)]
    assert len({image.grid for image in activations.images}) >= 3
    mean = torch.tensor(backbone.mean).view(3, 1, 1)
    std = torch.tensor(backbone.std).view(3, 1, 1)
    for image, rows in zip(activations.images, activations.image_rows, strict=True):
        height, width = (32 * cells for cells in image.grid)
        pixels = np.asarray(Image.open(image.path).convert("RGB"))
        # antialiased bicubic resizing as Pillow does it, an independent implementation
        resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
        batch = torch.from_numpy(np.array(resized)).permute(2, 0, 1).float()[None] / 255
        with torch.inference_mode():
            expected = backbone.network.forward_features((batch - mean) / std)[0]
        expected = expected.flatten(1).T
        error = (rows - expected).norm() / expected.norm()
        assert error < 0.02, image.name


def test_images_mixed_in_one_set_give_the_same_rows_as_each_alone(backbone, layer, mixed_set):
    files = find_images(mixed_set)
    together, _ = extract(files, backbone, layer, batch_size=4)
    for file, rows in zip(files, together.image_rows, strict=True):
        alone, _ = extract([file], backbone, layer)
        assert_equal_but_for_rounding(rows, alone.rows)


def test_items_are_read_once_while_the_network_runs(backbone, layer, monkeypatch):
    events: list[int | str] = []

    class Items:
        def __len__(self) -> int:
            return 24

        def __getitem__(self, index: int) -> np.ndarray:
            events.append(index)
            return np.random.default_rng(index).integers(0, 256, (64, 48 + index, 3), np.uint8)

    whole, _ = extract(resolve_images(Items()), backbone, layer, batch_size=3)
    assert sorted(events) == [*range(24)]
    monkeypatch.setattr(batches, "WINDOW", 3)
    events.clear()
    handle = backbone.network.register_forward_pre_hook(lambda *_: events.append("network"))
    try:
        parts, _ = extract(resolve_images(Items()), backbone, layer, batch_size=3)
    finally:
        handle.remove()
    assert sorted(x for x in events if x != "network") == [*range(24)]
    assert "network" in events[:20]  # most images were not read yet
    assert_equal_but_for_rounding(parts.rows, whole.rows)


@pytest.mark.parametrize("cached", [False, True])
def test_files_that_break_in_the_middle_leave_no_gap(backbone, layer, mixed_set, tmp_path, cached):
    whole, _ = extract(find_images(mixed_set), backbone, layer)
    for number in (0, 4, 8):
        path = mixed_set / f"{number}.png"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (mixed_set / "5.png").write_bytes(b"")
    cache = tmp_path / "cache" if cached else None
    rest, skipped = extract(find_images(mixed_set), backbone, layer, cache=cache)
    assert [file.name for file in skipped] == ["0.png", "4.png", "5.png", "8.png"]
    assert [image.name for image in rest.images] == [f"{n}.png" for n in (1, 2, 3, 6, 7)]
    expected = torch.cat([whole.image_rows[n] for n in (1, 2, 3, 6, 7)])
    assert_equal_but_for_rounding(rest.rows, expected)


def test_no_usable_image(backbone, layer, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"")
    (tmp_path / "b.jpg").write_text("text")
    with pytest.raises(InputError, match=r"none of the 2 files is an image .* a\.jpg"):
        extract(find_images(tmp_path), backbone, layer)


def test_mixed_precision_needs_a_gpu(backbone, layer, mixed_set):
    with pytest.raises(InputError, match="mixed precision needs a CUDA device"):
        extract_layers(find_images(mixed_set), backbone, [layer], Preparation(SIZE, amp=True))


def test_activations_that_are_not_finite_name_the_image(mixed_set):
    broken = load_backbone()
    with torch.no_grad():
        broken.network.bn2.weight.fill_(float("nan"))
    layer = map_layers(load_backbone(), SIZE).resolve()
    with pytest.raises(InputError, match=r"layer bn2 for 0\.png contain NaN or infinity"):
        extract(find_images(mixed_set), broken, layer)


def test_the_cache_runs_an_image_once_whatever_its_name(backbone, layer, mixed_set, tmp_path):
    in_memory, _ = extract(find_images(mixed_set), backbone, layer)
    shutil.copy(mixed_set / "2.png", mixed_set / "2 copy.png")
    counts: list[int] = []
    handle = count_images(backbone, counts)
    try:
        for _ in range(2):
            first, _ = extract(find_images(mixed_set), backbone, layer, cache=tmp_path / "cache")
        assert sum(counts) == 9
        (mixed_set / "3.png").rename(mixed_set / "Ä <b>.png")
        renamed, _ = extract(find_images(mixed_set), backbone, layer, cache=tmp_path / "cache")
        assert sum(counts) == 9
    finally:
        handle.remove()
    names = [image.name for image in first.images]
    originals = [names.index(f"{n}.png") for n in range(9)]
    rows = torch.cat([first.image_rows[n] for n in originals])
    assert torch.equal(rows, in_memory.rows)
    copy, original = (first.image_rows[names.index(n)] for n in ("2 copy.png", "2.png"))
    assert torch.equal(copy, original)
    moved = [image.name for image in renamed.images].index("Ä <b>.png")
    third = first.image_rows[names.index("3.png")]
    assert torch.equal(renamed.image_rows[moved], third)


def test_another_layer_size_or_preprocessing_shares_no_rows(backbone, layer, mixed_set, tmp_path):
    cache = tmp_path / "cache"
    files = find_images(mixed_set)[:2]
    other_layer = map_layers(backbone, SIZE).resolve("blocks.5.0.bn1")
    other_mean = load_backbone(mean=(0.5, 0.5, 0.5))
    for network, where, size in [
        (backbone, layer, SIZE),
        (backbone, layer, 2 * SIZE),
        (backbone, other_layer, SIZE),
        (other_mean, layer, SIZE),
    ]:
        cached, _ = extract(files, network, where, size=size, cache=cache)
        plain, _ = extract(files, network, where, size=size)
        assert torch.equal(cached.rows, plain.rows)
    assert len(list(cache.iterdir())) == 4


def test_a_cache_that_cannot_be_written_says_so(backbone, layer, mixed_set, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"cannot write to the activation cache"):
        extract(find_images(mixed_set), backbone, layer, cache=tmp_path / "cache")


def rows_done(cache: Path) -> int:
    index = next(cache.glob("*/index.sqlite"), None)
    if index is None:
        return 0
    try:
        with sqlite3.connect(f"file:{index}?mode=ro", uri=True) as connection:
            return connection.execute("SELECT SUM(done) FROM images").fetchone()[0] or 0
    except sqlite3.OperationalError:
        return 0


def test_a_killed_run_resumes_with_the_same_result(backbone, layer, data_root, tmp_path):
    group = next((data_root / "icoseg/images").glob("028 Cheetah*"))
    cache = tmp_path / "cache"
    command = [sys.executable, "-m", "deepff", "discover", str(group), "-k", "3"]
    options = ["--size", str(SIZE), "--batch-size", "2", "--cache", str(cache)]
    out = ["--out", str(tmp_path / "killed")]
    process = subprocess.Popen([*command, *options, *out], stderr=subprocess.DEVNULL)
    while rows_done(cache) < 6:
        assert process.poll() is None, "the run ended before it was killed"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = rows_done(cache)
    files = find_images(group)
    assert 6 <= done < len(files) == 33

    counts: list[int] = []
    handle = count_images(backbone, counts)
    try:
        resumed, _ = extract(files, backbone, layer, batch_size=2, cache=cache)
    finally:
        handle.remove()
    assert sum(counts) == len(files) - done
    uninterrupted, _ = extract(files, backbone, layer, batch_size=2)
    assert len(resumed.blocks) == 1
    assert torch.equal(resumed.rows, uninterrupted.rows)
    source = json.loads(next(cache.glob("*/source.json")).read_text())
    assert source["layer"] == "bn2"


@pytest.mark.parametrize("cached", [False, True])
def test_several_layers_share_one_pass_and_lie_over_the_same_pixels(
    backbone, mixed_set, tmp_path, cached
):
    """Sides are multiples of the largest stride, so the finer grid halves the coarser's cells."""
    (mixed_set / "broken.png").write_bytes(b"not an image")
    layers = [map_layers(backbone, SIZE).resolve(path) for path in ("blocks.5.0.bn1", "bn2")]
    counts: list[int] = []
    handle = count_images(backbone, counts)
    cache = tmp_path / "cache" if cached else None
    files = find_images(mixed_set)
    (finer, coarser), skipped = extract_layers(
        files, backbone, layers, Preparation(SIZE), cache=cache
    )
    assert sum(counts) == 9 and [file.name for file in skipped] == ["broken.png"]
    extract_layers(files, backbone, layers, Preparation(SIZE), cache=cache)
    assert sum(counts) == (9 if cached else 18)
    handle.remove()
    alone, _ = extract(files, backbone, layers[1])
    assert torch.equal(torch.cat(coarser.blocks), torch.cat(alone.blocks))
    assert [image.name for image in finer.images] == [image.name for image in coarser.images]
    for fine, coarse in zip(finer.images, coarser.images, strict=True):
        assert fine.grid == (2 * coarse.grid[0], 2 * coarse.grid[1])
    assert finer.rows.shape == (sum(image.n_cells for image in finer.images), 672)


def test_a_layer_named_twice_is_refused(backbone, layer, mixed_set):
    with pytest.raises(InputError, match="named twice"):
        extract_layers(find_images(mixed_set), backbone, [layer, layer], Preparation(SIZE))


def test_what_memory_is_too_small_for_is_read_from_a_temporary_file(
    backbone, layer, mixed_set, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = find_images(mixed_set)
    held, _ = extract(files, backbone, layer)
    n_bytes = held.rows.numel() * 4
    spilled, _ = extract(files, backbone, layer, memory=n_bytes - 1)
    assert torch.equal(spilled.rows, held.rows)
    assert [image.name for image in spilled.images] == [image.name for image in held.images]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("deepff-")]
    mapped = Path("/proc/self/maps").read_text()
    assert mapped.count("activations.f32 (deleted)") == 1
    fitting, _ = extract(files, backbone, layer, memory=n_bytes)
    assert torch.equal(fitting.rows, held.rows)
    assert Path("/proc/self/maps").read_text().count("activations.f32 (deleted)") == 1
