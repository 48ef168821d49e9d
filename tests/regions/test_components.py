import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra.numpy import array_shapes, arrays

from deepff.regions.components import bounding_box, component_boxes, largest_component

ROWS_OF_A_MASK = [
    "##...",
    "##..#",
    "..#..",
    ".....",
    "###.#",
]
MASK = np.array([[cell == "#" for cell in row] for row in ROWS_OF_A_MASK])


@pytest.mark.parametrize(("row", "column"), [(0, 0), (2, 3), (3, 4)])
def test_box_of_one_pixel_goes_along_its_edges(row: int, column: int) -> None:
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[row, column] = True
    box = (column, row, column + 1, row + 1)
    assert bounding_box(mask) == box
    assert component_boxes(mask) == [box]
    assert (torch.from_numpy(largest_component(mask)) == mask).all()


def test_pixels_that_touch_at_a_corner_are_one_component() -> None:
    largest = largest_component(MASK)
    assert largest.sum() == 5
    assert largest[2, 2]
    assert bounding_box(largest) == (0, 0, 3, 3)


def test_boxes_go_by_area_then_by_first_pixel() -> None:
    assert component_boxes(MASK) == [(0, 0, 3, 3), (0, 4, 3, 5), (4, 1, 5, 2), (4, 4, 5, 5)]
    assert component_boxes(MASK, min_area=3) == [(0, 0, 3, 3), (0, 4, 3, 5)]
    assert component_boxes(MASK, min_area=6) == []


def test_box_of_a_whole_mask_spans_its_components() -> None:
    assert bounding_box(MASK) == (0, 0, 5, 5)
    assert bounding_box(np.ones((3, 7), bool)) == (0, 0, 7, 3)


def test_of_equal_components_the_first_is_the_largest() -> None:
    mask = np.zeros((5, 5), bool)
    mask[0, 3:] = mask[3, :2] = True
    assert bounding_box(largest_component(mask)) == (3, 0, 5, 1)


def test_an_empty_mask_has_no_box() -> None:
    mask = torch.zeros(3, 4, dtype=torch.bool)
    assert bounding_box(mask) is None
    assert component_boxes(mask) == []
    assert not largest_component(mask).any()
    assert largest_component(mask).shape == (3, 4)


@settings(deadline=None)
@given(mask=arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=12)))
def test_the_largest_component_has_the_first_of_the_boxes(mask: np.ndarray) -> None:
    boxes = component_boxes(mask)
    largest = largest_component(mask)
    assert bounding_box(largest) == (boxes[0] if boxes else None)
    assert not (largest & ~mask).any()
    covered = np.zeros_like(mask)
    for x_min, y_min, x_max, y_max in boxes:
        covered[y_min:y_max, x_min:x_max] = True
    assert not (mask & ~covered).any()


@settings(deadline=None)
@given(mask=arrays(bool, array_shapes(min_dims=2, max_dims=2, min_side=3, max_side=12)))
def test_the_order_of_components_is_that_of_a_flood_fill(mask: np.ndarray) -> None:
    # flood fills started row by row find the components in the order that breaks ties
    left = {(int(row), int(column)) for row, column in np.argwhere(mask)}
    found: list[tuple[int, tuple[int, int, int, int]]] = []
    for start in map(tuple, np.argwhere(mask).tolist()):
        if start not in left:
            continue
        left.remove(start)
        pixels, queue = [start], [start]
        while queue:
            row, column = queue.pop()
            near = {(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            queue.extend(near)
            pixels.extend(near)
        rows, columns = zip(*pixels, strict=True)
        box = (min(columns), min(rows), max(columns) + 1, max(rows) + 1)
        found.append((len(pixels), box))
    expected = [box for _, box in sorted(found, key=lambda component: -component[0])]
    assert component_boxes(mask) == expected
