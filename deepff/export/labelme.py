"""LabelMe: a JSON file of polygons for each image."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from deepff.export.instances import AnnotatedImage
from deepff.export.polygons import instance_polygons
from deepff.options import ExportOptions
from deepff.runtime.files import atomic_path


def write_labelme(
    images: Iterable[AnnotatedImage],
    names: Sequence[str],
    folder: Path,
    settings: ExportOptions,
) -> None:
    """Write ``<folder>/<image>.json`` and ``<folder>/labels.txt``.

    LabelMe opens ``a.json`` with ``a.jpg`` in the same folder. If there is ``a.png`` too, the first
    of both has ``a.json`` and the other ``a.png.json``, which LabelMe opens on its own; a copy or
    link is then named ``a.png.png``. A file names its image without a folder. The polygons of an
    instance in several pieces share a ``group_id``. ``labels.txt`` is as LabelMe's converters read
    it, with ``__ignore__`` and ``_background_`` before the names.
    """
    mode = settings.images or "none"
    taken: set[str] = set()
    for image in images:
        stem = os.path.splitext(image.name)[0]
        file = stem if mode == "none" and stem.casefold() not in taken else image.file
        while file.casefold() in taken:
            file += "~"
        taken.add(file.casefold())
        photo = image.name if mode == "none" else f"{file}{image.photo_suffix}"
        image.write_photo(photo, folder, mode)
        content: dict[str, Any] = {
            "version": "5.5.0",
            "flags": {},
            "shapes": _shapes(image, names, settings.simplify),
            "imagePath": photo.rpartition("/")[2],
            "imageData": None,
            "imageHeight": image.size[0],
            "imageWidth": image.size[1],
        }
        with atomic_path(folder / f"{file}.json") as temporary:
            temporary.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    with atomic_path(folder / "labels.txt") as temporary:
        labels = ("__ignore__", "_background_", *names)
        temporary.write_text("".join(f"{name}\n" for name in labels), "utf-8")


def _shapes(image: AnnotatedImage, names: Sequence[str], simplify: float) -> list[dict[str, Any]]:
    shapes = []
    for number, instance in enumerate(image.instances, 1):
        polygons = instance_polygons(instance, simplify)
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
