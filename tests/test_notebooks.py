"""The notebooks run from their first cell to their last, and show what they are kept with."""

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted(Path(__file__).parents[1].glob("examples/*.ipynb"))
NUMBER = re.compile(r"-?\d+\.?\d*")
TIMES = re.compile(r"\(t=[^)]*\)")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_is_kept_with(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As where there is no network and nothing was downloaded before.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    kept = nbformat.read(path, as_version=4)
    run = nbclient.NotebookClient(nbformat.read(path, as_version=4), timeout=300).execute()
    for before, after in zip(kept.cells, run.cells, strict=True):
        words, numbers = shown(before)
        words_now, numbers_now = shown(after)
        assert words_now == words
        # Another machine may round otherwise.
        assert numbers_now == pytest.approx(numbers, rel=0.1, abs=0.02)


def shown(cell: Any) -> tuple[list[str], list[float]]:
    """The text that a cell printed or gave, without its numbers, and these."""
    outputs = cell.get("outputs", ())
    # How what is printed is cut into messages depends on the moment.
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    given = [output.data.get("text/plain", "") for output in outputs if "data" in output]
    texts = [TIMES.sub("", text) for text in (printed, *given)]
    return [NUMBER.sub("#", text) for text in texts], [
        float(number) for text in texts for number in NUMBER.findall(text)
    ]
