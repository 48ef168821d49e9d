"""YOLO: a text file of boxes or polygons for each image, as Ultralytics reads them."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import yaml

from deepff.errors import InputError
from deepff.export.instances import AnnotatedImage, Instance
from deepff.export.polygons import instance_polygons, joined
from deepff.runtime.files import atomic_path


def write_yolo(
    images: Iterable[AnnotatedImage],
    names: Sequence[str],
    folder: Path,
    polygons: bool = False,
) -> None:
    """Write ``<folder>/labels/<image>.txt`` and ``<folder>/data.yaml``.

    A line an instance: its class, counted from 0 in the order of the names, then centre, width and
    height of its box, or its polygon, as shares of the image's width and height. An image without
    instances has an empty file. Readers look for the images in ``<folder>/images/``.

    Parameters
    ----------
    images : iterable of AnnotatedImage
    names : sequence of str
        The regions' names.
    folder : Path
    polygons : bool
        Polygons (YOLO-seg) instead of boxes. An instance in several pieces is one polygon, its
        pieces joined by lines of no width.

    Raises
    ------
    InputError
        Two images have one name but for their suffix, which is how YOLO tells them apart.
    """
    numbers = _polygon if polygons else _box
    for image in images:
        if image.file != os.path.splitext(image.name)[0]:
            raise InputError(
                f"YOLO finds an image's labels by its name without suffix, and {image.name} shares "
                "that with another image or has too long a name: rename it"
            )
        height, width = image.size
        with atomic_path(folder / "labels" / f"{image.file}.txt") as temporary:
            lines = [
                f"{instance.region} " + " ".join(f"{share:.6f}" for share in shares)
                for instance in image.instances
                for shares in [(numbers(instance) / (width, height)).ravel()]
            ]
            temporary.write_text("".join(f"{line}\n" for line in lines))
    content = {"path": ".", "train": "images", "val": "images", "names": dict(enumerate(names))}
    with atomic_path(folder / "data.yaml") as temporary:
        temporary.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), "utf-8")


def _box(instance: Instance) -> np.ndarray:
    low, high = np.array(instance.box).reshape(2, 2)
    return np.array([(low + high) / 2, high - low])


def _polygon(instance: Instance) -> np.ndarray:
    return joined(instance_polygons(instance))
