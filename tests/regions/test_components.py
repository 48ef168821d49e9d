import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra.numpy import array_shapes, arrays

from deepff.regions.components import (
    component_boxes,
    component_scores,
    connected_components,
    least_area,
    least_instance,
    named_pieces,
    scored_boxes,
)

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
    assert component_boxes(mask) == [(column, row, column + 1, row + 1)]


def test_boxes_go_by_area_then_by_first_pixel() -> None:
    # The first has five pixels, of which one touches the others at a corner.
    assert component_boxes(MASK) == [(0, 0, 3, 3), (0, 4, 3, 5), (4, 1, 5, 2), (4, 4, 5, 5)]
    assert component_boxes(MASK, min_area=3) == [(0, 0, 3, 3), (0, 4, 3, 5)]
    assert component_boxes(MASK, min_area=6) == []


def test_an_empty_mask_has_no_box() -> None:
    mask = torch.zeros(3, 4, dtype=torch.bool)
    assert component_boxes(mask) == []


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


def test_each_piece_is_called_after_the_factor_that_is_strongest_on_it() -> None:
    """Two pieces on a grid of 2 × 4 cells, each of 4 × 4 pixels."""
    maps = torch.zeros(3, 2, 4)
    maps[0, :, :2], maps[1, :, 2:] = 0.9, 0.4
    maps[1, 0, 0] = maps[2, 1, 3] = 1.0
    mask = np.zeros((8, 16), bool)
    mask[0:8, 0:6] = True  # factor 0: 0.9 on all of it; factor 1: 1 on a third
    mask[2:7, 9:15] = True  # factor 1: 0.4 on all of it; factor 2: 1 on 9 of its 30 pixels
    found = named_pieces(mask, maps, [0, 1, 2])
    assert (found[:, :6] == 1).all() and (found[2:7, 9:15] == 2).all()
    assert np.count_nonzero(found) == np.count_nonzero(mask)
    # Without the strongest the next takes it; without any there is nothing.
    assert set(np.unique(named_pieces(mask, maps, [1, 2])[:, :6])) == {2}
    assert set(np.unique(named_pieces(mask, maps, [2])[2:7, 9:15])) == {3}
    assert not named_pieces(mask, maps, []).any()


def test_pieces_that_touch_at_a_corner_are_one_and_specks_are_none() -> None:
    maps = torch.stack([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.9]])])
    mask = np.zeros((100, 100), bool)
    mask[10:50, 10:50] = mask[50:60, 50:60] = True
    mask[90, 90] = True  # 1 of 10,000 pixels; specks have up to 1
    found = named_pieces(mask, maps, [0, 1])
    assert (found[mask][:-1] == 1).all() and found[90, 90] == 0


def test_a_component_has_the_best_score_of_the_cells_that_it_fills():
    mask = np.zeros((4, 8), bool)
    mask[:, :3] = mask[0, 5:] = True
    components, n = connected_components(mask)
    # Four cells of eight pixels. The first component has eight pixels in the first cell and four in
    # the next; the second has one and two pixels in the last two.
    scores = torch.tensor([[0.0, 0.8, 0.4, 0.2]])
    assert component_scores(components, n, scores).tolist() == pytest.approx([0, 0.8, 0.4])
    scores = torch.tensor([[0.3, 0.0, 0.0, 0.0]])
    assert component_scores(components, n, scores).tolist() == pytest.approx([0, 0.3, 0.0])
    scores = torch.tensor([[0.8, 0.0, 0.2, 0.4]])
    boxes = scored_boxes(mask, scores=scores)
    assert boxes == [((0, 0, 3, 4), pytest.approx(0.8)), ((5, 0, 8, 1), pytest.approx(0.4))]
    assert scored_boxes(mask, min_area=4) == [((0, 0, 3, 4), None)]


def test_with_scores_four_cells_are_the_least_that_is_an_instance():
    assert least_area((100, 200)) == 4
    assert least_instance((100, 200), torch.zeros(1, 10, 20)) == 400
