"""YOLO: a text file of boxes or polygons for each image, as Ultralytics reads them.

Ultralytics finds an image's labels by its path: it replaces the last ``/images/`` with ``/labels/``
and the suffix with ``.txt``, after it has resolved links to folders. A ``path`` in ``data.yaml`` is
relative to the working directory; without one, all paths are relative to the file's folder.

It finds images by their suffixes, and refuses those whose content has a format that is not on the
same list, ``IMG_FORMATS`` of ``ultralytics/data/utils.py``. Of what deepff reads, GIF, HEIC, PPM
and, in earlier versions, AVIF and JPEG 2000 are not on it.
"""

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from deepff.errors import InputError
from deepff.export.instances import AnnotatedImage
from deepff.export.polygons import instance_polygons, joined
from deepff.options import SUBSETS, ExportOptions
from deepff.runtime.files import write_text

# The formats that Ultralytics reads, by Pillow's names, and a suffix by which it finds such files.
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

    A photograph that Ultralytics refuses is written as PNG. Without photographs, ``labels/`` has
    the folders that ``images/`` has or will have, and subsets are lists such as ``train.txt``.
    """
    mode = settings.images or "link"
    photos: dict[str, list[str]] = {subset: [] for subset in SUBSETS}
    owners: dict[str, str] = {}
    for image in images:
        suffix = None if mode == "none" else _suffix(image)
        photo = _photo_path(image, mode, suffix or ".png")
        label = labels_of(photo)
        if label in owners:
            raise InputError(
                f"YOLO finds an image's labels by its name without suffix, and {image.name} shares "
                f"that with {owners[label]}: rename one, or export copies or links "
                "(--images copy or link)"
            )
        owners[label] = image.name
        photos[image.subset].append(photo)
        image.write_photo(photo, folder, mode, as_png=suffix is None)
        write_text(folder / label, "".join(_lines(image, polygons, settings.simplify)))
    # Ultralytics needs images to validate on, even if they are those of training.
    photos["val"] = photos["val"] or photos["train"]
    content: dict[str, Any] = {}
    for subset, paths in photos.items():
        if paths and mode == "none":
            content[subset] = f"{subset}.txt"
            write_text(folder / f"{subset}.txt", "".join(f"./{path}\n" for path in paths))
        elif paths:
            content[subset] = "/".join(paths[0].split("/")[:2])
    content["names"] = dict(enumerate(names))
    text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
    write_text(folder / "data.yaml", text)


write_yolo_seg = partial(write_yolo, polygons=True)


def labels_of(photo: str) -> str:
    """Where YOLO looks for the labels of an image, a POSIX path that holds ``images/``."""
    before, _, after = f"/{photo}".rpartition("/images/")
    return f"{before}/labels/{os.path.splitext(after)[0]}.txt".lstrip("/")


def _suffix(image: AnnotatedImage) -> str | None:
    """The suffix with which Ultralytics reads a photograph; None where it refuses its format."""
    suffix = _TAKEN.get(image.photo_format or "")
    return image.photo_suffix if suffix and image.photo_suffix.lower() in _SUFFIXES else suffix


def _photo_path(image: AnnotatedImage, mode: str, suffix: str) -> str:
    """An image's path for training, relative to the folder of the export."""
    if mode == "none":
        inside = image.inside is not None and "/images/" in f"/{image.inside}"
        return image.inside if inside and image.inside else f"images/{image.name}"
    # In another folder called images, YOLO would look for the labels elsewhere.
    *above, file = image.file.split("/")
    above = ["images_" if part == "images" else part for part in above]
    return "/".join(["images", image.subset, *above, file + suffix])


def _lines(image: AnnotatedImage, polygons: bool, simplify: float) -> Iterable[str]:
    """Each instance's class, then the center and size of its box, or its corners, as shares."""
    height, width = image.size
    for instance in image.instances:
        if polygons:
            points = joined(instance_polygons(instance, simplify))
        else:
            low, high = np.array(instance.box).reshape(2, 2)
            points = np.array([(low + high) / 2, high - low])
        shares = " ".join(f"{share:.6f}" for share in (points / (width, height)).ravel())
        yield f"{instance.region} {shares}\n"
