"""The command line: what it prints, where it writes, and one sentence for each mistake."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from planted import planted
from safetensors.torch import save_file
from typer.testing import CliRunner

import deepff
from deepff.cli.main import app

SMALL = ["--size", "64", "-k", "2"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three small pictures, in folders and with names that are awkward."""
    folder = tmp_path / "my photos"
    generator = np.random.default_rng(0)
    for name in ("a.png", "sub/a.png", "sub/Grüße & 'q' <script>.png"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(path)
    return folder


def run(*arguments: str | Path) -> tuple[int, str, str]:
    outcome = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit), outcome.exception
    return outcome.exit_code, outcome.stdout, outcome.stderr


def test_a_folder_with_broken_files_goes_through_and_names_them(photos, tmp_path):
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing more")
    (photos / "empty.png").touch()
    (photos / "notes.txt").write_text("no picture")
    out = tmp_path / "result"
    code, stdout, stderr = run("discover", photos, *SMALL, "--out", out, "--overlays")
    assert code == 0
    assert str(out / "report.html") in stdout
    warning = next(line for line in stderr.splitlines() if "skipped" in line)
    assert warning.startswith("deepff: skipped 3 of the files: broken.jpg (")
    images = json.loads((out / "manifest.json").read_text())["images"]
    assert {image["name"]: image["status"] for image in images} == {
        "a.png": "used",
        "sub/a.png": "used",
        "sub/Grüße & 'q' <script>.png": "used",
        "broken.jpg": "skipped",
        "empty.png": "skipped",
        "notes.txt": "skipped",
    }
    assert len(list((out / "overlays/k2").rglob("*.jpg"))) == 3
    assert "<script>.png" not in (out / "report.html").read_text()
    loaded = deepff.load(out)
    assert loaded.skipped[1].reason == "empty file"


def test_a_range_of_k_and_several_sources(photos, tmp_path):
    out = tmp_path / "result"
    sources = [photos / "a.png", photos / "sub"]
    code, stdout, _ = run("discover", *sources, "--size", "64", "-k", "1-3,5", "--out", out)
    assert code == 0
    assert "k=1: " in stdout and "k=5: " in stdout
    assert list(deepff.load(out).factorizations) == [1, 2, 3, 5]


def test_a_run_with_a_cache_is_the_same_to_the_bit(photos, tmp_path):
    results = []
    for options in ([], ["--cache", tmp_path / "cache"], ["--cache", tmp_path / "cache"]):
        code, _, _ = run("discover", photos, *SMALL, *options, "--out", tmp_path / "result")
        assert code == 0
        results.append(deepff.load(tmp_path / "result").coefficients)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_factors_for_which_nothing_is_left_are_named(tmp_path):
    Image.linear_gradient("L").save(tmp_path / "a.png")
    code, stdout, stderr = run(
        "discover", tmp_path / "a.png", "--size", "32", "-k", "1", "--out", tmp_path / "one"
    )
    assert code == 0
    assert "is empty" not in stderr
    assert stdout.startswith("1 image, ")
    Image.linear_gradient("L").save(tmp_path / "b.png")
    both = [tmp_path / "a.png", tmp_path / "b.png"]
    code, _, stderr = run("discover", *both, "--size", "32", "-k", "2", "--out", tmp_path / "two")
    assert code == 0
    assert "at k = 2 factor 1 is empty; use a smaller k" in stderr
    assert "at 32 pixels, an image is a single cell of bn2, whose stride is 32" in stderr


def test_a_network_that_gives_nothing_but_zeros_is_refused_in_a_sentence(tmp_path):
    for name in ("a", "b"):
        Image.linear_gradient("L").save(tmp_path / f"{name}.png")
    weights = torchvision.models.squeezenet1_1().state_dict()
    weights = {name: torch.zeros_like(values) for name, values in weights.items()}
    save_file(weights, tmp_path / "zeros.safetensors")
    network = ["--model", "squeezenet1_1", "--weights", tmp_path / "zeros.safetensors"]
    out = tmp_path / "result"
    for layer, words in (([], "no default"), (["--layer", "features.11"], "zero")):
        code, _, stderr = run(
            "discover", tmp_path / "*.png", *network, *SMALL, *layer, "--out", out
        )
        [error] = [line for line in stderr.splitlines() if "images/s" not in line]
        assert code == 2 and words in error
    assert not out.exists()


def test_a_result_inside_the_photo_folder_is_not_taken_for_photos(photos):
    for _ in range(2):
        code, _, stderr = run("discover", photos, *SMALL, "--out", photos / "result")
        assert code == 0
        assert "skipped" not in stderr
    assert len(deepff.load(photos / "result").names) == 3


def test_models_lists_what_must_be_downloaded():
    code, stdout, _ = run("models")
    assert code == 0
    rows = {line.split()[0]: line for line in stdout.splitlines()}
    assert rows["efficientnet_lite0"].endswith("nothing")
    assert "conv5_4" in rows["vgg19"] and rows["vgg19"].endswith("vgg19-dcbb9e9d.pth")


def test_layers_lists_grids_and_signs_without_downloading():
    code, stdout, _ = run("layers", "vgg16_bn", "--size", "64")
    assert code == 0
    rows = {line.split()[0]: " ".join(line.split()) for line in stdout.splitlines()}
    assert rows["conv5_3"] == "conv5_3 (features.42) 512 16 4 × 4 channels first never default"
    assert rows["conv5_2"] == "conv5_2 (features.39) 512 16 4 × 4 channels first never"
    assert " down to " in rows["features.41"]


def test_a_layers_cells_have_their_measured_and_their_drawn_center():
    code, stdout, _ = run("layers", "efficientnet_lite0", "--layer", "bn2")
    assert code == 0
    header, row = stdout.splitlines()
    assert header.split()[-3:] == ["is", "drawn", "at"]
    assert row.split()[:3] == ["bn2", "1280", "32"]
    # Stride 32, so the first cell covers the pixels 0 to 32.
    assert row.endswith("16.0, 16.0") and row.count("±") == 2


BAD_INPUTS = {
    "no images and no --sample": ([], "name folders, files or globs, or try --sample"),
    "both": (["{photos}", "--sample"], "--sample comes with images"),
    "a folder that is not there": (["{tmp}/nowhere"], "cannot find '{tmp}/nowhere'"),
    "an empty folder": (["{empty}"], "has no files that are not hidden"),
    "a glob without a match": (["{photos}/*.jpeg"], "no file matches"),
    "no usable image": (["{broken}"], "none of the 2 files is an image that can be read"),
    "an unknown network": (["{photos}", "--model", "vgg91"], "no network 'vgg91'; the closest are"),
    "an unknown layer": (["{photos}", "--layer", "bn3"], "has no layer 'bn3'; choose one that"),
    "a layer that is no map": (["{photos}", "--layer", "classifier"], "gives shape (1, 1000)"),
    "a signed layer": (
        ["{photos}", "--layer", "conv_head", "--method", "nmf"],
        "has values down to -",
    ),
    "k of no number": (["{photos}", "-k", "many"], "-k takes a number of 1 or more, or several"),
    "k of 0": (["{photos}", "-k", "0"], "-k takes a number of 1 or more, or several"),
    "k of more than the rows": (["{photos}", "-k", "99"], "99 factors were asked for"),
    "k backwards": (["{photos}", "-k", "4-1"], "-k takes a number of 1 or more, or several"),
    "weights that are not there": (["{photos}", "--weights", "w.pth"], "w.pth does not exist"),
    "weights of another network": (
        ["{photos}", "--weights", "{tmp}/other.safetensors"],
        "other.safetensors",
    ),
    "weights that are garbage": (["{photos}", "--weights", "{tmp}/garbage.pth"], "garbage.pth"),
    "weights that must be downloaded": (
        ["{photos}", "--model", "vgg19"],
        "vgg19-dcbb9e9d.pth",
    ),
    "weights with NaN": (
        ["{photos}", "--model", "squeezenet1_1", "--weights", "{tmp}/nan.pth"],
        "nan.pth hold NaN or infinity, first in 'features.0.weight'",
    ),
    "a read-only output folder": (
        ["{photos}", "--out", "/proc/result"],
        "/proc cannot be written (no such file or directory); use a folder where you may write",
    ),
    "a mean of two numbers": (["{photos}", "--mean", "0.5,0.5"], "--mean takes three numbers"),
    "a std of zero": (["{photos}", "--std", "0,1,1"], "std"),
    "a device that is not there": (["{photos}", "--device", "mps"], "no device 'mps'"),
    "mixed precision without a GPU": (
        ["{photos}", "--amp", "--device", "cpu"],
        "mixed precision needs a CUDA device",
    ),
    "an output folder in use": (["{photos}", "--out", "{photos}"], "holds no deepff result"),
    "an output that is a file": (["{photos}", "--out", "{photos}/a.png"], "is a file"),
    "an option given twice": (
        ["{photos}", "-k", "2", "-k", "3"],
        "write several numbers as -k 2,3",
    ),
    "another given twice": (["{photos}", "--seed", "1", "--seed=2"], "--seed is given twice"),
    "a solver for a method without": (
        ["{photos}", "--method", "pca", "--solver", "mu"],
        "--solver works only with the method nmf; leave it out for pca",
    ),
}


@pytest.mark.parametrize(("arguments", "sentence"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
def test_bad_input_gets_one_sentence_and_status_2(
    photos, tmp_path, monkeypatch, arguments, sentence
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "broken" / name).write_bytes(b"nonsense")
    (tmp_path / "garbage.pth").write_bytes(b"nonsense")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    if "{tmp}/nan.pth" in arguments:
        state = torchvision.models.squeezenet1_1().state_dict()
        state["features.0.weight"][0, 0, 0, 0] = float("nan")
        torch.save(state, tmp_path / "nan.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    paths = {
        "tmp": tmp_path,
        "photos": photos,
        "empty": tmp_path / "empty",
        "broken": tmp_path / "broken",
    }
    filled = [argument.format(**paths) for argument in arguments]
    if "-k" not in filled:
        filled += ["-k", "2"]
    if "--out" not in filled:
        filled += ["--out", str(tmp_path / "result")]
    code, _, stderr = run("discover", *filled, "--size", "64")
    message = stderr.strip().splitlines()[-1]
    assert code == 2, stderr
    assert message.startswith("deepff: error: ")
    assert sentence.format(**paths) in message
    assert "Traceback" not in stderr
    assert not (tmp_path / "result").exists()


def test_no_choice_is_broken_in_mid_word_at_80_columns():
    names = ["discover", "apply", "segment", "localize", "export", "explain", "label"]
    for command in [[name] for name in names] + [["benchmark", "table2"], ["benchmark", "figure4"]]:
        outcome = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80"})
        for line in outcome.stdout.splitlines():
            assert re.sub("[<>]=", "", line).count("<") == re.sub("[<>]=", "", line).count(">"), (
                line
            )


def test_showing_what_is_no_result(tmp_path):
    code, _, stderr = run("show", tmp_path)
    assert code == 2
    assert "holds no deepff result" in stderr


def test_commands_that_only_say_or_open_something_load_no_torch(tmp_path):
    planted(tmp_path / "photos").save(tmp_path / "result")
    program = (
        "import sys, webbrowser, deepff, deepff.cli.main\n"
        "from typer.testing import CliRunner\n"
        "opened = []\n"
        "webbrowser.open = opened.append\n"
        "commands = deepff.cli.main.app.registered_commands\n"
        "helps = [[command.callback.__name__, '--help'] for command in commands]\n"
        "for arguments in [[], ['--version'], *helps, ['benchmark', 'table1', '--help'],\n"
        "                  ['models'], ['show', sys.argv[1]]]:\n"
        "    CliRunner().invoke(deepff.cli.main.app, arguments, catch_exceptions=False)\n"
        "    loaded = {'torch', 'numpy', 'PIL', 'scipy', 'huggingface_hub'} & set(sys.modules)\n"
        "    assert not loaded, (arguments, loaded)\n"
        "assert opened == [sys.argv[2]], opened\n"
    )
    report = tmp_path / "result" / "report.html"
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "result"), report.resolve().as_uri()],
        check=True,
    )


def test_showing_a_run_that_was_not_finished(tmp_path):
    (tmp_path / "manifest.json").write_text('{"deepff": "0.1.0", "status": "writing"}')
    code, _, stderr = run("show", tmp_path)
    assert code == 2
    assert "was not finished; run its command again" in stderr


def test_the_module_is_the_command(photos, tmp_path):
    command = [sys.executable, "-m", "deepff", "discover", str(photos), "-k", "many"]
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert outcome.returncode == 2
    assert "-k takes a number of 1 or more" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_explain_names_a_saved_result_and_writes_its_report_anew(data_root, tmp_path):
    balloons = sorted(next((data_root / "icoseg/images").glob("041 *")).glob("*.jpg"))[::8]
    out = tmp_path / "result"
    assert run("discover", *balloons, "-k", "1,2", "--size", "336", "--out", out)[0] == 0
    assert run("segment", out, "-k", "2")[0] == 0
    code, stdout, _ = run("explain", out, "--class", "balloon", "--class", "parachute")
    assert code == 0
    header, *rows = stdout.splitlines()[:3]
    assert re.split(r"  +", header) == [
        *("factor", "name", "taken for", "share"),
        *("balloon: falls by", "Sobol", "p", "parachute: falls by", "Sobol", "p"),
    ]
    assert [row.split()[:2] for row in rows] == [
        [str(j), name or "-"] for j, name in enumerate(deepff.load(out).factor_names)
    ]
    assert "balloon" in {row.split()[1] for row in rows}
    page = (out / "report.html").read_text()
    assert "without it, the score falls by" in page
    assert "masks-k2" in page  # what was made of the result stays, in the report too
    loaded = deepff.load(out)
    assert loaded.importances[2].labels == ("balloon", "parachute")
    assert loaded.bank.classes[1].names == ("balloon",)


def test_explain_takes_ones_own_labels_and_says_what_is_wrong_with_them(photos, tmp_path):
    out = tmp_path / "result"
    assert run("discover", photos, *SMALL, "--out", out)[0] == 0
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    code, _, stderr = run("explain", out, "--labels", tmp_path / "labels.txt")
    assert code == 2
    assert "2 labels are given, but efficientnet_lite0 has 1000 outputs" in stderr
    (tmp_path / "labels.txt").write_text("\n".join(f"thing {i}" for i in range(1000)))
    code, stdout, _ = run("explain", out, "--labels", tmp_path / "labels.txt")
    assert code == 0
    assert "thing " in stdout.splitlines()[1]


def test_a_result_per_class_folder_quiet_and_as_one_document(photos, tmp_path):
    """The classes are a and sub; a file outside of them is refused before anything runs."""
    code, _, stderr = run("discover", photos, *SMALL, "--per-class")
    assert code == 2 and "a.png is in none" in stderr
    (photos / "a").mkdir()
    (photos / "a.png").rename(photos / "a" / "a.png")
    out = tmp_path / "classes"
    arguments = ("discover", photos, *SMALL, "--per-class", "--out", out)
    code, stdout, stderr = run(*arguments, "--json", "--quiet")
    assert code == 0 and stderr == ""
    classes = json.loads(stdout)["classes"]
    assert {label: len(each["images"]) for label, each in classes.items()} == {"a": 1, "sub": 2}
    for label, each in classes.items():
        assert each.pop("folder") == str(out / label)
        assert each == json.loads((out / label / "manifest.json").read_text())
    assert [*deepff.load(out / "sub").names] == ["sub/a.png", "sub/Grüße & 'q' <script>.png"]
    page = (out / "classes.html").read_text()
    assert 'href="a/report.html"' in page and 'src="sub/figure.png"' in page

    code, stdout, stderr = run(*arguments)
    assert code == 0 and stdout.endswith(f"{out / 'classes.html'}\n")
    assert stdout.count("relative error") == 2 and "sub/report.html" in stdout
    code, stdout, stderr = run("explain", out, "--class", "tabby")
    assert code == 0 and stdout.endswith(f"{out / 'classes.html'}\n")
    assert stdout.count("tabby: falls by") == 2 and f"{out / 'sub'}\n" in stdout
    assert (out / "classes.html").read_text().count("Importance for tabby") == 2
    code, stdout, stderr = run("segment", out)
    assert code == 2 and "a result per class; name the folder of one, such as" in stderr
    code, stdout, stderr = run("discover", photos, *SMALL, "--out", tmp_path / "one", "-q")
    assert (code, stdout, stderr) == (0, "", "")
    (photos / "empty.png").touch()
    code, stdout, stderr = run("discover", photos, *SMALL, "--out", tmp_path / "one", "-q")
    assert code == 0 and stdout == "" and "skipped 1 of the files: empty.png" in stderr


def test_networks_and_layers_as_documents():
    networks = json.loads(run("models", "--json")[1])
    assert networks[0] == {
        "name": "efficientnet_lite0",
        "default_layer": "bn2",
        "download": "nothing",
    }
    layers = json.loads(run("layers", "vgg16_bn", "--size", "64", "--json")[1])
    (default,) = (layer for layer in layers if layer["is_default"])
    assert (default["name"], default["channels"], default["stride"]) == ("conv5_3", 512, 16)
    assert default["grid"] == [4, 4] and default["minimum"] == 0
