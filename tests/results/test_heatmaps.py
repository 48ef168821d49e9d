"""Heat maps lie where their cells are, at every size."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepff.errors import InputError
from deepff.results.heatmaps import HeatMaps


def hot_cell(grid: tuple[int, int], cell: tuple[int, int], size: tuple[int, int]) -> HeatMaps:
    coefficients = torch.zeros(grid[0] * grid[1], 1)
    coefficients[cell[0] * grid[1] + cell[1]] = 1
    return HeatMaps(coefficients, [grid], [size])


def tent(n_pixels: int, n_cells: int, cell: int) -> np.ndarray:
    """Bilinear weight of a cell at each pixel centre, the outer cells reaching to the border."""
    position = (np.arange(n_pixels) + 0.5) * n_cells / n_pixels - 0.5
    position = position.clip(0, n_cells - 1)
    return np.maximum(0, 1 - np.abs(position - cell))


@settings(deadline=None, max_examples=60)
@given(
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    size=st.tuples(st.integers(1, 130), st.integers(1, 130)),
    data=st.data(),
)
def test_a_hot_cell_is_upsampled_around_its_own_centre(grid, size, data):
    cell = (data.draw(st.integers(0, grid[0] - 1)), data.draw(st.integers(0, grid[1] - 1)))
    expected = np.outer(tent(size[0], grid[0], cell[0]), tent(size[1], grid[1], cell[1]))
    np.testing.assert_allclose(hot_cell(grid, cell, size)[0][0], expected, atol=1e-5)


def test_the_peak_is_in_the_middle_of_the_cell_when_sides_are_no_multiple_of_the_stride():
    # 7 × 9 cells on 333 × 500 pixels: cell (2, 5) covers rows 95.1–142.7 and columns 277.8–333.3.
    heatmap = hot_cell((7, 9), (2, 5), (333, 500))[0][0]
    row, column = divmod(int(heatmap.argmax()), 500)
    assert (row, column) == (118, 305)
    weights = heatmap / heatmap.sum()
    assert float((weights.sum(1) * torch.arange(333)).sum()) == pytest.approx(
        2.5 * 333 / 7 - 0.5, abs=0.2
    )
    assert float((weights.sum(0) * torch.arange(500)).sum()) == pytest.approx(
        5.5 * 500 / 9 - 0.5, abs=0.2
    )


def test_rows_are_image_by_image_and_row_major():
    coefficients = torch.arange(20.0).reshape(10, 2)
    maps = HeatMaps(coefficients, [(2, 3), (4, 1)], [(20, 30), (40, 10)])
    assert maps.grid(0).tolist() == [
        [[0, 2, 4], [6, 8, 10]],
        [[1, 3, 5], [7, 9, 11]],
    ]
    assert maps.grid(1)[1].tolist() == [[13], [15], [17], [19]]
    assert [tuple(heatmap.shape) for heatmap in maps] == [(2, 20, 30), (2, 40, 10)]


def test_normalized_per_set_and_per_image():
    coefficients = torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [0.0, 0.0]])
    maps = HeatMaps(coefficients, [(1, 2), (1, 2)], [(8, 8), (8, 8)])
    assert not maps.signed
    assert maps.normalized(0).tolist() == [[[0.25, 0.5]], [[0, 0]]]
    assert maps.normalized(0, per="image").tolist() == [[[0.5, 1]], [[0, 0]]]
    assert maps.normalized(1, (4, 4)).shape == (2, 4, 4)
    with pytest.raises(InputError, match='must be "set" or "image"'):
        maps.normalized(0, per="factor")


def test_signed_maps_are_scaled_by_their_largest_magnitude():
    maps = HeatMaps(torch.tensor([[-4.0], [2.0]]), [(1, 2)], [(4, 4)])
    assert maps.signed
    assert maps.normalized(0).tolist() == [[[-1, 0.5]]]


def test_coefficients_must_fit_the_grids():
    with pytest.raises(InputError, match="10 rows of coefficients do not fit 1 grids with 6 cells"):
        HeatMaps(torch.zeros(10, 2), [(2, 3)], [(20, 30)])


def off_center(n_images: int) -> HeatMaps:
    """A hot cell in each image, on grids that cover another part of each."""
    H = torch.zeros(12 * n_images, 1)
    H[5::12] = torch.arange(1.0, n_images + 1)[:, None]
    extents = [((0.1 * i, 0.9), (0.05, 1 + 0.1 * i)) for i in range(1, n_images + 1)]
    return HeatMaps(H, [(3, 4)] * n_images, [(60, 80)] * n_images, extents=extents)


def test_copies_of_maps_draw_cells_where_the_maps_do():
    maps = off_center(3)
    assert not torch.equal(maps[0], hot_cell((3, 4), (1, 1), (60, 80))[0])
    for index in range(3):
        torch.testing.assert_close(maps.replace()[index], maps[index])
        torch.testing.assert_close(maps.alone(index)[0], maps[index])
        doubled = maps.replace(coefficients=2 * maps.coefficients)
        torch.testing.assert_close(doubled[index], 2 * maps[index])
        torch.testing.assert_close(doubled.scale, maps.scale)
        reduced = maps.replace(image_sizes=[(30, 40)] * 3)
        torch.testing.assert_close(reduced[index], maps.upsampled(index, (30, 40)))


def test_maps_with_more_images_draw_cells_where_both_do():
    maps, others = off_center(2), off_center(1).replace(scale=torch.tensor([8.0]))
    both = maps.extended(others)
    for index, expected in enumerate([maps[0], maps[1], others[0]]):
        torch.testing.assert_close(both[index], expected)
    assert both.scale.tolist() == [8]
