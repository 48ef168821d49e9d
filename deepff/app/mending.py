"""Mends of one mask: what a click takes, pieces, holes, strokes of a brush."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from deepff.app.edits import set_masks
from deepff.app.kept_masks import MAX_CLASSES, NamedMask, keep, nearest
from deepff.app.labels import Labels
from deepff.app.segmenter import Point
from deepff.app.workspace import Workspace
from deepff.errors import InputError
from deepff.layers.layer import WHOLE, Extent
from deepff.pictures.figures import photo_shape
from deepff.regions.clicks import CLICK_SIDE, ClickScene, boxed, clicked
from deepff.regions.components import EIGHT_CONNECTED, connected_components

# A click sees what is within this many of its distances from the target's border around it, and at
# least within this share of the image's longer side.
_IN_SIGHT, _LEAST_IN_SIGHT = 12.0, 0.2
_MAX_POINTS = 5000


@dataclass(frozen=True)
class Stroke:
    """A line drawn on an image: (x, y) as shares of its width and height, in [0, 1]."""

    points: Sequence[Point]
    size: float  # the brush's diameter as a share of the image's width

    def drawn(self, shape: tuple[int, int]) -> np.ndarray:
        """The stroke's pixels in an image of ``shape`` (H, W): bool, at least one."""
        height, width = shape
        canvas = Image.new("L", (width, height))
        draw = ImageDraw.Draw(canvas)
        radius = max(self.size * width / 2, 0.5)
        points = [(x * (width - 1), y * (height - 1)) for x, y in self.points]
        if len(points) > 1:
            draw.line(points, fill=1, width=max(1, round(2 * radius)))
        for x, y in points:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=1)
        pixels = np.array(canvas, dtype=bool)
        for x, y in points:
            pixels[round(y), round(x)] = True
        return pixels


def taken(
    mask: NamedMask,
    scene_of: Callable[[Extent], ClickScene],
    points: Sequence[Point],
    name: str,
    earlier: Sequence[Point],
) -> NamedMask:
    """With what a click takes of a class, or gives back where it has that class already. Two points
    are the corners of a box: what stands out in it takes the class. Points that were clicked
    earlier keep what they have. ``scene_of`` gives the scene of a part of the photograph."""
    mask, value = _valued(mask, name)
    at = _pixel(mask.values.shape, points[0])
    is_box = len(points) > 1
    label = 0 if is_box else int(mask.values[at])
    target = 0 if label == value else value
    extent = WHOLE if is_box else _in_sight(mask.values, at, target)
    scene = scene_of(extent)
    shape = scene.superpixels.shape
    inside = tuple(
        slice(round(first * n), round(last * n))
        for (first, last), n in zip(extent, mask.values.shape, strict=True)
    )
    small = nearest(mask.values[inside], shape).copy()
    pixel, *others = (_pixel(shape, _within(extent, point)) for point in points)
    if is_box:
        (top, bottom), (left, right) = (sorted(s) for s in zip(pixel, others[-1], strict=True))
        part = boxed(scene, small, ((top, left), (bottom, right)))
    else:
        small[pixel] = label
        seen = [point for point in (_within(extent, p) for p in earlier) if _is_inside(point)]
        part = clicked(scene, small, pixel, target, [_pixel(shape, p) for p in seen])
    changed = np.zeros(mask.values.shape, bool)
    changed[inside] = _upsampled(part, changed[inside].shape)
    changed &= mask.values == label
    changed[at] |= not is_box
    return _with(mask, changed, target)


def segmented(
    mask: NamedMask,
    segment: Callable[..., np.ndarray],
    points: Sequence[Point],
    name: str,
    earlier: Sequence[Point],
) -> NamedMask:
    """As `taken`, by a :class:`deepff.app.segmenter.Segmenter` of a photograph: what it marks
    anew, or no more, in one piece with the click."""
    mask, value = _valued(mask, name)
    is_box, is_class = len(points) > 1, mask.values == value
    at = _pixel(mask.values.shape, points[0])
    label = 0 if is_box else int(mask.values[at])
    adds = label != value
    clicks = [*earlier] if is_box else [points[0], *earlier]
    are_inside = [bool(is_class[_pixel(mask.values.shape, point)]) for point in clicks]
    if not is_box:
        are_inside[0] = adds
    box = (points[0], points[-1]) if is_box else None
    marked = _upsampled(segment(clicks, are_inside, box, is_class), mask.values.shape)
    changed = (marked == adds) & (mask.values == label)
    if not is_box:
        changed[at] = True
        pieces, _ = connected_components(changed)
        changed = pieces == pieces[at]
    return _with(mask, changed, value if adds else 0)


def _in_sight(values: np.ndarray, at: tuple[int, int], target: int) -> Extent:
    """The part of a mask that a click sees: the closer it is to its target's border, the less."""
    small = nearest(values, photo_shape(values.shape, CLICK_SIDE)) == target
    if not small.any():
        return WHOLE
    longer = max(values.shape)
    pixel = tuple(int(i * n / m) for i, n, m in zip(at, small.shape, values.shape, strict=True))
    depth = ndimage.distance_transform_edt(~small)[pixel] / CLICK_SIDE
    half = max(_IN_SIGHT * depth, _LEAST_IN_SIGHT) * longer
    if half > longer / 2:
        return WHOLE
    down, across = (
        (max(0.0, round(i - half) / n), min(1.0, round(i + half) / n))
        for i, n in zip(at, values.shape, strict=True)
    )
    return down, across


def _within(extent: Extent, point: Point) -> Point:
    """A point in a part of the image, as shares of the part's sides."""
    (top, bottom), (left, right) = extent
    return (point[0] - left) / (right - left), (point[1] - top) / (bottom - top)


def _is_inside(point: Point) -> bool:
    return all(0 <= coordinate < 1 for coordinate in point)


def without_piece(mask: NamedMask, point: Point) -> NamedMask:
    """Without the connected piece at a point; InputError where there is none."""
    return _with(mask, _piece(mask.values, point), 0)


def piece_alone(mask: NamedMask, point: Point) -> NamedMask:
    """Without the other pieces of the class at a point; InputError where there is none."""
    piece = _piece(mask.values, point)
    y, x = _pixel(mask.values.shape, point)
    return _with(mask, (mask.values == mask.values[y, x]) & ~piece, 0)


def moved(mask: NamedMask, points: Sequence[Point], name: str) -> NamedMask:
    """With the piece at the last point given to a class; without points, all that is marked."""
    where = _piece(mask.values, points[-1]) if points else mask.values > 0
    mask, value = _valued(mask, name)
    return _with(mask, where, value)


def without_hole(mask: NamedMask, point: Point) -> NamedMask:
    """The hole at a point filled by the class that has most of its rim; InputError without one."""
    y, x = _pixel(mask.values.shape, point)
    background, _ = ndimage.label(mask.values == 0)
    hole = background == background[y, x]
    at_edge = hole[0].any() or hole[-1].any() or hole[:, 0].any() or hole[:, -1].any()
    if mask.values[y, x] or at_edge:
        raise InputError("there is no hole here; click on background that a mask encloses")
    rim = mask.values[ndimage.binary_dilation(hole, EIGHT_CONNECTED) & ~hole]
    return _with(mask, hole, int(np.bincount(rim).argmax()))


def painted(mask: NamedMask, stroke: Stroke, name: str | None) -> NamedMask:
    """With a stroke's pixels of a class, or of the background where the name is None."""
    mask, value = _valued(mask, name)
    return _with(mask, stroke.drawn(mask.values.shape), value)


def cut(mask: NamedMask, stroke: Stroke) -> NamedMask:
    """Parted along a stroke: a thin line of background, which no 8-connected piece crosses."""
    height, width = mask.values.shape
    thin = max(3.0, max(height, width) / 500) / width
    return painted(mask, replace(stroke, size=thin), None)


def without_class(mask: NamedMask, name: str) -> NamedMask:
    """Without the pixels of a class."""
    mask, value = _valued(mask, name)
    return _with(mask, mask.values == value, 0)


def _upsampled(mask: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """A mask at another size, its edges smooth."""
    image = Image.fromarray(mask.astype(np.uint8) * 255)
    return np.asarray(image.resize(shape[::-1], Image.Resampling.BILINEAR)) >= 128


def _piece(values: np.ndarray, point: Point) -> np.ndarray:
    y, x = _pixel(values.shape, point)
    if not values[y, x]:
        raise InputError("there is no piece here; click on a marked region")
    pieces, _ = connected_components(values == values[y, x])
    return pieces == pieces[y, x]


def _pixel(shape: tuple[int, ...], point: Point) -> tuple[int, int]:
    (x, y), (height, width) = point, shape[:2]
    return min(max(int(y * height), 0), height - 1), min(max(int(x * width), 0), width - 1)


def _valued(mask: NamedMask, name: str | None) -> tuple[NamedMask, int]:
    """The mask, with the class added where it lacked it, and the class's value in it."""
    if name is None:
        return mask, 0
    if name not in mask.names:
        if len(mask.names) == MAX_CLASSES:
            raise InputError(f"a mask has up to {MAX_CLASSES} classes")
        mask = replace(mask, names=(*mask.names, name))
    return mask, mask.names.index(name) + 1


def _with(mask: NamedMask, where: np.ndarray, value: int) -> NamedMask:
    values = mask.values.copy()
    values[where] = value
    return replace(mask, values=values)


_AT_POINT = {"delete": without_piece, "alone": piece_alone, "fill": without_hole}


def mended(workspace: Workspace, labels: Labels, image: str, data: Mapping[str, Any]) -> Labels:
    """The labels with the mask of one image changed by a tool. `data` has the ``tool``, its
    ``points`` as "x,y x,y" (shares of the image's sides), those that were clicked ``earlier``, the
    brush's ``size`` (a share of the image's width) and the ``class`` to paint."""
    if not image:
        raise InputError("no image is open for mending")
    before = workspace.masks.current(labels, image)
    if data["tool"] == "class":
        after = moved(before, _parsed(data["points"]), _class(data))
        return set_masks(labels, {image: keep(labels, image, after, mended=True)})
    points = _points(data["points"])
    if data["tool"] == "take":
        index = workspace.result.names.index(image)
        clicks = points, _class(data), _parsed(data.get("earlier", ""))
        if workspace.segmenter is None:
            after = taken(before, partial(workspace.pictures.scene, labels, index), *clicks)
        else:
            photo = workspace.pictures.readable(index)
            after = segmented(before, partial(workspace.segmenter, photo), *clicks)
    else:
        after = _changed(before, points, data)
    return set_masks(labels, {image: keep(labels, image, after, mended=True)})


def _changed(mask: NamedMask, points: list[Point], data: Mapping[str, Any]) -> NamedMask:
    tool = data["tool"]
    if tool in _AT_POINT:
        return _AT_POINT[tool](mask, points[-1])
    stroke = Stroke(points, min(max(float(data["size"]), 0.0), 1.0))
    if tool == "cut":
        return cut(mask, stroke)
    return painted(mask, stroke, _class(data) if tool == "paint" else None)


def _class(data: Mapping[str, Any]) -> str:
    if not data.get("class"):
        raise InputError("choose what to paint first: name a factor, or add a class")
    return str(data["class"])


def _points(text: str) -> list[Point]:
    points = _parsed(text)
    if not points:
        raise InputError("nothing was drawn")
    return points


def _parsed(text: str) -> list[Point]:
    pairs = [tuple(map(float, pair.split(","))) for pair in text.split()[:_MAX_POINTS]]
    return [(min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0)) for x, y in pairs]
