"""Readers of the export formats, and label maps that formats tend to get wrong."""

import contextlib
import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import yaml
from PIL import Image, ImageDraw
from pyarrow.parquet import read_table
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from scipy import ndimage

from deepff.evaluation.datasets.mask_folders import read_part_names
from deepff.evaluation.datasets.pascal import read_boxes
from deepff.export.formats import FORMATS
from deepff.export.instances import AnnotatedImage, find_instances
from deepff.images.image_files import output_names
from deepff.options import ExportOptions, RegionOptions

HALF = RegionOptions("max-fraction", 0.5)
COCO_FILE = "annotations/instances_default.json"
NAMES = ["Köpfe & <Beine>", "足", "x"]
Annotation = tuple[str, np.ndarray]  # a name and a mask, or a name and a box
ReadBack = dict[str, tuple[tuple[int, int], list[Annotation]]]


def files(folder: Path) -> dict[str, bytes]:
    """The contents of the files in a folder that are not hidden, by name."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def difficult_labels() -> dict[str, np.ndarray]:
    """Label maps, by the image's name, that formats tend to get wrong."""
    hole = np.zeros((20, 31), np.uint8)
    hole[2:18, 3:28] = 1
    hole[5:15, 6:20] = 0
    hole[7:12, 8:15] = 1  # an island in the hole, with a hole of its own that is another part
    hole[9:11, 10:12] = 2
    hole[3, 22] = hole[4, 23] = 0  # two holes that touch at a corner
    pieces = np.zeros((33, 18), np.uint8)
    pieces[1:9, 1:5] = pieces[20:30, 10:17] = 2
    pieces[12, 2] = pieces[13, 3] = 3  # two pixels that touch at a corner
    border = np.zeros((16, 16), np.uint8)
    border[[0, -1]] = border[:, [0, -1]] = 3
    single = np.zeros((9, 40), np.uint8)
    single[8, 39] = 1
    line = np.zeros((11, 7), np.uint8)
    line[3] = 2
    return {
        "ü/hole.jpg": hole,
        "ü/two pieces.jpg": pieces,
        "border.jpg": border,
        "single.jpg": single,
        "line.jpg": line,
        "full.jpg": np.ones((5, 6), np.uint8),
        "empty.jpg": np.zeros((12, 13), np.uint8),
    }


def many_labels() -> dict[str, np.ndarray]:
    """200 small images of blots."""
    rng = np.random.default_rng(0)
    fields = ndimage.gaussian_filter(rng.standard_normal((200, 12, 15)), (0, 1.5, 1.5))
    return {f"many/{i}.jpg": ((field > 0.1) + 2 * (field < -0.2)) for i, field in enumerate(fields)}


def annotate(labels: dict[str, np.ndarray], kind: str) -> Iterator[AnnotatedImage]:
    for name, file in zip(labels, output_names(list(labels)), strict=True):
        found = find_instances(labels[name], kind)
        yield AnnotatedImage(name, file, labels[name].shape, found)


def write(
    format: str, annotated: Iterable[AnnotatedImage], folder: Path, **settings: object
) -> None:
    """Write a format, by default with exact polygons and without photographs."""
    chosen = ExportOptions(**{"simplify": 0, "images": "none", **settings})
    FORMATS[format](annotated, NAMES, folder, chosen)


def read_coco(folder: Path, sizes: dict[str, tuple[int, int]]) -> ReadBack:
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(folder / COCO_FILE)
    content = {}
    for image in coco.loadImgs(coco.getImgIds()):
        found = []
        for entry in coco.loadAnns(coco.getAnnIds(image["id"])):
            mask = coco.annToMask(entry).astype(bool)
            assert entry["iscrowd"] == 0
            assert entry["area"] == mask.sum()
            x, y, width, height = entry["bbox"]
            assert coco_masks.toBbox(coco.annToRLE(entry)).tolist() == [x, y, width, height]
            found.append((coco.cats[entry["category_id"]]["name"], mask))
        content[image["file_name"]] = (image["height"], image["width"]), found
    ids = [entry["id"] for entry in coco.dataset["annotations"]]
    assert ids == list(range(1, len(ids) + 1))
    assert [category["name"] for category in coco.dataset["categories"]] == NAMES
    return content


def read_parquet(folder: Path, sizes: dict[str, tuple[int, int]]) -> ReadBack:
    table = read_table(folder / "instances.parquet")
    assert json.loads(table.schema.metadata[b"categories"]) == NAMES
    content: ReadBack = {}
    for row in table.to_pylist():
        size = row["height"], row["width"]
        found = content.setdefault(row["image"], (size, []))[1]
        if row["category"] is not None:
            mask = coco_masks.decode(row["segmentation"]).astype(bool)
            assert row["area"] == mask.sum()
            assert coco_masks.toBbox(row["segmentation"]).tolist() == row["bbox"]
            found.append((row["category"], mask))
    return content


def yolo_lines(
    folder: Path, sizes: dict[str, tuple[int, int]]
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield image, class and the numbers of each line as points in pixels."""
    names = yaml.safe_load((folder / "data.yaml").read_text("utf-8"))["names"]
    assert list(names.items()) == list(enumerate(NAMES))
    listed = (folder / "train.txt").read_text("utf-8").splitlines() if sizes else []
    assert listed == [f"./images/{image}" for image in sizes]
    for image, (height, width) in sizes.items():
        for line in (folder / "labels" / image).with_suffix(".txt").read_text().splitlines():
            number, *shares = line.split()
            points = np.array(shares, float).reshape(-1, 2)
            assert ((points >= 0) & (points <= 1)).all()
            yield image, names[int(number)], points * (width, height)


def read_yolo(folder: Path, sizes: dict[str, tuple[int, int]]) -> ReadBack:
    content: ReadBack = {image: (size, []) for image, size in sizes.items()}
    for image, name, (center, extent) in yolo_lines(folder, sizes):
        box = np.array([center - extent / 2, center + extent / 2]).ravel()
        assert np.abs(box - box.round()).max() < 2e-6 * max(sizes[image])  # six decimals
        content[image][1].append((name, box.round()))
    return content


def read_yolo_seg(folder: Path, sizes: dict[str, tuple[int, int]]) -> ReadBack:
    content: ReadBack = {image: (size, []) for image, size in sizes.items()}
    for image, name, polygon in yolo_lines(folder, sizes):
        content[image][1].append((name, filled([polygon], sizes[image])))
    return content


def read_labelme(folder: Path, sizes: dict[str, tuple[int, int]]) -> ReadBack:
    content = {}
    for image in sizes:
        file = json.loads((folder / image).with_suffix(".json").read_text("utf-8"))
        assert file["imagePath"] == Path(image).name
        size = file["imageHeight"], file["imageWidth"]
        grouped: dict[object, list[dict]] = {}
        for i, shape in enumerate(file["shapes"]):
            key = ("alone", i) if shape["group_id"] is None else shape["group_id"]
            grouped.setdefault(key, []).append(shape)
        found = []
        for shapes in grouped.values():
            mask = filled([np.array(shape["points"]) for shape in shapes], size)
            found.append((shapes[0]["label"], mask))
            # LabelMe itself fills with Pillow, which paints the pixels that the outline is in too.
            drawn = Image.new("1", size[::-1])
            for shape in shapes:
                points = [tuple(point) for point in shape["points"]]
                ImageDraw.Draw(drawn).polygon(points, outline=1, fill=1)
            assert (mask <= drawn).all()
            assert (drawn <= ndimage.binary_dilation(mask, np.ones((3, 3)))).all()
        content[image] = size, found
    labels = (folder / "labels.txt").read_text("utf-8").splitlines()
    assert labels == ["__ignore__", "_background_", *NAMES]
    return content


def read_label_studio(folder: Path, sizes: dict[str, tuple[int, int]]) -> ReadBack:
    config = ET.parse(folder / "label_config.xml").getroot()
    assert [label.get("value") for label in config.findall("BrushLabels/Label")] == NAMES
    source, control = config.find("Image"), config.find("BrushLabels")
    content = {}
    for task in json.loads((folder / "tasks.json").read_text("utf-8")):
        image = unquote(task["data"]["image"].removeprefix("/data/local-files/?d="))
        # without the folder that a set is served from, which images of no file have not
        image = image if image in sizes else image.partition("/")[2]
        found = []
        [prediction] = task["predictions"]
        for result in prediction["result"]:
            assert (result["to_name"], result["from_name"]) == (
                source.get("name"),
                control.get("name"),
            )
            size = result["original_height"], result["original_width"]
            assert size == sizes[image]
            rgba = decode_brush(result["value"]["rle"]).reshape(*size, 4)
            assert (rgba == rgba[..., :1]).all()
            found.append((result["value"]["brushlabels"][0], rgba[..., 3] == 255))
        ids = [result["id"] for result in prediction["result"]]
        assert len(set(ids)) == len(ids)
        content[image] = sizes[image], found
    return content


def decode_brush(data: list[int]) -> np.ndarray:
    """Decode what @thi.ng/rle-pack packs, literal runs too, which the encoder here never makes."""
    bits = "".join(f"{byte:08b}" for byte in data)
    position = 0

    def read(width: int) -> int:
        nonlocal position
        position += width
        return int(bits[position - width : position], 2)

    size, word = read(32), read(5) + 1
    widths = [read(4) + 1 for _ in range(4)]
    values: list[int] = []
    while len(values) < size:
        repeated = read(1)
        length = read(widths[read(2)]) + 1
        values += [read(word)] * length if repeated else [read(word) for _ in range(length)]
    assert len(values) == size
    assert len(bits) - position < 8
    return np.array(values, np.uint8)


def read_cvat(folder: Path, sizes: dict[str, tuple[int, int]]) -> ReadBack:
    root = ET.parse(folder / "annotations.xml").getroot()
    assert root.findtext("version") == "1.1"
    assert [element.text for element in root.findall("meta/task/labels/label/name")] == NAMES
    assert [label["name"] for label in json.loads((folder / "labels.json").read_text())] == NAMES
    content = {}
    for number, image in enumerate(root.findall("image")):
        assert image.get("id") == str(number)
        size = int(image.get("height")), int(image.get("width"))
        found = []
        for element in image.findall("mask"):
            left, top, width, height = (
                int(element.get(key)) for key in ("left", "top", "width", "height")
            )
            crop = np.zeros(width * height, bool)
            start, value = 0, False
            for run in map(int, element.get("rle").split(",")):
                crop[start : start + run] = value
                start, value = start + run, not value
            assert start == crop.size
            mask = np.zeros(size, bool)
            mask[top : top + height, left : left + width] = crop.reshape(height, width)
            found.append((element.get("label"), mask))
        content[image.get("name")] = size, found
    return content


def read_voc(folder: Path, sizes: dict[str, tuple[int, int]]) -> ReadBack:
    names = read_part_names(folder / "labels.txt")
    assert list(names) == NAMES
    content = {}
    for image in sizes:
        stem = str(Path(image).with_suffix(""))
        xml = ET.parse(folder / "Annotations" / f"{stem}.xml").getroot()
        size = int(xml.findtext("size/height")), int(xml.findtext("size/width"))
        classes, objects = (
            np.asarray(Image.open(folder / kind / f"{stem}.png"))
            for kind in ("SegmentationClass", "SegmentationObject")
        )
        found = []
        boxes = read_boxes(folder / "Annotations" / f"{stem}.xml")
        for number, box in enumerate(boxes, 1):
            mask = objects == number
            assert (classes[mask] == names.index(box.class_name) + 1).all()
            assert box.coordinates == box_of(mask)
            found.append((box.class_name, mask))
        assert (classes > 0).sum() == (objects > 0).sum() == sum(mask.sum() for _, mask in found)
        content[xml.findtext("filename")] = size, found
    for kind in ("Main", "Segmentation"):
        listed = (folder / "ImageSets" / kind / "trainval.txt").read_text("utf-8").splitlines()
        assert listed == [str(Path(image).with_suffix("")) for image in sizes]
    return content


def read_png(folder: Path, sizes: dict[str, tuple[int, int]]) -> ReadBack:
    assert list(read_part_names(folder / "labels.txt")) == NAMES
    content = {}
    for image in sizes:
        labels = np.asarray(Image.open((folder / image).with_suffix(".png")))
        found = [(name, labels == i) for i, name in enumerate(NAMES, 1) if (labels == i).any()]
        content[image] = labels.shape, found
    return content


READERS: dict[str, Callable[[Path, dict[str, tuple[int, int]]], ReadBack]] = {
    "coco": read_coco,
    "coco-polygons": read_coco,
    "parquet": read_parquet,
    "yolo": read_yolo,
    "yolo-seg": read_yolo_seg,
    "voc": read_voc,
    "labelme": read_labelme,
    "label-studio": read_label_studio,
    "cvat": read_cvat,
    "png": read_png,
}


def filled(polygons: list[np.ndarray], size: tuple[int, int]) -> np.ndarray:
    """Polygons filled by pycocotools."""
    encoded = coco_masks.frPyObjects([polygon.ravel().tolist() for polygon in polygons], *size)
    return coco_masks.decode(coco_masks.merge(encoded)).astype(bool)


def box_of(mask: np.ndarray) -> tuple[int, int, int, int]:
    rows, columns = np.nonzero(mask)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def check(format: str, folder: Path, images: list[AnnotatedImage]) -> None:
    """Read a folder back and compare it with what was exported, in order."""
    read = READERS[format](folder, {image.name: image.size for image in images})
    assert list(read) == [image.name for image in images]
    for image in images:
        size, found = read[image.name]
        assert size == image.size
        expected = [(NAMES[i.region], i.full_mask(image.size)) for i in image.instances]
        if format == "png":  # which has no instances
            names = dict.fromkeys(name for name, _ in expected)
            expected = [
                (name, np.any([mask for other, mask in expected if other == name], axis=0))
                for name in names
            ]
        if format == "yolo":
            expected = [(name, np.array(box_of(mask))) for name, mask in expected]
        assert [name for name, _ in found] == [name for name, _ in expected]
        for (_, actual), (_, wanted) in zip(found, expected, strict=True):
            assert (actual == wanted).all()
