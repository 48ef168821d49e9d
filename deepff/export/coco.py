"""COCO JSON: masks as run lengths or polygons, and boxes."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepff.errors import InputError
from deepff.export.instances import AnnotatedImage, Instance
from deepff.export.polygons import instance_polygons
from deepff.runtime.files import atomic_path


def write_coco(
    images: Iterable[AnnotatedImage],
    names: Sequence[str],
    folder: Path,
    polygons: bool = False,
) -> None:
    """Write ``<folder>/annotations.json``.

    Categories are numbered from 1 in the order of the names, images and annotations from 1 in the
    order of the images. Every annotation has ``iscrowd`` 0: COCO's evaluation ignores crowds, and
    a mask is none for having holes or pieces. Annotations are written as they come.

    Parameters
    ----------
    images : iterable of AnnotatedImage
    names : sequence of str
        The regions' names.
    folder : Path
    polygons : bool
        Polygons instead of run lengths.

    Raises
    ------
    InputError
        Run lengths are wanted and pycocotools is not installed.
    """
    segmentation = _polygons if polygons else _run_length_encoder()
    with (
        atomic_path(folder / "annotations.json") as temporary,
        open(temporary, "w", encoding="utf-8") as file,
    ):
        categories = [{"id": number, "name": name} for number, name in enumerate(names, 1)]
        head = {"info": {"description": "deepff"}, "licenses": [], "categories": categories}
        file.write(f'{_json(head)[:-1]}, "annotations": [')
        entries = []
        count = 0
        for image_id, image in enumerate(images, 1):
            height, width = image.size
            entries.append(
                {"id": image_id, "file_name": image.name, "width": width, "height": height}
            )
            for instance in image.instances:
                count += 1
                annotation = {
                    "id": count,
                    "image_id": image_id,
                    "category_id": instance.region + 1,
                    "segmentation": segmentation(instance, image.size),
                    "area": instance.area,
                    "bbox": _box(instance),
                    "iscrowd": 0,
                }
                file.write(f"{',' if count > 1 else ''}\n{_json(annotation)}")
        file.write(f'\n], "images": {_json(entries)}}}\n')


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def _box(instance: Instance) -> list[int]:
    x_min, y_min, x_max, y_max = instance.box
    return [x_min, y_min, x_max - x_min, y_max - y_min]


def _polygons(instance: Instance, size: tuple[int, int]) -> list[list[int]]:
    return [polygon.ravel().tolist() for polygon in instance_polygons(instance)]


def _run_length_encoder() -> Callable[[Instance, tuple[int, int]], Any]:
    try:
        from pycocotools import mask as api
    except ImportError as error:
        raise InputError(
            "run lengths of COCO need pycocotools: pip install 'deepff[coco]', or export polygons"
        ) from error

    def encode(instance: Instance, size: tuple[int, int]) -> dict[str, Any]:
        encoded = api.encode(np.asfortranarray(instance.full_mask(size), np.uint8))
        return {"size": list(size), "counts": encoded["counts"].decode()}

    return encode
