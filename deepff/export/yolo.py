"""YOLO: a text file of boxes or polygons for each image, as Ultralytics reads them.

Ultralytics finds an image's labels by its path: it replaces the last ``/images/`` with ``/labels/``
and the suffix with ``.txt``, after it has resolved links to folders. A ``path`` in ``data.yaml`` is
relative to the working directory; without one, all paths are relative to the file's folder.

It finds images by their suffixes, and refuses those whose content has a format that is not on the
same list, ``IMG_FORMATS`` of ``ultralytics/data/utils.py``.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from deepff.errors import InputError
from deepff.export.instances import AnnotatedImage
from deepff.export.polygons import instance_polygons, joined
from deepff.options import SUBSETS, ExportOptions, Photographs
from deepff.runtime.files import write_text


def write_yolo(
    images: Iterable[AnnotatedImage],
    names: Sequence[str],
    folder: Path,
    settings: ExportOptions,
    polygons: bool = False,
) -> None:
    """Write ``images/<subset>/``, ``labels/<subset>/<image>.txt`` and ``data.yaml``. Without
    photographs subsets are lists, and ``labels/`` has the folders that ``images/`` will have."""
    mode = settings.images or Photographs.LINK
    photos: dict[str, list[str]] = {subset: [] for subset in SUBSETS}
    owners: dict[str, str] = {}
    for image in images:
        photo = _photo_path(image) if mode == Photographs.NONE else _written(image, folder, mode)
        label = labels_of(photo)
        if label in owners:
            raise InputError(
                f"YOLO finds an image's labels by its name without suffix, and {image.name} shares "
                f"that with {owners[label]}: rename one, or export copies or links "
                "(--images copy or link)"
            )
        owners[label] = image.name
        photos[image.subset].append(photo)
        write_text(folder / label, "".join(_lines(image, polygons, settings.simplify)))
    # Ultralytics needs images to validate on, even if they are those of training.
    photos["val"] = photos["val"] or photos["train"]
    content: dict[str, Any] = {}
    for subset, paths in photos.items():
        if paths and mode == Photographs.NONE:
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


def _written(image: AnnotatedImage, folder: Path, mode: str) -> str:
    """The path of a photograph that is copied or linked."""
    # In another folder called images, YOLO would look for the labels elsewhere.
    *above, file = image.file.split("/")
    above = ["images_" if part == "images" else part for part in above]
    below = f"images/{image.subset}"
    renamed = replace(image, file="/".join([*above, file]))
    return f"{below}/{renamed.write_photo(folder, below, mode)}"


def _photo_path(image: AnnotatedImage) -> str:
    """The path of a photograph that stays, or will be put, where the labels are looked for."""
    if len(image.name.splitlines()) > 1:
        raise InputError(
            f"the name {image.name!r} has a line break, which YOLO's lists of images can't hold: "
            "rename the file, or export copies or links (--images copy or link)"
        )
    inside = image.inside or ""
    return inside if "/images/" in f"/{inside}" else f"images/{image.name}"


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
