"""Pascal VOC: boxes as XML, classes and instances as palette PNGs."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from deepff.errors import InputError
from deepff.export.instances import AnnotatedImage
from deepff.export.png import write_indexed, write_label_names
from deepff.options import ExportOptions, Photographs
from deepff.runtime.files import write_text

LARGEST_VALUE = 254  # 255 marks pixels that are not judged
_JPEG = {"JPEG": ".jpg", "MPO": ".jpg"}  # the only photographs that VOC has, by their suffix


def write_voc(
    images: Iterable[AnnotatedImage], names: Sequence[str], folder: Path, settings: ExportOptions
) -> None:
    """Write VOC's annotations, class and object images, and photographs, in its folders. Values are
    a class's line in ``labels.txt``, from 0, and an object's number in the XML, from 1."""
    names = _label_names(names)
    if len(names) > LARGEST_VALUE:
        raise InputError(f"VOC's images hold up to {LARGEST_VALUE} classes, not {len(names)}")
    palette = _voc_palette()
    listed: dict[str, list[str]] = {"train": [], "val": [], "trainval": [], "test": []}
    for image in images:
        count = len(image.instances)
        if count > LARGEST_VALUE:
            raise InputError(
                f"VOC's images hold up to {LARGEST_VALUE} instances, not {count} as in "
                f"{image.name}; raise the least area, or make one instance a part"
            )
        classes = image.painted([instance.region + 1 for instance in image.instances])
        objects = image.painted(list(range(1, count + 1)))
        write_indexed(classes, palette, folder / "SegmentationClass" / f"{image.file}.png")
        write_indexed(objects, palette, folder / "SegmentationObject" / f"{image.file}.png")
        mode = settings.images or Photographs.COPY
        photo = image.write_photo(folder, "JPEGImages", mode, _JPEG)
        annotation = xml_string(_annotation(image, photo, names))
        write_text(folder / "Annotations" / f"{image.file}.xml", annotation)
        for subset in {"test"} if image.subset == "test" else {image.subset, "trainval"}:
            listed[subset].append(image.file)
    for kind in ("Main", "Segmentation"):
        for subset, files in listed.items():
            text = "".join(f"{file}\n" for file in files)
            write_text(folder / "ImageSets" / kind / f"{subset}.txt", text)
    write_label_names(names, folder)
    write_text(folder / "labelmap.txt", "".join(_label_map(names, palette)))


def _label_names(names: Sequence[str]) -> list[str]:
    """Names as a label map can hold them, where a colon ends one and ``#`` begins a comment."""
    labels: list[str] = []
    for name in names:
        label = re.sub("^#|:", "_", name)
        while label in labels or (label != name and label in names):
            label += "_"
        labels.append(label)
    return labels


def _label_map(names: Sequence[str], palette: bytes) -> Iterator[str]:
    yield "# label:color_rgb:parts:actions\n"
    for value, name in enumerate(("background", *names)):
        color = ",".join(map(str, palette[3 * value : 3 * value + 3]))
        yield f"{name}:{color}::\n"


def _annotation(image: AnnotatedImage, photo: str, names: Sequence[str]) -> ET.Element:
    height, width = image.size
    root = ET.Element("annotation")
    _add(root, filename=xml_name(photo))
    _add(ET.SubElement(root, "size"), width=width, height=height, depth=3)
    _add(root, segmented=int(bool(image.instances)))
    for instance in image.instances:
        x_min, y_min, x_max, y_max = instance.box
        element = ET.SubElement(root, "object")
        name = names[instance.region]
        _add(element, name=name, pose="Unspecified", truncated=0, difficult=0)
        box = ET.SubElement(element, "bndbox")  # pixels are counted from 1, maxima are inclusive
        _add(box, xmin=x_min + 1, ymin=y_min + 1, xmax=x_max, ymax=y_max)
    return root


def _add(parent: ET.Element, **texts: str | int) -> None:
    for tag, text in texts.items():
        ET.SubElement(parent, tag).text = str(text)


def xml_name(name: str) -> str:
    """A name with the control characters that XML cannot hold escaped as in a URL."""
    return re.sub(r"[\x00-\x1f\x7f\ufffe\uffff]", lambda match: quote(match[0]), name)


def xml_string(element: ET.Element) -> str:
    """An element as text, one line per element, indented."""
    ET.indent(element)
    return ET.tostring(element, encoding="unicode")


def _voc_palette() -> bytes:
    """VOC's colors, RGB, as its development kit makes them. Bits 0, 1 and 2 of a value are the
    highest bits of red, green and blue, bits 3, 4 and 5 the next ones, and so on."""
    values = np.arange(256)
    colors = np.zeros((256, 3), int)
    for triple in range(3):
        for channel in range(3):
            colors[:, channel] |= (values >> (3 * triple + channel) & 1) << (7 - triple)
    return colors.astype(np.uint8).tobytes()
