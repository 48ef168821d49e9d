"""Whole runs over images that are no files of a folder."""

import io
import shutil
import tarfile
import weakref
import zipfile
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_masks
from skimage import data
from torch import nn
from typer.testing import CliRunner

import deepff
from deepff.cli.main import app
from deepff.export.folder import segment
from deepff.export.instances import annotated_images, found_maps
from deepff.images.image_files import find_images
from deepff.images.image_set import read_pixels
from deepff.networks.backbone import Backbone

PHOTOS = {"cats/a.png": data.chelsea(), "b.png": data.astronaut(), "c.png": data.coffee()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    for name, pixels in PHOTOS.items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    (tmp_path / "photos" / "d.png").write_bytes(b"no image")
    return tmp_path / "photos"


def test_a_run_over_a_zip_is_that_over_its_folder(
    folder: Path, backbone: Backbone, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in folder.rglob("*.png"):
            archive.write(path, path.relative_to(folder))
    expected = deepff.discover(folder, 2, model=backbone, size=160)
    found = deepff.discover(tmp_path / "photos.zip", 2, model=backbone, size=160)
    assert np.array_equal(found.coefficients, expected.coefficients)
    assert [(x.name, x.reason) for x in found.skipped] == [
        ("d.png", "not an image in a format that is read")
    ]
    found.save(tmp_path / "result")

    again = deepff.load(tmp_path / "result")
    assert again.names == ["b.png", "c.png", "cats/a.png"]
    assert np.array_equal(again.images[2].read(), PHOTOS["cats/a.png"])
    again.export("coco", tmp_path / "coco")
    copied = tmp_path / "coco" / "images" / "cats" / "a.png"
    assert copied.read_bytes() == (folder / "cats" / "a.png").read_bytes()
    again.export("yolo", tmp_path / "yolo", images="link")  # a link into the cache would break
    assert not any(path.is_symlink() for path in (tmp_path / "yolo").rglob("*.png"))


def stored(kind: str, folder: Path) -> str:
    """What to pass for a folder of images that is put into another kind of source."""
    files, path = sorted(folder.iterdir()), folder.with_suffix(f".{kind}")
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file in files:
                archive.write(file, file.name)
    elif kind in ("tar", "tgz", "shard.tar"):
        with tarfile.open(path, "w:gz" if kind == "tgz" else "w") as archive:
            for file in files:
                archive.add(file, file.name)
                if kind == "shard.tar":  # WebDataset's
                    archive.addfile(tarfile.TarInfo(f"{file.stem}.cls"), io.BytesIO())
    elif kind == "memory":
        fsspec.filesystem("memory").put(str(folder), f"/{(name := uuid4().hex)}", recursive=True)
        return f"memory://{name}"
    return str(path if path.exists() else folder)


SETS = st.lists(st.tuples(st.integers(16, 48), st.integers(16, 48)), min_size=1, max_size=3)
KINDS = st.sampled_from(["folder", "zip", "tar", "tgz", "shard.tar", "memory"])


@given(st.lists(st.tuples(KINDS, SETS), min_size=1, max_size=4))
@settings(max_examples=12, deadline=None)
def test_any_mixture_of_sources_gives_the_bits_of_folders(
    parts: list[tuple[str, list[tuple[int, int]]]],
) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU())

    def coefficients(images: object) -> np.ndarray:
        found = deepff.discover(images, 2, model=network, layer="1", size=32)
        return np.asarray(found.coefficients)

    random = np.random.default_rng(0)
    with TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_HOME", f"{temporary}/cache")
        sources, folders, files = [], [], []
        for number, (kind, sizes) in enumerate(parts):
            folders.append(Path(temporary, f"set{number}"))
            folders[-1].mkdir()
            for index, size in enumerate(sizes):
                files.append(folders[-1] / f"{index}.png")
                Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)).save(files[-1])
            sources.append(stored(kind, folders[-1]))
        expected = coefficients(folders)
        assert np.array_equal(coefficients(sources), expected)
        pixels = [np.asarray(Image.open(file)) for file in files]
        assert np.array_equal(coefficients(iter(pixels)), expected)
        table = pytest.importorskip("datasets").Dataset.from_dict({"image": list(map(str, files))})
        table = table.cast_column("image", pytest.importorskip("datasets").Image())
        assert np.array_equal(coefficients(table), expected)


def test_a_result_keeps_no_password(
    folder: Path, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fsspec.filesystem("memory")
    system.put(str(folder), "/me:word@host", recursive=True)
    found = deepff.discover("memory://me:word@host", 2, model=backbone, size=160)
    assert found.names == ["b.png", "c.png", "cats/a.png"]
    found.save(tmp_path / "result")
    written = [path.read_bytes() for path in (tmp_path / "result").rglob("*.*") if path.is_file()]
    assert not any(b"word@" in content for content in written)
    assert any(b"memory://host/b.png" in content for content in written)


def test_segment_writes_a_video_with_the_masks_on_it(
    folder: Path, backbone: Backbone, tmp_path: Path
) -> None:
    av = pytest.importorskip("av")
    times = [0, 100, 400]  # milliseconds
    with av.open(str(tmp_path / "clip.mp4"), "w") as container:
        stream = container.add_stream("h264")
        stream.width, stream.height, stream.pix_fmt = 200, 150, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for time in times:
            shown = Image.fromarray(PHOTOS["cats/a.png"]).resize((200, 150))
            frame = av.VideoFrame.from_image(shown)
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    result = deepff.discover(tmp_path / "clip.mp4", 2, model=backbone, size=160)
    assert result.names == ["clip 00:00.00", "clip 00:00.10", "clip 00:00.40"]
    result.save(tmp_path / "result")
    out = segment(deepff.load(tmp_path / "result"), tmp_path / "result")

    frames = find_images(out / "clip.mp4")
    assert [frame.name for frame in frames] == result.names
    photo = read_pixels(result.images[2].origin)
    labels = np.asarray(Image.open(out / "labels" / "clip 00:00.40.png"))
    painted = read_pixels(frames[2].path).astype(int)
    far = np.abs(painted - photo).max(2) > 24
    assert far[labels > 0].mean() > 0.9 > 0.05 > far[labels == 0].mean()


def test_each_archive_has_a_result_and_a_rerun_continues(
    folder: Path, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deepff.discover(folder, 2, model=backbone, size=160).bank.save(tmp_path / "bank.safetensors")
    for number in range(3):
        with zipfile.ZipFile(tmp_path / f"shard-{number}.zip", "w") as archive:
            for path in sorted(folder.rglob("*.png"))[number:]:
                archive.write(path, path.name)
    good = (tmp_path / "shard-2.zip").read_bytes()
    (tmp_path / "shard-2.zip").write_bytes(good[:1000])
    shards, out = str(tmp_path / "shard-{0..2}.zip"), tmp_path / "out"
    command = ["apply", str(tmp_path / "bank.safetensors"), shards, "--each", "--out", str(out)]

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert CliRunner().invoke(app, command).exit_code == 0
    assert [path.name for path in out.iterdir()] == ["shard-1"]
    written = (out / "shard-1" / "manifest.json").stat().st_mtime_ns
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 2 and "left out, and a rerun tries them again: shard-2" in run.output
    (tmp_path / "shard-2.zip").write_bytes(good)
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (out / "shard-1" / "manifest.json").stat().st_mtime_ns == written

    for number in range(3):
        expected = deepff.apply(tmp_path / "bank.safetensors", tmp_path / f"shard-{number}.zip")
        found = deepff.load(out / f"shard-{number}")
        assert found.names == expected.names
        assert torch.equal(found.coefficients, expected.coefficients)
    segment(found, out / "shard-2")  # which makes no report without pictures
    assert not (out / "shard-2" / "report.html").exists()


def test_each_archive_has_its_masks_in_parquet_and_frees_what_it_took(
    folder: Path, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = deepff.discover(folder, 2, model=backbone, size=160).bank
    bank.save(tmp_path / "bank.safetensors")
    with zipfile.ZipFile(tmp_path / "2.zip", "w") as archive:
        archive.write(folder / "c.png", "grün.png")
    shutil.copytree(folder, tmp_path / "1")
    out = tmp_path / "out"
    earlier: list[weakref.ref[deepff.Result]] = []

    def apply_and_look(*args: object, **settings: object) -> deepff.Result:
        assert all(result() is None for result in earlier)
        result = deepff.apply(*args, **settings)
        earlier.append(weakref.ref(result))
        return result

    monkeypatch.setattr("deepff.discovery.apply.apply", apply_and_look)
    command = ["apply", f"{tmp_path}/bank.safetensors", f"{tmp_path}/1", f"{tmp_path}/2.zip"]
    command += ["--each", "--out", str(out)]
    assert CliRunner().invoke(app, command).exit_code == 0
    without = CliRunner().invoke(app, [*command[:-3], "--format", "parquet"])
    assert without.exit_code == 2 and "--format works only with --each" in without.output
    # A rerun that also exports runs no network.
    run = CliRunner().invoke(app, [*command, "--format", "parquet"])
    assert run.exit_code == 0, run.output
    assert len(earlier) == 2

    files = [out / name / "export" / "parquet" / "instances.parquet" for name in "12"]
    table = pytest.importorskip("datasets").load_dataset(
        "parquet", data_files=list(map(str, files)), split="train", cache_dir=str(tmp_path / "hf")
    )
    result = deepff.apply(bank, [folder / "b.png", folder / "c.png", folder / "cats" / "a.png"])
    expected = {
        image.name: image.instances for image in annotated_images(result, found_maps(result))
    }
    expected["grün.png"] = expected["c.png"]
    assert sorted(expected) == sorted(set(table["image"]))
    for name, instances in expected.items():
        rows = [row for row in table if row["image"] == name]
        assert [row["category"] for row in rows] == [f"factor {x.region}" for x in instances]
        for row, instance in zip(rows, instances, strict=True):
            mask = instance.full_mask((row["height"], row["width"]))
            assert (coco_masks.decode(row["segmentation"]) == mask).all()
            x, y, width, height = row["bbox"]
            assert (x, y, x + width, y + height) == instance.box
