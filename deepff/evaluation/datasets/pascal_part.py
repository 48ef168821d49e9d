"""PASCAL-Part: part masks for the images of VOC 2010 (Chen et al., CVPR 2014)."""

import re
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import (
    UNNAMED,
    GroundTruthImage,
    GroundTruthSet,
    table_of_names,
    with_parts,
)
from deepff.evaluation.datasets.pascal_voc import (
    check_classes,
    find_voc,
    image_file,
    image_ids,
    read_boxes,
)

# What loadmat raises for files that are truncated, of MATLAB 7.3, or not MATLAB's, and what reading
# an array as a struct raises.
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, OSError, NotImplementedError, zlib.error)

# The data set's part names, by the part that they are merged into; by class.
PartNames = Mapping[str, Sequence[str]]
TABLE3_PARTS: dict[str, PartNames] = table_of_names("table3")
TABLE4_PARTS: dict[str, PartNames] = table_of_names("table4")


def load_pascal_part(
    root: str | Path, parts: Mapping[str, PartNames] = TABLE4_PARTS, *, others: Sequence[str] = ()
) -> list[GroundTruthSet]:
    """Load PASCAL-Part, a set of images per class, without those with a difficult or truncated one.

    ``root`` is as for `load_voc`. ``parts`` has for each class the data set's names by part;
    `"wheel"` stands for `wheel_1`, `wheel_2`, … Where parts overlap, each has all its pixels.
    Objects of the classes ``others`` have labels where no object of the set's class is.
    """
    root = Path(root)
    check_classes(list(parts), list(TABLE4_PARTS))
    folder = find_voc(root, 2010)
    candidates = [parent / "Annotations_Part" for parent in (folder, root)]
    annotations = next((path for path in candidates if path.is_dir()), None)
    if annotations is None:
        raise InputError(
            f"no folder of PASCAL-Part's masks: neither {candidates[0]} nor {candidates[1]}"
        )
    return [_load_class(folder, annotations, *of_class, others) for of_class in parts.items()]


def _load_class(
    folder: Path, annotations: Path, class_name: str, parts: PartNames, others: Sequence[str]
) -> GroundTruthSet:
    others = tuple(name for name in others if name != class_name)
    label_of = {
        name: label for label, names in enumerate(parts.values(), start=1) for name in names
    }
    label_of_other = {name: label for label, name in enumerate(others, start=len(parts) + 1)}
    images = []
    for image_id in image_ids(folder, class_name):
        boxes = read_boxes(folder / "Annotations" / f"{image_id}.xml")
        marked = (
            box.class_name == class_name and (box.difficult or box.truncated) for box in boxes
        )
        if any(marked):
            continue
        path = annotations / f"{image_id}.mat"
        if not path.is_file():
            raise InputError(f"no part masks {path}, which the image set of {class_name} names")
        read_labels = partial(_read_labels, path, class_name, label_of, label_of_other)
        images.append(GroundTruthImage(image_file(folder, image_id), read_labels=read_labels))
    return GroundTruthSet(class_name, tuple(parts), tuple(images), others=others)


def _read_labels(
    path: Path, class_name: str, label_of: Mapping[str, int], label_of_other: Mapping[str, int]
) -> np.ndarray:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        # Without squeeze_me every field has MATLAB's two dimensions, and a mask of one row stays a
        # mask.
        annotation = loadmat(path)["anno"][0, 0]
        return _label_map(annotation["objects"].ravel(), class_name, label_of, label_of_other)
    except (*_MALFORMED, MatReadError) as error:
        raise InputError(f"{path} is not laid out as a PASCAL-Part annotation") from error


def _label_map(
    objects: np.ndarray,
    class_name: str,
    label_of: Mapping[str, int],
    label_of_other: Mapping[str, int],
) -> np.ndarray:
    labels = np.zeros(objects[0]["mask"].shape, np.uint8)
    parts: dict[int, np.ndarray] = {}
    for instance in objects:
        if (other := _text(instance["class"])) in label_of_other:
            labels[instance["mask"] > 0] = label_of_other[other]
    for instance in objects:
        if _text(instance["class"]) != class_name:
            continue
        labels[instance["mask"] > 0] = UNNAMED
        for part in instance["parts"].ravel():
            label = label_of.get(re.sub(r"_\d+$", "", _text(part["part_name"])))
            if label is not None:
                mask = part["mask"] > 0
                parts[label] = parts.get(label, np.False_) | mask
    return with_parts(labels, parts)


def _text(field: Any) -> str:
    return str(field[0])
