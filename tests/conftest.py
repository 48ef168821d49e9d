"""Fixtures shared by all tests."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

if TYPE_CHECKING:  # torch takes seconds, and the process that only hands out tests needs none
    from deepff.networks.backbone import Backbone

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
        order = {module: index for index, module in enumerate(LONGEST)}
        items.sort(key=lambda item: order.get(item.path.stem, len(LONGEST)))


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


@pytest.fixture(scope="session")
def backbone() -> "Backbone":
    """The embedded network, which no test changes."""
    from deepff.networks.loading import load_backbone

    return load_backbone()


@pytest.fixture
def cats_filling_the_frame(data_root: Path, tmp_path: Path) -> tuple[list[Path], Path]:
    """Eight photographs of cats, and a folder with the inner part of a cat's box in each."""
    from deepff.evaluation.datasets.pascal import load_voc

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
    """Mounts a folder read-only at a second path: root may write into any other folder."""
    mounted: list[Path] = []

    def mount(folder: Path, path: Path) -> Path:
        path.mkdir()
        command = ["mount", "--bind", "-o", "ro", str(folder), str(path)]
        if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting is not allowed here")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


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
