"""Label Studio: tasks with brush masks as predictions, to be corrected there."""

import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from deepff.export.instances import AnnotatedImage, Instance, run_lengths
from deepff.images.painting import factor_colors, hex_colors
from deepff.options import ExportOptions
from deepff.runtime.files import atomic_path

_CHANNELS = 4
_WORD_BITS = 8
_LENGTH_BITS = (3, 4, 8, 16)


def write_label_studio(
    images: Iterable[AnnotatedImage],
    names: Sequence[str],
    folder: Path,
    settings: ExportOptions,
) -> None:
    """Write ``<folder>/tasks.json`` and ``<folder>/label_config.xml``.

    An image's address is ``/data/local-files/?d=<folder of the set>/<its name>``. Label Studio
    serves it if LOCAL_FILES_DOCUMENT_ROOT is the folder above the set's, and the set's folder is a
    storage of the project.
    """
    with (
        atomic_path(folder / "tasks.json") as temporary,
        open(temporary, "w", encoding="utf-8") as file,
    ):
        file.write("[")
        for number, image in enumerate(images, 1):
            results = [
                _result(image, instance, names[instance.region], f"{number}-{i}")
                for i, instance in enumerate(image.instances, 1)
            ]
            task = {
                "data": {"image": f"/data/local-files/?d={quote(_served(image))}"},
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
    ET.indent(view)
    with atomic_path(folder / "label_config.xml") as temporary:
        ET.ElementTree(view).write(temporary, encoding="utf-8")


def _served(image: AnnotatedImage) -> bytes:
    """An image's path from the folder above that of the set."""
    if not isinstance(image.origin, Path):
        return image.name.encode()
    n_parts = image.name.count("/") + 2
    parts = image.origin.absolute().parts[1:]  # without the root
    return os.fsencode("/".join(parts[-n_parts:]))


def _result(image: AnnotatedImage, instance: Instance, name: str, id: str) -> dict[str, Any]:
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
    }


def brush_run_lengths(mask: np.ndarray) -> list[int]:
    """A mask (H, W) in Label Studio's brush format: the bytes of a packed RGBA image of 0 and 255.

    A stream of bits: the number of values (32 bits), bits per value minus one (5), the four widths
    of a length minus one (4 each); then for each run a 1, which of the widths (2), its length minus
    one, and its value. It is the format of the JavaScript library @thi.ng/rle-pack.
    """
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
