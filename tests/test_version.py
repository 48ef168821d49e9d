"""The version is in one place, and what is published beside the code names it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from deepff import __version__

ROOT = Path(__file__).parents[1]


def test_the_command_says_the_version_without_waiting_for_torch() -> None:
    code = (
        "import sys; from deepff.cli.main import app; app(['--version'], standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == f"deepff {__version__}\n"


def test_the_package_takes_its_version_from_the_code() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert project["project"]["dynamic"] == ["version"]
    source = (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
    assert re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE) == [__version__]


def test_the_citation_and_the_changes_name_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert str(citation["version"]) == __version__
    assert citation["preferred-citation"]["identifiers"][0]["value"] == "arXiv:1806.10206"
    assert f"\n## {__version__}\n" in changes
