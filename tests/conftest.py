"""Fixtures shared by all tests."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from deepff.evaluation.datasets import load_voc

# The modules that take longest. They start first: at the end they would keep one process at work
# while the others have nothing left to do.
LONGEST = (
    "test_many_processes",
    "test_notebooks",
    "test_recipes",
    "test_app_browser",
    "test_families",
    "test_apply",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        places = {module: place for place, module in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real images and ground truth; without it a test skips, except in CI."""
    default = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("DEEPFF_DATA", default))
    if not root.is_dir():
        message = f"no data at {root}; set DEEPFF_DATA to the folder that holds icoseg/"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return root


@pytest.fixture
def cats_filling_the_frame(data_root: Path, tmp_path: Path) -> tuple[list[Path], Path]:
    """Eight photographs of cats, and a folder of what lies well inside a cat's box in each."""
    (cats,) = load_voc(data_root / "VOCdevkit", year=2007, classes=["cat"])
    folder = tmp_path / "cats"
    folder.mkdir()
    photos = cats.images[:8]
    for item in photos:
        left, top, right, bottom = item.boxes_of("cat")[0]
        x, y = 0.1 * (right - left), 0.1 * (bottom - top)
        with Image.open(item.image.path) as image:
            inside = image.crop((left + x, top + y, right - x, bottom - y))
            inside.save(folder / f"{item.image.path.stem}.png")
    return [item.image.path for item in photos], folder


@pytest.fixture
def read_only_at() -> Iterator[Callable[[Path, Path], Path]]:
    """What shows a folder at a second place that is mounted read-only, as root may write any."""
    mounted: list[Path] = []

    def mount(folder: Path, place: Path) -> Path:
        place.mkdir()
        command = ["mount", "--bind", "-o", "ro", str(folder), str(place)]
        if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting is not allowed here")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; without it a test skips, except in CI."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        message = "no chromium; scripts/test installs it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
