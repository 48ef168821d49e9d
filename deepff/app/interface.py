"""The page, made with Gradio."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from hashlib import sha256
from typing import Any

from deepff.app import actions, exports, page
from deepff.app.actions import Shown
from deepff.app.exports import Asked
from deepff.app.labels import FACTORS, OBJECT, Settings
from deepff.app.masks import refinements
from deepff.app.page import View
from deepff.app.workspace import Workspace
from deepff.errors import InputError
from deepff.export.formats import FORMATS
from deepff.options import (
    LEAST_SHARE,
    SPLIT,
    THRESHOLD_VALUES,
    Instances,
    Photographs,
    Refinement,
    Threshold,
)
from deepff.results.run import Run

# Gradio reads this when it is imported.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
try:
    import gradio as gr
except ImportError as error:
    raise InputError("the app needs Gradio: pip install 'deepff[app]'") from error

_ATTACH = "window.deepffAttach(element, (name, data) => trigger('act', data), watch);"
_PRIVATELY: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
# The edits of one page are taken one after the other, each on what the one before left.
_ONE_BY_ONE = {**_PRIVATELY, "concurrency_id": "edit", "concurrency_limit": 1}
_IN_PARALLEL = {**_PRIVATELY, "concurrency_limit": 4}
_SLIDERS = ("value", "cut")
_BY_DEFAULT = ("accepted, if any", "")

Updates = dict[Any, Any]


def blocks(workspace: Workspace) -> gr.Blocks:
    """The page over a workspace."""
    with gr.Blocks(title="deepff label", analytics_enabled=False, fill_width=True) as demo:
        interface = _Interface(workspace)
        interface.listen(demo)
    return demo


class _Interface:
    """The page's components, and what its events call; made inside of ``gr.Blocks``."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._view = gr.State(View())
        # What a reload keeps, in the browser, for this folder; no secret.
        folder = sha256(str(workspace.folder.resolve()).encode()).hexdigest()[:16]
        self._kept = gr.BrowserState(None, storage_key=f"deepff-{folder}", secret="deepff")
        self._timer = gr.Timer(0.5)
        self._waiting = _html("waiting-room")
        self._parts: dict[str, Any] = {"kept": self._kept}
        self._tabs: dict[str, gr.Tab] = {}
        with gr.Column(visible=False, elem_id="work") as self._work:
            self._add("head")
            with gr.Row(elem_id="layout"):
                self._add("factors")
                with gr.Column(elem_id="settings"):
                    self._settings = _settings()
                with gr.Column(elem_id="main"), gr.Tabs():
                    with gr.Tab("Images") as self._tabs["images"]:
                        self._add("lesson", "cards")
                    with gr.Tab("Factors") as self._tabs["factors"]:
                        self._add("gallery")
                    with gr.Tab("Export") as self._tabs["export"]:
                        self._export = _ExportTab()
            self._add("mend", "overlay")
        which = self._export.which
        self._outputs = [self._view, which, *self._parts.values(), *self._settings.values()]
        # The latest count of each page, which takes over from the one before.
        self._counting: dict[str | None, object] = {}

    def _add(self, *names: str) -> None:
        self._parts |= {name: _html(name) for name in names}

    def listen(self, demo: gr.Blocks) -> None:
        """Connect what happens on the page with what it calls."""
        view, outputs = self._view, self._outputs
        opening = [*outputs, self._waiting, self._work, self._timer]
        demo.load(_stay_open, None, None, concurrency_limit=None, **_PRIVATELY)
        demo.load(self._tick, [view, self._kept], opening, **_ONE_BY_ONE)
        self._timer.tick(self._tick, [view, self._kept], opening, **_ONE_BY_ONE)
        edits = [
            self._parts[name].act(self._act, view, outputs, trigger_mode="multiple", **_ONE_BY_ONE)
            for name in ("head", "factors", "cards", "gallery", "mend")
        ]
        lesson = self._parts["lesson"]
        edits.append(
            lesson.act(self._learn, view, outputs, trigger_mode="multiple", **_IN_PARALLEL)
        )
        for name, field in self._settings.items():
            # Of a slider's many values on the way, the last one counts.
            mode = "always_last" if name in _SLIDERS else "multiple"
            change = partial(self._choose, name)
            edits.append(
                field.input(change, [view, field], outputs, trigger_mode=mode, **_ONE_BY_ONE)
            )
        for name, tab in self._tabs.items():
            edits.append(tab.select(partial(self._select, name), view, outputs, **_ONE_BY_ONE))
        export = self._export
        counted = [export.count, export.preview, export.written]
        # Gradio's text fields tell of no input.
        for event in [edit.then for edit in edits] + [field.change for field in export.fields]:
            event(
                self._measure,
                [view, *export.fields],
                counted,
                trigger_mode="multiple",
                **_IN_PARALLEL,
            )
        export.button.click(self._write, export.fields, export.written, **_IN_PARALLEL)

    def _update(self, view: View, shown: Shown) -> Updates:
        fields = _shown_settings(self._workspace.result, shown.pop("settings"))
        return {
            self._view: view,
            self._export.which: gr.Dropdown([_BY_DEFAULT, *exports.which_choices(self._workspace)]),
            **{self._parts[name]: html for name, html in shown.items()},
            **{self._settings[name]: field for name, field in fields.items()},
        }

    def _tick(self, view: View, kept: Any) -> Updates:
        workspace = self._workspace
        if not workspace.ready:
            return {self._waiting: actions.waiting(workspace)}
        if view.revision >= 0:
            return {self._timer: gr.Timer(active=False)}
        try:
            shown = actions.opened(workspace, view, kept)
        except InputError as error:
            return {self._waiting: actions.waiting(workspace, str(error))}
        return {
            **self._update(view, shown),
            self._waiting: "",
            self._work: gr.Column(visible=True),
            self._timer: gr.Timer(active=False),
        }

    def _act(self, view: View, event: gr.EventData) -> Updates:
        return self._update(view, actions.act(self._workspace, view, event._data))

    async def _learn(self, view: View, event: gr.EventData) -> AsyncIterator[Updates]:
        # The network takes its time, in which images can be looked over.
        yield self._act(view, event)
        workspace, lesson = self._workspace, self._parts["lesson"]
        teaching = workspace.teaching
        if teaching is None:
            return
        while not (teaching.lesson or teaching.error):
            yield {lesson: actions.lesson(workspace)}
            await asyncio.sleep(0.5)
        yield {lesson: actions.lesson(workspace)}

    def _choose(self, name: str, view: View, value: Any) -> Updates:
        before = view.revision
        updates = self._update(view, actions.choose(self._workspace, view, name, value))
        if name in _SLIDERS and view.revision == before + 1:
            del updates[self._settings[name]]  # it would jump under the pointer that moves it
        return updates

    def _select(self, tab: str, view: View) -> Updates:
        return self._update(view, actions.select(self._workspace, view, tab))

    def _measure(self, request: gr.Request, view: View, *fields: Any) -> Iterator[Updates]:
        this = self._counting[request.session_hash] = object()
        if view.tab != "export":
            return
        export = self._export
        yield {export.written: ""}  # an earlier export may not be what is counted now
        for count, preview in exports.measure(self._workspace, Asked(*fields)):
            if self._counting[request.session_hash] is not this:
                return
            yield {export.count: count} | ({} if preview is None else {export.preview: preview})

    def _write(self, *fields: Any) -> Iterator[str]:
        yield page.render("written.html", error=None, archive=None)
        yield exports.write(self._workspace, Asked(*fields))


async def _stay_open() -> AsyncIterator[None]:
    """Never ends, so that Gradio's page keeps open the stream that brings it results.

    The page closes it when nothing is pending, and then a request of that very moment, as from two
    keys pressed one after the other, is never answered.
    """
    while True:
        yield
        await asyncio.sleep(3600)


def _html(elem_id: str) -> gr.HTML:
    return gr.HTML(elem_id=elem_id, js_on_load=_ATTACH, apply_default_css=False)


def _settings() -> dict[str, Any]:
    """The fields of the settings, which `_shown_settings` fills in."""
    kinds = {
        "k": gr.Dropdown,
        "masks": gr.Radio,
        "cut": gr.Slider,
        "threshold": gr.Dropdown,
        "value": gr.Slider,
        "refine": gr.Radio,
    }
    return {name: kind(elem_id=name, interactive=True) for name, kind in kinds.items()}


def _shown_settings(run: Run, chosen: Settings) -> dict[str, Any]:
    """What the fields of the settings show; those that do nothing now are hidden."""
    has_object = run.object is not None and run.parts_of is None
    of_factors = chosen.masks == FACTORS or not has_object
    scale: dict[str, Any] = (
        {"minimum": 0.01, "maximum": 1, "step": 0.01, "label": "Fraction of the maximum"}
        if chosen.threshold == Threshold.MAX_FRACTION
        else {"minimum": 0, "maximum": 100, "step": 1, "label": "Percentile over the set"}
    )
    takes_value = chosen.threshold in THRESHOLD_VALUES
    refined = refinements(run, chosen.k)
    return {
        "k": gr.Dropdown(list(run.factorizations), value=chosen.k, label="Number of factors, k"),
        "masks": gr.Radio(
            [("the object, each piece separately", OBJECT), ("the factors", FACTORS)],
            value=chosen.masks,
            label="Masks are of",
            visible=has_object,
        ),
        "cut": gr.Slider(
            0.05,
            0.95,
            chosen.cut,
            step=0.05,
            label="Minimum probability of the object",
            visible=not of_factors,
        ),
        "threshold": gr.Dropdown(
            list(Threshold), value=chosen.threshold, label="Threshold", visible=of_factors
        ),
        "value": gr.Slider(value=chosen.value, visible=of_factors and takes_value, **scale),
        "refine": gr.Radio(
            [("off" if name == "none" else name.removesuffix("-crf"), name) for name in refined],
            # Factors without a classifier are refined by the dense CRF instead, as in their masks.
            value=chosen.refine if chosen.refine in refined else Refinement.DENSE_CRF,
            label="Refine along edges (CRF)",
            visible=of_factors,
        ),
    }


class _ExportTab:
    """The tab that counts, previews and writes annotations."""

    def __init__(self) -> None:
        kinds = ("a connected piece", "a class in an image")
        with gr.Row():
            format = gr.Dropdown(list(FORMATS), label="Format", elem_id="format")
            self.which = gr.Dropdown([_BY_DEFAULT], value="", label="Images", elem_id="which")
            instances = gr.Dropdown(
                list(zip(kinds, Instances, strict=True)),
                label="One annotation is",
                elem_id="instances",
            )
            min_area = gr.Number(
                0,
                label=f"Fewest pixels (0: {LEAST_SHARE:.2%} of the image)",
                minimum=0,
                precision=0,
                elem_id="min-area",
            )
        with gr.Row():
            images = gr.Dropdown(
                [
                    ("where the format needs them", ""),
                    ("leave out", Photographs.NONE),
                    ("link (copy in the ZIP file)", Photographs.LINK),
                    ("copy", Photographs.COPY),
                ],
                value="",
                label="Photographs",
                elem_id="photographs",
            )
            split = gr.Textbox(
                "/".join(f"{share:g}" for share in SPLIT if share),
                label="Training, validation, test in percent (COCO: one file if empty)",
                elem_id="split",
            )
        self.fields: list[Any] = [format, self.which, instances, min_area, images, split]
        self.count = _html("count-room")
        with gr.Row(elem_id="writing"):
            self.button = gr.Button("Export", variant="primary", elem_id="write")
            self.written = _html("written-room")
        self.preview = _html("preview-room")
