"""COCO JSON: masks as run lengths or polygons, and boxes."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deepff.errors import InputError
from deepff.export.instances import AnnotatedImage, Instance
from deepff.export.polygons import enclosed_area, instance_polygons
from deepff.options import ExportOptions
from deepff.runtime.files import atomic_text


def write_coco(
    images: Iterable[AnnotatedImage],
    names: Sequence[str],
    folder: Path,
    settings: ExportOptions,
    polygons: bool = False,
) -> None:
    """Write ``<folder>/annotations.json``, and photographs that are wanted into ``images/``.

    With ``polygons``, masks are polygons instead of run lengths; simplified ones have boxes and
    areas of their own.
    """
    entry = partial(_polygons, settings.simplify) if polygons else _run_length_encoder()
    with atomic_text(folder / "annotations.json") as file:
        categories = [{"id": number, "name": name} for number, name in enumerate(names, 1)]
        head = {"info": {"description": "deepff"}, "licenses": [], "categories": categories}
        file.write(f'{_json(head)[:-1]}, "annotations": [')
        entries = []
        n_annotations = 0
        for image_id, image in enumerate(images, 1):
            height, width = image.size
            suffix = image.photo_suffix
            name = image.name if image.name.endswith(suffix) else image.name + suffix
            image.write_photo(f"images/{name}", folder, settings.images)
            entries.append({"id": image_id, "file_name": name, "width": width, "height": height})
            for instance in image.instances:
                n_annotations += 1
                annotation = {
                    "id": n_annotations,
                    "image_id": image_id,
                    "category_id": instance.region + 1,
                    **entry(instance, image.size),
                    "iscrowd": 0,  # also with holes or pieces: evaluation ignores crowds
                }
                file.write(f"{',' if n_annotations > 1 else ''}\n{_json(annotation)}")
        file.write(f'\n], "images": {_json(entries)}}}\n')


write_coco_polygons = partial(write_coco, polygons=True)


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def _polygons(simplify: float, instance: Instance, size: tuple[int, int]) -> dict[str, Any]:
    polygons = instance_polygons(instance, simplify)
    corners = np.concatenate(polygons)
    low, high = corners.min(0), corners.max(0)
    return {
        "segmentation": [polygon.ravel().tolist() for polygon in polygons],
        "area": sum(enclosed_area(polygon) for polygon in polygons),
        "bbox": [*low.tolist(), *(high - low).tolist()],
    }


def _run_length_encoder() -> Callable[[Instance, tuple[int, int]], dict[str, Any]]:
    try:
        from pycocotools import mask as api
    except ImportError as error:
        raise InputError(
            "run lengths of COCO need pycocotools: pip install 'deepff[coco]', or export polygons"
        ) from error

    def encode(instance: Instance, size: tuple[int, int]) -> dict[str, Any]:
        encoded = api.encode(np.asfortranarray(instance.full_mask(size), np.uint8))
        x_min, y_min, x_max, y_max = instance.box
        return {
            "segmentation": {"size": list(size), "counts": encoded["counts"].decode()},
            "area": instance.area,
            "bbox": [x_min, y_min, x_max - x_min, y_max - y_min],
        }

    return encode
