"""Masks in folders next to their images: iCoseg (Batra et al., CVPR 2010), and label images."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import (
    BACKGROUND_NAMES,
    IGNORED,
    GroundTruthImage,
    GroundTruthSet,
    read_label_image,
    require_annotation,
)
from deepff.images.image_files import ImageFile, find_images, natural_key, output_names


def load_icoseg(
    root: str | Path, groups: Sequence[str] | None = None, listed: Path | None = None
) -> list[GroundTruthSet]:
    """Load groups of iCoseg as sets with one part, "object": `images/<group>/<image>` and masks in
    `ground_truth/<group>/<image>.png`, nonzero on the object. A group is named by its number or by
    any piece of its name that fits one group only. ``listed`` is a file that names the images to
    take, one per line, as `021 Elephants/1.jpg`."""
    root = Path(root)
    for folder in (root / "images", root / "ground_truth"):
        if not folder.is_dir():
            raise InputError(f"iCoseg needs images/ and ground_truth/; there is no folder {folder}")
    names = icoseg_groups(root)
    selected = names if groups is None else [_find_group(query, names) for query in groups]
    only = None if listed is None else _listed_names(listed, root)
    sets = [_load_group(root, name, only) for name in dict.fromkeys(selected)]
    for truth in sets:
        if only is not None and not truth.images:
            raise InputError(f"{listed} lists no image of {truth.name}: leave the group out")
    return sets


def icoseg_groups(root: Path) -> list[str]:
    """The names of all groups, in natural order."""
    folders = (path for path in (root / "images").glob("[!.]*") if path.is_dir())
    return sorted((path.name for path in folders), key=natural_key)


def _find_group(query: str, names: Sequence[str]) -> str:
    number = rf"0*{int(query)}(?!\d)" if query.isdecimal() else "$^"
    by_number = [name for name in names if re.match(number, name)]
    fitting = by_number or [name for name in names if query.casefold() in name.casefold()]
    if query in names:
        fitting = [query]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InputError(f"“{query}” fits several groups: {', '.join(fitting)}")
    raise InputError(f"no group “{query}”; the groups are: {', '.join(names)}")


def _listed_names(path: Path, root: Path) -> set[str]:
    """The lines of a list of images, each of which must name one as `group/image`."""
    if not path.is_file():
        raise InputError(f"there is no list of images {path}; it should name one image per line")
    lines = {line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()} - {""}
    if unknown := sorted(line for line in lines if not (root / "images" / line).is_file()):
        raise InputError(f"{path} lists “{unknown[0]}”, which is not an image in {root / 'images'}")
    return lines


def _load_group(root: Path, name: str, only: set[str] | None) -> GroundTruthSet:
    images = []
    for image in find_images(root / "images" / name):
        if only is not None and f"{name}/{image.name}" not in only:
            continue
        mask = (root / "ground_truth" / name / image.name).with_suffix(".png")
        if require_annotation(mask, image):
            images.append(GroundTruthImage(image, read_labels=partial(_read_mask, mask)))
    return GroundTruthSet(name=name, part_names=("object",), images=tuple(images))


def _read_mask(path: Path) -> np.ndarray:
    return (read_label_image(path) != 0).astype(np.uint8)


def load_label_folder(folder: str | Path, images: Sequence[ImageFile]) -> GroundTruthSet:
    """Load a folder of label images as a set with its name: a PNG per image, `goose/1.png` for
    `goose/1.jpg`, and `labels.txt`, whose line 1 names the value 1. 0 is the background, 255 is not
    judged."""
    folder = Path(folder)
    part_names = read_part_names(folder / "labels.txt")
    loaded = []
    for image, name in zip(images, output_names([image.name for image in images]), strict=True):
        path = folder / f"{name}.png"
        if require_annotation(path, image):
            read_labels = partial(_read_labels, path, len(part_names))
            loaded.append(GroundTruthImage(image, read_labels=read_labels))
    return GroundTruthSet(name=folder.name, part_names=part_names, images=tuple(loaded))


def read_part_names(path: Path) -> tuple[str, ...]:
    """Names in a `labels.txt`, without the background's, each of which has to be there once."""
    if not path.is_file():
        raise InputError(
            f"there is no file {path}, which names a part per line, with value 1 of the masks in "
            "line 1"
        )
    names = [line.strip() for line in path.read_text(encoding="utf-8-sig").rstrip().split("\n")]
    if names[0] in BACKGROUND_NAMES:
        names = names[1:]
    if not names or not all(names) or len(set(names)) < len(names):
        raise InputError(f"{path} should name each label once, one per line")
    return tuple(names)


def _read_labels(path: Path, n_parts: int) -> np.ndarray:
    values = read_label_image(path)
    unnamed = values[(values > n_parts) & (values != IGNORED)]
    if unnamed.size:
        raise InputError(f"{path} holds the value {unnamed[0]}, but labels.txt names {n_parts}")
    return values.astype(np.uint8)
