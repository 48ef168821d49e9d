"""The object's mask, each connected piece of it called after the factor that is strongest there."""

from collections.abc import Collection

import numpy as np
from torch import Tensor

from deepff.regions.components import least_area

_EIGHT_CONNECTED = np.ones((3, 3), dtype=bool)


def named_pieces(mask: np.ndarray, maps: Tensor, factors: Collection[int]) -> np.ndarray:
    """Give each connected piece of a mask to one factor.

    In a set of bears and elephants (two groups of iCoseg, k = 6) the object's pieces fit both far
    better than the factors' own masks do. ``benchmarks/names.py --only pairs`` counts how many
    images of such sets get the right name.

    Parameters
    ----------
    mask : ndarray, (H, W), bool
    maps : Tensor, (k, h, w)
        On the layer's grid, which covers the mask, each as a share of its maximum over the set.
    factors : collection of int
        Those that a piece may be given to.

    Returns
    -------
    ndarray, (H, W), uint8
        0 is the background, factor j is j + 1: for each 8-connected piece that whose mean over the
        piece's pixels, each with the value of its cell, is largest; of equal ones the first. Specks
        (:func:`deepff.regions.components.least_area`) are background.
    """
    from scipy import ndimage

    pieces, n_pieces = ndimage.label(mask, structure=_EIGHT_CONNECTED)
    if not n_pieces or not factors:
        return np.zeros(mask.shape, np.uint8)
    _, h, w = maps.shape
    height, width = mask.shape
    cells = (np.arange(height) * h // height)[:, None] * w + np.arange(width) * w // width
    inside = pieces > 0
    places = pieces[inside].astype(np.int64) * (h * w) + cells[inside]
    pixels = np.bincount(places, minlength=(n_pieces + 1) * h * w)
    pixels = pixels.reshape(n_pieces + 1, h * w)
    candidates = sorted(factors)
    strengths = pixels @ maps[candidates].flatten(1).T.cpu().double().numpy()
    of_piece = np.array(candidates, np.uint8)[strengths.argmax(1)] + 1
    of_piece[pixels.sum(1) < least_area(mask.shape)] = 0
    return of_piece[pieces]
