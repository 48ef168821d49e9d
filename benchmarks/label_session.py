"""A labelling session in a browser: 40 photographs of two kinds of animal, from folder to training.

    python benchmarks/label_session.py DATA FOLDER [--kinds elephant=15 cheetah=25]
        [--names 3=cheetah ...] [--chromium /usr/bin/chromium] [--yolo PYTHON]

DATA holds iCoseg as ``icoseg/{images,ground_truth}/<group>/``; FOLDER is made, with the
photographs, the result and screenshots. Names are agreed with, three masks mended (a piece
deleted, a part added by the brush, two pieces cut apart) and applied to all, all accepted, every
setting moved, the accepted ones exported with their photographs, the server killed and the session
gone on with. The script knows where the
animals are from the ground truth, where a person would look, and ``--names`` tells it which factors
the network calls wrongly. ``--yolo`` names a Python with
Ultralytics: then a YOLO-seg nano is trained from the export for one epoch.

The seconds are those of the machine: what a person needs to look and to move is not in them.
"""

import argparse
import json
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from label_browser import NARROW, PATIENCE, WIDE, Person, Point, Server, browser_page, server
from label_truth import (
    Masks,
    Truths,
    along,
    ious,
    middle_of_largest,
    of_each_kind,
    photographs,
    shown_masks,
    tell_ious,
)
from playwright.sync_api import expect
from scipy import ndimage

TRAIN = """
import sys
from ultralytics import YOLO
model = YOLO("yolo11n-seg.yaml")
model.train(data=sys.argv[1], epochs=1, imgsz=160, batch=8, workers=0, device="cpu", plots=False,
            project=sys.argv[2], name="yolo", exist_ok=True)
"""


_TOUCHING = np.ones((3, 3))


@dataclass(frozen=True)
class Mend:
    """One mask that is wrong, and what is to be drawn on it with which tool."""

    image: str
    key: str
    points: Sequence[Point]


def mends(masks: Masks, truths: Truths) -> list[Mend]:
    """The worst of each kind: a piece that is none, a part that lacks, two animals in one piece."""
    scores = ious(masks, truths)
    worst = sorted(scores, key=lambda name: scores[name])
    found: list[Mend] = []
    for find in (_piece_to_delete, _part_to_add, _line_to_cut):
        taken = [mend.image for mend in found]
        each = (find(name, masks[name].values > 0, truths[name]) for name in worst)
        found.append(next(mend for mend in each if mend and mend.image not in taken))
    return found


def _piece_to_delete(name: str, mask: np.ndarray, truth: np.ndarray) -> Mend | None:
    pieces, n = ndimage.label(mask, _TOUCHING)
    for i in range(1, n + 1):
        piece = pieces == i
        if n > 1 and piece.sum() > 300 and truth[piece].mean() < 0.3:
            return Mend(name, "d", [_middle(piece)])
    return None


def _part_to_add(name: str, mask: np.ndarray, truth: np.ndarray) -> Mend | None:
    stroke = middle_of_largest(truth & ~mask)
    return Mend(name, "b", stroke) if stroke else None


def _line_to_cut(name: str, mask: np.ndarray, truth: np.ndarray) -> Mend | None:
    """Between two animals, apart in truth, that are one piece."""
    animals, _ = ndimage.label(truth, _TOUCHING)
    pieces, n = ndimage.label(mask, _TOUCHING)
    for i in range(1, n + 1):
        piece = pieces == i
        areas = np.bincount(animals[piece])[1:]
        if np.count_nonzero(areas > 1500) < 2:
            continue
        one, other = (animals == j + 1 for j in np.argsort(areas)[-2:])
        apart = ndimage.distance_transform_edt(~one) - ndimage.distance_transform_edt(~other)
        border = piece & (np.abs(apart) < 2)
        return Mend(name, "c", _beyond(along(border, 8))) if border.any() else None
    return None


def _middle(piece: np.ndarray) -> Point:
    """The place in a piece that is furthest from its rim."""
    depth = ndimage.distance_transform_edt(piece)
    y, x = np.unravel_index(depth.argmax(), depth.shape)
    return (float(x) + 0.5) / piece.shape[1], (float(y) + 0.5) / piece.shape[0]


def _beyond(line: list[Point]) -> list[Point]:
    """A line with both ends a little further out."""
    points = np.array(line)
    step = (points[-1] - points[0]) * 0.15
    longer = np.clip([points[0] - step, *points, points[-1] + step], 0, 1)
    return [(float(x), float(y)) for x, y in longer]


def mend_one(person: Person, mend: Mend, folder: Path) -> None:
    """Find an image by its name, open it, use one tool on it, and close it."""
    page, stem = person.page, Path(mend.image).stem
    person.press("/")
    page.locator("#search").fill("")
    person.type(stem)
    person.wait_for("search", lambda: person.press("Enter"))
    person.wait_for("open for mending", lambda: person.press("m"))
    page.wait_for_function("() => document.getElementById('mend-mask').naturalWidth > 0")
    page.screenshot(path=folder / f"mend-{mend.key}-before.png")
    person.press(mend.key)
    person.wait_for(f"mend: {mend.key}", lambda: person.draw(mend.points))
    page.screenshot(path=folder / f"mend-{mend.key}-after.png")
    person.wait_for("close", lambda: person.press("Escape"))


def leave_search(person: Person) -> None:
    person.press("/", "Control+a", "Delete")
    person.wait_for("search", lambda: person.press("Enter"))


def apply_to_all(person: Person, folder: Path) -> None:
    """Let the mended masks teach the others, look at what changes, and take it."""
    page = person.page
    person.press("l")
    page.wait_for_selector("#lesson-says")
    page.screenshot(path=folder / "lesson.png")
    print(page.locator("#lesson-says").inner_text())
    person.wait_for("take what was taught", lambda: person.click(page.locator("#use-lesson")))


def move_settings(person: Person) -> None:
    """Each of them, once."""
    page = person.page

    def number(field: str, value: str) -> None:
        page.locator(f"#{field} input[type=number]").fill(value)
        page.keyboard.press("Enter")

    def option(field: str, name: str) -> None:
        page.locator(f"#{field} input").click()
        page.get_by_role("option", name=name, exact=True).click()

    person.wait_for("likely at least", lambda: number("cut", "0.8"))
    person.wait_for("masks of", lambda: page.get_by_label("the factors").click())
    person.wait_for("value", lambda: number("value", "90"))
    person.wait_for("refine", lambda: page.locator("#refine").get_by_label("dense").click())
    person.wait_for("threshold", lambda: option("threshold", "max-fraction"))
    person.wait_for("k", lambda: option("k", "3"))


def export(person: Person, folder: Path, n_images: int) -> str:
    """What is accepted, as YOLO-seg; gives what the page counts."""
    page = person.page
    person.click(page.get_by_role("tab", name="Export"))
    person.click(page.locator("#format input"))
    person.click(page.get_by_role("option", name="yolo-seg"))
    expect(page.locator("#count")).to_contain_text(f"in {n_images} images", timeout=PATIENCE)
    page.screenshot(path=folder / "export.png")
    person.click(page.get_by_role("button", name="Export"))
    page.wait_for_selector("#download")
    return page.locator("#count").inner_text()


def train(python: str, exported: Path, folder: Path) -> str:
    """One epoch of a YOLO-seg nano, without weights; gives the line in which it counts labels."""
    command = [python, "-c", TRAIN, str(exported / "data.yaml"), str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
    found = re.findall(
        r"Scanning.*?(\d+ images, \d+ backgrounds, \d+ corrupt)", done.stdout + done.stderr
    )
    return ", ".join(dict.fromkeys(found))


def kept(result: Path) -> dict[str, str]:
    """The files of the masks that images keep."""
    labels = json.loads((result / "labels.json").read_text("utf-8"))
    return {name: entry["mask"]["file"] for name, entry in labels["images"].items()}


def label(
    running: Server, folder: Path, truths: Truths, names: dict[int, str], chromium: str
) -> int:
    """All that a person does in the browser; prints it, and gives the labels' revision."""
    result = folder / "result"
    with browser_page(chromium) as page:
        expect.set_options(timeout=PATIENCE)
        person = Person(page, running)
        with person.stage("until the first page"):
            person.open()
        page.screenshot(path=folder / "first.png")
        with person.stage("names"):
            person.wait_for("agree", lambda: person.press("y"))
            for factor, name in names.items():
                person.click(page.get_by_label(f"Name of factor {factor}", exact=True))
                page.keyboard.press("Control+a")
                person.type(name)
                person.wait_for("name", lambda: person.press("Enter"))
        before = shown_masks(result)
        tell_ious("before mending", ious(before, truths))
        wanted = mends(before, truths)
        with person.stage("three mends"):
            for mend in wanted:
                mend_one(person, mend, folder)
            leave_search(person)
        after = shown_masks(result)
        tell_mends(wanted, before, after, truths)
        with person.stage("apply to all"):
            apply_to_all(person, folder)
        mended = {mend.image for mend in wanted}
        for when, masks in (("of the others", after), ("taught", shown_masks(result))):
            others = {name: mask for name, mask in masks.items() if name not in mended}
            tell_ious(when, ious(others, truths))
        with person.stage("accepting"):
            for _ in truths:
                person.wait_for("accept", lambda: person.press("a"))
        page.screenshot(path=folder / "accepted.png")
        masks = kept(result)
        assert len(masks) == len(truths)
        move_settings(person)
        page.screenshot(path=folder / "settings-moved.png")
        assert kept(result) == masks, "a setting changed what was accepted"
        with person.stage("export"):
            print("exported:", export(person, folder, len(truths)))
        tell_ious("accepted", ious(shown_masks(result), truths))
        person.print_answers()
        tell_stages(person)
        return int(page.locator(".dff-head").get_attribute("data-revision") or 0)


def go_on(folder: Path, revision: int, chromium: str) -> None:
    """A new server on what the killed one left."""
    result = folder / "result"
    masks = kept(result)
    with server(result) as running, browser_page(chromium) as page:
        person = Person(page, running)
        person.open()
        head = page.locator(".dff-head")
        assert int(head.get_attribute("data-revision") or 0) == revision and kept(result) == masks
        print("after SIGKILL:", page.locator("#progress-text").inner_text())
        for size, name in ((WIDE, "again"), (NARROW, "phone")):
            page.set_viewport_size({"width": size[0], "height": size[1]})
            page.wait_for_timeout(1000)
            page.screenshot(path=folder / f"{name}.png")
        person.wait_for("open for mending", lambda: person.press("m"))
        page.wait_for_timeout(1000)
        page.screenshot(path=folder / "phone-mend.png")


def tell_mends(wanted: Iterable[Mend], before: Masks, after: Masks, truths: Truths) -> None:
    for mend in wanted:
        name = mend.image
        numbers = []
        for masks in (before, after):
            n_pieces = ndimage.label(masks[name].values > 0, _TOUCHING)[1]
            iou = ious({name: masks[name]}, truths)[name]
            numbers.append(f"IoU {iou:.3f} in {n_pieces} pieces")
        print(f"mended with {mend.key}: {name}: {numbers[0]}, then {numbers[1]}")


def tell_stages(person: Person) -> None:
    print("| stage | clicks | keys | seconds |\n|-|-|-|-|")
    for name, count in person.stages.items():
        print(f"| {name} | {count.clicks} | {count.keys} | {count.seconds:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["elephant=15", "cheetah=25"])
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--yolo")
    asked = parser.parse_args()
    names = {int(factor): name for factor, _, name in (one.partition("=") for one in asked.names)}
    photos, result = asked.folder / "photos", asked.folder / "result"
    truths = photographs(asked.data, photos, of_each_kind(asked.kinds))
    with server(photos, "--out", result) as running:
        revision = label(running, asked.folder, truths, names, asked.chromium)
    if asked.yolo:
        print("YOLO:", train(asked.yolo, result / "export" / "yolo-seg", asked.folder))
    go_on(asked.folder, revision, asked.chromium)


if __name__ == "__main__":
    main()
