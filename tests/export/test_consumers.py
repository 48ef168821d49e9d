"""Exports read by the programs that people export for, each where it is installed.

They are too large, or hold too tightly to versions of their own, to be installed for every test.
"""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from export_readers import COCO_FILE, NAMES, annotate, difficult_labels, filled, write
from PIL import Image
from planted import result_of

from deepff.export.formats import export
from deepff.export.instances import AnnotatedImage
from deepff.options import ExportOptions, RegionOptions
from deepff.result import Result

SIZE = (48, 64)
HALF = RegionOptions("max-fraction", 0.5, parts={0: "cat", 1: "dog"})

# Where the photographs of a set lie in its folder.
LAYOUTS = {
    "flat": [f"{i}.jpg" for i in range(10)],
    "folders": [f"{folder}/{i}.jpg" for folder in ("a b", "ü") for i in range(5)],
    "images": [f"images/{i}.jpg" for i in range(10)],
    "subsets": [f"{folder}/images/{i}.jpg" for folder in ("train", "valid") for i in range(5)],
    "suffixes": [f"{i}.{suffix}" for i in range(5) for suffix in ("jpg", "png")],
}


def photographed(folder: Path, names: list[str]) -> Result:
    """A result of photographs on disk, each with two cats and a dog."""
    rng = np.random.default_rng(0)
    maps = torch.zeros(len(names), 2, *SIZE)
    maps[:, 0, 4:20, 4:30] = maps[:, 0, 30:44, 36:60] = maps[:, 1, 24:44, 6:24] = 1
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (*SIZE, 3), np.uint8)).save(folder / name)
    return result_of(maps, names, folder)


LOAD = """
import sys
from ultralytics.data.dataset import YOLODataset
from ultralytics.data.utils import check_det_dataset

task, path = sys.argv[1:]
data = check_det_dataset(path, autodownload=False)
for subset in ("train", "val", "test"):
    if not data.get(subset):
        continue
    labels = YOLODataset(data[subset], data=data, task=task, imgsz=64).get_labels()
    count = sum(len(label["cls"]) for label in labels)
    shapes = sum(len(label["segments"]) for label in labels)
    print("found", subset, len(labels), count, shapes)
"""

TRAIN = """
import sys
from ultralytics import YOLO

model = YOLO("yolo11n.yaml")
model.train(
    data=sys.argv[1], epochs=1, imgsz=64, batch=4, device="cpu", workers=0, plots=False, amp=False
)
print("trained")
"""


def by_ultralytics(script: str, *arguments: object, tmp_path: Path) -> str:
    """What a script prints that runs in another working directory than the data's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    environment = {"PATH": "", "HOME": str(elsewhere), "YOLO_CONFIG_DIR": str(elsewhere)}
    environment |= {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    outcome = subprocess.run(
        command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=500
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    return outcome.stdout


def found_by_ultralytics(task: str, path: Path, tmp_path: Path) -> dict[str, list[int]]:
    """By subset the images, instances and polygons that Ultralytics finds."""
    lines = by_ultralytics(LOAD, task, path, tmp_path=tmp_path).splitlines()
    rows = [line.split()[1:] for line in lines if line.startswith("found ")]
    return {subset: list(map(int, counts)) for subset, *counts in rows}


@pytest.mark.slow
@pytest.mark.parametrize("images", ["copy", "link", "none"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ultralytics_finds_all_instances_wherever_photographs_lie(
    tmp_path: Path, layout: str, images: str
) -> None:
    pytest.importorskip("ultralytics")
    if layout == "suffixes" and images == "none":
        pytest.skip("two photographs of one name are told apart by copies and links alone")
    photos, out = tmp_path / "photos", tmp_path / "out put"
    result = photographed(photos, LAYOUTS[layout])
    if images == "none" and layout in ("images", "subsets"):
        out = photos  # the labels go beside the photographs, which stay where they are
    elif images == "none":
        for name in result.names:
            (out / "images" / name).parent.mkdir(parents=True, exist_ok=True)
            (out / "images" / name).write_bytes((photos / name).read_bytes())
    settings = ExportOptions(images=images, split=(70, 20, 10))
    for format, task in (("yolo", "detect"), ("yolo-seg", "segment")):
        written = export(result, format, out, options=HALF, settings=settings)
        assert written.n_instances == 30
        found = found_by_ultralytics(task, out / "data.yaml", tmp_path)
        n_shapes = 3 if task == "segment" else 0
        assert found == {
            subset: [n, 3 * n, n_shapes * n]
            for subset, n in (("train", 7), ("val", 2), ("test", 1))
        }


@pytest.mark.slow
def test_ultralytics_trains_on_an_export_with_the_defaults(tmp_path: Path) -> None:
    pytest.importorskip("ultralytics")
    result = photographed(tmp_path / "photos", LAYOUTS["flat"])
    export(result, "yolo", tmp_path / "out", options=HALF)
    output = by_ultralytics(TRAIN, tmp_path / "out" / "data.yaml", tmp_path=tmp_path)
    assert output.splitlines()[-1] == "trained"


@pytest.fixture
def difficult(tmp_path: Path) -> list[AnnotatedImage]:
    """Masks that formats tend to get wrong, with photographs."""
    images = []
    for image in annotate(difficult_labels(), "components"):
        source = tmp_path / "photos" / image.name
        source.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", image.size[::-1], "grey").save(source)
        images.append(AnnotatedImage(image.name, image.file, image.size, image.instances, source))
    return images


def masks_of(image: AnnotatedImage) -> list[tuple[str, np.ndarray]]:
    return [(NAMES[i.region], i.full_mask(image.size)) for i in image.instances]


def key(pair: tuple[str, np.ndarray]) -> tuple[str, bytes]:
    return pair[0], pair[1].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "name"),
    [("coco", "coco"), ("coco-polygons", "coco"), ("voc", "voc"), ("cvat", "cvat")],
)
def test_datumaro_reads_each_class_and_mask(
    tmp_path: Path, difficult: list[AnnotatedImage], format: str, name: str
) -> None:
    datumaro = pytest.importorskip("datumaro")
    out = tmp_path / "out"
    write(format, difficult, out, images="copy")
    dataset = datumaro.Dataset.import_from(str(out), name)
    labels = [label.name for label in dataset.categories()[datumaro.AnnotationType.label]]
    assert [label for label in labels if label != "background"] == NAMES
    items = {item.id: item for item in dataset}
    assert len(items) == len(difficult)
    for image in difficult:
        found = []
        for annotation in items[image.file].annotations:
            if annotation.type == datumaro.AnnotationType.mask:
                found.append((labels[annotation.label], np.asarray(annotation.image, bool)))
            elif annotation.type == datumaro.AnnotationType.polygon:
                mask = filled([np.array(annotation.points).reshape(-1, 2)], image.size)
                found.append((labels[annotation.label], mask))
        assert sorted(map(key, found)) == sorted(map(key, masks_of(image)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "package", ["label_studio_sdk.converter.brush", "label_studio_converter.brush"]
)
def test_label_studios_converter_decodes_the_masks(
    tmp_path: Path, difficult: list[AnnotatedImage], package: str
) -> None:
    brush = pytest.importorskip(package)
    write("label-studio", difficult, tmp_path / "out")
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text("utf-8"))
    for task, image in zip(tasks, difficult, strict=True):
        [prediction] = task["predictions"]
        found = []
        for result in prediction["result"]:
            rgba = brush.decode_rle(result["value"]["rle"]).reshape(*image.size, 4)
            found.append((result["value"]["brushlabels"][0], rgba[..., 3] == 255))
        assert list(map(key, found)) == list(map(key, masks_of(image)))


@pytest.mark.slow
def test_label_studio_resolves_addresses_below_the_parent_of_the_set(
    tmp_path: Path, difficult: list[AnnotatedImage]
) -> None:
    write("label-studio", difficult, tmp_path / "out")
    for task, image in zip(
        json.loads((tmp_path / "out" / "tasks.json").read_text("utf-8")), difficult, strict=True
    ):
        place = unquote(task["data"]["image"].removeprefix("/data/local-files/?d="))
        assert place == f"photos/{image.name}"
        assert (tmp_path / place).samefile(image.origin)


@pytest.mark.slow
@pytest.mark.parametrize("images", ["none", "link", "copy"])
def test_labelme_opens_the_file_beside_each_photograph(tmp_path: Path, images: str) -> None:
    module = pytest.importorskip("labelme._label_file")
    names = ["a.jpg", "b.jpg", "b.png", "c d/a.jpg", "e.x.jpg"]
    photos = tmp_path / "photos"
    result = photographed(photos, names)
    out = photos if images == "none" else tmp_path / "out"
    export(result, "labelme", out, options=HALF, settings=ExportOptions(images=images))
    found = sorted(
        path.relative_to(out).as_posix()
        for path in out.rglob("*")
        if path.suffix in (".jpg", ".png")
    )
    opened = {}
    for place in found:
        beside = (out / place).with_suffix(".json")
        file = module.read_label_file(str(beside)) if beside.exists() else None
        if file is not None and file.image_path == Path(place).name:
            assert len(file.shapes) == 3
            assert Image.open(out / place).size == SIZE[::-1]
            opened[place] = True
    if images == "none":
        # LabelMe itself opens b.json for both; b.png's own is opened by hand.
        assert sorted(opened) == sorted(set(names) - {"b.png"})
        assert module.read_label_file(str(out / "b.png.json")).image_path == "b.png"
    else:
        assert sorted(opened) == found and len(found) == len(names)


@pytest.mark.slow
def test_supervision_reads_a_split_export_with_its_photographs(tmp_path: Path) -> None:
    supervision = pytest.importorskip("supervision")
    result = photographed(tmp_path / "photos", LAYOUTS["flat"])
    out = tmp_path / "out"
    export(result, "yolo-seg", out, options=HALF)
    export(result, ["coco", "voc"], out, options=HALF, settings=ExportOptions(images="copy"))
    for subset, n in (("train", 8), ("val", 2)):
        dataset = supervision.DetectionDataset.from_yolo(
            str(out / "images" / subset),
            str(out / "labels" / subset),
            str(out / "data.yaml"),
            force_masks=True,
        )
        assert len(dataset) == n and dataset.classes == ["cat", "dog"]
        assert sum(len(found) for _, _, found in dataset) == 3 * n
    dataset = supervision.DetectionDataset.from_coco(
        str(out / "coco" / "images"), str(out / "coco" / COCO_FILE), force_masks=True
    )
    assert sum(len(found) for _, _, found in dataset) == 30
    dataset = supervision.DetectionDataset.from_pascal_voc(
        str(out / "voc" / "JPEGImages"), str(out / "voc" / "Annotations")
    )
    assert sum(len(found) for _, _, found in dataset) == 30
