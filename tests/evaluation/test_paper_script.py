"""benchmarks/paper.py: what it says where data is missing, and what it does not do twice."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "paper.py"
ALL = ("table1", "table2", "table3", "table4", "figure3", "figure4a", "figure4b", "figure5")


Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Run:
    """A function that runs the script with these arguments and returns what it prints."""

    def printed(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    return printed


def test_missing_data_is_named_and_its_tables_are_left_out(tmp_path: Path, run: Run) -> None:
    printed = run(tmp_path, "--out", tmp_path / "out")

    assert f"iCoseg needs images/ and ground_truth/; there is no folder {tmp_path}" in printed
    assert "VOC 2007: there is no folder VOC2007" in printed
    assert "PASCAL-Part: there is no folder VOC2010" in printed
    summary = (tmp_path / "out/summary.md").read_text(encoding="utf-8")
    assert (
        f"iCoseg's parts: there is no folder of part masks {tmp_path / 'icoseg/parts'}" in printed
    )
    for name in ALL:
        assert f"## {name}\n\nNot run: " in summary


def test_a_table_is_run_once_and_its_failure_is_in_the_summary(tmp_path: Path, run: Run) -> None:
    voc = tmp_path / "VOCdevkit/VOC2007"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (voc / folder).mkdir(parents=True)
    (voc / "JPEGImages/1.jpg").write_bytes(b"not a photograph")
    (voc / "Annotations/1.xml").write_text("<annotation/>")
    (voc / "ImageSets/Main/trainval.txt").write_text("1\n")
    arguments = (tmp_path, "--out", tmp_path / "out", "--only", "table2", "--device", "nowhere")

    assert "table2: status 2" in run(*arguments)
    record = tmp_path / "out/records/table2.json"
    summary = (tmp_path / "out/summary.md").read_text(encoding="utf-8")
    assert "**Failed** with status 2" in summary

    facts = json.loads(record.read_text(encoding="utf-8"))
    record.write_text(json.dumps(facts | {"status": 0}), encoding="utf-8")
    assert "table2: done before" in run(*arguments)
