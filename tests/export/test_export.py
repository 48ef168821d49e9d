"""Instances of label maps and results, and the command that exports them."""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from export_readers import COCO_FILE, HALF
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image
from planted import result_of
from skimage.draw import polygon2mask
from typer.testing import CliRunner

from deepff.cli.main import app
from deepff.errors import InputError, InputWarning
from deepff.export.boxes import region_boxes
from deepff.export.folder import segment
from deepff.export.formats import FORMATS, export
from deepff.export.instances import annotated_images, find_instances, found_maps, run_lengths
from deepff.export.polygons import instance_polygons, joined
from deepff.options import ExportOptions, RegionOptions
from deepff.regions.components import component_boxes
from deepff.regions.regions import Regions
from deepff.report.load import load
from deepff.report.report import write_report_page
from deepff.runtime.outputs import RECORD

WITHOUT = ExportOptions(images="none")

LABELS = np.array(
    [
        [1, 1, 0, 2, 2],
        [1, 0, 0, 0, 2],
        [0, 3, 0, 0, 0],
        [1, 0, 3, 0, 1],
        [1, 1, 0, 1, 1],
    ],
    np.uint8,
)
label_maps = arrays(
    np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(0, 3)
)
small_masks = arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=12))


def test_components_are_instances_by_region_and_size() -> None:
    found = find_instances(LABELS)
    assert [(instance.region, instance.area, instance.box) for instance in found] == [
        (0, 3, (0, 0, 2, 2)),
        (0, 3, (0, 3, 2, 5)),
        (0, 3, (3, 3, 5, 5)),
        (1, 3, (3, 0, 5, 2)),
        (2, 2, (1, 2, 3, 4)),
    ]
    assert (found[4].mask == np.eye(2, dtype=bool)).all()


def test_a_part_is_one_instance_on_request() -> None:
    found = find_instances(LABELS, "parts")
    assert [(instance.region, instance.area) for instance in found] == [(0, 9), (1, 3), (2, 2)]
    assert (found[0].full_mask(LABELS.shape) == (LABELS == 1)).all()


def test_small_instances_are_left_out_by_their_own_area() -> None:
    assert [instance.region for instance in find_instances(LABELS, min_area=3)] == [0, 0, 0, 1]
    assert [instance.region for instance in find_instances(LABELS, "parts", 4)] == [0]
    assert find_instances(LABELS, "parts", 10) == []


@settings(deadline=None)
@given(label_maps)
def test_instances_share_the_pixels_of_a_label_map_among_them(labels: np.ndarray) -> None:
    for kind in ("components", "parts"):
        found = find_instances(torch.from_numpy(labels), kind)
        painted = np.zeros(labels.shape, int)
        for instance in found:
            full = instance.full_mask(labels.shape)
            assert not painted[full].any()
            painted[full] = instance.region + 1
            assert component_boxes(instance.mask)[0] or full.any()
        assert (painted == labels).all()
    boxes = [i.box for region in range(3) for i in find_instances(labels) if i.region == region]
    assert boxes == [box for region in range(3) for box in component_boxes(labels == region + 1)]


@settings(deadline=None)
@given(small_masks)
def test_polygons_hold_the_mask_and_nothing_else(mask: np.ndarray) -> None:
    for kind in ("components", "parts"):
        for instance in find_instances(mask.astype(np.uint8), kind):
            polygon = joined(instance_polygons(instance))
            # skimage tests points: those are the centers of pixels half a pixel off the edges.
            read = polygon2mask(mask.shape, polygon[:, ::-1] - 0.5)
            assert (read == instance.full_mask(mask.shape)).all()


def test_a_polygon_has_corners_only_and_a_slit_to_its_hole() -> None:
    square = np.ones((4, 4), np.uint8)
    [polygon] = instance_polygons(find_instances(square)[0])
    assert polygon.tolist() == [[0, 0], [4, 0], [4, 4], [0, 4]]
    square[2, 2] = 0
    [polygon] = instance_polygons(find_instances(square)[0])
    to_the_hole = [[0, 0], [2, 0]]
    around_the_hole_and_back = [[2, 3], [3, 3], [3, 2], [2, 2], [2, 0]]
    assert polygon.tolist() == [
        *to_the_hole,
        *around_the_hole_and_back,
        [4, 0],
        [4, 4],
        [0, 4],
    ]


@given(small_masks)
def test_run_lengths_start_with_what_is_off(mask: np.ndarray) -> None:
    runs = run_lengths(mask)
    values = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    assert (values.reshape(mask.shape) == mask).all()
    assert all(runs[1:])


def test_instances_come_from_the_label_map_where_masks_overlap(tmp_path: Path) -> None:
    maps = torch.zeros(1, 2, 4, 4)
    maps[0, 0] = 1
    maps[0, 1, :2] = 0.9
    maps[0, 1, 0] = 1
    maps[0, 0, 0] = 0.8
    result = result_of(maps, ["a.png"], tmp_path)
    [image] = annotated_images(result, found_maps(result, None, HALF))
    assert [(instance.region, instance.box) for instance in image.instances] == [
        (0, (0, 1, 4, 4)),
        (1, (0, 0, 4, 1)),
    ]


def planted(tmp_path: Path) -> Path:
    """A saved result: in a.png factor 0 has two pieces and 1 a single pixel; b.png is empty."""
    maps = torch.zeros(2, 2, 6, 8)
    maps[0, 0, :2, :2] = maps[0, 0, 3:, 4:] = 1
    maps[0, 1, 5, 0] = 1
    folder = tmp_path / "result"
    result_of(maps, ["ä/a.png", "ä/b.png"], tmp_path).save(folder)
    return folder


def test_the_command_writes_each_format_into_the_results_folder(tmp_path: Path) -> None:
    folder = planted(tmp_path)
    for format in FORMATS:
        mine = folder / "export" / format / "mine.txt"
        mine.parent.mkdir(parents=True)
        mine.touch()
        arguments = ["export", str(folder), "--format", format, "--threshold", "max-fraction"]
        outcome = CliRunner().invoke(app, [*arguments, "--images", "none"])
        assert outcome.exit_code == 0, outcome.output
        assert outcome.stdout.splitlines() == ["3 instances, 1 image without any", str(mine.parent)]
        assert mine.exists()
        # what was made on the way to a whole file is gone
        hidden = [path for path in mine.parent.rglob("*") if path.name.startswith(".")]
        assert hidden == [mine.parent / RECORD]


def test_many_pieces_of_one_region_get_a_word(tmp_path: Path) -> None:
    maps = torch.zeros(1, 1, 9, 9)
    maps[..., ::2, ::4] = 1  # 15 pieces
    result = result_of(maps, ["a.png"], tmp_path)
    options = RegionOptions("max-fraction", 0.5)
    with pytest.warns(InputWarning, match="the 15 instances are pieces of 1 regions"):
        export(result, "coco", tmp_path / "pieces", 1, options, ExportOptions(images="none"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = ExportOptions("parts", images="none")
        assert export(result, "coco", tmp_path / "whole", 1, options, whole).n_instances == 1


def test_the_command_takes_names_instances_area_and_a_folder(tmp_path: Path) -> None:
    folder = planted(tmp_path)
    parts = tmp_path / "parts.yaml"
    parts.write_text("0: Köpfe\n1: 足\n", "utf-8")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").touch()
    chosen = ["--parts", str(parts), "--threshold", "max-fraction", "--value", "0.4", "-k", "2"]
    chosen += ["--images", "none"]
    for more, areas in (
        ([], [12, 4, 1]),
        (["--instances", "parts"], [16, 1]),
        (["--min-area", "2"], [12, 4]),
    ):
        arguments = ["export", str(folder), "--format", "coco", "--out", str(out), *chosen, *more]
        outcome = CliRunner().invoke(app, arguments)
        assert outcome.exit_code == 0, outcome.output
        content = json.loads((out / COCO_FILE).read_text("utf-8"))
        assert [annotation["area"] for annotation in content["annotations"]] == areas
        assert [category["name"] for category in content["categories"]] == ["Köpfe", "足"]
        assert [image["file_name"] for image in content["images"]] == ["ä/a.png", "ä/b.png"]
    assert sorted(os.listdir(out)) == [RECORD, "annotations", "mine.txt"]


SPECKS = np.zeros((100, 300), np.uint8)  # 0.02 % of it are 6 pixels
SPECKS[0, :6], SPECKS[2, :5], SPECKS[4, :1] = 1, 1, 1
SPECKS[9, :5] = 2


@pytest.mark.parametrize(
    ("instances", "min_area", "areas"),
    [
        ("components", None, [6]),
        ("components", 1, [6, 5, 1, 5]),
        ("components", 5, [6, 5, 5]),
        ("parts", None, [12]),
        ("parts", 1, [12, 5]),
    ],
)
def test_specks_are_no_instances_unless_asked_for(instances, min_area, areas):
    found = find_instances(SPECKS, instances, min_area)
    assert [instance.area for instance in found] == areas


@pytest.mark.parametrize("largest", [False, True])
def test_specks_have_no_boxes_unless_asked_for(largest):
    masks = torch.from_numpy(SPECKS) == torch.tensor([1, 2])[:, None, None]
    regions = Regions(masks, torch.from_numpy(SPECKS))
    names = ["large", "small"]
    assert [b.box for b in region_boxes(regions, "a", names, largest)] == [(0, 0, 6, 1)]
    every = region_boxes(regions, "a", names, largest, min_area=1)
    assert len(every) == (2 if largest else 4)


def test_a_part_left_without_pixels_keeps_its_place_among_the_classes(tmp_path: Path) -> None:
    maps = torch.zeros(1, 3, 4, 4)
    maps[0, 2] = 1
    maps[0, 2, 0] = 0
    result = result_of(maps, ["a.png"], tmp_path)
    options = RegionOptions("max-fraction", 0.5, parts={2: "c", 0: "a", 1: "b"})
    assert export(result, "coco", tmp_path / "coco", options=options, settings=WITHOUT).n_instances
    content = json.loads((tmp_path / "coco" / COCO_FILE).read_text())
    assert [category["name"] for category in content["categories"]] == ["a", "b", "c"]
    assert content["annotations"][0]["category_id"] == 3


@pytest.mark.parametrize(
    ("format", "options", "sentence"),
    [
        ("pdf", HALF, "no format 'pdf'; choose one of coco, coco-polygons, yolo, yolo-seg"),
        ("png", RegionOptions(parts={0: "a\nb"}), "has a line break or another control character"),
        ("voc", RegionOptions(parts={0: "Background"}), "is reserved for pixels without a class"),
        ("coco", RegionOptions(parts={7: "a"}), "there is no factor 7"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_sentence(
    tmp_path: Path, format: str, options: RegionOptions, sentence: str
) -> None:
    result = result_of(torch.ones(1, 2, 4, 4), ["a.png"], tmp_path)
    with pytest.raises(InputError, match=sentence):
        export(result, format, tmp_path / "out", options=options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", FORMATS)
def test_names_that_break_a_line_break_no_list(tmp_path: Path, format: str) -> None:
    result = result_of(torch.eye(4)[None, None], ["a\nb.png"], tmp_path)
    if format.startswith("yolo"):
        with pytest.raises(InputError, match="has a line break"):
            export(result, format, tmp_path / "out", options=HALF, settings=WITHOUT)
        assert not (tmp_path / "out").exists()
    else:
        out = tmp_path / "out"
        assert export(result, format, out, options=HALF, settings=WITHOUT).n_instances == 1


KILLED = """
import os, signal, sys
import deepff
from dataclasses import replace
from deepff.export.formats import FORMATS, export_maps
from deepff.export.instances import found_maps
from deepff.options import ExportOptions

result = deepff.load(sys.argv[1])

def deadly():
    maps = found_maps(result)

    def until_b():
        for name, found in zip(result.names, maps.maps):
            if name.endswith("b.png"):
                os.kill(os.getpid(), signal.SIGKILL)
            yield found

    return replace(maps, maps=until_b())

for place in sys.argv[2:]:
    for format in FORMATS:
        if os.fork() == 0:
            out, settings = os.path.join(place, format), ExportOptions(images="none")
            export_maps(result, deadly(), format, out, settings)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGKILL
"""


def visible(folder: Path) -> dict[str, bytes]:
    """The files that a program finds in a folder, hidden ones and those in hidden folders apart."""
    paths = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path.read_bytes()
        for name, path in paths.items()
        if not any(part.startswith(".") for part in name.parts)
    }


def test_an_export_that_is_killed_leaves_no_file_that_could_pass_for_one(
    tmp_path: Path,
) -> None:
    """In any format: no folder where there was none, and an earlier export as it was."""
    saved, new, old = planted(tmp_path), tmp_path / "new", tmp_path / "old"
    result = load(saved)
    before = {}
    for format in FORMATS:
        export(result, format, old / format, settings=WITHOUT)
        (old / format / "images").mkdir()
        (old / format / "images" / "a.png").write_bytes(b"a photograph")
        before[format] = visible(old / format)
    subprocess.run([sys.executable, "-c", KILLED, saved, new, old], check=True, timeout=120)
    assert visible(new) == {} and not any((new / format).exists() for format in FORMATS)
    assert {format: visible(old / format) for format in FORMATS} == before
    for format in FORMATS:
        export(result, format, new / format, settings=WITHOUT)
        export(result, format, old / format, settings=WITHOUT)
        again = visible(new / format)
        assert visible(old / format) == again | {"images/a.png": b"a photograph"}
        assert before[format].keys() == visible(old / format).keys()


def test_an_export_or_masks_that_fail_half_way_leave_nothing(tmp_path: Path) -> None:
    saved = planted(tmp_path)
    result = load(saved)
    crf = replace(HALF, refine="guided-crf")
    result.paths[0].parent.mkdir()
    Image.new("RGB", (8, 6)).save(result.paths[0])
    with pytest.raises(InputError, match=r"the photograph ä/b\.png, which can no longer be used"):
        export(result, "png", tmp_path / "out", options=crf)
    assert not (tmp_path / "out").exists()
    segment(result, saved, options=HALF)
    before = {name: path for name, path in visible(saved).items() if name != "report.html"}
    with pytest.raises(InputError, match=r"the photograph ä/b\.png, which can no longer be used"):
        segment(result, saved, options=crf)
    assert {name: path for name, path in visible(saved).items() if name != "report.html"} == before
    # Nor does the next report show pictures of both.
    write_report_page(result, saved)
    assert f"<small>{HALF}</small>" in (saved / "report.html").read_text()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is a file; name a folder"):
        export(result, "png", tmp_path / "file", options=HALF)
