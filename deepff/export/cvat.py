"""CVAT for images 1.1: an XML file of masks."""

import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from deepff.export.instances import AnnotatedImage, run_lengths
from deepff.export.voc import xml_text
from deepff.images.painting import factor_colors, hex_colors
from deepff.options import ExportOptions
from deepff.runtime.files import atomic_path


def write_cvat(
    images: Iterable[AnnotatedImage],
    names: Sequence[str],
    folder: Path,
    settings: ExportOptions,
) -> None:
    """Write ``<folder>/annotations.xml`` and ``<folder>/labels.json``.

    CVAT matches images by name; in a data set with its images, they are in ``images/``.
    ``labels.json`` can be pasted under "Raw" in the form for a task's labels.
    """
    labels = [
        {"name": name, "color": color, "type": "mask", "attributes": []}
        for name, color in zip(names, hex_colors(factor_colors(len(names))), strict=True)
    ]
    with atomic_path(folder / "labels.json") as temporary:
        temporary.write_text(json.dumps(labels, ensure_ascii=False, indent=1), "utf-8")
    with (
        atomic_path(folder / "annotations.xml") as temporary,
        open(temporary, "w", encoding="utf-8") as file,
    ):
        meta = ET.Element("meta")
        elements = ET.SubElement(ET.SubElement(meta, "task"), "labels")
        for label in labels:
            element = ET.SubElement(elements, "label")
            for tag in ("name", "color", "type"):
                ET.SubElement(element, tag).text = str(label[tag])
            ET.SubElement(element, "attributes")
        file.write('<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n')
        file.write(f"<version>1.1</version>\n{_text(meta)}\n")
        for number, image in enumerate(images):
            mode, name = settings.images or "none", image.name
            if mode != "none":
                name = os.path.splitext(name)[0] + image.photo_suffix
            image.write_photo(f"images/{name}", folder, mode)
            file.write(f"{_text(_image(number, replace(image, name=name), names))}\n")
        file.write("</annotations>\n")


def _image(number: int, image: AnnotatedImage, names: Sequence[str]) -> ET.Element:
    height, width = map(str, image.size)
    attributes = {"id": str(number), "name": xml_text(image.name)}
    element = ET.Element("image", attributes, width=width, height=height)
    for instance in image.instances:
        x_min, y_min, x_max, y_max = instance.box
        attributes = {
            "label": names[instance.region],
            "source": "auto",
            "occluded": "0",
            "rle": ", ".join(map(str, run_lengths(instance.mask))),
            "left": str(x_min),
            "top": str(y_min),
            "width": str(x_max - x_min),
            "height": str(y_max - y_min),
            "z_order": "0",
        }
        ET.SubElement(element, "mask", attributes)
    return element


def _text(element: ET.Element) -> str:
    ET.indent(element)
    return ET.tostring(element, encoding="unicode")
