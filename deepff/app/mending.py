"""Mends of one mask: pieces taken away, holes filled, pixels painted, strokes that spread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from scipy import ndimage
from torch.nn import functional

from deepff.app import mending
from deepff.app.edits import set_masks
from deepff.app.labels import Labels
from deepff.app.mask_files import MAX_CLASSES
from deepff.app.masks import NamedMask, keep
from deepff.app.workspace import Workspace
from deepff.errors import InputError
from deepff.regions.dense_crf import CrfKernels, crf_kernels, refined_by_kernels
from deepff.regions.probabilities import as_image_batch

_EIGHT_CONNECTED = np.ones((3, 3), dtype=bool)
# A stroke spreads at this size, and what it changes is brought to the image's own.
SPREAD_SIDE = 256
# How sure a mask's pixels are when a stroke spreads, and a stroke's own.
_MASK_CERTAINTY, _STROKE_CERTAINTY = 0.8, 0.999
# A stroke speaks for pixels of its colours (standard deviation in steps of 255) around it (standard
# deviation as a multiple of the brush). Narrow enough that what follows a stroke is better than the
# stroke alone, as benchmarks/label_masks.py measures it.
_COLOR_SIGMA, _REACH = 12.0, 1.0
_MAX_COLORS = 64

Point = tuple[float, float]


@dataclass(frozen=True)
class Stroke:
    """A line drawn on an image.

    Attributes
    ----------
    points : sequence of (x, y)
        As shares of the image's width and height, in [0, 1].
    size : float
        The brush's diameter as a share of the image's width.
    """

    points: Sequence[Point]
    size: float

    def drawn(self, shape: tuple[int, int]) -> np.ndarray:
        """Its pixels in an image of ``shape`` (H, W): bool, at least one."""
        height, width = shape
        canvas = Image.new("L", (width, height))
        draw = ImageDraw.Draw(canvas)
        radius = max(self.size * width / 2, 0.5)
        places = [(x * (width - 1), y * (height - 1)) for x, y in self.points]
        if len(places) > 1:
            draw.line(places, fill=1, width=max(1, round(2 * radius)))
        for x, y in places:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=1)
        found = np.array(canvas, dtype=bool)
        for x, y in places:
            found[round(y), round(x)] = True
        return found


def without_piece(mask: NamedMask, point: Point) -> NamedMask:
    """Without the connected piece that a point lies in.

    Raises
    ------
    InputError
        There is none.
    """
    return _with(mask, _piece(mask.values, point), 0)


def piece_alone(mask: NamedMask, point: Point) -> NamedMask:
    """Without the other pieces of the class that a point lies in.

    Raises
    ------
    InputError
        It lies in none.
    """
    piece = _piece(mask.values, point)
    y, x = _pixel(mask.values.shape, point)
    return _with(mask, (mask.values == mask.values[y, x]) & ~piece, 0)


def without_hole(mask: NamedMask, point: Point) -> NamedMask:
    """The hole that a point lies in filled by the class that has most of its rim.

    Raises
    ------
    InputError
        It lies in none.
    """
    y, x = _pixel(mask.values.shape, point)
    parts, _ = ndimage.label(mask.values == 0)
    hole = parts == parts[y, x]
    at_edge = hole[0].any() or hole[-1].any() or hole[:, 0].any() or hole[:, -1].any()
    if mask.values[y, x] or at_edge:
        raise InputError("there is no hole at this place: a hole is background that is enclosed")
    rim = mask.values[ndimage.binary_dilation(hole, _EIGHT_CONNECTED) & ~hole]
    return _with(mask, hole, int(np.bincount(rim).argmax()))


def painted(mask: NamedMask, stroke: Stroke, name: str | None) -> NamedMask:
    """With a stroke's pixels of a class, or None: of none."""
    mask, value = _valued(mask, name)
    return _with(mask, stroke.drawn(mask.values.shape), value)


def cut(mask: NamedMask, stroke: Stroke) -> NamedMask:
    """Parted along a stroke: a thin line of background, which no 8-connected piece crosses."""
    height, width = mask.values.shape
    thin = max(3.0, max(height, width) / 500) / width
    return painted(mask, replace(stroke, size=thin), None)


def without_class(mask: NamedMask, name: str) -> NamedMask:
    """Without what a class has."""
    mask, value = _valued(mask, name)
    return _with(mask, mask.values == value, 0)


def spread(mask: NamedMask, photo: np.ndarray, stroke: Stroke, name: str | None) -> NamedMask:
    """With a class, or None: the background, where a stroke says so and what looks like it.

    The dense CRF, once with the stroke as certain and once without: where the two differ, in one
    piece with the stroke, the mask changes.

    Parameters
    ----------
    mask : NamedMask
    photo : ndarray, uint8, (h, w, 3)
        At `SPREAD_SIDE` pixels or so.
    stroke : Stroke
    name : str or None
    """
    mask, value = _valued(mask, name)
    shape = photo.shape[0], photo.shape[1]
    drawn = stroke.drawn(shape)
    before = _unary(mask, shape)
    reach = max(_REACH * stroke.size * shape[1], 1.0)
    after = _led(before, photo, drawn, value, reach)
    kernels = crf_kernels(as_image_batch(photo, before), size=SPREAD_SIDE)
    mine = [_refined(kernels, unary, shape) == value for unary in (before, after)]
    changed, _ = ndimage.label((mine[1] & ~mine[0]) | drawn, _EIGHT_CONNECTED)
    touched = np.unique(changed[drawn])
    there = np.isin(changed, touched[touched > 0])
    full = _upsampled(there, mask.values.shape) | stroke.drawn(mask.values.shape)
    return _with(mask, full, value)


def _unary(mask: NamedMask, shape: tuple[int, int]) -> torch.Tensor:
    """How likely each pixel of a reduced mask is each class, (c + 1, h, w), background first."""
    n = len(mask.names) + 1
    small = Image.fromarray(mask.values).resize(shape[::-1], Image.Resampling.NEAREST)
    hard = functional.one_hot(torch.from_numpy(np.array(small)).long(), n).permute(2, 0, 1)
    return torch.lerp(torch.full(hard.shape, 1 / n), hard.float(), _MASK_CERTAINTY)


def _led(
    unary: torch.Tensor, photo: np.ndarray, drawn: np.ndarray, value: int, reach: float
) -> torch.Tensor:
    """The unary of which a stroke draws to its class what has its colours near it."""
    pixels = photo.astype(np.float32)
    colors = pixels[drawn]
    colors = colors[:: max(1, len(colors) // _MAX_COLORS)]
    squares = np.stack([np.square(pixels - color).sum(2) for color in colors]).min(0)
    distance = np.square(ndimage.distance_transform_edt(~drawn))
    near = np.exp(-0.5 * squares / _COLOR_SIGMA**2 - 0.5 * distance / reach**2)
    weight = torch.from_numpy(near.astype(np.float32)) * 0.9
    target = torch.zeros_like(unary)
    target[value] = 1
    led = torch.lerp(unary, target, weight)
    certain = torch.lerp(torch.full_like(unary, 1 / len(unary)), target, _STROKE_CERTAINTY)
    return torch.where(torch.from_numpy(drawn), certain, led)


def _refined(kernels: CrfKernels, unary: torch.Tensor, shape: tuple[int, int]) -> np.ndarray:
    refined = refined_by_kernels(kernels, unary[None, 1:])
    refined = functional.interpolate(refined, shape, mode="bilinear")[0]
    return torch.cat([1 - refined.sum(0, keepdim=True), refined]).argmax(0).numpy()


def _upsampled(mask: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """A mask at another size, its edges smooth."""
    image = Image.fromarray(mask.astype(np.uint8) * 255)
    return np.asarray(image.resize(shape[::-1], Image.Resampling.BILINEAR)) >= 128


def _piece(values: np.ndarray, point: Point) -> np.ndarray:
    y, x = _pixel(values.shape, point)
    if not values[y, x]:
        raise InputError("there is no piece at this place: click on what is marked")
    pieces, _ = ndimage.label(values == values[y, x], _EIGHT_CONNECTED)
    return pieces == pieces[y, x]


def _pixel(shape: tuple[int, ...], point: Point) -> tuple[int, int]:
    (x, y), (height, width) = point, shape[:2]
    return min(max(int(y * height), 0), height - 1), min(max(int(x * width), 0), width - 1)


def _valued(mask: NamedMask, name: str | None) -> tuple[NamedMask, int]:
    """The value of a class in a mask, which gets it where it had none."""
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


_MAX_POINTS = 5000


def mended(workspace: Workspace, labels: Labels, image: str, data: Mapping[str, Any]) -> Labels:
    """The labels with the mask of one image changed by a tool.

    Parameters
    ----------
    workspace : Workspace
    labels : Labels
    image : str
        Its name.
    data : mapping
        ``tool``; ``points``, as "x,y x,y", each a share of the image's side; ``size``, the brush's
        diameter as a share of the image's width; ``class``, what is painted.

    Raises
    ------
    InputError
        The tool has nothing to do there.
    """
    if not image:
        raise InputError("no image is open for mending")
    points = _points(data["points"])
    before = workspace.masks.current(labels, image)
    tool = data["tool"]
    if tool in _AT_POINT:
        after = _AT_POINT[tool](before, points[-1])
    else:
        stroke = Stroke(points, min(max(float(data["size"]), 0.0), 1.0))
        after = _stroked(workspace, image, before, tool, stroke, data.get("class") or None)
    return set_masks(labels, {image: keep(labels, image, after, mended=True)})


def without_class_of(workspace: Workspace, labels: Labels, image: str, name: str) -> Labels:
    """The labels with a class taken out of the mask that an image keeps."""
    after = mending.without_class(workspace.masks.current(labels, image), name)
    return set_masks(labels, {image: keep(labels, image, after, mended=True)})


_AT_POINT = {
    "delete": mending.without_piece,
    "alone": mending.piece_alone,
    "fill": mending.without_hole,
}


def _stroked(
    workspace: Workspace,
    image: str,
    before: NamedMask,
    tool: str,
    stroke: Stroke,
    name: str | None,
) -> NamedMask:
    if tool == "cut":
        return mending.cut(before, stroke)
    if tool in ("paint", "more") and name is None:
        raise InputError("choose what is painted first: name a factor")
    if tool in ("paint", "erase"):
        return mending.painted(before, stroke, name if tool == "paint" else None)
    photo, reason = workspace.pictures.photo(workspace.result.names.index(image))
    if reason is not None:
        raise InputError(f"a stroke needs the photograph {image}, which cannot be read: {reason}")
    return mending.spread(before, photo, stroke, name if tool == "more" else None)


def _points(text: str) -> list[Point]:
    found = [tuple(map(float, pair.split(","))) for pair in text.split()[:_MAX_POINTS]]
    points = [(min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0)) for x, y in found]
    if not points:
        raise InputError("nothing was drawn")
    return points
