"""LabelMe, Label Studio and CVAT: masks that are looked over and corrected there."""

import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from deepff.export.instances import AnnotatedImage, Instance, run_lengths
from deepff.export.polygons import instance_polygons
from deepff.export.voc import xml_name, xml_string
from deepff.images.painting import factor_colors, hex_colors
from deepff.options import ExportOptions, Photographs
from deepff.runtime.files import atomic_text, write_text

_CHANNELS = 4
_WORD_BITS = 8
_LENGTH_BITS = (3, 4, 8, 16)


def write_labelme(
    images: Iterable[AnnotatedImage], names: Sequence[str], folder: Path, settings: ExportOptions
) -> None:
    """Write ``<folder>/<image>.json`` with polygons, and ``<folder>/labels.txt``. LabelMe opens
    ``a.json`` with ``a.jpg`` in the same folder. Next to the user's own files, ``a.png`` has
    ``a.png.json`` if there is ``a.jpg`` too."""
    mode = settings.images or Photographs.NONE
    taken: set[str] = set()
    for image in images:
        stem = os.path.splitext(image.name)[0]
        is_free = mode == Photographs.NONE and stem.casefold() not in taken
        file = stem if is_free else image.file
        while file.casefold() in taken:
            file += "~"
        taken.add(file.casefold())
        photo = image.write_photo(folder, "", mode)
        content: dict[str, Any] = {
            "version": "5.5.0",
            "flags": {},
            "shapes": _labelme_shapes(image, names, settings.simplify),
            "imagePath": photo.rpartition("/")[2],
            "imageData": None,
            "imageHeight": image.size[0],
            "imageWidth": image.size[1],
        }
        write_text(folder / f"{file}.json", json.dumps(content, ensure_ascii=False))
    labels = ("__ignore__", "_background_", *names)  # as LabelMe's converters read them
    write_text(folder / "labels.txt", "".join(f"{name}\n" for name in labels))


def _labelme_shapes(
    image: AnnotatedImage, names: Sequence[str], simplify: float
) -> list[dict[str, Any]]:
    shapes = []
    for number, instance in enumerate(image.instances, 1):
        polygons = instance_polygons(instance, simplify)
        shapes += [
            {
                "label": names[instance.region],
                "points": polygon.tolist(),
                "group_id": number if len(polygons) > 1 else None,  # an instance in pieces
                "description": "",
                "shape_type": "polygon",
                "flags": {},
                "mask": None,
            }
            for polygon in polygons
        ]
    return shapes


def write_label_studio(
    images: Iterable[AnnotatedImage], names: Sequence[str], folder: Path, settings: ExportOptions
) -> None:
    """Write ``<folder>/tasks.json``, brush masks as predictions, and ``label_config.xml``. Label
    Studio serves the images if LOCAL_FILES_DOCUMENT_ROOT is the folder above the set's, and the
    set's folder is a storage of the project."""
    with atomic_text(folder / "tasks.json") as file:
        file.write("[")
        for number, image in enumerate(images, 1):
            results = [
                _brush_result(image, instance, names[instance.region], f"{number}-{i}")
                for i, instance in enumerate(image.instances, 1)
            ]
            task = {
                "data": {"image": f"/data/local-files/?d={quote(_served_path(image))}"},
                "predictions": [{"model_version": "deepff", "result": results}],
            }
            separator = "," if number > 1 else ""
            file.write(f"{separator}\n{json.dumps(task, ensure_ascii=False)}")
        file.write("\n]\n")
    view = ET.Element("View")
    ET.SubElement(view, "Image", name="image", value="$image", zoom="true")
    brush = ET.SubElement(view, "BrushLabels", name="label", toName="image")
    for name, color in zip(names, hex_colors(factor_colors(len(names))), strict=True):
        ET.SubElement(brush, "Label", value=name, background=color)
    write_text(folder / "label_config.xml", xml_string(view))


def _served_path(image: AnnotatedImage) -> bytes:
    """An image's path from the folder above that of the set."""
    if not isinstance(image.origin, Path):
        return image.name.encode()
    n_parts = image.name.count("/") + 2
    parts = image.origin.absolute().parts[1:]  # without the root
    return os.fsencode("/".join(parts[-n_parts:]))


def _brush_result(image: AnnotatedImage, instance: Instance, name: str, id: str) -> dict[str, Any]:
    height, width = image.size
    rle = brush_run_lengths(instance.full_mask(image.size))
    return {
        "id": id,
        "type": "brushlabels",
        "from_name": "label",
        "to_name": "image",
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "value": {"format": "rle", "rle": rle, "brushlabels": [name]},
        **({} if instance.score is None else {"score": instance.score}),
    }


def brush_run_lengths(mask: np.ndarray) -> list[int]:
    """A mask (H, W) in Label Studio's brush format, that of the library @thi.ng/rle-pack."""
    # Bits: the number of values (32), bits per value minus one (5), the four widths of a length
    # minus one (4 each); then for each run a 1, which width (2), its length minus one, its value.
    widths = "".join(f"{width - 1:04b}" for width in _LENGTH_BITS)
    bits = [f"{mask.size * _CHANNELS:032b}{_WORD_BITS - 1:05b}{widths}"]
    for i, run in enumerate(run_lengths(mask)):
        value = f"{255 * (i % 2):0{_WORD_BITS}b}"
        remaining = run * _CHANNELS
        while remaining:
            length = min(remaining, 2 ** _LENGTH_BITS[-1])
            slot = next(j for j, width in enumerate(_LENGTH_BITS) if length <= 2**width)
            bits.append(f"1{slot:02b}{length - 1:0{_LENGTH_BITS[slot]}b}{value}")
            remaining -= length
    stream = "".join(bits)
    stream += "0" * (-len(stream) % 8)
    return list(int(stream, 2).to_bytes(len(stream) // 8, "big"))


def write_cvat(
    images: Iterable[AnnotatedImage], names: Sequence[str], folder: Path, settings: ExportOptions
) -> None:
    """Write masks as "CVAT for images 1.1", ``<folder>/annotations.xml``, and ``labels.json``. CVAT
    matches images by name; in a data set with its images, they are in ``images/``. ``labels.json``
    can be pasted under "Raw" in the form for a task's labels."""
    labels = [
        {"name": name, "color": color, "type": "mask", "attributes": []}
        for name, color in zip(names, hex_colors(factor_colors(len(names))), strict=True)
    ]
    write_text(folder / "labels.json", json.dumps(labels, ensure_ascii=False, indent=1))
    meta = ET.Element("meta")
    elements = ET.SubElement(ET.SubElement(meta, "task"), "labels")
    for label in labels:
        element = ET.SubElement(elements, "label")
        for tag in ("name", "color", "type"):
            ET.SubElement(element, tag).text = str(label[tag])
        ET.SubElement(element, "attributes")
    mode = settings.images or Photographs.NONE
    with atomic_text(folder / "annotations.xml") as file:
        file.write('<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n')
        file.write(f"<version>1.1</version>\n{xml_string(meta)}\n")
        for number, image in enumerate(images):
            name = image.write_photo(folder, "images", mode)
            file.write(f"{xml_string(_cvat_image(number, name, image, names))}\n")
        file.write("</annotations>\n")


def _cvat_image(number: int, name: str, image: AnnotatedImage, names: Sequence[str]) -> ET.Element:
    height, width = map(str, image.size)
    attributes = {"id": str(number), "name": xml_name(name)}
    element = ET.Element("image", attributes, width=width, height=height)
    for instance in image.instances:
        x_min, y_min, x_max, y_max = instance.box
        rle = ", ".join(map(str, run_lengths(instance.mask)))
        mask = {"label": names[instance.region], "source": "auto", "occluded": "0", "rle": rle}
        box = {"left": x_min, "top": y_min, "width": x_max - x_min, "height": y_max - y_min}
        mask |= {key: str(value) for key, value in box.items()} | {"z_order": "0"}
        ET.SubElement(element, "mask", mask)
    return element
