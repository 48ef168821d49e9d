"""A cache that was damaged, is only read, or whose disk is full; and other files on a full disk."""

import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deepff.activations.activations import FeatureSource, ImageRecord
from deepff.activations.cache import ActivationCache
from deepff.errors import InputError
from deepff.factorization.blocks import RowBlocks
from deepff.runtime.files import reserve_space, save_tensors

CHANNELS, CELLS, N = 8, 6, 10
IMAGE_BYTES = 4 * CELLS * CHANNELS
ZEROS = bytes(IMAGE_BYTES * N // 2)
SOURCE = FeatureSource(
    model="planted",
    weights="none",
    weights_digest="0",
    layer="last",
    channels=CHANNELS,
    stride=32,
    size=64,
    multiple=32,
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    interpolation="bilinear",
    amp=False,
)
IMAGES = [
    ImageRecord(f"{i}.png", Path(f"/{i}.png"), (64, 96), (2, 3), digest=f"digest {i}")
    for i in range(N)
]
ROWS = torch.rand(N, CELLS, CHANNELS, generator=torch.Generator().manual_seed(0)) + 0.1


def filled(folder: Path, images: list[ImageRecord] = IMAGES) -> ActivationCache:
    cache = ActivationCache(folder, SOURCE)
    cache.reserve(images)
    cache.write(images, ROWS[: len(images)])
    return cache


def read_rows(folder: Path, images: list[ImageRecord] = IMAGES) -> torch.Tensor | None:
    blocks = ActivationCache(folder, SOURCE).find(images)
    return None if blocks is None else torch.cat(blocks).view(len(images), CELLS, CHANNELS)


def file_in(folder: Path, name: str) -> Path:
    (path,) = folder.glob(f"*/{name}")
    return path


def state_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def with_one_bit_flipped(data: bytes) -> bytes:
    at = IMAGE_BYTES * 3 + 17
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


ALL, SECOND_HALF = set(range(N)), {5, 6, 7, 8, 9}
# By case: the file, what becomes of its content (None: the file is gone), and whose rows are lost.
DAMAGES = {
    "cut rows": ("activations.f32", lambda data: data[: IMAGE_BYTES * 5 + 100], SECOND_HALF),
    "no rows": ("activations.f32", None, ALL),
    "empty rows": ("activations.f32", lambda data: b"", ALL),
    "half of zeros": ("activations.f32", lambda data: data[: len(data) // 2] + ZEROS, SECOND_HALF),
    "one bit": ("activations.f32", with_one_bit_flipped, {3}),
    "no index": ("index.sqlite", None, ALL),
    "garbled index": ("index.sqlite", lambda data: b"no database" * 1000, ALL),
    "cut index": ("index.sqlite", lambda data: data[:5000], ALL),
    "empty index": ("index.sqlite", lambda data: b"", ALL),
    "no source": ("source.json", None, set()),
}


def damage(folder: Path, case: str) -> set[int]:
    """Damage a cache; returns the images whose rows are lost."""
    name, change, lost = DAMAGES[case]
    file = file_in(folder, name)
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    return lost


@pytest.mark.parametrize("case", DAMAGES)
def test_what_is_damaged_is_not_used_and_is_run_again(tmp_path: Path, case: str) -> None:
    filled(tmp_path)
    lost = damage(tmp_path, case)
    rows = read_rows(tmp_path)
    assert rows is None if lost else torch.equal(rows, ROWS)
    cache = ActivationCache(tmp_path, SOURCE)
    cache.reserve(IMAGES)
    assert {i for i in range(N) if not cache.holds(IMAGES[i])} == lost
    again = [i for i in range(N) if i in lost]
    if again:
        cache.write([IMAGES[i] for i in again], ROWS[again])
    assert torch.equal(torch.cat(cache.blocks(IMAGES)), ROWS.flatten(0, 1))
    assert torch.equal(read_rows(tmp_path), ROWS)


def test_what_is_damaged_elsewhere_does_not_matter(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, "one bit")  # in image 3
    assert torch.equal(read_rows(tmp_path, IMAGES[4:]), ROWS[4:])
    assert read_rows(tmp_path, IMAGES[2:]) is None


def test_a_cache_from_before_checksums_is_written_again(tmp_path: Path) -> None:
    filled(tmp_path)
    with sqlite3.connect(file_in(tmp_path, "index.sqlite")) as index:
        index.execute("ALTER TABLE images DROP COLUMN checksum")
    assert read_rows(tmp_path) is None
    filled(tmp_path)
    assert torch.equal(read_rows(tmp_path), ROWS)


def test_stretched_images_share_no_rows_and_older_caches_keep_their_folder(tmp_path: Path) -> None:
    plain = ActivationCache(tmp_path, SOURCE).folder
    assert plain != ActivationCache(tmp_path, replace(SOURCE, stretch=True)).folder
    assert plain.name == "planted_last_64-178bd41fbb879028"  # as version 0.1 named it
    filled(tmp_path)
    assert "stretch" not in file_in(tmp_path, "source.json").read_text()


def test_an_image_whose_grid_changed_gets_other_rows(tmp_path: Path) -> None:
    filled(tmp_path)
    larger = [replace(IMAGES[0], grid=(4, 3)), *IMAGES[1:]]
    assert read_rows(tmp_path, IMAGES[1:]) is not None
    assert ActivationCache(tmp_path, SOURCE).find(larger) is None
    cache = ActivationCache(tmp_path, SOURCE)
    cache.reserve(larger)
    assert not cache.holds(larger[0]) and all(map(cache.holds, larger[1:]))
    cache.write(larger[:1], torch.ones(1, 12, CHANNELS))
    rows = torch.cat(cache.blocks(larger))
    assert torch.equal(rows[:12], torch.ones(12, CHANNELS))
    assert torch.equal(rows[12:], ROWS[1:].flatten(0, 1))


def test_finding_writes_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert read_rows(cache) is None
    assert not cache.exists()
    filled(cache, IMAGES[:4])
    before = state_of(cache)
    assert torch.equal(read_rows(cache, IMAGES[:4]), ROWS[:4])
    assert read_rows(cache) is None  # six images are not in it, and get no rows
    assert state_of(cache) == before


def test_a_read_only_cache_is_read(
    tmp_path: Path, read_only_at: Callable[[Path, Path], Path]
) -> None:
    filled(tmp_path / "#cache? %20")
    read_only = read_only_at(tmp_path / "#cache? %20", tmp_path / "read only")
    with pytest.raises(OSError, match="Read-only"):
        (read_only / "a").touch()
    assert torch.equal(read_rows(read_only), ROWS)
    with pytest.raises(InputError, match="cannot write to the activation cache"):
        ActivationCache(read_only, SOURCE).reserve(IMAGES)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def one_sentence(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert "\n" not in text and not text.endswith(".")
    return text


def test_a_full_disk_is_told_before_the_network_runs(small_disk: Path) -> None:
    large = [replace(image, grid=(100, 100)) for image in IMAGES]  # 3.2 MB
    with pytest.raises(InputError) as error:
        ActivationCache(small_disk, SOURCE).reserve(large)
    assert "3.2 MB are needed in " in one_sentence(error)
    assert "(no space left on device); make room, or use a folder on another disk" in str(
        error.value
    )
    # What fits still does, and finds the room.
    assert torch.equal(torch.cat(filled(small_disk).blocks(IMAGES)), ROWS.flatten(0, 1))


def test_coefficients_that_are_mapped_have_their_room_first(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the process dies by SIGBUS when it writes to the map."""
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    rows = RowBlocks(torch.ones(200_000, 2), memory=2**20)
    with pytest.raises(InputError) as error:
        rows.coefficients(4)
    assert "3.2 MB are needed in " in one_sentence(error)
    fitting = rows.coefficients(1, value=0.5)
    assert fitting.shape == (200_000, 1) and bool((fitting == 0.5).all())


def test_tensors_on_a_full_disk_leave_what_was_there(small_disk: Path) -> None:
    path = small_disk / "a.safetensors"
    save_tensors({"x": torch.ones(10)}, path)
    before = path.read_bytes()
    with pytest.raises(InputError) as error:
        save_tensors({"x": torch.ones(10**6)}, path)
    assert f"{path} cannot be written (no space left on device); make room" in one_sentence(error)
    assert path.read_bytes() == before
    assert list(small_disk.iterdir()) == [path]


def test_reserving_keeps_what_a_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    with open(path, "r+b") as file:
        reserve_space(file, 1000)
        reserve_space(file, 10)
    assert path.read_bytes() == b"abc" + bytes(997)
    assert path.stat().st_blocks > 0


def test_a_limit_on_the_size_of_files_is_a_sentence_too(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, limits[1]))
    try:
        with open(path, "r+b") as file, pytest.raises(InputError) as error:
            reserve_space(file, 2 * 10**6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "(file too large)" in one_sentence(error)
    assert path.read_bytes() == b"abc"


def test_a_run_on_a_full_disk_is_one_sentence(small_disk: Path, data_root: Path) -> None:
    photos = next((data_root / "icoseg/images").glob("036*1"))
    command = [sys.executable, "-m", "deepff", "discover", str(photos), "--size", "448"]
    folders = ["--cache", str(small_disk / "cache"), "--out", str(small_disk / "out")]
    run = subprocess.run([*command, *folders], capture_output=True, text=True)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert "are needed in " in run.stderr.splitlines()[-1]
    assert np.all([not path.name.startswith(".") for path in small_disk.rglob("*")])
