"""Make docs/label.webp: `deepff label`, from a folder of photographs to accepted masks.

usage: python scripts/label_animation.py      (with the environment of scripts/test, and Chromium)
"""

import os
import shutil
import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from gallery import ROOT, written
from label_browser import Person, browser_page, server
from PIL import Image, ImageDraw, ImageFont

from deepff.images.samples import FRAMINGS

OUT = ROOT / "docs" / "label.webp"
COMMAND = ("photos", "-k", "4")
SIZE = (1180, 760)
CAPTION = 46  # pixels
FOLDER = """<body style="font: 19px sans-serif; margin: 30px">
<pre style="background: #222; color: #eee; padding: 18px; border-radius: 8px; font-size: 20px"
>$ ls photos/ | wc -l\n{n}\n$ deepff label {command}</pre>
<div style="display: flex; flex-wrap: wrap; gap: 10px">{photographs}</div></body>"""
PHOTOGRAPH = '<img src="{path}" style="height: 165px; border-radius: 4px">'

Frame = tuple[Image.Image, float]  # and how long it is shown, in seconds


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("there is no Chromium to show the page in")
    with TemporaryDirectory() as temporary:
        os.chdir(temporary)  # so that the page names no folder of this machine
        written(FRAMINGS, Path("photos"))
        with server(*COMMAND) as running, browser_page(chromium, SIZE) as page:
            frames = show(Person(page, running))
    pictures, seconds = zip(*frames, strict=True)
    pictures[0].save(
        OUT,
        save_all=True,
        append_images=pictures[1:],
        duration=[round(1000 * each) for each in seconds],
        loop=0,
        quality=60,
        method=6,
    )
    print(f"{OUT.relative_to(ROOT)}  {OUT.stat().st_size / 1000:.0f} kB, {sum(seconds):.1f} s")


def show(person: Person) -> list[Frame]:
    """What a person sees who names two factors, agrees with two names, accepts and exports."""
    page = person.page
    paths = sorted(Path("photos").iterdir())
    Path("folder.html").write_text(
        FOLDER.format(
            n=len(paths),
            command=" ".join(COMMAND),
            photographs="".join(PHOTOGRAPH.format(path=path) for path in paths),
        ),
        "utf-8",
    )
    page.goto(Path("folder.html").absolute().as_uri())
    frames = [shot(person, "A folder of photographs, and one command", 1.6)]
    person.open()
    page.wait_for_function("() => !document.body.classList.contains('dff-waits')")
    frames.append(shot(person, "Masks of the objects are there. Names are suggested.", 1.8))
    for factor, name in enumerate(("flower", "temple")):
        keep = page.locator(f"[data-act=keep][data-factor='{factor}']")
        person.wait_for("keep", lambda keep=keep: keep.click())
        field = page.locator(f"[data-act=name][data-factor='{factor}']")
        field.fill(name)
        person.wait_for("name", lambda field=field: field.press("Enter"))
        frames.append(shot(person, f"Keep a factor without a name, and name it: {name}", 1.1))
    page.locator("body").click(position={"x": 5, "y": 5})
    person.wait_for("agree", lambda: person.press("y"))
    frames.append(shot(person, "Press Y to agree with the other names", 1.2))
    for number in range(1, len(paths) + 1):
        person.wait_for("accept", lambda: person.press("a"))
        page.evaluate("scrollTo(0, 0)")
        frames.append(shot(person, f"Press A to accept: {number} of {len(paths)}", 0.6))
    page.get_by_role("tab", name="Export").click()
    page.locator("#count-room").get_by_text("boxes").wait_for()
    page.wait_for_timeout(500)
    frames.append(shot(person, "Export what is accepted: COCO, YOLO, VOC and more", 2.2))
    return frames


def shot(person: Person, caption: str, seconds: float) -> Frame:
    picture = Image.open(BytesIO(person.page.screenshot())).convert("RGB")
    canvas = Image.new("RGB", (SIZE[0], SIZE[1] + CAPTION), "#1b3a57")
    canvas.paste(picture, (0, CAPTION))
    font = ImageFont.load_default(size=24)
    ImageDraw.Draw(canvas).text((20, CAPTION // 2), caption, "white", font, anchor="lm")
    return canvas, seconds


if __name__ == "__main__":
    main()
