"""Pieces of the object called after factors."""

import numpy as np
import torch

from deepff.regions.components import named_pieces


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
