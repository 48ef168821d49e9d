"""Mends of a 12-megapixel photograph in a browser: seconds from the click to the new mask.

    python benchmarks/label_mends.py PHOTO [PHOTO ...] FOLDER [--chromium /usr/bin/chromium]

The photographs are enlarged to 4000 × 3000 pixels, or 3000 × 4000, and labelled with
``deepff label`` in FOLDER; the one that the page begins with is mended, three times with each tool.
"""

import argparse
from pathlib import Path

from label_browser import PATIENCE, Person, Point, browser_page, server
from PIL import Image

SIDES = (4000, 3000)
TIMES = 3
# Where a click finds a pixel of the mask, or of a hole in it: the deepest, as shares of the sides.
_IN_MASK = """async () => {
    const mask = document.getElementById("mend-mask");
    await mask.decode();
    const canvas = new OffscreenCanvas(80, 60);
    const pen = canvas.getContext("2d");
    pen.drawImage(mask, 0, 0, 80, 60);
    const { data } = pen.getImageData(0, 0, 80, 60);
    const on = (x, y) => x >= 0 && y >= 0 && x < 80 && y < 60 && data[4 * (80 * y + x) + 3] > 0;
    let best = [0, 0, -1];
    for (let y = 0; y < 60; y++) for (let x = 0; x < 80; x++) {
        let r = -1;
        while (on(x - r - 1, y) && on(x + r + 1, y) && on(x, y - r - 1) && on(x, y + r + 1)) r++;
        if (r > best[2]) best = [x, y, r];
    }
    return [(best[0] + 0.5) / 80, (best[1] + 0.5) / 60, best[2] / 80];
}"""


def enlarged(photos: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, photo in enumerate(photos):
        image = Image.open(photo).convert("RGB")
        sides = SIDES if image.width >= image.height else SIDES[::-1]
        image.resize(sides, Image.Resampling.BICUBIC).save(folder / f"{number}.jpg", quality=90)


def mend(person: Person) -> None:
    """Each tool on the image that is open, and every use taken back."""
    page = person.page

    def use(kind: str, key: str, points: list[Point]) -> None:
        person.press(key)
        person.wait_for(kind, lambda: person.draw(points))

    def undo() -> None:
        person.wait_for("undo", lambda: person.press("u"))

    for _ in range(TIMES):
        x, y, r = page.evaluate(_IN_MASK)
        across = [(x, max(0.0, y - 2 * r)), (x, min(1.0, y + 2 * r))]
        loop = [(x - r / 2, y - r / 2), (x + r / 2, y - r / 2), (x + r / 2, y + r / 2)]
        loop += [(x - r / 2, y + r / 2), (x - r / 2, y - r / 2)]
        beyond = [(min(0.95, x + 3 * r), y), (min(0.98, x + 4 * r), y)]
        use("erase", "e", loop)  # which leaves a hole with an island in it
        use("fill a hole", "f", [loop[0]])
        undo()
        undo()
        for kind, key, points in (
            ("delete a piece", "d", [(x, y)]),
            ("only this piece", "o", [(x, y)]),
            ("brush", "b", beyond),
            ("cut", "c", across),
        ):
            use(kind, key, points)
            undo()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    asked = parser.parse_args()
    photos, result = asked.folder / "photos", asked.folder / "result"
    enlarged(asked.photos, photos)
    (result / "labels.json").unlink(missing_ok=True)
    with server(photos, "--out", result) as running, browser_page(asked.chromium) as page:
        person = Person(page, running)
        person.open()
        person.wait_for("open for mending", lambda: person.press("m"))
        page.wait_for_function(
            "() => document.getElementById('mend-mask').naturalWidth > 0", timeout=PATIENCE
        )
        mend(person)
        page.screenshot(path=asked.folder / "mended.png")
        print(f"{running.megabytes:.0f} MB")
        person.print_answers()


if __name__ == "__main__":
    main()
