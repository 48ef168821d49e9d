"""Make the pictures of docs/label.md, from photographs that scikit-image installs.

usage: python scripts/label_pictures.py      (with the environment of scripts/test, and Chromium)
"""

import os
import shutil
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from gallery import CUP, FOUR, ROOT, framed, written
from label_browser import NARROW, PATIENCE, Person, browser_page, server
from PIL import Image

OUT = ROOT / "docs"
# Along the spoon in each of the first two images, in shares of the sides.
STROKES = [[(0.65, 0.6), (0.66, 0.7), (0.68, 0.75)], [(0.58, 0.65), (0.6, 0.75), (0.62, 0.82)]]


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("there is no Chromium to show the page in")
    cups = {f"cup {name}": pieces for name, pieces in framed(CUP).items()}
    framings = cups | {name: FOUR[name] for name in ("cat and cup", "rocket and cup")}
    with TemporaryDirectory() as temporary:
        os.chdir(temporary)  # so that the page names no folder of this machine
        written(framings, Path("photos"))
        with server("photos", "-k", "4") as running, browser_page(chromium) as page:
            show(Person(page, running))


def show(person: Person) -> None:
    """What a person sees who corrects two masks, lets them teach the others, and exports them."""
    page = person.page
    person.open()
    page.wait_for_function("() => !document.body.classList.contains('dff-waits')")
    person.wait_for("agree", lambda: person.press("y"))
    for stroke in STROKES:
        mend(person, stroke)
        person.wait_for("accept", lambda: person.press("a"))
    person.press("l")
    page.wait_for_selector("#lesson-says")
    page.wait_for_function("() => [...document.images].every(image => image.complete)")
    shot(person, "lesson")
    person.wait_for("use", lambda: page.locator("#use-lesson").click())
    page.evaluate("scrollTo(0, 0)")
    shot(person, "images")
    person.wait_for("factors", lambda: page.get_by_role("tab", name="Factors").click())
    shot(person, "factors")
    page.get_by_role("tab", name="Export").click()
    page.locator("#format input").click()
    page.get_by_role("option", name="coco", exact=True).click()
    page.locator("#count-room").get_by_text("boxes").wait_for(timeout=PATIENCE)
    page.get_by_role("button", name="Export").click()
    page.wait_for_selector("#download")
    shot(person, "export")
    person.wait_for("images", lambda: page.get_by_role("tab", name="Images").click())
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    page.wait_for_timeout(1000)
    shot(person, "phone")


def mend(person: Person, stroke: Sequence[tuple[float, float]]) -> None:
    """Take the spoon out of the mask of the current image, by a stroke that marks less."""
    page = person.page
    person.wait_for("open", lambda: person.press("m"))
    page.wait_for_function("() => document.getElementById('mend-mask').naturalWidth > 0")
    person.press("l")
    person.wait_for("stroke", lambda: person.draw(stroke))
    page.wait_for_timeout(500)
    shot(person, "mend")
    person.wait_for("close", lambda: person.press("Escape"))


def shot(person: Person, name: str) -> None:
    picture = Image.open(BytesIO(person.page.screenshot())).convert("RGB")
    path = OUT / f"label-{name}.jpg"
    picture.save(path, quality=82, optimize=True)
    print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
