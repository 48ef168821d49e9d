"""Where exports put photographs, labels and lists, and how far polygons are simplified."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from export_readers import (
    COCO_FILE,
    HALF,
    annotate,
    difficult_labels,
    files,
    filled,
    many_labels,
    write,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image
from planted import result_of

from deepff.errors import InputError
from deepff.export.formats import export
from deepff.export.instances import find_instances, subsets
from deepff.export.polygons import enclosed_area, instance_polygons
from deepff.export.yolo import labels_of
from deepff.images.image_set import ImageItem
from deepff.options import ExportFormat, ExportOptions, RegionOptions, parsed_split
from deepff.result import Result


def photographed(folder: Path, names: list[str], write: bool = True) -> Result:
    maps = torch.zeros(len(names), 1, 6, 8)
    maps[:, 0, :3, :4] = 1
    for name in names if write else ():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(folder / name)
    return result_of(maps, names, folder)


@pytest.mark.parametrize(
    ("photo", "labels"),
    [
        ("images/a.jpg", "labels/a.txt"),
        ("images/train/b c/a.x.jpg", "labels/train/b c/a.x.txt"),
        ("train/images/a.jpg", "train/labels/a.txt"),
        ("images/train/images/a.jpg", "images/train/labels/a.txt"),
    ],
)
def test_labels_are_where_ultralytics_looks_for_them(photo: str, labels: str) -> None:
    assert labels_of(photo) == labels


@pytest.mark.parametrize("images", ["copy", "link", None])
def test_yolo_has_each_photograph_in_its_subset_and_no_path(
    tmp_path: Path, images: str | None
) -> None:
    names = [f"train/images/{i}.jpg" for i in range(4)] + ["a.jpg", "a.png"]
    result = photographed(tmp_path / "photos", names)
    out = tmp_path / "out"
    export(
        result, "yolo", out, options=HALF, settings=ExportOptions(images=images, split=(4, 1, 1))
    )
    content = yaml.safe_load((out / "data.yaml").read_text("utf-8"))
    assert content == {
        **{subset: f"images/{subset}" for subset in ("train", "val", "test")},
        "names": {0: "object"},
    }
    written = set(files(out)) - {"data.yaml"}
    photos = {name for name in written if name.startswith("images/")}
    assert len(photos) == 6 and written - photos == {labels_of(name) for name in photos}
    assert len({name for name in photos if name.startswith("images/train/")}) == 4
    for name in photos:
        assert (out / name).is_symlink() == (images != "copy")
        assert Image.open(out / name).size == (8, 6)


@pytest.mark.parametrize("images", ["copy", "link"])
def test_yolo_has_photographs_that_ultralytics_takes(tmp_path: Path, images: str) -> None:
    """By their suffix and by what they hold; `verify_image` of Ultralytics asks for both."""
    photos = tmp_path / "photos"
    photos.mkdir()
    # The format of each, and the suffix that it has in the export.
    formats = {
        "a.JPG": ("JPEG", ".jpg"),
        "b.jfif": ("JPEG", ".jpg"),
        "c.png": ("JPEG", ".jpg"),
        "d.bmp": ("BMP", ".bmp"),
        "e.tiff": ("TIFF", ".tif"),
        "f.webp": ("WEBP", ".webp"),
        "g": ("PNG", ".png"),
        "h.gif": ("GIF", ".png"),
        "i.jpg": ("GIF", ".png"),
        "j.ppm": ("PPM", ".png"),
        "k.jp2": ("JPEG2000", ".png"),
    }
    made = Image.new("RGB", (8, 6), (200, 40, 40))
    for name, (format, _) in formats.items():
        made.save(photos / name, format)
    result = photographed(photos, list(formats), write=False)
    settings = ExportOptions(images=images, split=(100, 0, 0))
    export(result, "yolo", tmp_path / "out", options=HALF, settings=settings)
    for name, (format, suffix) in formats.items():
        stem = name.partition(".")[0]
        (path,) = (tmp_path / "out" / "images" / "train").glob(f"{stem}.*")
        assert path.name == stem + suffix
        assert (tmp_path / "out" / "labels" / "train" / f"{stem}.txt").is_file()
        taken = format not in ("GIF", "PPM", "JPEG2000")
        assert path.is_symlink() == (taken and images == "link")
        with Image.open(path) as shown, Image.open(photos / name) as photo:
            assert shown.format == (format if taken else "PNG")
            assert shown.convert("RGB").tobytes() == photo.convert("RGB").tobytes()


def test_yolo_without_photographs_fits_those_that_are_there(tmp_path: Path) -> None:
    result = photographed(tmp_path, [f"{i}/images/x.jpg" for i in range(5)])
    export(result, "yolo", tmp_path, options=HALF, settings=ExportOptions(images="none"))
    assert {f"{i}/labels/x.txt" for i in range(5)} <= set(files(tmp_path))
    listed = {
        line.removeprefix("./")
        for subset in ("train", "val")
        for line in (tmp_path / f"{subset}.txt").read_text().splitlines()
    }
    assert listed == {f"{i}/images/x.jpg" for i in range(5)}


def test_photographs_that_are_gone_are_named_before_anything_is_written(tmp_path: Path) -> None:
    result = photographed(tmp_path / "photos", ["a.jpg", "b.jpg"])
    (tmp_path / "photos" / "b.jpg").unlink()
    with pytest.raises(InputError, match=r"b\.jpg can no longer be used .*--images none"):
        export(result, "yolo", tmp_path / "out", options=HALF)
    (tmp_path / "photos" / "b.jpg").write_bytes(b"GIF89a")
    with pytest.raises(InputError, match=r"photograph b\.jpg can no longer be used .damaged"):
        export(result, "yolo", tmp_path / "out", options=HALF)
    assert not (tmp_path / "out").exists()
    export(result, "yolo", tmp_path / "out", options=HALF, settings=ExportOptions(images="none"))


def test_voc_lists_its_subsets_and_maps_its_labels(tmp_path: Path) -> None:
    result = photographed(tmp_path / "photos", [f"{i}.jpg" for i in range(10)])
    settings = ExportOptions(split=(80, 10, 10), images="copy")
    options = RegionOptions("max-fraction", 0.5, parts={0: "a:b"})
    export(result, "voc", tmp_path / "out", options=options, settings=settings)
    for kind in ("Main", "Segmentation"):
        lists = {
            path.stem: path.read_text().split()
            for path in (tmp_path / "out" / "ImageSets" / kind).iterdir()
        }
        assert {name: len(files) for name, files in lists.items()} == {
            **{"train": 8, "val": 1, "trainval": 9, "test": 1}
        }
        assert sorted(lists["train"] + lists["val"]) == sorted(lists["trainval"])
        assert {*lists["trainval"], *lists["test"]} == {str(i) for i in range(10)}
    assert (tmp_path / "out" / "labelmap.txt").read_text("utf-8").splitlines() == [
        "# label:color_rgb:parts:actions",
        "background:0,0,0::",
        "a_b:128,0,0::",
    ]
    assert {f"JPEGImages/{i}.jpg" for i in range(10)} <= set(files(tmp_path / "out"))


def test_labelme_has_the_name_that_it_looks_for(tmp_path: Path) -> None:
    names = ["a.jpg", "b.jpg", "b.png", "B.tif", f"{'x' * 220}.jpg"]
    result = photographed(tmp_path / "photos", names)
    export(result, "labelme", tmp_path / "none", options=HALF)
    written = set(files(tmp_path / "none")) - {"labels.txt"}
    assert written == {"a.json", "b.json", "b.png.json", "B.tif.json", f"{'x' * 220}.json"}
    named = {
        json.loads((tmp_path / "none" / name).read_text("utf-8"))["imagePath"] for name in written
    }
    assert named == set(names)
    export(result, "labelme", tmp_path / "out", options=HALF, settings=ExportOptions(images="link"))
    written = files(tmp_path / "out")
    for name in written:
        if name.endswith(".json"):
            photo = json.loads(written[name])["imagePath"]
            assert Path(photo).with_suffix(".json").name == name
            assert photo in written


def test_label_studio_addresses_begin_with_the_sets_folder(tmp_path: Path) -> None:
    result = photographed(tmp_path / "my photos", ["ü/a&b.jpg", "c.jpg"])
    export(result, "label-studio", tmp_path / "out", options=HALF)
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text("utf-8"))
    assert [task["data"]["image"] for task in tasks] == [
        "/data/local-files/?d=my%20photos/%C3%BC/a%26b.jpg",
        "/data/local-files/?d=my%20photos/c.jpg",
    ]


def test_cvat_has_its_photographs_on_request(tmp_path: Path) -> None:
    result = photographed(tmp_path / "photos", ["a/b.jpg"])
    export(result, "cvat", tmp_path / "out", options=HALF, settings=ExportOptions(images="link"))
    assert set(files(tmp_path / "out")) == {"annotations.xml", "labels.json", "images/a/b.jpg"}


SPLITS = ["80/10/10", "33.3/33.3/33.4", "80/20", "100/0"]


@given(st.integers(1, 60), st.integers(0, 5), st.sampled_from(SPLITS))
def test_a_split_has_its_shares_by_seed_alone(n: int, seed: int, text: str) -> None:
    names = {f"{i}.jpg": str(i) for i in range(n)}
    split = parsed_split(text)
    drawn = subsets(names, split, seed)
    assert drawn == subsets(dict(reversed(names.items())), split, seed)
    counts = [list(drawn.values()).count(subset) for subset in ("train", "val", "test")]
    assert sum(counts) == n and counts[0] > 0
    for count, share in zip(counts, split, strict=True):
        assert abs(count - n * share / sum(split)) <= 1.5
        assert count == 0 or share > 0
        assert count > 0 or share == 0 or n < 3
    assert n < 8 or len({repr(sorted(subsets(names, (1, 1, 1), s).items())) for s in range(9)}) > 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(0, 5))
def test_copies_are_in_one_subset_of_a_split(contents: list[int], seed: int) -> None:
    by_name = {f"{i}.jpg": str(content) for i, content in enumerate(contents)}
    drawn = subsets(by_name, (50, 30, 20), seed)
    assert list(drawn) == list(by_name)
    assert len({(by_name[name], subset) for name, subset in drawn.items()}) == len(set(contents))


@pytest.mark.parametrize(("format", "warns"), [("yolo", True), ("voc", True), ("coco", False)])
def test_copies_are_named_where_a_split_is_written(
    tmp_path: Path, format: str, warns: bool, recwarn: pytest.WarningsRecorder
) -> None:
    result = photographed(tmp_path / "photos", ["a.jpg", "b.jpg", "c.jpg"])
    digests = ["1", "2", "1"]
    result.images[:] = [
        replace(image, digest=digest) for image, digest in zip(result.images, digests, strict=True)
    ]
    settings = ExportOptions(images="none")
    export(result, format, tmp_path / "out", options=HALF, settings=settings)
    assert [str(w.message)[:40] for w in recwarn] == [
        "1 of the 3 images are copies of others: "
    ] * warns


def test_images_that_are_no_files_become_pngs_where_formats_want_them(tmp_path: Path) -> None:
    result = photographed(tmp_path, ["a.png", "b.png"])
    items = [np.full((6, 8, 3), value, np.uint8) for value in (10, 20)]
    result.images = [
        replace(image, name=image.name[0], origin=ImageItem(items, i, image.name[0]))
        for i, image in enumerate(result.images)
    ]
    for images in ("copy", "link"):
        out, settings = tmp_path / images, ExportOptions(images=images)
        export(result, list(ExportFormat), out, options=HALF, settings=settings)
        found = [path for path in out.rglob("*.*g") if Image.open(path).mode == "RGB"]
        wanted = ("coco", "coco-polygons", "yolo", "yolo-seg", "voc", "cvat", "labelme")
        assert len(found) == 2 * len(wanted)
        assert {int(np.asarray(Image.open(path)).mean()) for path in found} == {10, 20}
        named = ET.parse(out / "cvat" / "annotations.xml").getroot().iter("image")
        assert [image.get("name") for image in named] == ["a.png", "b.png"]
        content = json.loads((out / "coco" / COCO_FILE).read_text("utf-8"))
        assert [image["file_name"] for image in content["images"]] == ["a.png", "b.png"]
        assert all((out / "coco" / "images" / f"{name}.png").is_file() for name in "ab")
    export(result, list(ExportFormat), tmp_path / "default", options=HALF)


@pytest.mark.parametrize(
    "text", ["", "80", "80/10/5/5", "a/b", "-80/20", "80/", "0/100", "nan/1", "80/20/20", "2/1"]
)
def test_a_split_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="split"):
        ExportOptions(split=parsed_split(text))


masks = arrays(bool, array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=24))
# The middles of its steps make a diamond, which has the same pixels and a tenth less area.
CROSS = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]]) > 0


@settings(deadline=None)
@example(CROSS, 0.5)
@given(masks, st.sampled_from([0.5, 1, 2, 8]))
def test_simplified_polygons_change_at_most_a_hundredth(mask: np.ndarray, tolerance: float) -> None:
    for instance in find_instances(mask.astype(np.uint8), min_area=1):
        [exact], [polygon] = (instance_polygons(instance, simplify) for simplify in (0, tolerance))
        assert enclosed_area(exact) == instance.area
        assert 3 <= len(polygon) <= len(exact)
        assert abs(enclosed_area(polygon) - instance.area) <= 0.01 * instance.area + 1e-9
        low, high = polygon.min(0), polygon.max(0)
        assert (low >= exact.min(0)).all() and (high <= exact.max(0)).all()


def test_real_masks_have_few_corners_and_change_at_most_a_hundredth(data_root: Path) -> None:
    counts = []
    for file in sorted((data_root / "icoseg" / "ground_truth").glob("*/*.png"))[::20]:
        mask = np.asarray(Image.open(file)) > 0
        for instance in find_instances(mask.astype(np.uint8)):
            exact, polygons = (instance_polygons(instance, simplify) for simplify in (0, 2))
            changed = filled(polygons, mask.shape) != instance.full_mask(mask.shape)
            assert changed.sum() <= 0.01 * instance.area
            counts.append((sum(map(len, exact)), sum(map(len, polygons))))
    before, after = np.median(counts, axis=0)
    assert after < before / 3


def test_simplified_coco_polygons_have_boxes_and_areas_of_their_own(tmp_path: Path) -> None:
    labels = {**difficult_labels(), **many_labels()}
    write("coco-polygons", annotate(labels, "parts"), tmp_path, simplify=2)
    content = json.loads((tmp_path / COCO_FILE).read_text("utf-8"))
    for annotation in content["annotations"]:
        polygons = [np.array(ring).reshape(-1, 2) for ring in annotation["segmentation"]]
        corners = np.concatenate(polygons)
        x, y, width, height = annotation["bbox"]
        assert [x, y] == corners.min(0).tolist()
        assert [x + width, y + height] == corners.max(0).tolist()
        assert annotation["area"] == pytest.approx(sum(map(enclosed_area, polygons)))
