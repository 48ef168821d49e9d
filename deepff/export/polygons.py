"""Masks as polygons along the edges of their pixels.

OpenCV's contours, which annotation libraries use, go through the centres of the outermost pixels:
a polygon of them encloses half a pixel less on every side, and a single pixel or a line of
pixels encloses nothing. These polygons enclose the pixels themselves, as COCO's do.
"""

import numpy as np

from deepff.export.instances import Instance

Point = tuple[int, int]

_STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # (y, x) to the right, down, left, up


def instance_polygons(instance: Instance) -> list[np.ndarray]:
    """The polygons of an instance in its image, one for each 8-connected component.

    A hole is joined to what encloses it by a slit of no width, since the formats know no holes.
    Filled by the even-odd or the non-zero rule, pixels by their centres, the polygons are exactly
    the mask.

    Returns
    -------
    list of ndarray, (m, 2)
        Corners (x, y) in pixel edges, clockwise as one sees the image; the last is joined to the
        first.
    """
    from scipy import ndimage

    components, _ = ndimage.label(instance.mask, structure=np.ones((3, 3)))
    found = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(components), 1):
        corners = _polygon(components[rows, columns] == number)
        found.append(corners + np.add((columns.start, rows.start), instance.box[:2]))
    return found


def joined(polygons: list[np.ndarray]) -> np.ndarray:
    """One polygon (m, 2) of several, joined by lines of no width to the first one's first corner.

    Where a format has one polygon an instance; Ultralytics joins COCO's pieces alike.
    """
    first, *others = polygons
    pieces = [piece for polygon in others for piece in (first[:1], polygon, polygon[:1])]
    return np.concatenate([first, *pieces])


def _polygon(mask: np.ndarray) -> np.ndarray:
    """The polygon of one 8-connected component, (m, 2), by joining its holes to its outline."""
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
    corners = np.array(path)
    corners = corners[(corners != np.roll(corners, 1, axis=0)).any(1)]
    directions = np.sign(np.roll(corners, -1, axis=0) - corners)
    turns = (directions != np.roll(directions, 1, axis=0)).any(1)
    return corners[turns, ::-1]


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
