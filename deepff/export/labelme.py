"""LabelMe: a JSON file of polygons for each image."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from deepff.export.instances import AnnotatedImage
from deepff.export.polygons import instance_polygons
from deepff.runtime.files import atomic_path


def write_labelme(images: Iterable[AnnotatedImage], names: Sequence[str], folder: Path) -> None:
    """Write ``<folder>/<image>.json`` and ``<folder>/labels.txt``.

    A file names its image without a folder: LabelMe looks for the two side by side. The polygons of
    an instance in several pieces share a ``group_id``. ``labels.txt`` is as LabelMe's converters
    take it, ``__ignore__`` and ``_background_`` before the names.

    Parameters
    ----------
    images : iterable of AnnotatedImage
    names : sequence of str
        The regions' names.
    folder : Path
    """
    for image in images:
        content: dict[str, Any] = {
            "version": "5.5.0",
            "flags": {},
            "shapes": _shapes(image, names),
            "imagePath": image.name.rpartition("/")[2],
            "imageData": None,
            "imageHeight": image.size[0],
            "imageWidth": image.size[1],
        }
        with atomic_path(folder / f"{image.file}.json") as temporary:
            temporary.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    with atomic_path(folder / "labels.txt") as temporary:
        labels = ("__ignore__", "_background_", *names)
        temporary.write_text("".join(f"{name}\n" for name in labels), "utf-8")


def _shapes(image: AnnotatedImage, names: Sequence[str]) -> list[dict[str, Any]]:
    shapes = []
    for number, instance in enumerate(image.instances, 1):
        polygons = instance_polygons(instance)
        shapes += [
            {
                "label": names[instance.region],
                "points": polygon.tolist(),
                "group_id": number if len(polygons) > 1 else None,
                "description": "",
                "shape_type": "polygon",
                "flags": {},
                "mask": None,
            }
            for polygon in polygons
        ]
    return shapes
