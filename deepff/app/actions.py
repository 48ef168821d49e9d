"""What a page does when something is clicked, typed or chosen on it; without Gradio."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from deepff.app import edits, page
from deepff.app.kept_masks import NamedMask, keep
from deepff.app.label_file import StaleLabelsError
from deepff.app.labels import ACCEPTED, SKIPPED, Entries, Labels
from deepff.app.mending import mended, without_class
from deepff.app.page import GRIDS, View, listed
from deepff.app.workspace import Workspace
from deepff.errors import InputError

STALE = (
    "The labels were changed in another tab or program. This page now shows the new labels. Your "
    "last change was not made; repeat it if you still want it."
)
UNTAUGHT = (
    "The masks are those of the factors again, not of the classes that were taught. Undo brings "
    "these back."
)
_STATUSES = {"accept": ACCEPTED, "skip": SKIPPED, "nothing": ACCEPTED}
_NUMBERS = ("at", "position", "image", "factor", "keep", "drop", "on")
# These actions change what is shown, and not the labels.
_LOOKS = (
    *("show", "page", "look", "filter", "order", "search", "grid", "mend", "leave"),
    *("teach", "drop-lesson"),
)

Shown = dict[str, Any]


def waiting(workspace: Workspace, error: str | None = None) -> str:
    """How far the run is that the page waits for, or why there will be no result."""
    return page.render("waiting.html", workspace=workspace, error=error or workspace.error)


def opened(workspace: Workspace, view: View, kept: Any = None) -> Shown:
    """A page that was just opened: at the first image to decide about, or as a browser kept it."""
    labels = workspace.store.refresh()
    names = workspace.result.names
    view.restore(kept)
    view.listing = listed(workspace.pictures, labels, view)
    undecided = (
        position
        for position, index in enumerate(view.listing)
        if not labels.image(names[index]).status
    )
    at = kept.get("image") if isinstance(kept, dict) else None
    view.go(view.listing.index(at) if at in view.listing else next(undecided, 0))
    return shown(workspace, view, labels, workspace.notice)


def shown(workspace: Workspace, view: View, labels: Labels, notice: str = "") -> Shown:
    """What a page shows now, by the names of its parts."""
    view.revision = labels.revision
    view.serial += 1
    pictures = workspace.pictures
    parts: Shown = {
        "head": page.render(
            "header.html",
            labels=labels,
            names=pictures.names,
            view=view,
            notice=notice,
            steps=edits.steps(labels),
            unreadable=workspace.result.skipped,
        ),
        "factors": page.factor_rows(pictures, labels, workspace.store.suggestions),
        "settings": labels.settings,
        "kept": view.kept(),
    }
    if view.tab == "images":
        parts["cards"] = page.cards(pictures, labels, view)
        parts["lesson"] = page.lesson(pictures, labels, workspace.teaching)
        workspace.prefetch(labels, view.on_page(view.page + 1))
    if view.tab == "factors":
        parts["gallery"] = page.gallery(pictures, labels)
    parts["mend"] = page.mend(pictures, labels, view)
    parts["overlay"] = page.overlay(workspace.masks, pictures, labels, view)
    return parts


def lesson(workspace: Workspace) -> str:
    """What masks teach the set, for the page."""
    return page.lesson(workspace.pictures, workspace.store.labels, workspace.teaching)


def select(workspace: Workspace, view: View, tab: str) -> Shown:
    """Turn to another tab, as the browser also does when it has opened the page."""
    view.tab = tab
    return shown(workspace, view, workspace.store.labels, workspace.notice)


def choose(workspace: Workspace, view: View, name: str, value: Any) -> Shown:
    """Change one of the settings and show masks, which follow it."""
    if name != "k":
        view.look = "masks"
    return _changed(workspace, view, lambda labels: edits.set_settings(labels, **{name: value}))


def act(workspace: Workspace, view: View, data: Mapping[str, Any]) -> Shown:
    """Do what a button or field asks for: ``act``, with what else its element says, all as text."""
    data = {
        name: int(value) if name in _NUMBERS else value
        for name, value in data.items()
        if value is not None
    }
    last = len(view.listing) - 1
    view.position = min(max(data.get("at", view.position), 0), max(last, 0))
    if data["act"] in _LOOKS:
        labels = workspace.store.labels
        _look(workspace, view, labels, data)
        return shown(workspace, view, labels)
    return _changed(workspace, view, lambda labels: _edited(workspace, view, labels, data))


def _look(workspace: Workspace, view: View, labels: Labels, data: Mapping[str, Any]) -> None:
    kind = data["act"]
    if kind == "mend":
        view.mending = workspace.result.names[data["image"]]
    elif kind == "leave":
        view.mending = ""
    elif kind == "teach":
        workspace.teach(labels)
    elif kind == "drop-lesson":
        workspace.teaching = None
    elif kind == "look":
        view.look = data["look"]
    elif kind == "show" and "image" in data:
        index = data["image"]
        if index not in view.listing:
            view.filter, view.search = View.filter, View.search
            view.listing = listed(workspace.pictures, labels, view)
        view.go(view.listing.index(index))
    elif kind in ("show", "page"):
        page_number = int(data.get("text") or 1) - 1
        view.go(data.get("position", page_number * view.in_view))
    else:
        if kind == "grid":
            size = int(data["text"])
            view.in_view = size if size in GRIDS else view.in_view
        else:
            setattr(view, kind, data["text"])
        at = view.image
        view.listing = listed(workspace.pictures, labels, view)
        view.go(view.listing.index(at) if kind == "grid" and at in view.listing else 0)


def _changed(workspace: Workspace, view: View, edit: Callable[[Labels], Labels]) -> Shown:
    store = workspace.store
    try:
        before, after = store.labels, store.edit(view.revision, edit)
        is_lost = before.settings.taught and not after.settings.taught
        is_undone = len(after.history) < len(before.history)
        return shown(workspace, view, after, UNTAUGHT if is_lost and not is_undone else "")
    except StaleLabelsError:
        return shown(workspace, view, store.labels, STALE)
    except InputError as error:
        return shown(workspace, view, store.labels, page.sentence(error))


def _edited(workspace: Workspace, view: View, labels: Labels, data: Mapping[str, Any]) -> Labels:
    kind = data["act"]
    if kind in ("undo", "redo"):
        steps = labels.history if kind == "undo" else labels.future
        _turn_to_last(workspace, view, steps)
        return edits.undo(labels) if kind == "undo" else edits.redo(labels)
    if kind == "name":
        return edits.name_factor(labels, data["factor"], data["text"])
    if kind == "keep":
        return edits.keep_factor(labels, data["factor"], bool(data["keep"]))
    if kind == "agree":
        return edits.agree(labels, workspace.store.suggestions)
    if kind == "use-lesson":
        return _with_lesson(workspace, labels)
    if kind == "take-all":
        return _with_new_masks(workspace, labels)
    if kind == "change":
        image = workspace.result.names[data["image"]] if "image" in data else view.mending
        return mended(workspace, labels, image, data)
    if kind == "class":
        return edits.set_class(labels, data["name"], data["text"])
    name = workspace.result.names[data["image"]]
    if kind == "level":
        return edits.set_level(labels, name, float(data["text"]) if data["text"] else None)
    if kind == "take":
        kept = keep(labels, name, workspace.masks.made(labels, name))
        is_accepted = labels.image(name).status == ACCEPTED
        return edits.set_masks(labels, {name: kept if is_accepted else None})
    if kind == "drop":
        if labels.image(name).mask is not None or labels.settings.taught:
            before = workspace.masks.current(labels, name)
            mask = without_class(before, data["name"])
            if (mask.values == before.values).all():
                raise InputError(f"{data['name']} is not in this mask; click Undo to get it back")
            return edits.set_masks(labels, {name: keep(labels, name, mask, mended=True)})
        region = labels.region(data["factor"])
        return edits.drop_factors(labels, name, region, bool(data["drop"]))
    if data.get("on", 1):
        return _decided(workspace, view, labels, name, kind, "anew" in data)
    return edits.set_status(labels, name, "")


def _decided(
    workspace: Workspace, view: View, labels: Labels, name: str, kind: str, anew: bool
) -> Labels:
    """An image accepted (``anew``: not with nothing in it), with nothing in it, or skipped, and the
    view at the next."""
    label, status, mask = labels.image(name), _STATUSES[kind], None
    if kind == "nothing":
        if not label.shows_nothing:
            size = workspace.result.images[workspace.result.names.index(name)].size
            mask = keep(labels, name, NamedMask(np.zeros(size, np.uint8), ()), mended=True)
            labels = edits.set_status(labels, name, status, mask)
    elif label.status != status or anew:  # else a key was pressed twice before the page answered
        if status == ACCEPTED and (label.mask is None or anew):
            mask = keep(labels, name, workspace.masks.made(labels, name))
        labels = edits.set_status(labels, name, status, mask)
    if view.position < len(view.listing) - 1:
        view.go(view.position + 1)
        if view.mending:
            view.mending = workspace.result.names[view.listing[view.position]]
    return labels


def _with_lesson(workspace: Workspace, labels: Labels) -> Labels:
    teaching, workspace.teaching = workspace.teaching, None
    if teaching is None or not teaching.lesson:
        raise InputError("this lesson no longer exists; teach the set again")
    return edits.set_settings(labels, lesson=teaching.lesson, taught=teaching.classes)


def _with_new_masks(workspace: Workspace, labels: Labels) -> Labels:
    """What the settings make now, for all accepted images except those that were mended."""
    masks = {}
    for name in workspace.result.names:
        label = labels.image(name)
        if label.status == ACCEPTED and (label.mask is None or labels.differs(name)):
            masks[name] = keep(labels, name, workspace.masks.made(labels, name))
    return edits.set_masks(labels, masks)


def _turn_to_last(workspace: Workspace, view: View, steps: Sequence[Entries]) -> None:
    """Show the image that the last of the edits changed, if it changed one."""
    images = [key for step in steps[-1:] for key in step if isinstance(key, str)]
    if len(images) == 1:
        index = workspace.result.names.index(images[0])
        if index in view.listing:
            view.go(view.listing.index(index))
        if view.mending:
            view.mending = images[0]
