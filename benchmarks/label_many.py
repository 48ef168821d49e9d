"""Opening, filtering, sorting and paging thousands of photographs in a browser: seconds and memory.

    python benchmarks/label_many.py FOLDER [--count 5000] [--chromium /usr/bin/chromium]

A result of synthetic photographs and maps is written into FOLDER, and opened with ``deepff label``.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from label_browser import Person, browser_page, server
from PIL import Image
from playwright.sync_api import Page

from deepff.activations.activations import FeatureSource, ImageRecord
from deepff.options import Recipe
from deepff.result import Result
from deepff.results.classifier import PixelClassifier
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps

K, SIZE, GRID, CELLS = 6, (600, 800), (14, 19), (42, 56)
N_FILES = 50  # of which the others are links


def photographs(folder: Path, count: int, rng: np.random.Generator) -> list[Path]:
    """Noisy photographs, each of one colour."""
    folder.mkdir(parents=True)
    paths = [folder / f"{i:05d}.jpg" for i in range(count)]
    for i, path in enumerate(paths):
        if i < N_FILES:
            noise = rng.integers(0, 40, (*SIZE, 1), dtype=np.uint8)
            color = rng.integers(60, 200, 3, dtype=np.uint8)
            Image.fromarray(noise + color).save(path, quality=85)
        else:
            os.link(paths[i % N_FILES], path)
    return paths


def blobs(shape: tuple[int, int], n: int, rng: np.random.Generator) -> np.ndarray:
    """One soft blob a map, as rows of cells: (cells, n)."""
    y, x = np.indices(shape) / np.array(shape).reshape(2, 1, 1)
    middle_y, middle_x = rng.uniform(0.2, 0.8, (2, n, 1))
    sigma = rng.uniform(0.08, 0.25, (n, 1))
    squares = np.square(y.ravel() - middle_y) + np.square(x.ravel() - middle_x)
    return np.exp(-0.5 * squares / sigma**2).T.astype(np.float32)


def maps(blocks: list[np.ndarray], grid: tuple[int, int]) -> HeatMaps:
    n = len(blocks)
    return HeatMaps(torch.from_numpy(np.concatenate(blocks)), [grid] * n, [SIZE] * n)


def result(paths: list[Path], rng: np.random.Generator) -> Result:
    """K factors, and the object with a pixel classifier, as if a network had been there."""
    n = len(paths)
    records = [ImageRecord(path.name, path, SIZE, GRID) for path in paths]
    zeros, ones = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    source = FeatureSource(
        "net", "random", "0" * 64, "layer", K, 1, 32, 1, zeros, ones, "bilinear", False
    )
    factors = maps([blobs(GRID, K, rng) for _ in range(n)], GRID)
    whole = maps([blobs(GRID, 1, rng) for _ in range(n)], GRID)
    likely = maps([blobs(CELLS, 1, rng) * rng.uniform(0.3, 1) for _ in range(n)], CELLS)
    likely = HeatMaps(likely.coefficients, likely.grids, likely.image_sizes, torch.ones(1))
    classifier = PixelClassifier(torch.zeros(1, K), torch.zeros(1), (source,))
    found = Factorization(torch.ones(1, K), whole, 0.0, 1, classifier, likely)
    about = ("nmf", (source,), {}, "deepff", {})
    of_object = Result(records, [], {1: found}, *about, recipe=Recipe.CONTRAST)
    of_factors = Result(records, [], {K: Factorization(torch.eye(K), factors, 0.0, 1)}, *about)
    of_factors.object = of_object
    return of_factors


def look_over(person: Person) -> None:
    """What a person does with many images, most of it twice."""
    page = person.page

    def choose(field: str, value: str) -> Callable[[], object]:
        return lambda: page.locator(field).select_option(value)

    def press(*keys: str) -> Callable[[], object]:
        return lambda: person.press(*keys)

    steps: list[tuple[str, Callable[[], object]]] = [
        ("next page", press("PageDown")),
        ("next page", press("PageDown")),
        ("accept", press("a")),
        *((f"show {name}", choose("#filter", name)) for name in filters(page)),
        *((f"order {name}", choose("#order", name)) for name in ("doubtful first", "as named")),
        ("search", lambda: search(person, "49")),
        ("search", lambda: search(person, "")),
        ("40 a page", choose("#grid", "40")),
        ("next page of 40", press("PageDown")),
        ("next page of 40", press("PageDown")),
        ("a setting, 40 a page", lambda: page.get_by_label("the factors").click()),
    ]
    for kind, act in steps:
        person.wait_for(kind, act)
        page.wait_for_timeout(1500)  # somebody looks


def filters(page: Page) -> list[str]:
    """Those of the page but for the classes after the first, and "all" once more at the end."""
    every = page.locator("#filter option").evaluate_all("them => them.map(one => one.value)")
    classes = [name for name in every if name.startswith("class ")]
    return [name for name in every[1:] if name not in classes[1:]] + every[:1]


def search(person: Person, text: str) -> None:
    person.page.locator("#search").fill(text)
    person.page.locator("#search").press("Enter")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    asked = parser.parse_args()
    saved = asked.folder / "result"
    if not saved.exists():
        rng = np.random.default_rng(0)
        result(photographs(asked.folder / "photos", asked.count, rng), rng).save(saved)
    (saved / "labels.json").unlink(missing_ok=True)
    # The browser first: somebody's runs already, and its own start is not the page's.
    with browser_page(asked.chromium) as page, server(saved) as running:
        print(f"server started: {running.cpu_seconds:.1f} CPU s, {running.megabytes:.0f} MB")
        page.goto("about:blank")
        person = Person(page, running)
        before = running.cpu_seconds
        took = person.open()
        print(f"opened: {took:.2f} s, {running.cpu_seconds - before:.2f} CPU s of the server")
        for _ in range(2):
            look_over(person)
            page.locator("#grid").select_option("5")
            page.get_by_label("the object, piece by piece").click()
            page.wait_for_timeout(5000)
            print(f"looked over once: {running.megabytes:.0f} MB")
        page.screenshot(path=asked.folder / "many.png")
        person.print_answers()


if __name__ == "__main__":
    main()
