"""What a page does when something is clicked, typed or chosen on it; Gradio apart."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deepff.app import page
from deepff.app.annotations import class_names, labelled_images, sample, write_archive
from deepff.app.label_file import StaleLabelsError
from deepff.app.labels import (
    Labels,
    drop_factors,
    keep_factor,
    name_factor,
    set_settings,
    set_status,
    undo,
)
from deepff.app.pictures import IN_VIEW, data_uris
from deepff.app.view import View
from deepff.app.workspace import Workspace
from deepff.errors import InputError
from deepff.export.formats import CONTENTS
from deepff.export.instances import AnnotatedImage

STALE = (
    "The labels were changed in another tab or program. This page now shows them as they are; your "
    "last change was not made, so make it again if it is still wanted."
)
_STATUSES = {"accept": "accepted", "skip": "skipped"}
_NUMBERS = ("at", "position", "image", "factor", "keep", "drop")


Shown = dict[str, Any]


def waiting(workspace: Workspace, error: str | None = None) -> str:
    """How far the run is that the page waits for, or why it waits in vain."""
    return page.render(
        "waiting.html",
        stage=workspace.stage,
        done=workspace.done,
        total=workspace.total,
        error=error or workspace.error,
    )


def opened(workspace: Workspace, view: View) -> Shown:
    """A page that was just opened: at the first image that nothing was decided of."""
    labels = workspace.store.refresh()
    names = workspace.result.names
    undecided = (
        position
        for position, index in enumerate(workspace.pictures.order(labels.settings.k))
        if not labels.image(names[index]).status
    )
    view.go(next(undecided, 0))
    return shown(workspace, view, labels)


def shown(workspace: Workspace, view: View, labels: Labels, notice: str = "") -> Shown:
    """All that a page shows of the labels, by the names of its parts."""
    view.revision = labels.revision
    result, pictures, settings = workspace.result, workspace.pictures, labels.settings
    shares = result.factorizations[settings.k].energy_shares.tolist()
    parts: Shown = {
        "head": page.header(workspace.folder, labels, result.names, notice),
        "factors": page.factor_rows(labels, shares),
        "settings": settings,
    }
    if view.tab == "images":
        parts["cards"] = page.cards(pictures, labels, view)
    if view.tab == "factors":
        parts["gallery"] = page.gallery(pictures, labels)
    return parts


def select(workspace: Workspace, view: View, tab: str) -> Shown:
    """Turn to another tab."""
    view.tab = tab
    return shown(workspace, view, workspace.store.labels)


def choose(workspace: Workspace, view: View, name: str, value: Any) -> Shown:
    """Change one of the settings; masks are shown, as they are what follows."""
    if name != "k":
        view.look = "masks"
    return _changed(workspace, view, lambda labels: set_settings(labels, **{name: value}))


def act(workspace: Workspace, view: View, data: Mapping[str, Any]) -> Shown:
    """Do what a button or a field of the page's own asks for.

    Parameters
    ----------
    workspace : Workspace
    view : View
        Changed in place.
    data : mapping
        ``act`` names the action, the rest are what the element says of itself, all as text.
    """
    numbers = {name: int(data[name]) for name in _NUMBERS if data.get(name) is not None}
    last = len(workspace.result.names) - 1
    view.position = min(max(numbers.get("at", view.position), 0), last)
    kind = data["act"]
    if kind in ("show", "page", "look"):
        if kind == "look":
            view.look = data["look"]
        else:
            position = numbers.get("position")
            if position is None:
                position = (int(data["text"] or 1) - 1) * IN_VIEW
            view.go(min(max(position, 0), last))
        return shown(workspace, view, workspace.store.labels)
    return _changed(workspace, view, lambda labels: _edited(workspace, view, labels, data, numbers))


def _changed(workspace: Workspace, view: View, edit: Callable[[Labels], Labels]) -> Shown:
    store = workspace.store
    try:
        return shown(workspace, view, store.edit(view.revision, edit))
    except StaleLabelsError:
        return shown(workspace, view, store.labels, STALE)
    except InputError as error:
        return shown(workspace, view, store.labels, _sentence(error))


def _edited(
    workspace: Workspace,
    view: View,
    labels: Labels,
    data: Mapping[str, Any],
    numbers: Mapping[str, int],
) -> Labels:
    names, kind = workspace.result.names, data["act"]
    if kind == "undo":
        if labels.history and isinstance(labels.history[-1].key, str):
            index = names.index(labels.history[-1].key)
            view.go(workspace.pictures.order(labels.settings.k).index(index))
        return undo(labels)
    if kind == "name":
        return name_factor(labels, numbers["factor"], data["text"])
    if kind == "keep":
        return keep_factor(labels, numbers["factor"], bool(numbers["keep"]))
    name = names[numbers["image"]]
    if kind == "drop":
        region = labels.region(numbers["factor"])
        return drop_factors(labels, name, region, bool(numbers["drop"]))
    if labels.image(name).status == _STATUSES[kind]:
        return set_status(labels, name, "")
    if view.position < len(names) - 1:
        view.go(view.position + 1)
    return set_status(labels, name, _STATUSES[kind])


def measure(
    workspace: Workspace, format: str, instances: str, min_area: int | None
) -> Iterator[tuple[str, str | None]]:
    """Count annotations image by image.

    Yields
    ------
    count : str
    preview : str or None
        One annotation; None: it stays as it is.
    """
    labels, result = workspace.store.labels, workspace.result
    skipped = labels.count("skipped", result.names)
    n_images = n_instances = 0
    preview = None

    def count(error: str | None = None) -> str:
        return page.render(
            "count.html",
            contents=CONTENTS[format],
            singular={"masks": "mask", "boxes": "box"},
            instances=n_instances,
            images=n_images,
            total=len(result.names) - skipped,
            skipped=skipped,
            error=error,
        )

    yield count(), None
    try:
        for image in labelled_images(result, labels, instances, min_area):
            n_images += 1
            n_instances += len(image.instances)
            if image.instances and preview is None:
                preview = _preview(workspace, labels, image, format)
            yield count(), preview
    except InputError as error:
        yield count(_sentence(error)), preview
    if preview is None:
        yield count(), page.render("preview.html", name=None)


def write(workspace: Workspace, format: str, instances: str, min_area: int | None) -> str:
    """Export, and say where it can be downloaded."""
    result, labels = workspace.result, workspace.store.labels
    try:
        count, archive = write_archive(
            result, labels, workspace.folder, format, instances, min_area
        )
    except (InputError, OSError) as error:
        return page.render("written.html", error=_sentence(error), archive=None)
    return page.render("written.html", error=None, archive=_about(archive), instances=count)


def _about(archive: Path) -> dict[str, Any]:
    return {
        "name": archive.name,
        "kilobytes": -(-archive.stat().st_size // 1000),
        "folder": archive.with_suffix(""),
    }


def _preview(workspace: Workspace, labels: Labels, image: AnnotatedImage, format: str) -> str:
    names = class_names(workspace.result, labels)
    instance = max(image.instances, key=lambda instance: instance.area)
    name = names[instance.region]
    index = workspace.result.names.index(image.name)
    color = next(factor for factor, part in labels.parts.items() if part == name)
    [uri] = data_uris(lambda i: workspace.pictures.instance(i, color, instance), [index])
    files = sample(image, instance, names, format)
    return page.render("preview.html", name=name, image=image.name, picture=uri, files=files)


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
