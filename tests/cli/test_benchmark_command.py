"""The command ``benchmark``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepff.cli.benchmark import (
    EXAMPLE_CLASSES,
    PAPER_GROUPS,
    PART_CLASSES,
    SetupPanel,
    _curve_networks,
    app,
)
from deepff.errors import InputError
from deepff.evaluation.discovered_parts import TABLE4_CLASSES
from deepff.evaluation.objects import PAPER_SETS
from deepff.evaluation.paper_figures import FIGURE5_CLASSES


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_table_is_printed_and_written(data_root: Path, tmp_path: Path) -> None:
    data = str(data_root / "icoseg")
    options = ["--groups", "018", "--no-crf", "--seeds", "2", "--out", str(tmp_path / "out")]

    printed = run("table1", "--data", data, *options, "--cache", str(tmp_path / "cache"))

    written = {path.name: path for path in (tmp_path / "out").glob("[!.]*")}
    assert sorted(written) == [
        "table1-top-01.jpg", "table1-top.csv", "table1-top.json", "table1-top.md",
    ]  # fmt: skip
    markdown = written["table1-top.md"].read_text(encoding="utf-8")
    shown, _, pictures = markdown.partition("\nTaj Mahal (018), images with the lowest IoU")
    assert shown in printed and "(table1-top-01.jpg)" in pictures
    assert all(str(path) in printed for path in written.values())
    table = json.loads(written["table1-top.json"].read_text(encoding="utf-8"))
    assert [row["label"] for row in table["rows"] if row["origin"] == "this run"] == [
        "images", "DFF", "contrast, unrefined", "PCA", "k-means", "mean activation", "Le et al.",
    ]  # fmt: skip
    for words in ("efficientnet_lite0", "layer bn2", "ImageNet", "448", "5 images"):
        assert words in table["source"]
    assert any("2 seeds" in note for note in table["notes"])

    written["table1-top.md"].write_text("the same")
    (tmp_path / "out" / "notes.md").write_text("mine")
    with pytest.raises(InputError, match=r"table1-top\.md is not deepff's, or was changed"):
        run("table1", "--data", data, *options)
    written["table1-top.md"].write_text(markdown, encoding="utf-8")
    run("table1", "--data", data, *options, "--no-contrast")
    assert (tmp_path / "out" / "notes.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("command", "option", "file"),
    [
        ("table1", "--out", "table1-top.md"),
        ("table1", "--out", "table1-bottom-factors.csv"),
        ("table1", "--out", "table1-top-01.jpg"),
        ("table2", "--out", "table2.json"),
        ("table3", "--out", "table3.md"),
        ("table3", "--write-overlays", "horse-pca.jpg"),
        ("table4", "--out", "table4-quality.csv"),
        ("figure3", "--out", "figure3.jpg"),
        ("figure4", "--out", "figure4a.png"),
        ("figure5", "--out", "figure5-01.jpg"),
        ("figure4", "--out", "figure4a.md"),
    ],
)
def test_files_that_deepff_did_not_write_are_kept_and_named_before_any_work(
    tmp_path: Path, command: str, option: str, file: str
) -> None:
    path = tmp_path / "out" / file
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    arguments = [command, "--data", "/nowhere", option, str(tmp_path / "out")]
    with pytest.raises(InputError) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert str(caught.value) == (
        f"{path} is not deepff's, or was changed since deepff wrote it: write to another folder or "
        "move it away"
    )
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table1", "--data", ".", "--groups", ","], "name at least one"),
        (["table4", "--data", ".", "-k", "none"], "-k takes a number"),
        (["table3", "--data", "."], "--write-overlays FOLDER"),
        (["table2", "--data", ".", "--classes", "cows"], "no class “cows”"),
        (["table1", "--data", "/nowhere"], "no folder /nowhere/images"),
        (["table1", "--data", "/nowhere", "--groups", "all"], "no group in /nowhere/images"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_figures_ask_for_matplotlib_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="matplotlib"):
        CliRunner().invoke(app, ["figure4", "--data", "/nowhere"], catch_exceptions=False)


def test_figure_4_has_a_curve_per_layer_or_per_network() -> None:
    """Each option has a value per curve, in order, or one for all of them."""
    with_weights = SetupPanel(weights=Path("v.pth"))
    by_layer = _curve_networks(["vgg19"], ["conv5_4", "conv4_4"], with_weights)
    assert [(label, *loads.args) for label, loads in by_layer.items()] == [
        ("conv5_4", "vgg19", "conv5_4", with_weights),
        ("conv4_4", "vgg19", "conv4_4", with_weights),
    ]
    by_network = _curve_networks(["vgg16", "resnet101"], [], SetupPanel(size=224))
    assert [(label, *loads.args) for label, loads in by_network.items()] == [
        ("vgg16", "vgg16", None, SetupPanel(size=224)),
        ("resnet101", "resnet101", None, SetupPanel(size=224)),
    ]
    assert list(_curve_networks(["vgg16", "vgg19"], ["conv5_3", "conv5_4"], SetupPanel())) == [
        "vgg16, conv5_3",
        "vgg19, conv5_4",
    ]
    with pytest.raises(InputError, match="--layer is given 2 times for 3 curves"):
        _curve_networks(["vgg16", "vgg19", "resnet101"], ["a", "b"], SetupPanel())
    with pytest.raises(InputError, match="--weights is for one network"):
        _curve_networks(["vgg16", "vgg19"], [], with_weights)


def test_defaults_spelt_out_for_the_command_line_are_the_tables_own() -> None:
    assert PART_CLASSES.split(", ") == list(TABLE4_CLASSES)
    assert EXAMPLE_CLASSES.split(", ") == list(FIGURE5_CLASSES)
    assert PAPER_GROUPS.split(", ") == list(PAPER_SETS)


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, deepff.cli.benchmark; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
