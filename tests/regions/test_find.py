"""Masks and boxes of whole results, and the files that hold them."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from PIL import Image
from planted import result_of
from typer.testing import CliRunner

import deepff
from deepff.app.edits import name_factor
from deepff.app.label_file import LabelStore
from deepff.cli.main import app
from deepff.cli.messages import summarize
from deepff.errors import InputError
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.metrics import corloc, count_overlaps, iou
from deepff.export.boxes import region_boxes
from deepff.export.folder import localize, segment
from deepff.export.formats import FORMATS, export
from deepff.export.png import folder_names
from deepff.options import ExportOptions, RegionOptions
from deepff.regions.components import component_boxes
from deepff.regions.part_names import factor_names
from deepff.regions.regions import Regions, find_regions, region_names
from deepff.report.load import load
from deepff.result import Result
from deepff.runtime.outputs import RECORD


@pytest.fixture
def quadrants(tmp_path: Path) -> Result:
    """Two images of 8 × 8 pixels; factor j of three is 1 on quadrant j of each, on the grid."""
    for name in ("a.png", "b.png"):
        Image.new("RGB", (8, 8), "gray").save(tmp_path / name)
    one = torch.zeros(3, 8, 8)
    one[0, :4, :4] = one[1, :4, 4:] = one[2, 4:, :4] = 1
    return result_of(one.repeat(2, 1, 1, 1), ["a.png", "b.png"], tmp_path)


HALF = RegionOptions("max-fraction", 0.5)


def test_names_come_in_the_order_of_the_factors_whatever_that_of_the_mapping(quadrants):
    for parts in ({0: "a", 1: "b"}, {1: "b", 0: "a"}):
        assert region_names(quadrants, 3, RegionOptions(parts=parts)) == ["a", "b"]


def test_each_factor_is_its_own_region(quadrants):
    for regions in find_regions(quadrants, 3, HALF):
        assert regions.masks.shape == (3, 8, 8)
        assert regions.labels[0, 0] == 1 and regions.labels[0, 7] == 2
        assert regions.labels[7, 0] == 3 and regions.labels[7, 7] == 0
        assert regions.masks.flatten(1).sum(1).tolist() == [16, 16, 16]


def test_factors_of_one_name_are_one_region_and_others_none(quadrants):
    options = RegionOptions("max-fraction", 0.5, parts={2: "side", 0: "side"})
    regions = next(find_regions(quadrants, 3, options))
    expected = np.zeros((8, 8), bool)
    expected[:, :4] = True
    assert regions.masks.numpy().tolist() == [expected.tolist()]
    assert regions.labels.numpy().tolist() == expected.astype(int).tolist()


def test_an_unknown_k_or_factor_is_refused(quadrants):
    with pytest.raises(InputError, match="the result has k = 3, but not 2"):
        next(find_regions(quadrants, 2))
    with pytest.raises(InputError, match="there is no factor 3"):
        next(find_regions(quadrants, 3, RegionOptions(parts={3: "x"})))


def test_the_crf_needs_the_photographs_as_they_were(quadrants):
    options = RegionOptions("max-fraction", 0.5, refine="guided-crf")
    Image.new("RGB", (9, 8)).save(quadrants.paths[0])
    with pytest.raises(InputError, match=r"the photograph a\.png as it was"):
        next(find_regions(quadrants, 3, options))
    quadrants.paths[0].unlink()
    with pytest.raises(InputError, match=r"a\.png, which can no longer be used"):
        next(find_regions(quadrants, 3, options))


def test_segment_writes_masks_label_maps_and_their_names(quadrants, tmp_path):
    folder = tmp_path / "result"
    quadrants.save(folder)
    out = segment(quadrants, folder, options=HALF)
    mask = np.asarray(Image.open(out / "factor 1" / "b.png"))
    assert mask.dtype == bool
    assert mask.sum() == 16 and mask[0, 7]
    labels = Image.open(out / "labels" / "a.png")
    assert labels.mode == "P"
    values = np.asarray(labels)
    assert (values[0, 0], values[0, 7], values[7, 0], values[7, 7]) == (1, 2, 3, 0)
    assert labels.getpalette()[:3] == [0, 0, 0]
    names = (out / "labels" / "labels.txt").read_text().splitlines()
    assert names == ["background", "factor 0", "factor 1", "factor 2"]
    assert "threshold: 0.5 of the maximum" in (folder / "report.html").read_text()

    segment(quadrants, folder, options=RegionOptions("max-fraction", 0.5, parts={1: "a/b"}))
    assert sorted(path.name for path in out.iterdir()) == [RECORD, "a%2Fb", "labels"]


def test_localize_writes_boxes_whose_convention_is_pixel_edges(quadrants, tmp_path):
    folder = tmp_path / "result"
    quadrants.save(folder)
    boxes = localize(quadrants, folder, options=HALF)
    assert [box.box for box in boxes if box.image == "a.png"] == [
        (0, 0, 4, 4),
        (4, 0, 8, 4),
        (0, 4, 4, 8),
    ]
    written = json.loads((folder / "boxes/k3.json").read_text())
    assert "maxima are exclusive" in written["convention"]
    with open(folder / "boxes/k3.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[4] == {
        "image": "b.png",
        "region": "factor 1",
        "x_min": "4",
        "y_min": "0",
        "x_max": "8",
        "y_max": "4",
        "score": "",
    }
    assert len(rows) == len(written["boxes"]) == 6


def test_all_components_of_a_least_area_or_the_best():
    mask = torch.zeros(1, 6, 6, dtype=torch.bool)
    mask[0, 0, :3] = mask[0, 2, 0] = mask[0, 4:, 4:] = True
    regions = Regions(mask, mask[0].to(torch.uint8))
    largest = region_boxes(regions, "a", ["x"], best=True)
    assert [box.box for box in largest] == [(4, 4, 6, 6)]
    scores = torch.zeros(1, 3, 3)
    scores[0, 0, 0] = scores[0, 2, 2] = 0.5
    scores[0, 0, 1] = 0.75
    scored = replace(regions, scores=scores)
    assert [box.box for box in region_boxes(scored, "a", ["x"], best=True, min_area=1)] == [
        (0, 0, 3, 1)
    ]
    every = region_boxes(regions, "a", ["x"], min_area=2)
    assert [box.box for box in every] == [(4, 4, 6, 6), (0, 0, 3, 1)]
    assert region_boxes(regions, "a", ["x"], min_area=5) == []


def test_region_names_are_one_folder_each_on_any_file_system() -> None:
    names = ["a/b", "..", ".hidden", 'x"<|>', "a%2Fb", "Kopf", "kopf", "Ä", "ä", "con", "nul.x"]
    names += ["end.", "end", "end ", "labels", "LABELS", "l" * 300, "l" * 301, ""]
    folders = folder_names(names, taken=["labels"])
    assert not any("/" in folder or folder.startswith(".") for folder in folders)
    assert len({folder.casefold() for folder in [*folders, "labels"]}) == len(names) + 1
    assert folders[names.index("Kopf")] == "Kopf"
    assert not {folder.partition(".")[0].lower() for folder in folders} & {"con", "nul"}
    assert not any(folder.endswith((".", " ")) for folder in folders)
    assert max(len(folder.encode()) for folder in folders) <= 255


@pytest.mark.parametrize("name", ["labels", "Labels", "labels.txt"])
def test_a_part_keeps_its_masks_whatever_it_is_called(quadrants, tmp_path, name):
    folder = tmp_path / "result"
    quadrants.save(folder)
    options = RegionOptions("max-fraction", 0.5, parts={0: name, 1: "x"})
    out = segment(quadrants, folder, options=options)
    [of_part] = [path for path in out.iterdir() if path.name not in ("labels", "x", RECORD)]
    assert unquote(of_part.name) == name
    mask = np.asarray(Image.open(of_part / "a.png"))
    assert mask.dtype == bool and mask.sum() == 16 and mask[0, 0]
    assert Image.open(out / "labels" / "a.png").mode == "P"


@pytest.mark.parametrize("group", ["021", "036"])
def test_the_crf_finds_more_of_the_objects_and_their_boxes_hold(data_root, group):
    """Elephants and a gymnast: k = 1 at the paper's threshold, with and without CRF."""
    truth = load_icoseg(data_root / "icoseg", groups=[group])[0]
    result = deepff.discover([image.image for image in truth.images], 1)
    labels = [image.labels() for image in truth.images]
    scores, located = {}, {}

    def score(masks):
        return float(iou(count_overlaps(zip(masks, labels, strict=True), 1))[0, 1])

    for refine in ("none", "guided-crf"):
        masks = [found.masks for found in find_regions(result, 1, RegionOptions(refine=refine))]
        scores[refine] = score(masks)
        boxes = [next(iter(component_boxes(mask[0])), None) for mask in masks]
        objects = [[Image.fromarray(label == 1).getbbox()] for label in labels]
        located[refine] = corloc(boxes, objects)
    assert scores["guided-crf"] > scores["none"] + 0.1
    assert scores["guided-crf"] > 0.55
    assert located["guided-crf"] > 0.5

    # Half of the maximum is reached by little of an object, and no refinement may lose that.
    for refine in ("none", "guided-crf", "dense-crf"):
        options = RegionOptions("max-fraction", 0.5, refine=refine)
        scores[refine] = score([found.masks for found in find_regions(result, 1, options)])
    assert min(scores["guided-crf"], scores["dense-crf"]) > 0.75 * scores["none"]


def test_the_commands_segment_and_localize(quadrants, tmp_path):
    folder = tmp_path / "result"
    quadrants.save(folder)
    parts = tmp_path / "parts.yaml"
    parts.write_text("0: Kopf\n1: Kopf\n2: Bein\n")
    chosen = ["--threshold", "max-fraction", "--parts", str(parts)]
    outcome = CliRunner().invoke(app, ["segment", str(folder), *chosen])
    assert outcome.exit_code == 0, outcome.output
    assert np.asarray(Image.open(folder / "masks/k3/Kopf/a.png")).sum() == 32
    outcome = CliRunner().invoke(app, ["localize", str(folder), *chosen])
    assert outcome.exit_code == 0, outcome.output
    boxes = json.loads((folder / "boxes/k3.json").read_text())["boxes"]
    assert boxes[0] == {
        "image": "a.png",
        "region": "Kopf",
        "x_min": 0,
        "y_min": 0,
        "x_max": 8,
        "y_max": 4,
        "score": None,
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-k", "2"], "but not 2"),
        (["--value", "101"], "a percentile of 101 is out of range"),
        (["--threshold", "max-fraction", "--value", "75"], "a fraction of 75 of the maximum"),
        (["--threshold", "otsu", "--value", "75"], "threshold otsu takes no value"),
        (["--recipe", "contrast", "--value", "75"], "threshold otsu-image takes no value"),
        (["--parts", "none.yaml"], "none.yaml can't be read"),
    ],
)
def test_bad_options_get_one_sentence(quadrants, tmp_path, arguments, sentence):
    folder = tmp_path / "result"
    quadrants.save(folder)
    outcome = CliRunner().invoke(app, ["segment", str(folder), *arguments])
    assert outcome.exit_code == 2
    assert sentence in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_one_factor_is_called_the_object(tmp_path):
    """In masks, boxes, every format, the page, the figure and the app; a given name wins."""
    left = torch.zeros(2, 1, 6, 8)
    left[:, :, :, :3] = 1
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    Image.new("RGB", (8, 6)).save(tmp_path / "b.png")
    alone = result_of(left, ["a.png", "b.png"], tmp_path)
    filling = replace(alone, parts_of="frame", object=alone)
    named = replace(HALF, parts={0: "goose"})
    for result, options, name in [
        (alone, HALF, "object"),
        (replace(alone, recipe="contrast"), HALF, "object"),
        (filling, HALF, "object"),
        (alone, named, "goose"),
        (filling, named, "goose"),
    ]:
        out = tmp_path / f"{name} {result.recipe} {result.parts_of}"
        result.save(out)
        assert (segment(result, out, options=options) / name / "a.png").is_file()
        assert {box.region for box in localize(result, out, options=options)} == {name}
        for format in FORMATS:
            settings = ExportOptions(images="none")
            written = export(result, format, out / "export" / format, 1, options, settings)
            assert written.n_instances == 2
        coco = out / "export/coco/annotations/instances_default.json"
        categories = json.loads(coco.read_text())["categories"]
        assert [category["name"] for category in categories] == [name]
        report = (out / "report.html").read_text()
        assert report.count(f">{name}</span>") == 2  # of the masks' gallery and of the boxes'
        assert ">Object</button>" in report
        labels = LabelStore(out, load(out)).labels
        assert list(labels.parts.values()) == ["object"]
        assert list(name_factor(labels, 0, "goose").parts.values()) == ["goose"]
    assert factor_names(2) == ["factor 0", "factor 1"]


def test_a_run_that_chose_k_says_by_what(tmp_path, capsys):
    found = result_of(torch.rand(1, 1, 2, 2), ["a.png"], tmp_path)
    found.agreements = {2: 0.97, 3: 0.5}
    summarize(found, tmp_path)
    output = capsys.readouterr()
    assert "agreement between two halves of the images: 0.97 at k=2, 0.50 at k=3\n" in output.out
    assert not output.err
    found.agreements = {2: 0.84, 3: 0.5}
    summarize(found, tmp_path)
    assert "at no k do two halves of the images agree by 0.85, so k is 1" in capsys.readouterr().err
