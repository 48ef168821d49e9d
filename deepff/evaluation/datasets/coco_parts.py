"""COCO JSON whose categories are parts: polygons and run-length masks."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import (
    BACKGROUND_NAMES,
    IGNORED,
    AnnotatedBox,
    GroundTruthImage,
    GroundTruthSet,
    table_of_names,
    with_parts,
)
from deepff.export.polygons import filled
from deepff.images.image_files import ImageFile

# Car Parts' categories as parts.
CAR_PARTS: dict[str, str] = table_of_names("car_parts")
# Where a folder has its COCO file: Car Parts' place, and that of deepff's exports.
COCO_FILES = ("annotations.json", "annotations/instances_default.json")


def load_coco(
    root: str | Path, *, merge: Mapping[str, str] = MappingProxyType({})
) -> GroundTruthSet:
    """Load a COCO file whose categories are parts of one object. ``root`` is the JSON file, or the
    folder that holds it as one of `COCO_FILES`; images are next to it, or to its `annotations/`.
    ``merge`` renames categories to parts, such as `CAR_PARTS`."""
    path = coco_file(root)
    if not path.is_file():
        raise InputError(f"there is no COCO file {path}")
    folder = coco_folder(path)
    try:
        content = json.loads(path.read_bytes())
        names = {
            category["id"]: merge.get(category["name"], category["name"])
            for category in content["categories"]
            if category["name"].casefold() not in BACKGROUND_NAMES
        }
        part_names = tuple(dict.fromkeys(names.values()))
        of_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for annotation in content["annotations"]:
            if annotation["category_id"] in names:
                of_image[annotation["image_id"]].append(annotation)
        loaded, missing = [], []
        for entry in content["images"]:
            photo = next((path for path in _candidates(entry, folder) if path.is_file()), None)
            if photo is None:
                missing.append(entry["file_name"])
            else:
                file = ImageFile(photo.absolute(), entry["file_name"])
                loaded.append(_load_image(entry, of_image[entry["id"]], names, part_names, file))
        if missing and not loaded:
            first = content["images"][0]
            raise InputError(
                f"none of the COCO file's images exists; the first, “{first['file_name']}”, is "
                f"neither {' nor '.join(map(str, _candidates(first, folder)))}"
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is not a COCO file with images, categories and annotations"
        ) from error
    return GroundTruthSet(folder.resolve().name, part_names, tuple(loaded), tuple(missing))


def coco_file(root: str | Path) -> Path:
    """The COCO file that ``root`` is or, where it has one, holds."""
    paths = [Path(root) / name for name in COCO_FILES if Path(root).is_dir()]
    return next((path for path in paths if path.is_file()), (paths or [Path(root)])[0])


def coco_folder(path: Path) -> Path:
    """The folder of a COCO file's data set."""
    folder = path.absolute().parent
    return folder.parent if folder.name == "annotations" else folder


def _load_image(
    entry: Mapping[str, Any],
    annotations: Sequence[Mapping[str, Any]],
    names: Mapping[int, str],
    part_names: Sequence[str],
    file: ImageFile,
) -> GroundTruthImage:
    instances = [
        (part_names.index(names[annotation["category_id"]]) + 1, annotation)
        for annotation in annotations
    ]
    boxes = []
    for label, annotation in instances:
        x, y, width, height = annotation["bbox"]
        boxes.append(AnnotatedBox(part_names[label - 1], (x, y, x + width, y + height)))
    shape = (entry["height"], entry["width"])
    return GroundTruthImage(
        image=file, boxes=tuple(boxes), read_labels=partial(_rasterise, instances, shape)
    )


def _candidates(entry: Mapping[str, Any], folder: Path) -> list[Path]:
    """Where an image may be."""
    name = entry["file_name"]
    by_path = folder / entry.get("path", name).lstrip("/")
    return list(dict.fromkeys([by_path, folder / name, folder / "images" / name]))


def _rasterise(
    instances: Sequence[tuple[int, Mapping[str, Any]]], shape: tuple[int, int]
) -> np.ndarray:
    labels = np.zeros(shape, np.uint8)
    parts: dict[int, np.ndarray] = {}
    for label, annotation in instances:
        mask = _instance_mask(annotation["segmentation"], shape)
        if annotation.get("iscrowd"):
            labels[mask] = IGNORED
        else:
            parts[label] = parts.get(label, np.False_) | mask
    return with_parts(labels, parts)


def _instance_mask(segmentation: Any, shape: tuple[int, int]) -> np.ndarray:
    from pycocotools import mask as api

    height, width = shape
    if isinstance(segmentation, Mapping):
        # "counts" is a list in files written by hand, and a string where COCO's tools wrote them.
        if isinstance(segmentation["counts"], list):
            segmentation = api.frPyObjects(segmentation, height, width)
        return api.decode(segmentation).astype(bool)
    # Four numbers would be taken for a box, and fewer than three points enclose nothing.
    polygons = [np.array(polygon) for polygon in segmentation if len(polygon) >= 6]
    return filled(polygons, shape) if polygons else np.zeros(shape, bool)
