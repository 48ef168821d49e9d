"""Every public name has an example that gives what it says."""

import doctest
from pathlib import Path

import pytest

import deepff


@pytest.mark.parametrize("name", deepff.__all__)
def test_examples_of_public_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(getattr(deepff, name), name, globs={})
    assert test.examples, f"{name} has no example"
    failed, _ = doctest.DocTestRunner().run(test)
    assert failed == 0
