"""Connected components of masks, the boxes around them, and things that touch.

A box is ``(x_min, y_min, x_max, y_max)`` in pixel edges: x to the right, y down, the first pixel
spans 0 to 1, and x_max and y_max are exclusive, so that width = x_max − x_min. The mask of the
single pixel (row r, column c) has the box ``(c, r, c + 1, r + 1)``.

Components are 8-connected: pixels that touch at a corner belong together, so that thin slanted
structures (legs, ropes, wings) do not fall apart on the pixel grid. A piece of an object's map is
several things where it has a narrow neck.
"""

import math
from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np
from torch import Tensor

from deepff.options import LEAST_SHARE, Threshold
from deepff.regions.thresholds import thresholds
from deepff.results.heatmaps import HeatMaps

Box = tuple[int, int, int, int]

_LEAST_CELLS = 4  # of a thing: too little is seen of what is smaller

EIGHT_CONNECTED = np.ones((3, 3), dtype=bool)

# Chosen of ten pairs of limits by recall and precision of VOC 2007's animals.
_LEAST_PEAK = 0.08  # how far a peak rises above the necks to others, as a share of the maximum
_WIDEST_NECK = 0.5  # in relation to the side of the smaller thing, the root of its area
_FINER = 8  # how many times finer than the map the lines between things are
# Both sides of all pairs of neighbors, and how much of a neck each pair is: corners only touch.
_NEIGHBORS = (
    (np.s_[:, :-1], np.s_[:, 1:], 1),
    (np.s_[:-1], np.s_[1:], 1),
    (np.s_[:-1, :-1], np.s_[1:, 1:], 0),
    (np.s_[:-1, 1:], np.s_[1:, :-1], 0),
)


def connected_components(mask: np.ndarray) -> tuple[np.ndarray, int]:
    """Each pixel's 8-connected component of a mask (H, W), from 1 row by row, and their number."""
    from scipy import ndimage

    components, n_components = ndimage.label(mask, structure=EIGHT_CONNECTED)
    return components, n_components


def least_area(size: tuple[int, int]) -> int:
    """The pixels below which a component of an image (H, W) counts as a speck: 0.02 % of it."""
    # On 60 images of twelve groups of iCoseg, recipe contrast, 216 of 337 components were smaller,
    # and none was an object (IoU > 0.5 with an annotated one); the smallest object had 0.023 %. Of
    # 273 annotated pieces of objects in these groups one is smaller, the next has 0.027 %; of 179
    # segmented objects of VOC 2007 and 1,655 boxes not marked difficult, none is.
    height, width = size
    return math.ceil(LEAST_SHARE * height * width)


def least_instance(size: tuple[int, int], scores: Tensor | None) -> int:
    """As :func:`least_area`; with scores (r, h, w) four of their cells, if these are more."""
    if scores is None:
        return least_area(size)
    height, width = size
    share = max(LEAST_SHARE, _LEAST_CELLS / math.prod(scores.shape[1:]))
    return math.ceil(share * height * width)


def component_boxes(mask: Tensor | np.ndarray, min_area: int = 1) -> list[Box]:
    """The boxes around a mask's components of ``min_area`` pixels or more, the largest first."""
    return [box for box, _ in scored_boxes(mask, min_area)]


def scored_boxes(
    mask: Tensor | np.ndarray, min_area: int = 1, scores: Tensor | None = None
) -> list[tuple[Box, float | None]]:
    """As :func:`component_boxes`, with each component's score from a map (h, w) if there is one."""
    from scipy import ndimage

    array = mask.cpu().numpy() if isinstance(mask, Tensor) else np.asarray(mask)
    components, n_components = connected_components(array.astype(bool, copy=False))
    areas = np.bincount(components.ravel(), minlength=n_components + 1)[1:]
    slices: list[Any] = ndimage.find_objects(components)
    order = [i for i in np.argsort(-areas, kind="stable") if areas[i] >= min_area]
    found = [slices[i] for i in order]
    boxes = [(cols.start, rows.start, cols.stop, rows.stop) for rows, cols in found]
    if scores is None:
        return [(box, None) for box in boxes]
    of_components = component_scores(components, n_components, scores)
    return [(box, float(of_components[i + 1])) for box, i in zip(boxes, order, strict=True)]


def named_pieces(mask: np.ndarray, maps: Tensor, factors: Collection[int]) -> np.ndarray:
    """Give each component of a mask (H, W) to the factor with the largest mean of ``maps`` (k, h,
    w), as shares of their maximum: uint8 (H, W), factor j is j + 1; specks become background."""
    # In a set of bears and elephants (two groups of iCoseg, k = 6) the object's components fit both
    # far better than the factors' masks do: benchmarks/names.py --only pairs.
    components, n_components = connected_components(mask)
    if not n_components or not factors:
        return np.zeros(mask.shape, np.uint8)
    pixels = _pixels_in_cells(components, n_components, (maps.shape[1], maps.shape[2]))
    candidates = sorted(factors)
    strengths = pixels @ maps[candidates].flatten(1).T.cpu().double().numpy()
    label_of = np.array(candidates, np.uint8)[strengths.argmax(1)] + 1
    label_of[pixels.sum(1) < least_area(mask.shape)] = 0
    return label_of[components]


def component_scores(components: np.ndarray, n_components: int, scores: Tensor) -> np.ndarray:
    """The scores of numbered components (H, W), from a map (h, w) of scores: (n_components + 1,).
    The largest in the cells that a component fills half as much as any; 0 where there is none."""
    pixels = _pixels_in_cells(components, n_components, (scores.shape[0], scores.shape[1]))
    is_in = pixels * 2 >= pixels.max(1, keepdims=True).clip(1)
    return np.where(is_in, scores.flatten().cpu().double().numpy(), 0.0).max(1)


def _pixels_in_cells(
    components: np.ndarray, n_components: int, grid: tuple[int, int]
) -> np.ndarray:
    """How many pixels of each component (H, W) each cell of a grid holds: (n + 1, cells)."""
    (height, width), (h, w) = components.shape, grid
    cells = (np.arange(height) * h // height)[:, None] * w + np.arange(width) * w // width
    inside = components > 0
    pairs = components[inside].astype(np.int64) * (h * w) + cells[inside]
    return np.bincount(pairs, minlength=(n_components + 1) * h * w).reshape(-1, h * w)


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
