"""Maps whose grid does not lie on the whole image."""

import numpy as np
import pytest
import torch

from deepff.results.heatmaps import HeatMaps
from deepff.results.sampling import bands, cell_means, covering, sampled

# Four cells of 8 pixels on an image of 32, which look 4 pixels above and 2 right of themselves.
EXTENT = ((-4 / 32, 28 / 32), (2 / 32, 34 / 32))


def tent(n: int, first: float, spacing: float, cell: int, cells: int) -> np.ndarray:
    position = ((np.arange(n) + 0.5 - first) / spacing).clip(0, cells - 1)
    return np.maximum(0, 1 - np.abs(position - cell))


@pytest.mark.parametrize("cell", [(0, 0), (1, 2), (3, 3)])
def test_a_hot_cell_is_drawn_around_where_it_looks(cell):
    coefficients = torch.zeros(16, 1)
    coefficients[cell[0] * 4 + cell[1]] = 1
    maps = HeatMaps(coefficients, [(4, 4)], [(32, 32)], extents=[EXTENT])
    expected = np.outer(tent(32, 0, 8, cell[0], 4), tent(32, 6, 8, cell[1], 4))
    np.testing.assert_allclose(maps[0][0], expected, atol=1e-5)
    np.testing.assert_allclose(maps.alone(0)[0][0], expected, atol=1e-5)
    # At any size; a grid that covers the image draws nearly the same.
    assert torch.allclose(maps.upsampled(0, (96, 96))[:, 1::3, 1::3], maps[0], atol=1e-5)
    again = sampled(maps.covering(0), (32, 32))
    assert (again - maps[0]).abs().max() < 0.15
    assert (again - maps[0]).abs().mean() < 0.01


def test_bands_are_the_rows_of_the_whole():
    maps = torch.rand(3, 5, 7, generator=torch.Generator().manual_seed(0))
    extent = ((-0.1, 0.93), (0.05, 1.02))
    shape = (900, 1201)  # more than one band
    found = list(bands(maps, shape, extent))
    assert len(found) > 1
    whole = torch.cat([band for _, band in found], dim=1)
    assert torch.allclose(whole, sampled(maps, shape, extent), atol=1e-5)


def test_one_grid_is_sampled_on_another():
    """A ramp across the image has the same value at the same place on any grid."""
    ramp = torch.arange(8.0).expand(1, 8, 8)  # cells of 1/8, whose centres are at (i + 0.5) / 8
    onto = ((0.0, 1.0), (0.25, 0.75))
    found = sampled(ramp, (2, 4), None, onto)
    # Centres at 0.3125, 0.4375, 0.5625, 0.6875 of the width.
    assert found[0, 0].tolist() == pytest.approx([2.0, 3.0, 4.0, 5.0])
    back = sampled(found, (8, 8), onto, None)
    assert back[0, 0].tolist() == pytest.approx([2, 2, 2, 3, 4, 5, 5, 5])


def test_means_are_over_the_pixels_where_cells_lie():
    pixels = torch.arange(32.0).expand(1, 32, 32)
    plain = cell_means(pixels, (4, 4))
    assert plain[0, 0].tolist() == pytest.approx([3.5, 11.5, 19.5, 27.5])
    moved = cell_means(pixels, (4, 4), ((0.0, 1.0), (4 / 32, 36 / 32)))
    # The last cell's right half is beyond the image and takes its last column's value.
    assert moved[0, 0].tolist() == pytest.approx([7.5, 15.5, 23.5, (29.5 + 31) / 2])


def test_what_lies_on_the_image_is_left_as_it_is():
    maps = torch.rand(2, 3, 3)
    assert covering(maps, None) is maps
