"""Things that touch are parted where their map has a narrow neck."""

import numpy as np

from deepff.regions.components import connected_components, parted, things


def bumps(*centers: tuple[int, int], size: tuple[int, int] = (20, 30)) -> np.ndarray:
    """A map with a bump of radius about 5 cells at each center."""
    y, x = np.mgrid[: size[0], : size[1]]
    return np.max([np.exp(-((y - r) ** 2 + (x - c) ** 2) / 20) for r, c in centers], axis=0)


def test_two_bumps_that_touch_are_two_things():
    values = bumps((10, 8), (10, 18))
    numbers = things(values, 0.25)
    assert connected_components(values >= 0.25)[1] == 1
    assert numbers.max() == 2
    assert numbers[10, 8] != numbers[10, 18]
    assert ((numbers > 0) == (values >= 0.25)).all()


def test_one_bump_and_a_long_bar_are_one_thing_each():
    assert things(bumps((10, 12)), 0.25).max() == 1
    # Two peaks, but the neck between them is as wide as they are.
    bar = np.zeros((20, 30))
    bar[7:13, 4:26] = 0.8
    bar[9:11, [6, 23]] = 1
    assert things(bar, 0.5).max() == 1


def test_pieces_apart_are_things_and_nothing_is_none():
    assert things(bumps((5, 5), (15, 25)), 0.5).max() == 2
    assert things(np.zeros((4, 5)), 0.0).max() == 0


def test_a_mask_is_parted_along_the_neck_and_keeps_nearly_all_pixels():
    values = bumps((10, 8), (10, 18))
    numbers = things(values, 0.25)
    mask = np.kron(values >= 0.25, np.ones((16, 16), bool))
    cut = parted(mask, numbers)
    assert connected_components(mask)[1] == 1
    assert connected_components(cut)[1] == 2
    assert not (cut & ~mask).any()
    assert (mask & ~cut).sum() < 2 * 20 * 16  # a line
    # The line is half-way between the peaks, at the middle of the 14th cell.
    columns = np.nonzero((mask & ~cut).any(0))[0]
    assert abs(columns.mean() - 13.5 * 16) < 16


def test_pieces_that_a_refined_mask_joins_stay_joined():
    values = bumps((10, 6), (10, 24))
    mask = np.zeros((200, 300), bool)
    mask[90:110, 30:270] = True
    assert (parted(mask, things(values, 0.5)) == mask).all()
