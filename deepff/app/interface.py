"""The page, made with Gradio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from hashlib import sha256
from typing import Any

from deepff.app import actions, lesson_page, page
from deepff.app import exports as export_actions
from deepff.app.actions import Shown
from deepff.app.exports import Asked, which_choices
from deepff.app.labels import FACTORS, OBJECT, Settings
from deepff.app.masks import refinements
from deepff.app.view import View
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
_SLIDERS = ("value", "cut")
_BY_DEFAULT = ("accepted ones, if any", "")
_BESIDE = {**_PRIVATELY, "concurrency_limit": 4}


def blocks(workspace: Workspace) -> gr.Blocks:
    """The page over a workspace."""
    with gr.Blocks(title="deepff label", analytics_enabled=False, fill_width=True) as demo:
        view = gr.State(View())
        # What a reload keeps, in the browser: of this folder, and no secret.
        place = sha256(str(workspace.folder.resolve()).encode()).hexdigest()[:16]
        kept = gr.BrowserState(None, storage_key=f"deepff-{place}", secret="deepff")
        timer = gr.Timer(0.5)
        waiting = _html("waiting-room")
        with gr.Column(visible=False, elem_id="work") as work:
            head = _html("head")
            with gr.Row(elem_id="layout"):
                factors = _html("factors")
                with gr.Column(elem_id="settings"):
                    settings = _settings()
                with gr.Column(elem_id="main"), gr.Tabs():
                    with gr.Tab("Images") as images_tab:
                        lesson, cards = _html("lesson"), _html("cards")
                    with gr.Tab("Factors") as factors_tab:
                        gallery = _html("gallery")
                    with gr.Tab("Export") as export_tab:
                        asked, placed, count, write, written, preview = _export()
            mend, overlay = _html("mend"), _html("overlay")

        parts = {
            "head": head,
            "factors": factors,
            "lesson": lesson,
            "cards": cards,
            "gallery": gallery,
            "mend": mend,
            "overlay": overlay,
            "kept": kept,
        }
        which = asked[1]
        outputs = [view, which, *parts.values(), *settings.values()]

        def update(view_now: View, now: Shown) -> dict[Any, Any]:
            chosen = now.pop("settings")
            return {
                view: view_now,
                which: gr.Dropdown([_BY_DEFAULT, *which_choices(workspace)]),
                **{parts[name]: html for name, html in now.items()},
                **{settings[name]: field for name, field in _shown(workspace, chosen).items()},
            }

        def tick(view_now: View, kept_now: Any) -> dict[Any, Any]:
            if not workspace.ready:
                return {waiting: actions.waiting(workspace)}
            if view_now.revision >= 0:
                return {timer: gr.Timer(active=False)}
            try:
                now = actions.opened(workspace, view_now, kept_now)
            except InputError as error:
                return {waiting: actions.waiting(workspace, str(error))}
            return {
                **update(view_now, now),
                waiting: "",
                work: gr.Column(visible=True),
                timer: gr.Timer(active=False),
            }

        def act(view_now: View, event: gr.EventData) -> dict[Any, Any]:
            return update(view_now, actions.act(workspace, view_now, event._data))

        async def learn(view_now: View, event: gr.EventData) -> AsyncIterator[dict[Any, Any]]:
            # The network takes its time, in which images can be looked over.
            yield update(view_now, actions.act(workspace, view_now, event._data))
            teaching = workspace.teaching
            if teaching is None:
                return
            while not teaching.is_over:
                yield {lesson: lesson_page.lesson(workspace, workspace.store.labels)}
                await asyncio.sleep(0.5)
            yield {lesson: lesson_page.lesson(workspace, workspace.store.labels)}

        def choose(name: str) -> Callable[[View, Any], dict[Any, Any]]:
            def change(view_now: View, chosen: Any) -> dict[Any, Any]:
                before = view_now.revision
                now = update(view_now, actions.choose(workspace, view_now, name, chosen))
                if name in _SLIDERS and view_now.revision == before + 1:
                    del now[settings[name]]  # which would jump under the pointer that moves it
                return now

            return change

        def select(tab: str) -> Callable[[View], dict[Any, Any]]:
            return lambda view_now: update(view_now, actions.select(workspace, view_now, tab))

        counting: dict[str | None, object] = {}

        def measure(
            view_now: View,
            format: str,
            which_ones: str,
            instances: str,
            min_area: int | None,
            request: gr.Request,
        ) -> Iterator[dict[Any, Any]]:
            # A newer count of the same page takes over from this one.
            mine = counting[request.session_hash] = object()
            if view_now.tab != "export":
                return
            yield {written: ""}  # an earlier export may not be what is counted now
            for text, example in export_actions.measure(
                workspace, Asked(format, which_ones, instances, min_area or None)
            ):
                if counting[request.session_hash] is not mine:
                    return
                yield {count: text} if example is None else {count: text, preview: example}

        def export(
            format: str,
            which_ones: str,
            instances: str,
            min_area: int | None,
            images: str,
            split: str,
        ) -> Iterator[str]:
            yield page.render("written.html", error=None, archive=None)
            wanted = Asked(format, which_ones, instances, min_area or None, images, split)
            yield export_actions.write(workspace, wanted)

        opening = [*outputs, waiting, work, timer]
        demo.load(_stay_open, None, None, concurrency_limit=None, **_PRIVATELY)
        demo.load(tick, [view, kept], opening, **_ONE_BY_ONE)
        timer.tick(tick, [view, kept], opening, **_ONE_BY_ONE)
        edits = [
            part.act(act, view, outputs, trigger_mode="multiple", **_ONE_BY_ONE)
            for part in (head, factors, cards, gallery, mend)
        ]
        edits.append(lesson.act(learn, view, outputs, trigger_mode="multiple", **_BESIDE))
        for name, component in settings.items():
            # Of a slider's many values on the way, the last one counts.
            mode = "always_last" if name in _SLIDERS else "multiple"
            inputs = [view, component]
            edits.append(
                component.input(choose(name), inputs, outputs, trigger_mode=mode, **_ONE_BY_ONE)
            )
        for name, tab in (
            ("images", images_tab),
            ("factors", factors_tab),
            ("export", export_tab),
        ):
            edits.append(tab.select(select(name), view, outputs, **_ONE_BY_ONE))
        counted = [count, preview, written]
        for edit in edits:
            edit.then(measure, [view, *asked], counted, trigger_mode="multiple", **_BESIDE)
        for field in asked:
            field.input(measure, [view, *asked], counted, trigger_mode="multiple", **_BESIDE)
        write.click(export, [*asked, *placed], written, **_BESIDE)
    return demo


async def _stay_open() -> AsyncIterator[None]:
    """Never ends, so that Gradio's page keeps the stream open that brings it results.

    It closes it when nothing is pending, and what is asked for at that very moment, as by two keys
    pressed one after the other, is never answered.
    """
    while True:
        yield
        await asyncio.sleep(3600)


def _html(elem_id: str) -> gr.HTML:
    return gr.HTML(elem_id=elem_id, js_on_load=_ATTACH, apply_default_css=False)


def _settings() -> dict[str, Any]:
    return {
        "k": gr.Dropdown([], label="Number of factors, k", elem_id="k", interactive=True),
        "masks": gr.Radio(
            [("the object, piece by piece", OBJECT), ("the factors", FACTORS)],
            label="Masks are of",
            elem_id="masks",
            interactive=True,
        ),
        "cut": gr.Slider(
            0.05,
            0.95,
            0.5,
            step=0.05,
            label="Object where it is at least this likely",
            elem_id="cut",
            interactive=True,
        ),
        "threshold": gr.Dropdown(
            list(Threshold), label="Threshold", elem_id="threshold", interactive=True
        ),
        "value": gr.Slider(0, 100, 75, elem_id="value", interactive=True),
        "refine": gr.Radio(
            [],
            label="CRF: refine along the edges",
            elem_id="refine",
            interactive=True,
        ),
    }


def _shown(workspace: Workspace, chosen: Settings) -> dict[str, Any]:
    """The fields of the settings, of which those are seen that do something."""
    has_object = workspace.result.object is not None and workspace.result.parts_of is None
    of_factors = chosen.masks == FACTORS or not has_object
    is_fraction = chosen.threshold == Threshold.MAX_FRACTION
    scale: dict[str, Any] = (
        {"minimum": 0.01, "maximum": 1, "step": 0.01, "label": "Fraction of the maximum"}
        if is_fraction
        else {"minimum": 0, "maximum": 100, "step": 1, "label": "Percentile over the set"}
    )
    takes_value = chosen.threshold in THRESHOLD_VALUES
    refined = refinements(workspace.result, chosen.k)
    named = [("off" if name == "none" else name.removesuffix("-crf"), name) for name in refined]
    # In place of a classifier that these factors have none of, as masks are made.
    refine = chosen.refine if chosen.refine in refined else Refinement.DENSE_CRF
    return {
        "k": gr.Dropdown(list(workspace.result.factorizations), value=chosen.k),
        "masks": gr.Radio(value=chosen.masks, visible=has_object),
        "cut": gr.Slider(value=chosen.cut, visible=not of_factors),
        "threshold": gr.Dropdown(value=chosen.threshold, visible=of_factors),
        "value": gr.Slider(value=chosen.value, visible=of_factors and takes_value, **scale),
        "refine": gr.Radio(named, value=refine, visible=of_factors),
    }


def _export() -> tuple[list[Any], list[Any], gr.HTML, gr.Button, gr.HTML, gr.HTML]:
    kinds = ("a connected piece", "a class in an image")
    with gr.Row():
        format = gr.Dropdown(list(FORMATS), label="Format", elem_id="format")
        which = gr.Dropdown([_BY_DEFAULT], value="", label="Images", elem_id="which")
        instances = gr.Dropdown(
            list(zip(kinds, Instances, strict=True)), label="One annotation is", elem_id="instances"
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
                ("left where they are", Photographs.NONE),
                ("links, where the format wants them", Photographs.LINK),
                ("copies, where the format wants them", Photographs.COPY),
            ],
            label="Photographs",
            elem_id="photographs",
        )
        split = gr.Textbox(
            "/".join(f"{share:g}" for share in SPLIT if share),
            label="Training, validation, test (YOLO, VOC)",
            elem_id="split",
        )
    count = _html("count-room")
    with gr.Row(elem_id="writing"):
        write = gr.Button("Export", variant="primary", elem_id="write")
        written = _html("written-room")
    preview = _html("preview-room")
    return [format, which, instances, min_area], [images, split], count, write, written, preview
