"""The notebooks run from their first cell to their last, and show what they are kept with."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pandas = pytest.importorskip("pandas")
nbformat = pytest.importorskip("nbformat")
shells = pytest.importorskip("IPython.core.interactiveshell")

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
    shell = shells.InteractiveShell()
    try:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                words, numbers = said(kept(cell.outputs))
                words_now, numbers_now = said(run(shell, cell.source))
                assert words_now == words
                # Another machine may round otherwise.
                assert numbers_now == pytest.approx(numbers, rel=0.1, abs=0.02)
    finally:
        shell.history_manager.end_session()


def run(shell: Any, source: str) -> list[str]:
    """What a cell prints, and the text of the value that it ends with."""
    values: list[Any] = []
    shell.display_trap.hook = values.append
    # A terminal's tables are cut to its width, a notebook's are not.
    with pandas.option_context("display.max_columns", 20), redirect_stdout(StringIO()) as printed:
        shell.run_cell(source).raise_error()
        values = [value for value in values if value is not None]
        formats = [shell.display_formatter.format(value)[0] for value in values]
    return [printed.getvalue(), *(each["text/plain"] for each in formats)]


def kept(outputs: list[Any]) -> list[str]:
    """The same of the outputs that a cell was saved with."""
    # How what is printed is cut into messages depends on the moment.
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    return [printed, *(output.data["text/plain"] for output in outputs if "data" in output)]


def said(texts: list[str]) -> tuple[list[str], list[float]]:
    """The texts without their numbers, and these."""
    texts = [TIMES.sub("", text) for text in texts]
    return [NUMBER.sub("#", text) for text in texts], [
        float(number) for text in texts for number in NUMBER.findall(text)
    ]
