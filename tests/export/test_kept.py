"""What commands that write masks, boxes and annotations leave of what was there, and say of it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from export_readers import HALF, files
from PIL import Image
from planted import planted, result_of
from typer.testing import CliRunner

from deepff.app.label_file import carry_over, load_labels
from deepff.app.labels import Factor, Labels, Settings
from deepff.cli.main import app
from deepff.errors import InputError, InputWarning
from deepff.export.folder import localize, segment
from deepff.export.formats import FORMATS, export
from deepff.options import ExportOptions, RegionOptions
from deepff.regions.regions import find_regions
from deepff.regions.thresholds import label_map, masks, thresholds
from deepff.report.load import load
from deepff.report.save import earlier_outputs
from deepff.results.heatmaps import HeatMaps
from deepff.results.sampling import BAND_BYTES, bands
from deepff.runtime.parallel import in_parallel


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return tmp_path / "photos"


@pytest.fixture
def saved(photos: Path, tmp_path: Path) -> Path:
    """The folder of a result of PNG photographs, whose label maps would have their names."""
    planted(photos).save(tmp_path / "result")
    return tmp_path / "result"


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_label_maps_never_replace_the_photographs_that_they_are_of(
    photos: Path, saved: Path, overwrite: list[str]
) -> None:
    before = files(photos)
    arguments = ["export", str(saved), "--format", "png", "--out", str(photos), *overwrite]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 2
    assert "a.png is a photograph of the set, which is never overwritten" in outcome.stderr
    assert files(photos) == before


@pytest.mark.parametrize("format", FORMATS)
def test_annotations_made_by_hand_are_kept_but_with_overwrite(
    photos: Path, saved: Path, tmp_path: Path, format: str
) -> None:
    result, out, settings = load(saved), tmp_path / "out", ExportOptions(images="none")
    export(result, format, tmp_path / "names", settings=settings)
    for name in files(tmp_path / "names"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("made by hand")
    before = files(out)
    with pytest.raises(InputError, match=r"is not deepff's, or was changed.*--overwrite"):
        export(result, format, out, settings=settings)
    assert files(out) == before
    export(result, format, out, settings=ExportOptions(images="none", overwrite=True))
    assert files(out) == files(tmp_path / "names")
    export(result, format, out, settings=settings)


def test_corrections_of_exported_files_are_kept(saved: Path) -> None:
    result, out = load(saved), saved / "export" / "labelme"
    anew = ExportOptions(anew=True)
    export(result, "labelme", out, settings=anew)
    export(result, "labelme", out, settings=anew)
    corrected = out / "a.json"
    corrected.write_text("corrected")
    outcome = CliRunner().invoke(app, ["export", str(saved), "--format", "labelme"])
    assert outcome.exit_code == 2 and outcome.stderr.count("\n") == 1
    assert f"{corrected} is not deepff's, or was changed" in outcome.stderr
    assert corrected.read_text() == "corrected"
    outcome = CliRunner().invoke(app, ["export", str(saved), "--format", "labelme", "--overwrite"])
    assert outcome.exit_code == 0
    assert json.loads(corrected.read_text("utf-8"))["imagePath"] == "a.png"


@pytest.mark.parametrize("write", [segment, localize])
def test_masks_and_boxes_that_were_changed_are_kept_but_with_overwrite(
    saved: Path, write: Callable[..., object]
) -> None:
    result = load(saved)
    write(result, saved, options=HALF)
    write(result, saved, options=HALF)
    for name in ("masks/k3/factor 0/a.png" if write is segment else "boxes/k3.csv", "report.html"):
        (saved / name).write_text("changed")
        before = files(saved)
        with pytest.raises(InputError, match=r"--overwrite"):
            write(result, saved, options=HALF)
        assert files(saved) == before
        write(result, saved, options=HALF, settings=ExportOptions(overwrite=True))
        assert (saved / name).read_bytes() != b"changed"


@pytest.mark.parametrize(
    "command",
    [
        "segment {result}",
        "localize {result}",
        "export {result} --format coco-polygons",
        "export {result} --format yolo --out {result}/mine/yolo",
        "explain {result}",
        "discover {photos} --out {result}",
        "discover {photos} --out {result}/new",
        "apply {result}/concepts.safetensors {photos} --out {result}/new",
        "benchmark table1 --data /nowhere --out {result}/benchmark/table1",
        "benchmark table3 --data /nowhere --write-overlays {result}",
    ],
)
def test_a_folder_that_cannot_be_written_is_named_by_every_command(
    photos: Path,
    saved: Path,
    tmp_path: Path,
    read_only_at: Callable[[Path, Path], Path],
    command: str,
) -> None:
    result = read_only_at(saved, tmp_path / "read only")
    arguments = [word.format(result=result, photos=photos) for word in command.split()]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 2, outcome.output
    (line,) = outcome.stderr.splitlines()
    assert line == (
        f"deepff: error: {result} cannot be written (read-only file system); use a folder where "
        "you may write"
    )


@pytest.mark.parametrize(("command", "kind"), [("segment", "masks"), ("localize", "boxes")])
def test_what_was_made_with_other_settings_is_named_when_it_is_replaced(
    saved: Path, tmp_path: Path, command: str, kind: str
) -> None:
    (tmp_path / "parts.yaml").write_text("0: head\n")

    def says(*options: str) -> str:
        outcome = CliRunner().invoke(app, [command, str(saved), *options])
        assert outcome.exit_code == 0, outcome.output
        lines = outcome.stderr.splitlines()
        return "".join(line for line in lines if line.startswith("deepff: "))

    def replaced(settings: str) -> str:
        return f"deepff: replaced {kind} of k = 3 that were made with other settings ({settings})"

    assert says("--value", "60") == ""
    assert says("--value", "60") == ""
    named = ["--threshold", "max-fraction", "--parts", str(tmp_path / "parts.yaml")]
    assert says() == replaced("threshold: percentile 60 over the set")
    assert says(*named) == replaced(
        "threshold: percentile 75 over the set; regions: factor 0, factor 1, factor 2"
    )
    assert says(*named, "--crf") == replaced("threshold: 0.5 of the maximum over the set")
    shutil.rmtree(saved / kind)
    assert says() == ""


def test_masks_by_other_names_replace_those_before_and_nothing_else(saved: Path) -> None:
    result = load(saved)
    out = segment(result, saved, options=HALF)
    (out / "factor 0" / "notes.txt").write_text("mine")
    segment(result, saved, options=RegionOptions("max-fraction", 0.5, parts={0: "head"}))
    names = {name.partition("/")[0] for name in files(out)}
    assert names == {"head", "labels", "factor 0"}
    assert (out / "factor 0" / "notes.txt").read_text() == "mine"
    assert len(list((out / "factor 0").iterdir())) == 1


KEPT = "export/labelme/a.json: changed since deepff wrote it, so it is kept"
MADE = ["export/labelme", "labels.json", "masks/k3"]


@pytest.fixture
def used(saved: Path) -> Path:
    """The folder of a result of which masks, an export and labels were made."""
    result = load(saved)
    segment(result, saved, options=HALF)
    export(result, "labelme", saved / "export" / "labelme")
    (saved / "labels.json").write_text("decided")
    return saved


@pytest.mark.parametrize("way", ["save", "discover", "apply"])
def test_what_was_made_of_a_result_goes_with_it_on_request_alone(
    photos: Path, used: Path, tmp_path: Path, way: str
) -> None:
    planted(photos, k=2).save(tmp_path / "other")
    for shade, path in enumerate(sorted(photos.rglob("*.png"))):
        Image.linear_gradient("L").rotate(90 * shade).resize((96, 96)).save(path)
    (used / "export" / "labelme" / "a.json").write_text("corrected")
    (used / "crops" / "mine.txt").write_text("mine")
    assert earlier_outputs(used) == MADE
    before = files(used)
    arguments = {
        "discover": [str(photos), "-k", "2", "--size", "64"],
        "apply": [str(tmp_path / "other" / "concepts.safetensors"), str(photos)],
    }

    def replace_it(overwrite: bool) -> str:
        """What is said where it is refused, or done."""
        if way == "save":
            try:
                planted(photos, k=2).save(used, overwrite=overwrite)
            except InputError as error:
                return str(error)
            return ""
        option = ["--overwrite"] if overwrite else []
        outcome = CliRunner().invoke(app, [way, *arguments[way], "--out", str(used), *option])
        return outcome.stderr

    said = replace_it(overwrite=False)
    assert f"{used} holds {', '.join(MADE)}, made from a result" in said and "--overwrite" in said
    assert files(used) == before
    if way == "apply":  # its network is not there
        return
    with nullcontext() if way == "discover" else pytest.warns(InputWarning, match=KEPT):
        said = replace_it(overwrite=True)
    assert "holds" not in said
    assert way == "save" or len([line for line in said.splitlines() if KEPT in line]) == 1
    left = files(used)
    assert not any(name.startswith(("masks", "crops/k3", "regions")) for name in left)
    assert [name for name in left if name.startswith("export")] == ["export/labelme/a.json"]
    assert left["export/labelme/a.json"] == b"corrected" and left["crops/mine.txt"] == b"mine"
    assert left["labels.json"] == b"decided"
    (used / "report.html").write_text("changed")
    assert "report.html was changed since deepff wrote it" in replace_it(overwrite=True)
    assert (used / "report.html").read_text() == "changed"


@pytest.mark.parametrize("below", ["masks", "object/x"])
def test_other_results_in_folders_of_a_result_stay_whatever_it_does(
    photos: Path, saved: Path, tmp_path: Path, below: str
) -> None:
    planted(photos)
    for shade, path in enumerate(sorted(photos.rglob("*.png"))):
        Image.linear_gradient("L").rotate(90 * shade).resize((96, 96)).save(path)
    arguments = [str(photos), "--size", "64", "--out"]
    new, applied, mine = saved / below, saved / below / "applied", saved / "mine" / "coco"
    runner = CliRunner()
    assert runner.invoke(app, ["discover", *arguments, str(new), "-k", "1"]).exit_code == 0
    bank = str(new / "concepts.safetensors")
    assert runner.invoke(app, ["apply", bank, str(photos), "--out", str(applied)]).exit_code == 0
    segment(load(applied), applied)
    localize(load(new), new)
    export(load(saved), "coco", mine, options=HALF)
    before = files(new) | files(mine)
    assert earlier_outputs(saved) == []
    for k, *options in (["2"], ["3", "--overwrite"]):
        command = ["discover", *arguments, str(saved), "-k", k, *options]
        outcome = runner.invoke(app, command)
        assert outcome.exit_code == 0, outcome.output
        assert files(new) | files(mine) == before
    planted(tmp_path / "others").save(saved)
    planted(tmp_path / "others", k=2).save(saved, overwrite=True)
    assert files(new) | files(mine) == before
    assert list(load(new).factorizations) == list(load(applied).factorizations) == [1]


def test_what_was_made_of_a_result_stays_with_the_same_and_with_more_images(
    photos: Path, used: Path
) -> None:
    made = {name: content for name, content in files(used).items() if "/" in name}
    planted(photos).save(used)
    assert files(used).items() >= made.items()
    page = (used / "report.html").read_text()
    assert page.count('src="regions/masks-k3/') == 3
    more = result_of(torch.ones(4, 3, 6, 8), [*planted(photos).names, "d.png"], photos)
    with pytest.raises(InputError, match="made from a result that the new one would replace"):
        result_of(torch.ones(2, 3, 6, 8), planted(photos).names[:2], photos).save(used)
    more.save(used)
    kept = {name: content for name, content in made.items() if name.startswith(("ex", "ma", "re"))}
    assert files(used).items() >= kept.items()
    page = (used / "report.html").read_text()
    assert page.count('src="regions/masks-k3/') == 3 and page.count('src="thumbnails/') == 4


def test_apply_keeps_what_was_decided_on_its_result(photos: Path, tmp_path: Path) -> None:
    planted(photos)
    for shade, path in enumerate(sorted(photos.rglob("*.png"))):
        Image.linear_gradient("L").rotate(90 * shade).resize((96, 96)).save(path)
    result, out = tmp_path / "result", tmp_path / "new"
    runner = CliRunner()
    discover = ["discover", str(photos), "--size", "64", "-k", "2", "--out", str(result)]
    assert runner.invoke(app, discover).exit_code == 0
    named = Labels("", Settings(2), result, {(2, 0): Factor("wheel", True)})
    carry_over(named, result, load(result))
    arguments = ["apply", str(result / "concepts.safetensors"), str(photos), "--out", str(out)]
    assert runner.invoke(app, arguments).exit_code == 0
    assert load_labels(out, load(out)).parts[0] == "wheel"
    carry_over(replace(named, factors={(2, 0): Factor("door", True)}), out, load(out))
    again = runner.invoke(app, arguments)
    assert again.exit_code == 2 and "labels.json, made from a result" in again.stderr
    assert load_labels(out, load(out)).parts[0] == "door"


def test_a_result_without_its_hidden_lists_is_replaced_as_a_whole(
    photos: Path, saved: Path
) -> None:
    segment(load(saved), saved, options=HALF)
    for path in saved.rglob(".deepff-files"):
        path.unlink()
    (saved / "notes.txt").write_text("mine")
    planted(photos, k=2).save(saved, overwrite=True)
    left = {name.partition("/")[0] for name in files(saved)}
    assert left == {
        *("manifest.json", "concepts.safetensors", "heatmaps", "report.html", "figure.png"),
        *("crops", "thumbnails", "notes.txt"),
    }
    assert list(load(saved).factorizations) == [2]


def test_a_second_report_still_says_which_photographs_are_grey(
    photos: Path, tmp_path: Path
) -> None:
    result = planted(photos)
    (photos / "a.png").write_bytes(b"no photograph")
    result.save(tmp_path / "result")
    assert "(used, but shown gray)" in (tmp_path / "result" / "report.html").read_text()
    for write in (segment, localize):
        write(result, tmp_path / "result", options=HALF)
        assert "(used, but shown gray)" in (tmp_path / "result" / "report.html").read_text()


def test_several_formats_are_what_each_is_alone(saved: Path, tmp_path: Path) -> None:
    result = load(saved)
    written = export(result, list(FORMATS), tmp_path / "all", options=HALF)
    assert written.folders == [tmp_path / "all" / format for format in FORMATS]
    for format in FORMATS:
        alone = export(result, format, tmp_path / "alone" / format, options=HALF)
        assert alone.n_instances == written.n_instances
        assert files(tmp_path / "all" / format) == files(tmp_path / "alone" / format)
    arguments = ["export", str(saved), "--format", "coco", "--format", "voc", "--format", "coco"]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.splitlines()[1:] == [str(saved / "export" / f) for f in ("coco", "voc")]


def test_no_format_takes_its_place_before_all_are_whole(saved: Path, tmp_path: Path) -> None:
    result = load(saved)
    (result.paths[2]).write_bytes(b"")  # there when it is looked for, broken when it is read
    with pytest.raises(InputError, match=r"the photograph c\.png,? .*can no longer be used"):
        export(result, ["coco", "png"], tmp_path / "out", options=RegionOptions(refine="dense-crf"))
    assert files(tmp_path) == files(saved.parent) and not files(tmp_path / "out")


IN_ASCII = """
import sys, deepff
from deepff.export.folder import localize
from deepff.export.formats import FORMATS, export
from deepff.options import RegionOptions
assert open(sys.argv[1]).encoding.lower() not in ("utf-8", "utf8")
result = deepff.load(sys.argv[2])
options = RegionOptions("max-fraction", 0.5, parts={0: "K\\xf6pfe", 1: "\\u8db3"})
localize(result, sys.argv[2], options=options)
export(result, list(FORMATS), sys.argv[2] + "/all", options=options)
"""


def test_text_is_utf8_whatever_the_locale_is(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    saved = tmp_path / "result"
    maps = torch.zeros(1, 2, 6, 8)
    maps[0, 0, :3] = maps[0, 1, 3:] = 1
    result_of(maps, ["a.png"], tmp_path).save(saved)
    environment = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-W", "ignore", "-c", IN_ASCII, str(tmp_path / "empty"), str(saved)]
    subprocess.run(command, check=True, env=environment, timeout=120)
    assert "a.png,K\xf6pfe," in (saved / "boxes" / "k2.csv").read_text("utf-8")
    assert "K\xf6pfe" in (saved / "boxes" / "k2.json").read_text("utf-8")
    assert "\u8db3" in (saved / "all" / "yolo" / "data.yaml").read_text("utf-8")


def test_regions_leave_pytorchs_threads_as_they_were(saved: Path) -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    def in_a_new_thread() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.get_num_threads).result()

    torch.set_num_threads(3)
    try:
        for _ in find_regions(load(saved), options=HALF):
            seen += [torch.get_num_threads(), in_a_new_thread()]
        assert list(in_parallel(lambda index: torch.get_num_threads(), [1] * 5)) == [1] * 5
        seen += [torch.get_num_threads(), in_a_new_thread()]
        assert seen == [3] * 8
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("memory", "most"), [(100, 10), (35, 3), (1, 1)])
def test_items_in_flight_take_no_more_than_the_memory_that_they_may(memory: int, most: int) -> None:
    started: list[int] = []
    taken = 0

    def work(index: int) -> int:
        started.append(index)
        return index

    for taken, index in enumerate(in_parallel(work, [10] * 40, memory)):
        assert index == taken
        # Those done and the one that is looked at, and what is worked on.
        assert len(started) - taken <= most
    assert taken == 39


def test_a_large_images_regions_are_those_of_its_maps_as_a_whole(photos: Path) -> None:
    """Bands of rows, of which no seam is seen."""
    maps = torch.rand(3, 9, 7, generator=torch.Generator().manual_seed(0))
    shape = (2200, 1700)
    assert 4 * 3 * shape[0] * shape[1] > BAND_BYTES
    whole = torch.nn.functional.interpolate(maps[None], shape, mode="bilinear")[0]
    pieces = list(bands(maps, shape))
    assert len(pieces) > 1
    assert [rows.start for rows, _ in pieces][1:] == [rows.stop for rows, _ in pieces][:-1]
    joined = torch.cat([band for _, band in pieces], 1)
    assert torch.allclose(joined, whole, atol=1e-6, rtol=0)

    result = result_of(maps[None], ["a.png"], photos)
    found = result.factorizations[3]
    heatmaps = HeatMaps(found.coefficients, [(9, 7)], [shape])
    result.images = [replace(result.images[0], size=shape)]
    result.factorizations = {3: replace(found, heatmaps=heatmaps)}
    [regions] = find_regions(result)
    limits = thresholds([whole], "percentile")[0]
    on = masks(whole, limits)
    assert (regions.masks != on).float().mean() < 1e-5
    assert (regions.labels != label_map(whole, on, heatmaps.scale)).float().mean() < 1e-5
