"""Make the pictures of docs/gallery.md and the first of the README anew.

They are of photographs that scikit-image and scikit-learn install.

usage: python scripts/gallery.py      (with the environment of scripts/test, and Chromium)
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

import deepff
from deepff.images.painting import factor_colors, overlay
from deepff.images.samples import CUP, FRAMINGS, ROCKET, Framing, photographs, sample_images
from deepff.pictures.figures import _grid, captions, region_picture
from deepff.result import Result

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from label_browser import browser_page  # noqa: E402

OUT = ROOT / "docs" / "gallery"
KS = (1, 2, 3, 4)
LONGEST, HEIGHT, GAP = 1400, 170, 6
LOADED = "images => Promise.all(images.map(i => { i.loading = 'eager'; return i.decode(); }))"
SHOWN = {
    "names": 'section[aria-label="Factors at k = 4"]',
    "tree": 'section[aria-label="Factors linked over k"] svg',
}
NOSE = (126, 85)  # of the rocket, in pixels
FIRST = (0, 2, 3, 4, 6, 7)  # the README's images

Framings = Mapping[str, tuple[Framing, ...]]

CAT = "chelsea.png"
FOUR: Framings = {
    "cat": (Framing(CAT),),
    "rocket": (Framing(ROCKET),),
    "cat and cup": (
        Framing(CAT, (0.1, 0, 0.9, 1), brightness=1.15),
        Framing(CUP, (0.1, 0, 0.8, 1)),
    ),
    "rocket and cup": (
        Framing(ROCKET, (0.1, 0, 0.9, 1)),
        Framing(CUP, (0.1, 0, 0.8, 1), mirrored=True),
    ),
}


def framed(file: str) -> Framings:
    """One photograph in six framings, as a set with one object."""
    return {
        "whole": (Framing(file),),
        "mirrored": (Framing(file, (0, 0, 0.95, 1), mirrored=True),),
        "turned": (Framing(file, (0.07, 0.07, 0.93, 0.93), turned=7),),
        "darker": (Framing(file, (0.05, 0, 1, 1), brightness=0.6),),
        "lighter": (Framing(file, (0.06, 0.06, 0.94, 0.94), turned=-6, brightness=1.3),),
        "nearer": (Framing(file, (0.08, 0.05, 0.9, 0.97), mirrored=True, brightness=0.85),),
    }


def main() -> None:
    OUT.mkdir(exist_ok=True)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _save(_sample(deepff.discover(sample_images(), KS[-1])), "../sample")
        result = _discovered(FRAMINGS, folder / "photos")
        _save(result.plot(), "factors")
        contours = result.plot(k=KS[-1], style="contours", height=HEIGHT)
        _save(contours.crop((0, 0, contours.width, 2 * (HEIGHT + GAP))), "contours")
        _save(result.similar("rocket.png", NOSE).plot(n=4, height=260), "similar")
        result.save(folder / "result")
        _save(
            _objects([_discovered(framed(name), folder / name) for name in (CUP, ROCKET)]),
            "object",
        )
        _screenshots(folder / "result")
    for path in sorted(OUT.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1000:.0f} kB")


def _discovered(framings: Framings, folder: Path) -> Result:
    """Factors of photographs, which are written first, so that what is saved finds them."""
    return deepff.discover(written(framings, folder), n_components=list(KS), random_state=0)


def written(framings: Framings, folder: Path) -> list[Path]:
    """Photographs as files of a new folder."""
    files = photographs({piece.file for pieces in framings.values() for piece in pieces})
    folder.mkdir(parents=True)
    for name, pieces in framings.items():
        shown = [piece.apply(Image.open(files[piece.file]).convert("RGB")) for piece in pieces]
        _row([np.asarray(each) for each in shown], gap=0).save(folder / f"{name}.png")
    return [folder / f"{name}.png" for name in framings]


def _sample(result: Result) -> Image.Image:
    """Photographs, their factors and their objects, cut out: a row each."""
    factorization = result.factorization()
    heatmaps, colors = factorization.heatmaps, factor_colors(result.n_components)
    objects = list(deepff.find_object(result).regions())
    photos, painted, cut = [], [], []
    for i in FIRST:
        photo = result.images[i].read()
        height, width = photo.shape[:2]
        gray = np.broadcast_to(photo.mean(2, keepdims=True), photo.shape).astype(np.uint8)
        photos.append(photo)
        painted.append(overlay(gray, heatmaps.normalized(i, (height, width)), colors, 1.0))
        cut.append(np.where(objects[i].masks.any(0).numpy()[..., None], photo, np.uint8(235)))
    rows = {"photographs": photos, "four factors": painted, "the object": cut}
    cells = [(name, [np.asarray(_row([each], HEIGHT)) for each in rows[name]]) for name in rows]
    return _grid(cells, HEIGHT, captions(factorization), colors)


def _objects(results: Sequence[Result]) -> Image.Image:
    """A row a set: of each photograph the paper's mask, and below it that of contrast."""
    rows = []
    for result in results:
        for regions in (result.regions(k=1), deepff.find_object(result).regions()):
            pictures = [
                region_picture(image.read(), found.labels.numpy())
                for image, found in zip(result.images, regions, strict=True)
            ]
            rows.append(np.asarray(_row(pictures, height=HEIGHT)))
    width = max(row.shape[1] for row in rows)
    canvas = Image.new("RGB", (width, len(rows) * (HEIGHT + GAP) - GAP), "white")
    for number, row in enumerate(rows):
        canvas.paste(Image.fromarray(row), (0, number * (HEIGHT + GAP)))
    return canvas


def _row(pictures: Sequence[np.ndarray], height: int | None = None, gap: int = GAP) -> Image.Image:
    """Pictures side by side, all as high as the lowest or as `height`."""
    height = height or min(picture.shape[0] for picture in pictures)
    scaled = [
        Image.fromarray(picture).resize(
            (round(picture.shape[1] * height / picture.shape[0]), height)
        )
        for picture in pictures
    ]
    canvas = Image.new("RGB", (sum(each.width + gap for each in scaled) - gap, height), "white")
    left = 0
    for each in scaled:
        canvas.paste(each, (left, 0))
        left += each.width + gap
    return canvas


def _screenshots(result: Path) -> None:
    """The report's factors and tree."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("there is no Chromium to show the report in")
    with browser_page(chromium) as page:
        page.goto((result / "report.html").as_uri())
        page.wait_for_selector("#images canvas")
        _shot(page.screenshot(), "report")
        page.add_style_tag(content=".controls { position: static !important; }")
        page.locator("#over-k summary").click()
        for name, selector in SHOWN.items():
            part = page.locator(selector)
            part.locator("img").evaluate_all(LOADED)
            _shot(part.screenshot(), name)


def _shot(png: bytes, name: str) -> None:
    _save(Image.open(BytesIO(png)).convert("RGB"), name)


def _save(picture: Image.Image, name: str) -> None:
    picture.thumbnail((LONGEST, LONGEST))
    picture.save(OUT / f"{name}.jpg", quality=82, optimize=True)


if __name__ == "__main__":
    main()
