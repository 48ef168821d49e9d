"""From masks to boxes: connected components and the boxes around them.

A box is ``(x_min, y_min, x_max, y_max)`` in pixel edges: x to the right, y down, the first pixel
spans 0 to 1, and x_max and y_max are exclusive, so that width = x_max − x_min. The mask of the
single pixel (row r, column c) has the box ``(c, r, c + 1, r + 1)``.

Components are 8-connected: pixels that touch at a corner belong together, so that thin slanted
structures (legs, ropes, wings) do not fall apart on the pixel grid.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepff.options import LEAST_SHARE

Box = tuple[int, int, int, int]

_EIGHT_CONNECTED = np.ones((3, 3), dtype=bool)


def largest_component(mask: Tensor | np.ndarray) -> np.ndarray:
    """The largest 8-connected component of a mask.

    Parameters
    ----------
    mask : (H, W) bool

    Returns
    -------
    ndarray, (H, W), bool
        Of equally large components the one whose first pixel comes first, row by row. Empty for an
        empty mask.
    """
    labels, areas = _components(mask)
    if not areas.size:
        return labels > 0
    return labels == areas.argmax() + 1


def bounding_box(mask: Tensor | np.ndarray) -> Box | None:
    """The box around all the pixels of a mask, or None for an empty mask.

    Parameters
    ----------
    mask : (H, W) bool

    Returns
    -------
    (x_min, y_min, x_max, y_max) or None
        In pixel edges, maxima exclusive.
    """
    array = _as_array(mask)
    columns, rows = np.flatnonzero(array.any(0)), np.flatnonzero(array.any(1))
    if not columns.size:
        return None
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def least_area(size: tuple[int, int]) -> int:
    """The pixels below which a component of an image (H, W) is taken for a speck: 0.02 % of it.

    On 60 images of twelve groups of iCoseg, by the recipe contrast, 216 of 337 components were
    smaller, and none was an object (IoU > 0.5 with an annotated one); the smallest that was had
    0.023 %. Of 273 annotated pieces of objects in all of these groups one is smaller, the next has
    0.027 %; of 179 segmented objects of VOC 2007 and 1,655 boxes not marked difficult, none.
    """
    height, width = size
    return math.ceil(LEAST_SHARE * height * width)


def component_boxes(mask: Tensor | np.ndarray, min_area: int = 1) -> list[Box]:
    """The boxes around a mask's 8-connected components, the largest component first.

    Parameters
    ----------
    mask : (H, W) bool
    min_area : int
        Components of fewer pixels are left out.

    Returns
    -------
    list of (x_min, y_min, x_max, y_max)
        In pixel edges, maxima exclusive; by falling number of pixels, equal ones in the order of
        their first pixel, row by row. Empty for an empty mask.
    """
    from scipy import ndimage

    labels, areas = _components(mask)
    slices: list[Any] = ndimage.find_objects(labels)
    order = np.argsort(-areas, kind="stable")
    return [
        (cols.start, rows.start, cols.stop, rows.stop)
        for rows, cols in (slices[i] for i in order if areas[i] >= min_area)
    ]


def _components(mask: Tensor | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Component labels (H, W), 0 outside, and each component's number of pixels.

    Labels are numbered in the order of the components' first pixels, row by row.
    """
    from scipy import ndimage

    labels, count = ndimage.label(_as_array(mask), structure=_EIGHT_CONNECTED)
    return labels, np.bincount(labels.ravel(), minlength=count + 1)[1:]


def _as_array(mask: Tensor | np.ndarray) -> np.ndarray:
    array = mask.cpu().numpy() if isinstance(mask, torch.Tensor) else np.asarray(mask)
    return array.astype(bool, copy=False)
