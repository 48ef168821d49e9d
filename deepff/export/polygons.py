"""Masks as polygons along the edges of their pixels.

OpenCV's contours, which annotation libraries use, go through the centers of the outermost pixels:
such a polygon is half a pixel smaller on every side, and that of a single pixel or a line of pixels
encloses nothing. These polygons enclose the pixels themselves, as COCO's do.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from deepff.export.instances import Instance
from deepff.regions.components import connected_components

Point = tuple[int, int]

_MAX_CHANGE = 0.009  # of a mask; filled by other rules, 1 % may differ
_LEAST_TOLERANCE = 0.36  # pixels; the middles of a right angle are 0.35 off a line
_SMALLER = 0.7

_STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # (y, x) to the right, down, left, up


def instance_polygons(instance: Instance, simplify: float = 0.0) -> list[np.ndarray]:
    """The polygons of an instance in its image, one (m, 2) per 8-connected component. Corners (x,
    y) go clockwise, and a slit of no width joins a hole to its outline. Filled, they are the mask
    to the pixel, but for corners less than `simplify` off (Douglas & Peucker 1973)."""
    from scipy import ndimage

    components, _ = connected_components(instance.mask)
    polygons = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(components), 1):
        mask = components[rows, columns] == number
        path = _path(mask)
        corners = _corners(path)
        if simplify > 0:
            corners = _simplified(path, corners, simplify, mask)
        polygons.append(corners + np.add((columns.start, rows.start), instance.box[:2]))
    return polygons


def joined(polygons: list[np.ndarray]) -> np.ndarray:
    """One polygon (m, 2) of several, joined by lines of no width, as Ultralytics joins COCO's."""
    first, *others = polygons
    pieces = [piece for polygon in others for piece in (first[:1], polygon, polygon[:1])]
    return np.concatenate([first, *pieces])


def filled(polygons: Sequence[np.ndarray], size: tuple[int, int]) -> np.ndarray:
    """The pixels (H, W) inside of polygons, as pycocotools fills them, which COCO's masks are."""
    from pycocotools import mask as api

    return api.decode(api.merge(api.frPyObjects([p.ravel().tolist() for p in polygons], *size))) > 0


def enclosed_area(polygon: np.ndarray) -> float:
    """The area of a polygon (m, 2) in square pixels, its holes not counted."""
    x, y = polygon.T
    return float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum() / 2)


def _path(mask: np.ndarray) -> np.ndarray:
    """The path (m, 2), pixel by pixel, around one 8-connected component and its holes."""
    points: list[Point] = []
    following: list[int] = []
    node_at: dict[Point, int] = {}
    # From top to bottom, so that rings above a hole are joined before it: the outline first.
    for ring in sorted(_rings(mask)):
        first, last = len(points), len(points) + len(ring) - 1
        points += ring
        following += [*range(first + 1, last + 1), first]
        if first:
            y, x = ring[0]
            while (y, x) not in node_at:
                y -= 1
            node = node_at[y, x]
            points += [ring[0], (y, x)]
            following += [last + 2, following[node]]
            following[node], following[last] = first, last + 1
        node_at.update({point: first + i for i, point in enumerate(ring)})

    path, node = [points[0]], following[0]
    while node:
        path.append(points[node])
        node = following[node]
    points_yx = np.array(path)
    return points_yx[(points_yx != np.roll(points_yx, 1, axis=0)).any(1), ::-1]


def _corners(path: np.ndarray) -> np.ndarray:
    """The points of a closed path where it turns, even straight back."""
    after = np.roll(path, -1, axis=0) - path
    before = np.roll(after, 1, axis=0)
    sideways = before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0]
    return path[(sideways != 0) | ((before * after).sum(1) < 0)]


def _simplified(
    path: np.ndarray, corners: np.ndarray, tolerance: float, mask: np.ndarray
) -> np.ndarray:
    """A polygon with fewer corners than those of a path, through the middles of its steps; the
    tolerance is reduced until at most `_MAX_CHANGE` of the mask changes."""
    from skimage.measure import approximate_polygon

    # Points that the path passes twice stay: there, pieces meet and slits end.
    _, which, counts = np.unique(path, axis=0, return_inverse=True, return_counts=True)
    stays = np.flatnonzero(counts[which.ravel()] > 1)
    if len(stays):
        path = np.roll(path, -stays[0], axis=0)
    closed = np.concatenate([path, path[:1]])
    middles = (closed[1:] + closed[:-1]) / 2
    if len(stays):
        ends = pairwise([*(stays - stays[0]), len(path)])
        lines = [np.concatenate([closed[[a]], middles[a:b], closed[[b]]]) for a, b in ends]
    else:
        lines = [np.concatenate([middles, middles[:1]])]
    while tolerance >= _LEAST_TOLERANCE:
        kept = [approximate_polygon(line, tolerance)[:-1] for line in lines]
        fewer = _corners(np.concatenate(kept))
        if 3 <= len(fewer) < len(corners) and _change(fewer, mask) <= _MAX_CHANGE:
            return fewer
        tolerance *= _SMALLER
    return corners


def _change(polygon: np.ndarray, mask: np.ndarray) -> float:
    """The share of the mask's pixels, or of its area, that differs from a polygon's."""
    area = np.count_nonzero(mask)
    pixels = np.count_nonzero(filled([polygon], mask.shape) != mask)
    return max(pixels + 1, abs(enclosed_area(polygon) - area)) / area  # 1, for other rules


def _rings(mask: np.ndarray) -> list[list[Point]]:
    """The closed paths (y, x) along pixel edges with the mask on their right, each from its top
    left. They turn left where two pixels touch at a corner: components are 8-connected."""
    padded = np.pad(mask, 1)
    above_left, above_right = padded[:-1, :-1], padded[:-1, 1:]
    below_left, below_right = padded[1:, :-1], padded[1:, 1:]
    edges = (
        below_right & ~above_right,
        below_left & ~below_right,
        above_left & ~below_left,
        above_right & ~above_left,
    )
    starts = [(d, y, x) for d, edge in enumerate(edges) for y, x in np.argwhere(edge).tolist()]
    existing, remaining = set(starts), set(starts)
    rings = []
    for start in starts:
        if start not in remaining:
            continue
        ring: list[Point] = []
        edge = start
        while not ring or edge != start:
            remaining.remove(edge)
            direction, y, x = edge
            ring.append((y, x))
            y, x = y + _STEPS[direction][0], x + _STEPS[direction][1]
            edge = ((direction - 1) % 4, y, x)
            while edge not in existing:
                edge = ((edge[0] + 1) % 4, y, x)
        top_left = ring.index(min(ring))
        rings.append(ring[top_left:] + ring[:top_left])
    return rings
