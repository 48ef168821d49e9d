"""Files in the layouts of Pascal VOC and PASCAL-Part."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from deepff.evaluation.datasets.pascal import VOC_CLASSES

# (class, truncated, difficult) of each object
Objects = Sequence[tuple[str, int, int]]


def voc_annotation(objects: Objects, box: Sequence[int] = (2, 1, 5, 3)) -> str:
    """The text of a file in Annotations: every object has the same box, and a head in it."""
    x_min, y_min, x_max, y_max = box
    return (
        "<annotation>"
        + "".join(
            f"<object><name>{name}</name><truncated>{truncated}</truncated>"
            f"<difficult>{difficult}</difficult><bndbox><xmin>{x_min}</xmin><ymin>{y_min}</ymin>"
            f"<xmax>{x_max}</xmax><ymax>{y_max}</ymax></bndbox><part><name>head</name><bndbox>"
            "<xmin>1</xmin><ymin>1</ymin><xmax>1</xmax><ymax>1</ymax></bndbox></part></object>"
            for name, truncated, difficult in objects
        )
        + "</annotation>"
    )


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
