"""iCoseg: groups of images of one object each, with a mask an image (Batra et al., CVPR 2010)."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import (
    GroundTruthImage,
    GroundTruthSet,
    read_label_image,
    require_annotation,
)
from deepff.images.files import find_images, natural_key


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
