"""What is published is whole: its page renders, and the wheel alone runs the README's command."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def run(*arguments: str | Path, folder: Path = ROOT) -> str:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    run("build", "--outdir", folder)
    return folder


def test_twine_accepts_both_archives(archives: Path) -> None:
    wheel, source = sorted(archives.iterdir(), key=lambda path: path.suffix == ".gz")

    assert run("twine", "check", "--strict", wheel, source).count("PASSED") == 2
    with tarfile.open(source) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"README.md", "LICENSE", "CITATION.cff", "docs/sample.jpg"} <= names


def test_the_wheel_prints_what_the_readme_shows(archives: Path, tmp_path: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    run("pip", "install", "--no-deps", "--target", tmp_path / "installed", wheel)

    # From the folder it is in, so that it is this deepff that runs.
    printed = run(
        *("deepff", "discover", "--sample", "-k", "4", "--out", "result"),
        folder=tmp_path / "installed",
    )

    assert printed in (ROOT / "README.md").read_text(encoding="utf-8")
    assert (tmp_path / "installed/result/report.html").is_file()
