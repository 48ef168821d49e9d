"""COCO JSON with part categories, on hand-made files and on Car Parts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from planted import result_of
from pycocotools import mask as mask_api

from deepff.errors import InputError
from deepff.evaluation.datasets.coco_parts import CAR_PARTS, load_coco
from deepff.evaluation.metrics import associated_iou, count_overlaps, iou
from deepff.export.formats import export
from deepff.options import RegionOptions

WIDTH, HEIGHT = 8, 5

CATEGORIES = ["_background_", "left_light", "right_light", "front_left_door", "copyright"]


def rectangle(x: int, y: int, width: int, height: int) -> list[list[int]]:
    return [[x, y, x + width, y, x + width, y + height, x, y + height]]


def annotation(category: int, segmentation: Any, **more: Any) -> dict[str, Any]:
    return {
        "image_id": 7,
        "category_id": category,
        "segmentation": segmentation,
        "bbox": [1, 2, 3, 2.5],
        "iscrowd": 0,
        **more,
    }


def write_coco(folder: Path, annotations: list[dict[str, Any]]) -> Path:
    content = {
        "images": [{"id": 7, "file_name": "a.jpg", "width": WIDTH, "height": HEIGHT}],
        "categories": [{"id": i, "name": name} for i, name in enumerate(CATEGORIES)],
        "annotations": annotations,
    }
    Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "a.jpg")
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder


def labels(folder: Path, **options: Any) -> np.ndarray:
    return load_coco(folder, **options).images[0].labels()


def test_polygons_become_labels_in_the_order_of_the_categories(tmp_path: Path) -> None:
    two_pieces = rectangle(0, 0, 2, 1) + rectangle(5, 3, 1, 2)
    folder = write_coco(tmp_path, [annotation(3, two_pieces), annotation(1, rectangle(3, 0, 1, 2))])

    parts = load_coco(folder)

    assert parts.part_names == ("left_light", "right_light", "front_left_door", "copyright")
    assert parts.images[0].labels().tolist() == [
        [3, 3, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 3, 0, 0],
        [0, 0, 0, 0, 0, 3, 0, 0],
    ]
    assert parts.images[0].boxes_of("left_light") == [(1, 2, 4, 4.5)]


@pytest.mark.parametrize("compressed", [False, True])
def test_run_lengths_are_read_as_lists_and_as_strings(tmp_path: Path, compressed: bool) -> None:
    drawn = np.zeros((HEIGHT, WIDTH), np.uint8)
    drawn[1:3, 2:7] = 1
    if compressed:
        rle = mask_api.encode(np.asfortranarray(drawn))
        rle["counts"] = rle["counts"].decode()
    else:
        # Column by column, background first: two columns and a pixel, then 2 of each 5 pixels.
        rle = {"size": [HEIGHT, WIDTH], "counts": [11, 2, 3, 2, 3, 2, 3, 2, 3, 2, 7]}

    assert labels(write_coco(tmp_path, [annotation(1, rle)])).tolist() == drawn.tolist()


@pytest.mark.parametrize("large_first", [False, True])
def test_parts_that_overlap_keep_all_their_pixels(tmp_path: Path, large_first: bool) -> None:
    instances = [annotation(3, rectangle(0, 0, 8, 5)), annotation(1, rectangle(2, 1, 3, 2))]
    folder = write_coco(tmp_path, instances if large_first else instances[::-1])

    drawn = labels(folder)

    assert (drawn[1:3, 2:5] == 256 * 3 + 1).all()
    assert (drawn == 3).sum() == 40 - 6
    truth = count_overlaps([(np.ones((1, HEIGHT, WIDTH), bool), drawn)], 4).truth
    assert truth.tolist() == [0, 6, 0, 40, 0]


def test_instances_of_one_part_that_overlap_are_one_mask(tmp_path: Path) -> None:
    instances = [annotation(3, rectangle(0, 0, 2, 1)), annotation(3, rectangle(1, 0, 2, 1))]

    assert labels(write_coco(tmp_path, instances))[0].tolist() == [3, 3, 3, 0, 0, 0, 0, 0]


def test_crowd_is_not_judged_where_nothing_else_is(tmp_path: Path) -> None:
    crowd = {"size": [HEIGHT, WIDTH], "counts": [0, 40]}
    instances = [annotation(3, rectangle(0, 0, 2, 1)), annotation(1, crowd, iscrowd=1)]

    drawn = labels(write_coco(tmp_path, instances))

    assert drawn[0, :2].tolist() == [3, 3]
    assert (drawn == 255).sum() == 38


@pytest.mark.parametrize("nothing", [[], [[1, 1, 4, 4]], [[0, 0, 3, 3, 5]]])
def test_polygon_of_less_than_three_points_encloses_nothing(tmp_path: Path, nothing: Any) -> None:
    assert not labels(write_coco(tmp_path, [annotation(1, nothing)])).any()


def test_categories_merge_by_a_mapping(tmp_path: Path) -> None:
    folder = write_coco(tmp_path, [annotation(4, rectangle(0, 0, 1, 1))])

    parts = load_coco(folder, merge={"copyright": "light", "right_light": "light"})

    assert parts.part_names == ("left_light", "light", "front_left_door")
    assert parts.images[0].labels()[0, 0] == 2


@pytest.mark.parametrize("key", ["path", "file_name", "images"])
def test_images_are_found_where_coco_files_put_them(tmp_path: Path, key: str) -> None:
    folder = write_coco(tmp_path, [])
    if key == "path":
        content = json.loads((folder / "annotations.json").read_text())
        content["images"][0]["path"] = "/elsewhere/b.jpg"
        (folder / "annotations.json").write_text(json.dumps(content))
    subfolder = {"path": "elsewhere/b.jpg", "file_name": "a.jpg"}.get(key, "images/a.jpg")
    (folder / subfolder).parent.mkdir(exist_ok=True)
    (folder / "a.jpg").rename(folder / subfolder)

    (item,) = load_coco(folder / "annotations.json").images

    assert (item.image.path, item.image.name) == (folder / subfolder, "a.jpg")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no COCO file .*/annotations\.json"):
        load_coco(tmp_path)
    folder = write_coco(tmp_path, [])
    content = json.loads((folder / "annotations.json").read_text())
    content["images"].append({**content["images"][0], "id": 99, "file_name": "gone.jpg"})
    (folder / "annotations.json").write_text(json.dumps(content))
    truth = load_coco(folder)
    assert truth.missing == ("gone.jpg",)
    assert "gone.jpg" not in [item.image.name for item in truth.images] and len(truth) > 0
    for path in folder.glob("*.jpg"):
        path.unlink()
    with pytest.raises(InputError, match=r"“a\.jpg”, is neither .*/a\.jpg nor .*/images/a\.jpg"):
        load_coco(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"images": [], "categories": [1]}', "\xff"])
def test_file_of_another_format_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "annotations.json").write_bytes(content.encode("latin-1"))

    with pytest.raises(InputError, match=r"annotations\.json is not a COCO file"):
        load_coco(tmp_path)


def test_car_parts_has_100_images_and_18_parts(data_root: Path) -> None:
    cars = load_coco(data_root / "car_parts")

    assert (len(cars), len(cars.part_names)) == (100, 18)
    assert sum(len(item.boxes) for item in cars.images) == 811


def test_car_parts_merge_to_8(data_root: Path) -> None:
    eight = load_coco(data_root / "car_parts", merge=CAR_PARTS).part_names
    assert " ".join(sorted(eight)) == "bumper door glass hood light mirror trunk wheel"


def test_an_export_is_read_back_where_it_was_written(tmp_path: Path) -> None:
    maps = torch.zeros(1, 1, 6, 8)
    maps[0, 0, :3, :4] = 1
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (8, 6)).save(tmp_path / "photos" / "a.png")
    result = result_of(maps, ["a.png"], tmp_path / "photos")
    export(result, "coco", tmp_path / "out", options=RegionOptions("max-fraction", 0.5))
    truth = load_coco(tmp_path / "out")
    assert (truth.name, truth.part_names) == ("out", ("object",))
    assert (truth.images[0].read_labels() == (maps[0, 0].numpy() > 0)).all()


def test_car_parts_merged_areas_and_ious_agree_with_pycocotools(data_root: Path) -> None:
    cars = load_coco(data_root / "car_parts", merge=CAR_PARTS)
    content = json.loads((data_root / "car_parts" / "annotations.json").read_text())
    sizes = {image["file_name"]: image for image in content["images"]}
    names = {category["id"]: category["name"] for category in content["categories"]}

    n_overlapping = 0
    for item in cars.images[:40]:
        entry = sizes[item.image.name]
        polygons: dict[str, list[list[float]]] = {part: [] for part in cars.part_names}
        for instance in content["annotations"]:
            if instance["image_id"] == entry["id"]:
                polygons[CAR_PARTS[names[instance["category_id"]]]] += instance["segmentation"]
        union = {
            part: mask_api.merge(mask_api.frPyObjects(pieces, entry["height"], entry["width"]))
            for part, pieces in polygons.items()
            if pieces
        }
        drawn = item.labels()
        left = np.zeros((1, *drawn.shape), bool)
        left[:, :, : drawn.shape[1] // 2] = True
        predicted = mask_api.encode(np.asfortranarray(left[0]))
        overlaps = count_overlaps([(left, drawn)], 8)
        whole = mask_api.merge(list(union.values()))
        assert overlaps.truth[0] == drawn.size - mask_api.area(whole)
        # Each part alone, and all of them together: they overlap.
        together = associated_iou(overlaps, np.array([[False, *[True] * 8]]))
        assert together == pytest.approx(mask_api.iou([predicted], [whole], [0]).item())
        for label, part in enumerate(cars.part_names, start=1):
            rle = union.get(part)
            assert overlaps.truth[label] == (0 if rle is None else mask_api.area(rle))
            expected = 0 if rle is None else mask_api.iou([predicted], [rle], [0]).item()
            assert iou(overlaps)[0, label] == pytest.approx(expected)
        n_overlapping += overlaps.truth.sum() > drawn.size
    assert n_overlapping > 10
