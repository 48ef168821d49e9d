"""What a tool of the mending view does to the mask of its image."""

from collections.abc import Mapping
from typing import Any

from deepff.app import mending
from deepff.app.edits import set_masks
from deepff.app.labels import Labels
from deepff.app.masks import NamedMask, keep
from deepff.app.mending import Point, Stroke
from deepff.app.workspace import Workspace
from deepff.errors import InputError

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
