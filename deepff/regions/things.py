"""Things that touch: a piece of an object's map is several of them where it has a narrow neck."""

from collections import Counter

import numpy as np
from torch import Tensor

from deepff.options import Threshold
from deepff.regions.components import EIGHT_CONNECTED, connected_components
from deepff.regions.thresholds import thresholds
from deepff.results.heatmaps import HeatMaps

# Chosen of ten pairs of limits by recall and precision of VOC 2007's animals.
_LEAST_PEAK = 0.08  # how far a peak rises above the necks to others, as a share of the maximum
_WIDEST_NECK = 0.5  # in relation to the side of the smaller thing, the root of its area
_LEAST_CELLS = 4  # of a thing
_FINER = 8  # how many times finer than the map the lines between things are
# Both sides of all pairs of neighbors, and how much of a neck each pair is: corners only touch.
_NEIGHBORS = (
    (np.s_[:, :-1], np.s_[:, 1:], 1),
    (np.s_[:-1], np.s_[1:], 1),
    (np.s_[:-1, :-1], np.s_[1:, 1:], 0),
    (np.s_[:-1, 1:], np.s_[1:, :-1], 0),
)


def things_in(heatmaps: HeatMaps, index: int, maps: Tensor) -> list[np.ndarray]:
    """:func:`things` of each factor in an image's maps (k, h, w), above Otsu's threshold there."""
    limits = thresholds(heatmaps.alone(index), Threshold.OTSU_IMAGE)[0].tolist()
    return [things(of, limit) for of, limit in zip(maps.cpu().numpy(), limits, strict=True)]


def things(values: np.ndarray, limit: float) -> np.ndarray:
    """The number of the thing in each cell of a map (h, w), from 1; 0 below the limit. A connected
    piece is one thing, unless a neck between two of its peaks is narrow."""
    from skimage.morphology import h_maxima
    from skimage.segmentation import watershed

    is_on = (values >= limit) & (values > 0)
    if not is_on.any():
        return np.zeros(values.shape, np.int32)
    pieces, _ = connected_components(is_on)
    levels = np.round(np.where(is_on, values, 0) * (1000 / values.max()))
    peaks = h_maxima(levels.astype(np.int32), int(_LEAST_PEAK * 1000)) > 0
    peaks |= is_on & ~np.isin(pieces, pieces[peaks])
    numbers = watershed(-levels, connected_components(peaks)[0], EIGHT_CONNECTED, mask=is_on)
    while (widest := _widest_neck(numbers)) is not None:
        kept, joined = widest
        numbers[numbers == joined] = kept
    order = np.unique(numbers[is_on])
    return np.where(is_on, np.searchsorted(order, numbers) + 1, 0)


def _widest_neck(numbers: np.ndarray) -> tuple[int, int] | None:
    """The two neighbors whose neck is the widest of those that are too wide, if any."""
    areas = np.bincount(numbers.ravel())
    lengths: Counter[tuple[int, int]] = Counter()
    for first, second, length in _NEIGHBORS:
        a, b = numbers[first], numbers[second]
        for pair in np.sort(np.stack([a, b])[:, (a != b) & (a > 0) & (b > 0)], axis=0).T.tolist():
            lengths[pair[0], pair[1]] += length

    def width(pair: tuple[int, int]) -> float:
        area = areas[list(pair)].min()
        return np.inf if area < _LEAST_CELLS else lengths[pair] / np.sqrt(area)

    widest = max(lengths, key=width, default=None)
    return widest if widest is not None and width(widest) > _WIDEST_NECK else None


def parted(mask: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """A mask (H, W) without the lines between things of one piece; ``numbers`` as by `things`."""
    from scipy import ndimage
    from skimage.transform import resize

    pieces, n_pieces = connected_components(numbers > 0)
    if not mask.any() or numbers.max() == n_pieces:
        return mask
    # Refined masks reach beyond the cells of their things.
    nearest = ndimage.distance_transform_edt(numbers == 0, return_indices=True)[1]
    piece_of = np.zeros(numbers.max() + 1, np.int32)
    piece_of[numbers] = pieces
    extended = numbers[tuple(nearest)]
    finer = [_FINER * side for side in numbers.shape]
    shares = [resize((extended == i) * 1.0, finer) for i in range(1, numbers.max() + 1)]
    rows, columns = (np.arange(n) * m // n for n, m in zip(mask.shape, finer, strict=True))
    of_pixels = np.argmax(shares, axis=0)[np.ix_(rows, columns)] + 1
    # One neighbor of each pair that meets, also at corners, is on the line.
    lines = np.zeros_like(mask, dtype=bool)
    for first, second, _ in _NEIGHBORS:
        a, b = of_pixels[first], of_pixels[second]
        lines[first] |= (a != b) & (piece_of[a] == piece_of[b])
    return mask & ~lines
