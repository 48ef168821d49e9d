"""Masks as polygons along the edges of their pixels.

OpenCV's contours, which annotation libraries use, go through the centres of the outermost pixels:
a polygon of them encloses half a pixel less on every side, and a single pixel or a line of
pixels encloses nothing. These polygons enclose the pixels themselves, as COCO's do.
"""

from itertools import pairwise

import numpy as np

from deepff.export.instances import Instance

Point = tuple[int, int]

# What simplified polygons change of a mask's area at most; filled pixel by pixel, 1 % may differ.
_MAX_CHANGE = 0.009
_LEAST_TOLERANCE = 0.36  # pixels; the middles of a right angle lie 0.35 beside a line
_SMALLER, _SMALLEST = 0.8, 0.5

_STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # (y, x) to the right, down, left, up


def instance_polygons(instance: Instance, simplify: float = 0.0) -> list[np.ndarray]:
    """The polygons of an instance in its image, one for each 8-connected component.

    A hole is joined to what encloses it by a slit of no width, since the formats know no holes.
    Filled by the even-odd or the non-zero rule, pixels by their centres, the polygons are exactly
    the mask unless they are simplified.

    Parameters
    ----------
    instance : Instance
    simplify : float
        How far, in pixels, corners that are left out may lie beside the polygon (Douglas & Peucker
        1973); less where more than 1 % of a component's area would change. 0 keeps all corners.

    Returns
    -------
    list of ndarray, (m, 2)
        Corners (x, y) in pixel edges, clockwise as one sees the image; the last is joined to the
        first. Whole numbers, and halves where simplified.
    """
    from scipy import ndimage

    components, _ = ndimage.label(instance.mask, structure=np.ones((3, 3)))
    found = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(components), 1):
        mask = components[rows, columns] == number
        path = _path(mask)
        corners = _corners(path)
        if simplify > 0:
            corners = _simplified(path, corners, simplify, _MAX_CHANGE * np.count_nonzero(mask))
        found.append(corners + np.add((columns.start, rows.start), instance.box[:2]))
    return found


def joined(polygons: list[np.ndarray]) -> np.ndarray:
    """One polygon (m, 2) of several, joined by lines of no width to the first one's first corner.

    Where a format has one polygon an instance; Ultralytics joins COCO's pieces alike.
    """
    first, *others = polygons
    pieces = [piece for polygon in others for piece in (first[:1], polygon, polygon[:1])]
    return np.concatenate([first, *pieces])


def enclosed_area(polygon: np.ndarray) -> float:
    """The area of a polygon (m, 2) in square pixels, its holes not counted."""
    x, y = polygon.T
    return float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum() / 2)


def _path(mask: np.ndarray) -> np.ndarray:
    """The way around one 8-connected component, its holes joined to its outline.

    Returns
    -------
    ndarray, (m, 2)
        Every point (x, y), a pixel from the one before.
    """
    points: list[Point] = []
    following: list[int] = []
    node_at: dict[Point, int] = {}
    # From top to bottom, so that what lies above a hole is joined before it: the outline first.
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
    way = np.array(path)
    return way[(way != np.roll(way, 1, axis=0)).any(1), ::-1]


def _corners(path: np.ndarray) -> np.ndarray:
    """The points of a closed path where it turns, be it back."""
    after = np.roll(path, -1, axis=0) - path
    before = np.roll(after, 1, axis=0)
    sideways = before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0]
    return path[(sideways != 0) | ((before * after).sum(1) < 0)]


def _simplified(
    path: np.ndarray, corners: np.ndarray, tolerance: float, max_change: float
) -> np.ndarray:
    """A polygon with fewer corners than those of a path, where that changes little enough.

    It goes through the middles of the path's steps: a straight slanted edge, which pixels make a
    staircase of, is straight there. Where pieces meet and slits end, the path passes twice: those
    points stay.

    Parameters
    ----------
    path : ndarray, (m, 2)
        From :func:`_path`.
    corners : ndarray, (c, 2)
        Its corners.
    tolerance : float
        How far, in pixels, points that are left out may lie beside the polygon; less where more
        would change.
    max_change : float
        The area that may change at most, counted on both sides.
    """
    _, which, counts = np.unique(path, axis=0, return_inverse=True, return_counts=True)
    twice = counts[which.ravel()] > 1
    middles = (path + np.roll(path, -1, axis=0)) / 2
    line = np.stack([path, middles], 1).reshape(-1, 2)
    stays = np.stack([twice, np.zeros_like(twice)], 1).ravel()
    used = np.stack([twice, np.ones_like(twice)], 1).ravel()
    line, stays = line[used], stays[used]
    first = int(stays.argmax())
    line, stays = np.roll(line, -first, axis=0), np.roll(stays, -first)
    closed = np.concatenate([line, line[:1]])
    ends = [*(np.flatnonzero(stays) if stays.any() else [0]), len(line)]
    while tolerance >= _LEAST_TOLERANCE:
        kept = [_kept(closed[a : b + 1], tolerance) + a for a, b in pairwise(ends)]
        indices = np.unique(np.concatenate(kept))
        change = _change(closed, indices)
        if change <= max_change:
            found = _corners(closed[indices[:-1]])
            return found if 3 <= len(found) < len(corners) else corners
        tolerance *= min(_SMALLER, max(max_change / change, _SMALLEST))
    return corners


def _kept(line: np.ndarray, tolerance: float) -> np.ndarray:
    """The indices of the points of an open line that Douglas and Peucker keep."""
    from skimage.measure import approximate_polygon

    place = {tuple(point): i for i, point in enumerate(line.tolist())}
    kept = [place[x, y] for x, y in approximate_polygon(line, tolerance)[1:].tolist()]
    return np.array([0, *kept])  # an open line may end where it begins


def _change(closed: np.ndarray, indices: np.ndarray) -> float:
    """The area between a line and what the points at the indices leave of it, or a bit more.

    Beside each new edge, the distance of the old line is integrated along it.
    """
    edge = np.repeat(np.arange(len(indices) - 1), np.diff(indices))
    start, stop = closed[indices[:-1]][edge], closed[indices[1:]][edge]
    length = np.hypot(*(stop - start).T)[:, None]
    # A loop that is left out altogether has no edge: any direction will do.
    direction = np.where(length > 0, (stop - start) / np.maximum(length, 1e-9), (1.0, 0.0))
    first, last = closed[:-1] - start, closed[1:] - start
    along = np.abs(((last - first) * direction).sum(1))
    a, b = (direction[:, 0] * d[:, 1] - direction[:, 1] * d[:, 0] for d in (first, last))
    size = np.abs(a) + np.abs(b)
    crossing = (a * a + b * b) / np.maximum(2 * size, 1e-9)
    return float((along * np.where(a * b < 0, crossing, size / 2)).sum())


def _rings(mask: np.ndarray) -> list[list[Point]]:
    """The closed ways along pixel edges with the mask on their right, each from its top left.

    Every point (y, x) of a way is listed. Where two pixels of the mask touch at a corner the way
    turns left, to the other pixel: components are 8-connected, holes 4-connected.
    """
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
    existing, left = set(starts), set(starts)
    rings = []
    for start in starts:
        if start not in left:
            continue
        ring: list[Point] = []
        edge = start
        while not ring or edge != start:
            left.remove(edge)
            direction, y, x = edge
            ring.append((y, x))
            y, x = y + _STEPS[direction][0], x + _STEPS[direction][1]
            edge = ((direction - 1) % 4, y, x)
            while edge not in existing:
                edge = ((edge[0] + 1) % 4, y, x)
        top_left = ring.index(min(ring))
        rings.append(ring[top_left:] + ring[:top_left])
    return rings
