"""iCoseg: groups of images of one object each, with a mask an image (Batra et al., CVPR 2010)."""

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


def load_icoseg(root: str | Path, groups: Sequence[str] | None = None) -> list[GroundTruthSet]:
    """Load groups of iCoseg.

    Parameters
    ----------
    root : path
        Holds `images/<group>/<image>` and `ground_truth/<group>/<image>.png`; a mask's pixels that
        are not 0 are the object.
    groups : sequence of str, optional
        A group's number (`"021"`) or any piece of its name (`"Elephants"`, case ignored), which
        must fit one group only. All groups if not given.

    Returns
    -------
    list of GroundTruthSet
        One a group, whose one part is `"object"`; as asked for, or in natural order.

    Raises
    ------
    InputError
        A folder or mask is missing, or a name in `groups` fits no group or several.
    """
    root = Path(root)
    for folder in (root / "images", root / "ground_truth"):
        if not folder.is_dir():
            raise InputError(f"iCoseg is laid out as images/ and ground_truth/: no folder {folder}")
    names = _group_names(root / "images")
    selected = names if groups is None else [_find_group(query, names) for query in groups]
    return [_load_group(root, name) for name in dict.fromkeys(selected)]


def _group_names(folder: Path) -> list[str]:
    names = [path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]
    return sorted(names, key=natural_key)


def _find_group(query: str, names: Sequence[str]) -> str:
    by_number = [name for name in names if query.isdecimal() and _number(name) == int(query)]
    found = by_number or [name for name in names if query.casefold() in name.casefold()]
    if query in names:
        found = [query]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"“{query}” fits several groups: {', '.join(found)}")
    raise InputError(f"no group “{query}”; the groups are: {', '.join(names)}")


def _number(name: str) -> int | None:
    match = re.match(r"\d+", name)
    return int(match.group()) if match else None


def _load_group(root: Path, name: str) -> GroundTruthSet:
    images = []
    for image in find_images(root / "images" / name):
        mask = (root / "ground_truth" / name / image.name).with_suffix(".png")
        if require_annotation(mask, image):
            images.append(GroundTruthImage(image, read_labels=partial(_read_mask, mask)))
    return GroundTruthSet(name=name, part_names=("object",), images=tuple(images))


def _read_mask(path: Path) -> np.ndarray:
    return (read_label_image(path) != 0).astype(np.uint8)


def load_label_folder(folder: str | Path, images: Sequence[ImageFile]) -> GroundTruthSet:
    """Load a folder of label images.

    The folder holds `labels.txt` and, for each image, a one-channel or palette PNG of its size with
    its name: `goose/1.png` for the image `goose/1.jpg` (`goose/1.jpg.png` where there is also an
    image `goose/1.png`). Line 1 of `labels.txt` names the pixel value 1, line 2 the value 2, and so
    on; the value 0 is the background and has no line. (If the first line is `background` or
    `_background_`, that line is the value 0's, and the next names value 1.) The value 255 marks
    pixels that are not to be judged.

    Parameters
    ----------
    folder : path
    images : sequence of ImageFile
        The images, as `deepff.images.image_files.find_images` gives them.

    Returns
    -------
    GroundTruthSet
        Named as the folder is.

    Raises
    ------
    InputError
        `labels.txt` or an image's PNG is missing; when labels are read, a value has no name.
    """
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
    """Names in a `labels.txt`, the background's left out.

    Raises
    ------
    InputError
        The file is missing or has no name, an empty line between names, or a name twice.
    """
    if not path.is_file():
        raise InputError(f"no file {path}, which names one label in each line")
    names = [line.strip() for line in path.read_text(encoding="utf-8-sig").rstrip().split("\n")]
    if names[0] in BACKGROUND_NAMES:
        names = names[1:]
    if not names or not all(names) or len(set(names)) < len(names):
        raise InputError(f"{path} should have one label's name in each line, each once")
    return tuple(names)


def _read_labels(path: Path, n_parts: int) -> np.ndarray:
    values = read_label_image(path)
    unnamed = values[(values > n_parts) & (values != IGNORED)]
    if unnamed.size:
        raise InputError(f"{path} holds the value {unnamed[0]}, but labels.txt names {n_parts}")
    return values.astype(np.uint8)
