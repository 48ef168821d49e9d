"""Files in the layout of PASCAL-Part."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from deepff.evaluation.datasets.pascal_voc import VOC_CLASSES


def struct_array(items: Sequence[dict[str, Any]]) -> np.ndarray:
    """A MATLAB struct array of 1 × n, or the empty double that MATLAB has for none."""
    if not items:
        return np.zeros((0, 0))
    array = np.empty((1, len(items)), dtype=[(name, object) for name in items[0]])
    for i, item in enumerate(items):
        for name, value in item.items():
            array[0, i][name] = value
    return array


def write_parts(
    path: Path, objects: Sequence[tuple[str, np.ndarray, Sequence[tuple[str, np.ndarray]]]]
) -> None:
    """Write a file in the layout of PASCAL-Part's Annotations_Part."""
    anno = {
        "imname": path.stem,
        "objects": struct_array(
            [
                {
                    "class": name,
                    "class_ind": VOC_CLASSES.index(name) + 1,
                    "mask": silhouette,
                    "parts": struct_array(
                        [{"part_name": part, "mask": drawn} for part, drawn in parts]
                    ),
                }
                for name, silhouette, parts in objects
            ]
        ),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, {"anno": anno})
