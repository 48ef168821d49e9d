"""YOLO: a text file of boxes or polygons for each image, as Ultralytics reads them.

Ultralytics finds an image's labels by its path, the last ``/images/`` in it being ``/labels/`` and
the suffix ``.txt``, after links to folders are resolved. A ``path`` in ``data.yaml`` counts from
the working directory; without one, all in it counts from the file's own folder.

It finds images by their suffixes, and takes none whose content is of a format that is not on the
same list, ``IMG_FORMATS`` of ``ultralytics/data/utils.py``; of what deepff reads, GIF, HEIC, PPM
and, in earlier versions, AVIF and JPEG 2000 are not on it.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from deepff.errors import InputError
from deepff.export.instances import AnnotatedImage, Instance
from deepff.export.photographs import photograph_format, photograph_suffix, place_photograph
from deepff.export.polygons import instance_polygons, joined
from deepff.options import SUBSETS, ExportOptions
from deepff.runtime.files import atomic_path

# What Ultralytics takes, by Pillow's names, and a suffix by which it finds such a file.
_TAKEN = {
    "BMP": ".bmp",
    "JPEG": ".jpg",
    "MPO": ".jpg",
    "PNG": ".png",
    "TIFF": ".tif",
    "WEBP": ".webp",
}
_SUFFIXES = {*_TAKEN.values(), ".jpeg", ".mpo", ".tiff"}


def write_yolo(
    images: Iterable[AnnotatedImage],
    names: Sequence[str],
    folder: Path,
    settings: ExportOptions,
    polygons: bool = False,
) -> None:
    """Write ``images/<subset>/``, ``labels/<subset>/<image>.txt`` and ``data.yaml``.

    A line an instance: its class, counted from 0 in the order of the names, then centre, width and
    height of its box, or its polygon, as shares of the image's width and height. An image without
    instances has an empty file.

    A photograph in a format that Ultralytics does not take is written as PNG; one whose suffix
    it does not take has its format's.

    Without photographs, ``labels/`` has no subsets but is as the photographs lie in ``images/``:
    in the folder already, or to be put there. Subsets are then lists, ``train.txt`` and so on.

    Parameters
    ----------
    images : iterable of AnnotatedImage
    names : sequence of str
        The regions' names.
    folder : Path
    settings : ExportOptions
    polygons : bool
        Polygons (YOLO-seg) instead of boxes. An instance in several pieces is one polygon, its
        pieces joined by lines of no width.

    Raises
    ------
    InputError
        Without photographs, two images have one name but for their suffix, which is how YOLO tells
        them apart.
    """
    mode = settings.images or "link"
    places: dict[str, list[str]] = {subset: [] for subset in SUBSETS}
    owners: dict[str, str] = {}
    for image in images:
        suffix = None if mode == "none" else _suffix(image)
        place = _place(image, mode, suffix or ".png")
        label = labels_of(place)
        if label in owners:
            raise InputError(
                f"YOLO finds an image's labels by its name without suffix, and {image.name} shares "
                f"that with {owners[label]}: rename one, or export copies or links "
                "(--images copy or link)"
            )
        owners[label] = image.name
        places[image.subset].append(place)
        place_photograph(image, place, folder, mode, as_png=suffix is None)
        with atomic_path(folder / label) as temporary:
            temporary.write_text("".join(_lines(image, polygons, settings.simplify)), "utf-8")
    # Ultralytics asks for images to validate on, be they those of training.
    places["val"] = places["val"] or places["train"]
    content: dict[str, Any] = {}
    for subset, held in places.items():
        if held and mode == "none":
            content[subset] = f"{subset}.txt"
            with atomic_path(folder / f"{subset}.txt") as temporary:
                temporary.write_text("".join(f"./{place}\n" for place in held), "utf-8")
        elif held:
            content[subset] = "/".join(held[0].split("/")[:2])
    content["names"] = dict(enumerate(names))
    with atomic_path(folder / "data.yaml") as temporary:
        temporary.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), "utf-8")


def labels_of(place: str) -> str:
    """Where YOLO looks for the labels of an image, a POSIX path that holds ``images/``."""
    before, _, after = f"/{place}".rpartition("/images/")
    return f"{before}/labels/{os.path.splitext(after)[0]}.txt".lstrip("/")


def _suffix(image: AnnotatedImage) -> str | None:
    """The suffix by which Ultralytics takes a photograph as it is; None where it does not."""
    own, suffix = photograph_suffix(image), _TAKEN.get(photograph_format(image) or "")
    return own if suffix and own.lower() in _SUFFIXES else suffix


def _place(image: AnnotatedImage, mode: str, suffix: str) -> str:
    """Where an image is for those who train, from the folder of the export."""
    if mode == "none":
        here = image.place is not None and "/images/" in f"/{image.place}"
        return image.place if here and image.place else f"images/{image.name}"
    # Another folder of that name would have the labels beside it.
    *above, file = image.file.split("/")
    above = ["images_" if part == "images" else part for part in above]
    return "/".join(["images", image.subset, *above, file + suffix])


def _lines(image: AnnotatedImage, polygons: bool, simplify: float) -> Iterable[str]:
    height, width = image.size
    for instance in image.instances:
        points = _polygon(instance, simplify) if polygons else _box(instance)
        shares = " ".join(f"{share:.6f}" for share in (points / (width, height)).ravel())
        yield f"{instance.region} {shares}\n"


def _box(instance: Instance) -> np.ndarray:
    low, high = np.array(instance.box).reshape(2, 2)
    return np.array([(low + high) / 2, high - low])


def _polygon(instance: Instance, simplify: float) -> np.ndarray:
    return joined(instance_polygons(instance, simplify))
