"""Photographs and classes with awkward names, as the readers of each format find them."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest
import torch
import yaml
from export_readers import COCO_FILE
from PIL import Image
from planted import result_of
from torchvision.datasets import CocoDetection, VOCDetection, VOCSegmentation

from deepff.export.formats import export
from deepff.export.voc import write_voc
from deepff.export.yolo import labels_of
from deepff.options import ExportOptions, RegionOptions
from deepff.result import Result

SIZE = (24, 32)
CLASSES = ['cat, "big"', "a:b", "#dög & <x>"]
OPTIONS = RegionOptions("max-fraction", 0.5, parts=dict(enumerate(CLASSES)))
NAMES = [
    *("image1.jpg", "image1.png", "IMAGE1.bmp", "IMG_2.JPG", "ü/Köpfe 足.jpg", "images/c.jpg"),
    *('it\'s "q", a.jpeg', f"{'x' * 246}.jpg", "a\\b.jpg", "a\nb.jpg", "#1.jpg", " lead .jpg"),
    *("v1.2.rgb.png", "turned.jpg", "mirrored.png", "d.gif", "e.webp", "100%.tif", "no suffix"),
]
ORIENTATION = {"turned.jpg": 6, "mirrored.png": 2}
PHOTOS = ("coco", "coco-polygons", "yolo", "yolo-seg", "voc", "labelme", "cvat")


def awkward(folder: Path) -> Result:
    """A result of photographs that are red at the top left, each with one instance a class."""
    maps = torch.zeros(len(NAMES), 3, *SIZE)
    maps[:, 0, :8, :8] = maps[:, 1, 10:20, 10:20] = maps[:, 2, 12:22, 22:30] = 1
    pixels = np.full((*SIZE, 3), 90, np.uint8)
    pixels[:8, :8] = 250, 0, 0
    upright = Image.fromarray(pixels)
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        exif, stored = Image.Exif(), upright
        if name in ORIENTATION:
            exif[0x0112] = ORIENTATION[name]
            turn = Image.Transpose.FLIP_LEFT_RIGHT if name == "mirrored.png" else Image.Transpose(2)
            stored = upright.transpose(turn)
        stored.save(folder / name, None if "." in name else "PNG", exif=exif)
    return result_of(maps, NAMES, folder)


def photographs(format: str, out: Path) -> list[Path]:
    """The photographs of an export, as the program that reads the format finds them."""
    if format.startswith("coco"):
        entries = json.loads((out / COCO_FILE).read_text("utf-8"))["images"]
        return [out / "images" / entry["file_name"] for entry in entries]
    if format.startswith("yolo"):
        data = yaml.safe_load((out / "data.yaml").read_text("utf-8"))
        assert data["names"] == dict(enumerate(CLASSES))
        paths = [path for subset in ("train", "val") for path in (out / data[subset]).rglob("*.*")]
        for path in paths:
            labels = (out / labels_of(path.relative_to(out).as_posix())).read_text()
            assert [line.split()[0] for line in labels.splitlines()] == ["0", "1", "2"]
        return paths
    if format == "cvat":
        root = ET.parse(out / "annotations.xml").getroot()
        return [out / "images" / image.get("name") for image in root.findall("image")]
    if format == "labelme":
        found = []
        for path in out.rglob("*.json"):
            image_path = json.loads(path.read_text("utf-8"))["imagePath"]
            # As LabelMe reads it; and it opens the file that has the photograph's name.
            found.append(path.parent / PureWindowsPath(image_path).as_posix())
            assert found[-1].with_suffix(".json") == path
        return found
    stems = (out / "ImageSets/Main/trainval.txt").read_text("utf-8").splitlines()
    for stem in stems:
        named = ET.parse(out / "Annotations" / f"{stem}.xml").findtext("filename")
        assert named == f"{stem}.jpg"
    return [out / "JPEGImages" / f"{stem}.jpg" for stem in stems]


@pytest.mark.parametrize("images", ["copy", "link"])
def test_each_photograph_is_found_alone_of_its_stem_and_upright(
    tmp_path: Path, images: str
) -> None:
    result, out = awkward(tmp_path / "photos"), tmp_path / "out"
    settings = ExportOptions(images=images)
    assert export(result, PHOTOS, out, options=OPTIONS, settings=settings).n_instances == 57
    for format in PHOTOS:
        paths = photographs(format, out / format)
        stems = {path.with_suffix("").as_posix().casefold() for path in paths}
        assert len(stems) == len(paths) == len(NAMES)
        for path in paths:
            assert path.suffix in (".jpg", ".png", ".bmp", ".tif", ".webp")
            with Image.open(path) as photo:  # which does not turn it
                assert photo.size == SIZE[::-1]
                red, green, _ = photo.convert("RGB").getpixel((3, 3))
                assert red > 200 and green < 60


def test_torchvision_reads_an_export_as_it_is_written(tmp_path: Path) -> None:
    result, root = awkward(tmp_path / "photos"), tmp_path / "VOCdevkit" / "VOC2012"
    export(result, "voc", root, options=OPTIONS)
    objects = [
        target["annotation"]["object"] for _, target in VOCDetection(tmp_path, "2012", "val")
    ]
    names = ['cat, "big"', "a_b", "_dög & <x>"]
    assert [[one["name"] for one in of_image] for of_image in objects] == [names] * 4
    assert len(VOCSegmentation(tmp_path, "2012", "train")) == 15
    lines = (root / "labelmap.txt").read_text("utf-8").splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == ["background", *names]
    split = ExportOptions(split=(70, 20, 10))
    export(result, "coco", tmp_path / "coco", options=OPTIONS, settings=split)
    counts = {}
    for path in (tmp_path / "coco" / "annotations").iterdir():
        counts[path.stem] = len(CocoDetection(tmp_path / "coco" / "images", path))
        assert all(len(found) == 3 for _, found in CocoDetection(tmp_path / "coco/images", path))
    assert counts == {"instances_train": 13, "instances_val": 4, "instances_test": 2}


def test_names_that_are_made_equal_for_a_label_map_stay_apart(tmp_path: Path) -> None:
    write_voc([], ["a:b", "a_b", "#a", "_a"], tmp_path, ExportOptions())
    assert (tmp_path / "labels.txt").read_text().split() == [
        "background",
        "a_b_",
        "a_b",
        "_a_",
        "_a",
    ]


def test_without_photographs_the_users_own_files_are_named(tmp_path: Path) -> None:
    result, out = awkward(tmp_path / "photos"), tmp_path / "out"
    export(result, ["coco", "cvat"], out, options=OPTIONS, settings=ExportOptions(images="none"))
    entries = json.loads((out / "coco" / COCO_FILE).read_text("utf-8"))["images"]
    assert [entry["file_name"] for entry in entries] == NAMES
    assert not (out / "coco" / "images").exists() and not (out / "cvat" / "images").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "name"),
    [("coco", "coco"), ("coco-polygons", "coco"), ("voc", "voc"), ("cvat", "cvat")],
)
def test_datumaro_reads_an_export_as_it_is_written(tmp_path: Path, format: str, name: str) -> None:
    datumaro = pytest.importorskip("datumaro")
    result, out = awkward(tmp_path / "photos"), tmp_path / "out"
    settings = ExportOptions(images="copy" if format == "cvat" else None)
    export(result, format, out, options=OPTIONS, settings=settings)
    dataset = datumaro.Dataset.import_from(str(out), name)
    items = [item for item in dataset if item.subset != "trainval"]
    assert len(items) == len(NAMES)
    for item in items:
        assert item.media.data.shape[:2] == SIZE
        boxes = [one for one in item.annotations if one.type == datumaro.AnnotationType.bbox]
        assert len(boxes) == (0 if format == "cvat" else 3)


@pytest.mark.slow
def test_labelme_opens_an_export_as_it_is_written(tmp_path: Path) -> None:
    module = pytest.importorskip("labelme._label_file")
    result, out = awkward(tmp_path / "photos"), tmp_path / "out"
    export(result, "labelme", out, options=OPTIONS, settings=ExportOptions(images="link"))
    files = [module.read_label_file(str(path)) for path in out.rglob("*.json")]
    assert [len(file.shapes) for file in files] == [3] * len(NAMES)
