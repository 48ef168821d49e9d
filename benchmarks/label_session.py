"""A labelling session in a browser, from a folder of photographs to training.

    python benchmarks/label_session.py DATA FOLDER [--kinds goose=20 cheetah=20] [--clicks 3]
        [--names 3=cheetah ...] [--chromium /usr/bin/chromium] [--yolo PYTHON]
    python benchmarks/label_session.py DATA FOLDER --cars 60 [--clicks 12]

DATA holds iCoseg as ``icoseg/{images,ground_truth}/<group>/``, and Car Parts as ``car_parts/``;
FOLDER is made, with the photographs, the result and screenshots. Of two kinds of animals the names
are agreed with, and the six worst masks are mended; of cars, seven parts are classes, and six cars
get them. A mend is a number of clicks with the tool "take", each in the middle of the largest part
that is wrong. They teach the others; then all are accepted, every setting is moved, and the
accepted ones are exported with their photographs. The server is killed (SIGKILL) three times: right
after a click on the fourth image, while the network reads the images again, and when half of the
others are accepted. The session goes on with what a new server shows. The ground truth says where a
person would click, and ``--names`` which factors the network calls wrongly. ``--yolo`` names a
Python with Ultralytics: then a YOLO-seg nano is trained from the export for one epoch.

The seconds are those of the machine: what a person needs to look and to move is not in them.
"""

import argparse
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from clicks import largest_error, middle
from label_browser import NARROW, PATIENCE, WIDE, Count, Person, Point, Server, browser_page, server
from label_truth import kind_of, of_each_kind, photographs, shown_masks
from PIL import Image
from playwright.sync_api import expect
from taught_parts import MERGED, on_top

from deepff.app.kept_masks import NamedMask
from deepff.evaluation.datasets.coco_parts import load_coco

TRAIN = """
import sys
from ultralytics import YOLO
model = YOLO("yolo11n-seg.yaml")
model.train(data=sys.argv[1], epochs=1, imgsz=160, batch=8, workers=0, device="cpu", plots=False,
            project=sys.argv[2], name="yolo", exist_ok=True)
"""
N_MENDED = 6
# A part that is wrong is worth a click from this share of the image on.
LEAST = 5e-4
Masks = dict[str, NamedMask]


def animals(data: Path, folder: Path, kinds: dict[str, int]) -> Masks:
    """Copy photographs of animals; gives the truth of each."""
    truths = photographs(data, folder, kinds)
    return {n: NamedMask(truth.astype(np.uint8), (kind_of(n),)) for n, truth in truths.items()}


def cars(data: Path, folder: Path, count: int) -> Masks:
    """Copy photographs of cars, drawn at random; gives the parts of each."""
    folder.mkdir(parents=True)
    every = load_coco(data / "car_parts", merge=MERGED)
    truths = {}
    for index in np.random.default_rng(2).permutation(len(every))[:count].tolist():
        path = every.images[index].image.path
        shutil.copy(path, folder / path.name)
        truths[path.name] = NamedMask(on_top(every.images[index].labels()), every.part_names)
    return truths


def in_words(mask: NamedMask, classes: list[str]) -> np.ndarray:
    """A mask's values as numbers of classes, from 1: those whose word its name contains. Others are
    one more than there are classes."""
    numbers = [
        next((i + 1 for i, word in enumerate(classes) if word in name), len(classes) + 1)
        for name in mask.names
    ]
    return mask.renumbered(numbers)


def tell_ious(when: str, masks: Masks, truths: Masks, names: Iterable[str]) -> None:
    """Print the mean over images of the IoU of what is marked as what it is, and of each class."""
    classes = sorted({one for truth in truths.values() for one in truth.names})
    both, either = np.zeros((2, len(classes) + 2), int)
    scores = []
    for name in names:
        mask, truth = (in_words(each[name], classes) for each in (masks, truths))
        for i in range(1, len(classes) + 1):
            both[i] += np.count_nonzero((mask == i) & (truth == i))
            either[i] += np.count_nonzero((mask == i) | (truth == i))
        marked = np.count_nonzero((mask > 0) | (truth > 0))
        scores.append(np.count_nonzero((mask == truth) & (mask > 0)) / max(marked, 1))
    each = {c: round(float(both[i] / max(either[i], 1)), 3) for i, c in enumerate(classes, 1)}
    mean = np.mean(list(each.values()))
    print(f"{when}, {len(scores)} images: mean IoU {np.mean(scores):.3f}; {each}, mean {mean:.3f}")


def worst(masks: Masks, truths: Masks) -> list[str]:
    def agreement(name: str) -> float:
        mask, truth = masks[name].values > 0, truths[name].values > 0
        return np.count_nonzero(mask & truth) / np.count_nonzero(mask | truth)

    return sorted(truths, key=agreement)[:N_MENDED]


def wrong(mask: NamedMask, truth: NamedMask) -> tuple[str, Point] | None:
    """The class that lacks the most in one place, or has too much, and the middle of that."""
    parts = {}
    for i, word in enumerate(truth.names):
        name = next((one for one in mask.names if word in one), word)
        is_class = in_words(mask, [word]) == 1
        parts[name] = largest_error(is_class, truth.values == i + 1)
    name = max(parts, key=lambda one: np.count_nonzero(parts[one]))
    return (name, middle(parts[name])) if parts[name].mean() > LEAST else None


def kept(result: Path) -> Masks:
    """The masks that images keep."""
    entries = json.loads((result / "labels.json").read_text("utf-8"))["images"]
    return {
        name: NamedMask(
            np.asarray(Image.open(result / "labels" / entry["mask"]["file"])),
            tuple(entry["mask"]["names"]),
        )
        for name, entry in entries.items()
        if entry.get("mask")
    }


def find(person: Person, name: str) -> None:
    """Search for an image by its name, as its only card."""
    person.press("/")
    person.page.locator("#search").fill("")
    person.type(name)
    person.wait_for("search", lambda: person.press("Enter"))


def open_to_mend(person: Person) -> str:
    """Open the current image; gives its mask as the page has it."""
    person.wait_for("open for mending", lambda: person.press("m"))
    mask = person.page.locator("#mend-mask")
    expect(mask).to_have_attribute("src", re.compile("^data:image/png"))
    return str(mask.get_attribute("src"))


def click_wrong(
    person: Person, result: Path, name: str, masks: Masks, truth: NamedMask, n: int
) -> None:
    """Find an image, open it, and click up to n times in what is wrong."""
    find(person, name)
    mask, chosen = masks[name], None
    if len(truth.names) > 1:  # a car without parts yet
        person.wait_for("nothing here", lambda: person.press("x"))
        mask = NamedMask(np.zeros_like(truth.values), ())
    open_to_mend(person)
    for _ in range(n):
        if (found := wrong(mask, truth)) is None:
            break
        if found[0] != chosen:
            chosen = found[0]
            chip = person.page.locator(f'#mend-view [data-class="{chosen}"]')
            key = chip.locator("kbd")
            if key.count():
                person.press(key.inner_text())
            else:  # only nine classes have keys
                person.click(chip)
        point = found[1]
        person.wait_for("click", lambda point=point: person.draw([point]))
        mask = kept(result)[name]


def accept_mended(person: Person, picture: Path) -> None:
    person.wait_for("accept in Mend", lambda: person.press("a"))
    person.page.screenshot(path=picture)
    person.wait_for("close", lambda: person.press("Escape"))


def kill(person: Person, start: Callable[[], Server], result: Path) -> None:
    """Kill the server, start another, and check that all images are as they were: decisions, masks
    to the pixel, and what the page says."""

    def state() -> tuple[str, dict[str, object]]:
        entries = json.loads((result / "labels.json").read_text("utf-8"))["images"]
        pixels = {name: mask.values.tobytes() for name, mask in kept(result).items()}
        return page.locator("#progress-text").inner_text(), {**entries, "pixels": pixels}

    page = person.page
    before = state()
    person.server.process.kill()
    person.server.process.wait()
    person.server = start()
    person.open()
    assert state() == before, "something was lost"
    print(f"after SIGKILL: {before[0]}, {len(kept(result))} masks kept")


def kill_in_mend(person: Person, start: Callable[[], Server], result: Path) -> None:
    """Kill the server while an image is being mended: a new page still has it, with this mask."""
    shown = person.page.locator("#mend-mask").get_attribute("src")
    kill(person, start, result)
    assert open_to_mend(person) == shown, "the mask changed"


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
    """Each of those that there are, once."""
    page = person.page

    def number(field: str, value: str) -> None:
        page.locator(f"#{field} input[type=number]").fill(value)
        page.keyboard.press("Enter")

    def option(field: str, name: str) -> None:
        page.locator(f"#{field} input").click()
        page.get_by_role("option", name=name, exact=True).click()

    if page.locator("#cut").is_visible():
        person.wait_for("likely at least", lambda: number("cut", "0.8"))
        person.wait_for("masks of", lambda: page.get_by_label("the factors").click())
    person.wait_for("refine", lambda: page.locator("#refine").get_by_label("dense").click())
    person.wait_for("threshold", lambda: option("threshold", "max-fraction"))
    person.wait_for("value", lambda: number("value", "0.6"))


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


def label(
    person: Person,
    start: Callable[[], Server],
    folder: Path,
    truths: Masks,
    names: dict[int, str],
    n: int,
) -> None:
    """All that a person does in the browser; prints it."""
    result, page = folder / "result", person.page
    with person.stage("until the first page"):
        person.open()
    page.screenshot(path=folder / "first.png")
    classes = next(iter(truths.values())).names
    with person.stage("names"):
        if len(classes) > 1:
            person.click(page.locator("#new-class"))
            person.type(", ".join(classes))
            person.wait_for("classes", lambda: person.press("Enter"))
        else:
            person.wait_for("agree", lambda: person.press("y"))
        for factor, name in names.items():
            person.click(page.get_by_label(f"Name of factor {factor}", exact=True))
            page.keyboard.press("Control+a")
            person.type(name)
            person.wait_for("name", lambda: person.press("Enter"))
    before = shown_masks(result)
    wanted = list(truths)[:N_MENDED] if len(classes) > 1 else worst(before, truths)
    others = [name for name in truths if name not in wanted]
    tell_ious("first masks", before, truths, truths)
    tell_ious("those that are mended", before, truths, wanted)
    tell_ious("the others", before, truths, others)
    for number, name in enumerate(wanted):
        with person.stage(f"mending {len(wanted)} images"):
            click_wrong(person, result, name, before, truths[name], n)
        if number == len(wanted) // 2:
            kill_in_mend(person, start, result)
        with person.stage(f"mending {len(wanted)} images"):
            accept_mended(person, folder / f"mend-{Path(name).stem}.png")
    leave_search(person)
    tell_ious("mended", kept(result), truths, wanted)
    person.press("l")
    page.wait_for_selector("#lesson-view progress")
    kill(person, start, result)
    with person.stage("apply to all"):
        apply_to_all(person, folder)
    tell_ious("the others, taught", shown_masks(result), truths, others)
    person.wait_for("to do", lambda: page.locator("#filter").select_option("to do"))
    for number in range(len(others)):
        if number == len(others) // 2:
            kill(person, start, result)
        with person.stage("accepting"):
            person.wait_for("accept", lambda: person.press("a"))
    page.screenshot(path=folder / "accepted.png")
    masks = {name: mask.values.tobytes() for name, mask in kept(result).items()}
    assert len(masks) == len(truths)
    move_settings(person)
    page.screenshot(path=folder / "settings-moved.png")
    after = {name: mask.values.tobytes() for name, mask in kept(result).items()}
    assert after == masks, "a setting changed what was accepted"
    with person.stage("export"):
        print("exported:", export(person, folder, len(truths)))
    tell_ious("accepted", kept(result), truths, truths)
    person.print_answers()
    tell_stages(person, len(truths))


def take_pictures(person: Person, folder: Path) -> None:
    """Of the page and of Mend, on screens of several sizes."""
    page = person.page
    page.reload()
    person.wait_for("all", lambda: page.locator("#filter").select_option("all"))
    for what in ("", "-mend"):
        for name, size in {"phone": NARROW, "again": WIDE, "large": (1920, 1080)}.items():
            page.set_viewport_size({"width": size[0], "height": size[1]})
            page.wait_for_timeout(1000)
            page.screenshot(path=folder / f"{name}{what}.png")
        if not what:
            person.wait_for("open for mending", lambda: person.press("m"))


def tell_stages(person: Person, n_images: int) -> None:
    print("| stage | clicks | keys | seconds |\n|-|-|-|-|")
    for name, count in person.stages.items():
        print(f"| {name} | {count.clicks} | {count.keys} | {count.seconds:.0f} |")
    totals = [sum(getattr(c, what) for c in person.stages.values()) for what in vars(Count())]
    print("an image:", *(f"{total / n_images:.2f}" for total in totals))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["goose=20", "cheetah=20"])
    parser.add_argument("--cars", type=int)
    parser.add_argument("--clicks", type=int, default=3)
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--yolo")
    asked = parser.parse_args()
    names = {int(factor): name for factor, _, name in (one.partition("=") for one in asked.names)}
    photos, result = asked.folder / "photos", asked.folder / "result"
    if asked.cars:
        truths = cars(asked.data, photos, asked.cars)
    else:
        truths = animals(asked.data, photos, of_each_kind(asked.kinds))
    with ExitStack() as running:

        def start() -> Server:
            return running.enter_context(server(photos, "--out", result))

        person = Person(running.enter_context(browser_page(asked.chromium)), start())
        expect.set_options(timeout=PATIENCE)
        label(person, start, asked.folder, truths, names, asked.clicks)
        take_pictures(person, asked.folder)
    if asked.yolo:
        print("YOLO:", train(asked.yolo, result / "export" / "yolo-seg", asked.folder))


if __name__ == "__main__":
    main()
