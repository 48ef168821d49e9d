"""A result with damaged files loads as a valid one, or is refused in one sentence."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planted import planted
from typer.testing import CliRunner

import deepff
from deepff.cli.main import app
from deepff.errors import InputError
from deepff.images.reading import SkippedFile
from deepff.meaning.importance import Importance
from deepff.report.report import galleries
from deepff.result import Result
from deepff.results.classifier import PixelClassifier
from deepff.results.factorization import FactorClasses


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a result with everything that a manifest may hold."""
    folder = tmp_path_factory.mktemp("damaged")
    result = planted(folder / "photos")
    result.factorizations = {
        3: replace(
            result.factorizations[3],
            classifier=PixelClassifier(torch.eye(3), torch.zeros(3), result.sources),
            probabilities=result.factorizations[3].heatmaps,
            classes=FactorClasses(("cat", "dog"), torch.ones(3, 2), ("cat", None, "dog")),
        )
    }
    names, slots, is_of = ("cat", None, "dog"), (0, 1, 2), torch.tensor([[True]])
    of_factors = [torch.ones(3, 1)] * 4
    result.importances = {
        3: Importance(
            ("dog",), names, slots, (0,), torch.ones(1, 1), torch.ones(1, 3, 1), is_of, *of_factors
        )
    }
    result.skipped = [SkippedFile("notes.txt", "not an image")]
    result.agreements, result.separation, result.seconds = {3: 0.9}, 0.5, {"network": 1.5}
    result.save(folder / "result")
    return folder / "result"


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def check(folder: Path) -> Result | None:
    """The result, if it loads, which is then whole; else it is refused in one sentence."""
    try:
        result = deepff.load(folder)
    except InputError:
        return None
    for k, factorization in result.factorizations.items():
        assert factorization.components.shape == (k, 3)
        for maps in filter(None, (factorization.heatmaps, factorization.probabilities)):
            grids = [tuple(maps.grid(i).shape) for i in range(len(result.images))]
            assert grids == [(k, *grid) for grid in maps.grids]
    assert all(len(each.rows()) == len(each.names) for each in result.importances.values())
    assert all(isinstance(name, str) for name in (*result.names, result.command, result.method))
    return result


def places(value: Any, keys: tuple = ()) -> list[tuple]:
    """The keys that lead to each value of a JSON file, lists and dicts included."""
    if not isinstance(value, dict | list):
        return [keys]
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    return [keys, *(place for key, each in inside for place in places(each, (*keys, key)))]


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(st.data())
def test_any_value_of_a_manifest_may_be_missing_or_another(saved: Path, data: Any) -> None:
    path = saved / "manifest.json"
    content = json.loads(path.read_text())
    *above, last = data.draw(st.sampled_from(places(content)[1:]))
    holder = content
    for key in above:
        holder = holder[key]
    if data.draw(st.booleans()):
        del holder[last]
    else:
        holder[last] = data.draw(anything)
    with changed(path, json.dumps(content).encode()):
        check(saved)


def test_a_manifest_without_a_key_is_named_with_status_2(saved: Path) -> None:
    content = json.loads((saved / "manifest.json").read_text())
    del content["method"]
    with changed(saved / "manifest.json", json.dumps(content).encode()):
        outcome = CliRunner().invoke(app, ["show", str(saved)])
    assert outcome.exit_code == 2
    assert outcome.stderr == (
        f"deepff: error: {saved}/manifest.json is damaged (values are missing, or were not written "
        "by deepff); restore it, or run its command again\n"
    )


@given(st.data())
def test_any_other_file_may_be_cut_or_garbled(saved: Path, data: Any) -> None:
    names = ["concepts.safetensors", "heatmaps/00000.safetensors", "manifest.json"]
    path = saved / data.draw(st.sampled_from(names))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, min(len(content) - 1, 4000)))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        new = data.draw(st.binary(min_size=1, max_size=4))
        content[at : at + len(new)] = new
    with changed(path, bytes(content)):
        check(saved)


def test_files_of_other_results_do_not_go_together(saved: Path, tmp_path: Path) -> None:
    planted(tmp_path / "photos", k=2).save(tmp_path / "other")
    for name in ("concepts.safetensors", "heatmaps/00000.safetensors", "manifest.json"):
        with changed(saved / name, (tmp_path / "other" / name).read_bytes()):
            assert check(saved) is None
    assert check(saved) is not None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"title": "masks-k3"}', "\0", "[" * 10**5])
def test_damaged_galleries_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "regions").mkdir()
    (tmp_path / "regions" / "masks-k3.json").write_text(content)
    with pytest.raises(InputError, match=r"masks-k3\.json is damaged"):
        galleries(tmp_path)
