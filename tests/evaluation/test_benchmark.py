"""The paper's tables on ground truth made by hand, and on real images.

The network of these tests is the identity: its channels are the image's red, green and blue, and
one that is always 0. With k = 3, factors 0, 1 and 2 are exactly the red, green and blue squares of
the images below.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pascal_part_files import write_parts
from PIL import Image
from torch import nn

from deepff.activations.activations import ImageRecord
from deepff.discovery.contrast import contrast_layers
from deepff.discovery.discover import discover
from deepff.errors import InputError
from deepff.evaluation.curves import figure5, require_matplotlib
from deepff.evaluation.datasets import load_icoseg
from deepff.evaluation.discovered_parts import (
    INSIDE,
    normalized_mutual_information,
    part_sets,
    table4,
)
from deepff.evaluation.icoseg_table import column_names, table1
from deepff.evaluation.metrics import count_overlaps, iou
from deepff.evaluation.named_parts import LABEL_HEIGHT, part_masks, table3
from deepff.evaluation.objects import Poorest, table2
from deepff.evaluation.predictions import Network
from deepff.evaluation.tables import Table, write_tables
from deepff.layers.layer_map import map_layers
from deepff.layers.pixel_layers import pixel_layers
from deepff.networks.loading import load_backbone
from deepff.regions.regions import find_regions

SIDE = 16
RED, GREEN, BLUE = (
    (slice(0, 8), slice(0, 8)),
    (slice(0, 8), slice(8, 16)),
    (slice(8, 16), slice(0, 8)),
)


def quiet(message: str) -> None:
    """Instead of standard error."""


@pytest.fixture(scope="module")
def colors() -> Network:
    convolution = nn.Conv2d(3, 4, 1, bias=False)
    nn.init.dirac_(convolution.weight)
    network = nn.Sequential(convolution, nn.ReLU()).eval()
    backbone = load_backbone(network, mean=(0, 0, 0), std=(1, 1, 1))
    return Network(backbone, map_layers(backbone, SIDE).resolve("1"), SIDE)


def write_photo(path: Path) -> None:
    """Red, green and blue squares, the brightest first, on black; blocks that JPEG keeps."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    for channel, (square, value) in enumerate([(RED, 255), (GREEN, 200), (BLUE, 150)]):
        pixels[(*square, channel)] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=100, subsampling=0)


def mask(*regions: tuple[slice, slice]) -> np.ndarray:
    drawn = np.zeros((SIDE, SIDE), np.uint8)
    for region in regions:
        drawn[region] = 1
    return drawn


def rows_of(table: Table, origin: str = "this run") -> dict[str, list]:
    return {row.label: list(row.values) for row in table.rows if row.origin == origin}


# --- PASCAL-Part: Tables 3 and 4, Figure 5 ---

# The first image's ground truth is not what the network sees. Pixels of mask, part and both:
#   head   64, 32 (left half of the red square), 32
#   torso  64, 96 (the green square and 32 below it), 64
#   leg    64, 64 (half of the blue square and 32 beside it), 32
# The second image's is: 64, 64, 64 for each. Over the set:
HEAD = (32 + 64) / (64 + 64)
TORSO = (64 + 64) / (96 + 64)
LEG = (32 + 64) / (96 + 64)


@pytest.fixture
def pascal_part(tmp_path: Path) -> Path:
    folder = tmp_path / "VOC2010"
    sets = folder / "ImageSets/Main"
    sets.mkdir(parents=True)
    below = (slice(8, 12), slice(8, 16))
    half_red, half_blue = (slice(0, 8), slice(0, 4)), (slice(12, 16), slice(0, 8))
    beside = (slice(12, 16), slice(8, 16))
    truths = {
        "000001": [mask(half_red), mask(GREEN, below), mask(half_blue, beside)],
        "000002": [mask(RED), mask(GREEN), mask(BLUE)],
    }
    for image_id, (head, torso, leg) in truths.items():
        write_photo(folder / "JPEGImages" / f"{image_id}.jpg")
        parts = [("head", head), ("torso", torso), ("lfuleg", leg)]
        write_parts(
            folder / "Annotations_Part" / f"{image_id}.mat",
            [("cow", head | torso | leg, parts)],
        )
        annotation = folder / "Annotations" / f"{image_id}.xml"
        annotation.parent.mkdir(exist_ok=True)
        annotation.write_text("<annotation></annotation>")
    (sets / "cow_trainval.txt").write_text("000001 1\n000002 1\n")
    return folder


def test_table_3_names_factors_by_file(pascal_part: Path, colors: Network, tmp_path: Path) -> None:
    mapping = tmp_path / "cow.yaml"
    mapping.write_text("0: head\n1: neck+torso\n2: leg\n")
    pca = tmp_path / "cow-pca.yaml"
    pca.write_text("0: head\n2: head\n")

    table = table3(
        colors, pascal_part, mappings=[mapping, pca], classes=["cow"], crf=False, report=quiet
    )

    assert list(table.columns) == ["cow head", "cow neck+torso", "cow leg", "mean"]
    rows = rows_of(table)
    assert rows["DFF"] == pytest.approx([HEAD, TORSO, LEG, (HEAD + TORSO + LEG) / 3])
    # Red and blue squares together are the head: 96 of its pixels and 160 others.
    assert rows["PCA"] == pytest.approx([96 / 256, 0, 0, 96 / 256 / 3])
    assert rows["k-means"] == [None] * 4
    # The paper's mean would be over horses too.
    assert rows_of(table, "paper")["DFF"] == [0.4053, 0.5948, 0.2157, None]
    assert "2 images" in table.source


def test_table_3_goes_on_without_the_horses(
    pascal_part: Path, colors: Network, tmp_path: Path
) -> None:
    mapping = tmp_path / "cow.json"
    mapping.write_text('{"0": "head"}')
    reports: list[str] = []

    table = table3(colors, pascal_part, mappings=[mapping], crf=False, report=reports.append)

    assert rows_of(table)["DFF"] == pytest.approx([HEAD, 0, 0, None, None, None, HEAD / 3])
    assert any("horse failed: no image set of horse" in report for report in reports)
    assert any("horse failed" in note for note in table.notes)


def test_table_3_writes_pictures_to_name_factors_by(
    pascal_part: Path, colors: Network, tmp_path: Path
) -> None:
    table3(colors, pascal_part, overlays=tmp_path / "look", classes=["cow"], report=quiet)

    pictures = sorted((tmp_path / "look" / "cow").glob("[!.]*"))
    assert [path.name for path in pictures] == ["0000.jpg", "0001.jpg"]
    pixels = np.asarray(Image.open(pictures[0])).astype(int)[LABEL_HEIGHT:]
    assert pixels.shape == (SIDE, 4 * SIDE, 3)
    # Factor 2 is the blue square: its panel, the last, is painted in the lower left only.
    photo, last = pixels[8:, :SIDE], pixels[8:, 3 * SIDE :]
    changed = np.abs(last - photo).sum(2) > 60
    assert changed[2:6, 2:6].all()
    assert not changed[2:6, 10:14].any()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("cow.yaml", "0: wing", r"“wing”; the parts are: head, neck\+torso, leg"),
        ("cow.yaml", "3: head", "no factor 3"),
        ("sheep.yaml", "0: head", "sheep.yaml should be cow.yaml or"),
    ],
)
def test_table_3_refuses_mappings_that_fit_nothing(
    pascal_part: Path, colors: Network, tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        table3(colors, pascal_part, mappings=[tmp_path / name], classes=["cow"], report=quiet)


def test_table_3_says_how_to_name_factors(pascal_part: Path, colors: Network) -> None:
    with pytest.raises(InputError, match="--write-overlays FOLDER"):
        table3(colors, pascal_part)


def test_factors_of_one_name_are_one_part() -> None:
    masks = torch.tensor([[[1, 0, 0, 0]], [[0, 1, 0, 0]], [[0, 0, 1, 0]]]).bool()
    found = part_masks(masks, {0: "leg", 2: "leg"}, ["head", "leg"])
    assert found.int().tolist() == [[[0, 0, 0, 0]], [[1, 0, 1, 0]]]


def test_table_4_labels_factors_by_coverage(pascal_part: Path, colors: Network) -> None:
    tables = table4(colors, pascal_part, [1, 3], classes=["cow", "dog"], crf=False, report=quiet)

    table = tables["table4"]
    mean = (HEAD + TORSO + LEG) / 3
    rows = rows_of(table)
    for method in ("DFF", "PCA"):
        # One factor is the brightest square.
        assert rows[f"{method}, k = 1"] == pytest.approx([HEAD, None, HEAD])
        assert rows[f"{method}, k = 3"] == pytest.approx([mean, None, mean])
    assert rows["images"] == [2, None, None]
    assert any("dog failed" in note for note in table.notes)
    factors = rows_of(tables["table4-factors"])
    assert factors["cow, DFF, k = 3, factor 0"] == ["head", pytest.approx(HEAD)]
    assert factors["cow, DFF, k = 3, factor 1"] == ["torso", pytest.approx(TORSO)]
    assert factors["cow, DFF, k = 3, factor 2"] == ["leg", pytest.approx(LEG)]


def test_a_factor_with_several_parts_is_measured_with_all_of_them(
    pascal_part: Path, colors: Network
) -> None:
    # Head and torso are both in the red square of the second image, which is all there is.
    (pascal_part / "ImageSets/Main/cow_trainval.txt").write_text("000002 1\n")
    parts = [("head", mask((slice(0, 4), slice(0, 8)))), ("neck", mask((slice(4, 6), slice(0, 8))))]
    write_parts(pascal_part / "Annotations_Part/000002.mat", [("cow", mask(RED), parts)])

    tables = table4(colors, pascal_part, [3], classes=["cow"], crf=False, report=quiet)

    factors = rows_of(tables["table4-factors"])
    assert factors["cow, DFF, k = 3, factor 0"] == ["head, neck", 48 / 64]
    # All that is neither cow nor black.
    assert factors["cow, DFF, k = 3, factor 1"] == ["background", 64 / 192]
    assert rows_of(tables["table4"])["DFF, k = 3"] == [48 / 64, 48 / 64]


def test_factors_are_called_after_persons_and_the_background_but_not_judged_by_them(
    pascal_part: Path, colors: Network
) -> None:
    # The red square is the cow's head, the green one with 32 pixels below it a person.
    (pascal_part / "ImageSets/Main/cow_trainval.txt").write_text("000002 1\n")
    person = mask(GREEN, (slice(8, 12), slice(8, 16)))
    objects = [("cow", mask(RED), [("head", mask(RED))]), ("person", person, [])]
    write_parts(pascal_part / "Annotations_Part/000002.mat", objects)

    tables = table4(colors, pascal_part, [3], classes=["cow"], crf=False, report=quiet)

    factors = rows_of(tables["table4-factors"])
    assert factors["cow, DFF, k = 3, factor 0"] == ["head", 1]
    assert factors["cow, DFF, k = 3, factor 1"] == ["person", 64 / 96]
    # 256 pixels less head and person are background: 96, among them the blue square.
    assert factors["cow, DFF, k = 3, factor 2"] == ["background", 64 / 96]
    assert rows_of(tables["table4"])["DFF, k = 3"] == [1, 1]
    quality, nmi, _ = rows_of(tables["table4-quality"])["DFF, k = 3"]
    assert quality == pytest.approx(1 / 3)
    # On in no factor, in the red, green and blue one; of the background, persons too, and the head.
    of_three = np.array([[64, 0], [0, 64], [64, 0], [64, 0]])
    assert nmi == pytest.approx(normalized_mutual_information(of_three))


def test_table_4_says_how_well_factors_fit_parts(pascal_part: Path, colors: Network) -> None:
    tables = table4(colors, pascal_part, [1, 3], classes=["cow", "dog"], crf=False, report=quiet)

    table = tables["table4-quality"]
    assert table.columns == ["cow quality", "cow NMI", "cow FG-NMI"]
    rows = rows_of(table)
    assert list(rows) == ["DFF, k = 1", "DFF, k = 3", "DFF, mean over k"]
    # Pixels on in no factor, the red, the green and the blue one, of background, head, torso, leg.
    of_three = np.array([[64, 0, 32, 32], [32, 96, 0, 0], [0, 0, 128, 0], [32, 0, 0, 96]])
    of_one = np.array([[96, 0, 160, 128], [32, 96, 0, 0]])
    for k, quality, counts in ((1, HEAD, of_one), (3, (HEAD + TORSO + LEG) / 3, of_three)):
        nmi, fg_nmi = map(normalized_mutual_information, (counts, counts[:, 1:]))
        assert rows[f"DFF, k = {k}"] == pytest.approx([quality, nmi, fg_nmi])
    means = np.mean([rows["DFF, k = 1"], rows["DFF, k = 3"]], axis=0)
    assert rows["DFF, mean over k"] == pytest.approx(means)


@pytest.mark.parametrize(
    "counts", [[[0, 32, 32], [96, 0, 0], [0, 128, 1]], [[5, 5], [5, 5]], [[3, 0], [0, 7]], [[4]]]
)
def test_mutual_information_of_counts_is_that_of_labels(counts: list[list[int]]) -> None:
    from sklearn.metrics import normalized_mutual_info_score

    table = np.array(counts)
    groups, parts = (np.repeat(x.ravel(), table.ravel()) for x in np.indices(table.shape))
    expected = normalized_mutual_info_score(parts, groups)
    assert normalized_mutual_information(table) == pytest.approx(expected)


def test_table_4_has_rows_for_parts_inside_the_object(pascal_part: Path, colors: Network) -> None:
    tables = table4(colors, pascal_part, [3], classes=["cow"], report=quiet)
    note = "cow: objects are taken to fill the frame, and parts are found on all cells"
    assert any(found.startswith(note) for found in tables["table4"].notes)
    # The three colours and black, as DFF tells them apart, whichever of them is the background.
    rows = rows_of(tables["table4-quality"])
    assert rows[f"{INSIDE}, k = 3"][1:] == pytest.approx(rows["DFF, k = 3"][1:])


def test_parts_inside_the_object_of_real_cars(tmp_path: Path, data_root: Path) -> None:
    pytest.importorskip("pycocotools")
    content = json.loads((data_root / "car_parts/annotations.json").read_bytes())
    content["images"] = content["images"][::25]
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [x for x in content["annotations"] if x["image_id"] in kept]
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    (tmp_path / "JPEGImages").symlink_to(data_root / "car_parts/JPEGImages")
    backbone = load_backbone()
    network = Network(backbone, map_layers(backbone).resolve())

    tables = table4(network, tmp_path, [3], report=quiet)

    (set_name,) = tables["table4"].columns[:-1]
    rows = rows_of(tables["table4-quality"])
    # 0.21 and 0.35 when measured.
    assert rows[f"{INSIDE}, k = 3"][0] > rows["DFF, k = 3"][0] + 0.03
    labelled = [x for x in rows_of(tables["table4-factors"]) if INSIDE in x]
    assert labelled == [f"{set_name}, {INSIDE}, k = 3, factor {j}" for j in range(3)]
    assert any("parts are found on the cells of the object" in x for x in tables["table4"].notes)


def test_part_masks_come_from_coco_where_there_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "annotations.json").write_text("{}")
    assert list(part_sets(tmp_path, ["cow", "dog"])) == [tmp_path.name]
    assert list(part_sets(tmp_path / "VOC2010", ["cow", "dog"])) == ["cow", "dog"]
    with pytest.raises(InputError, match="no class “sofa”"):
        part_sets(tmp_path / "VOC2010", ["sofa"])


def test_table_4_on_coco_has_no_published_rows(tmp_path: Path, colors: Network) -> None:
    pytest.importorskip("pycocotools")
    write_photo(tmp_path / "1.jpg")
    square = [0, 0, 8, 0, 8, 8, 0, 8]
    content = {
        "images": [{"id": 1, "file_name": "1.jpg", "height": SIDE, "width": SIDE}],
        "categories": [{"id": 1, "name": "hood"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 8, 8], "iscrowd": 0}
            | {"segmentation": [square], "area": 64}
        ],
    }
    (tmp_path / "annotations.json").write_text(json.dumps(content))

    tables = table4(colors, tmp_path, [3], crf=False, report=quiet)

    assert list(tables["table4"].columns) == [tmp_path.name, "mean"]
    assert rows_of(tables["table4"])["DFF, k = 3"] == [1, 1]
    assert {row.origin for row in tables["table4"].rows} == {"this run"}
    assert "The paper has no numbers for this data set" in tables["table4"].notes


def test_a_root_without_parts_says_what_was_looked_for(tmp_path: Path, colors: Network) -> None:
    with pytest.raises(InputError, match="first, cow, failed: no folder VOC2010"):
        table4(colors, tmp_path, classes=["cow"], report=quiet)


def test_figure_5_is_factor_quality_by_layer(pascal_part: Path, colors: Network) -> None:
    def missing() -> Network:
        raise InputError("this network is not installed")

    table, curves = figure5(
        "figure5b",
        {"identity": lambda: colors, "other": missing},
        pascal_part,
        [1, 3],
        classes=["cow"],
        seeds=2,
        report=quiet,
    )

    # The best part of each square is its own.
    expected = [HEAD, (HEAD + TORSO + LEG) / 3]
    assert list(curves) == ["identity"]
    np.testing.assert_allclose(curves["identity"].qualities, np.transpose([expected] * 2))
    ours = [list(row.values) for row in table.rows if row.origin == "this run"]
    assert ours == [[1, pytest.approx(expected[0]), 0, 2], [3, pytest.approx(expected[1]), 0, 2]]
    assert "**other failed**: this network is not installed" in table.notes


def test_a_plot_without_matplotlib_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'deepff\[plot\]'"):
        require_matplotlib()


# --- VOC: Table 2 ---


def write_voc(folder: Path, boxes: dict[str, tuple[int, int, int, int]]) -> None:
    for image_id, corners in boxes.items():
        write_photo(folder / "JPEGImages" / f"{image_id}.jpg")
        sides = zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
        box = "".join(f"<{side}>{value}</{side}>" for side, value in sides)
        annotations = folder / "Annotations"
        annotations.mkdir(exist_ok=True)
        (annotations / f"{image_id}.xml").write_text(
            f"<annotation><object><name>cow</name><truncated>{int(image_id == '4')}</truncated>"
            f"<difficult>0</difficult><bndbox>{box}</bndbox></object></annotation>"
        )
    sets = folder / "ImageSets/Main"
    sets.mkdir(parents=True)
    (sets / "cow_trainval.txt").write_text("".join(f"{image_id} 1\n" for image_id in boxes))


def test_table_2_counts_images_whose_box_is_right(tmp_path: Path, colors: Network) -> None:
    # One factor is the red square, columns and rows 1 to 8 as VOC counts. Image 2's box has an IoU
    # of exactly 1/2 with it, which is not enough; image 4's object is truncated.
    boxes = {"1": (1, 1, 8, 7), "2": (1, 1, 16, 8), "3": (9, 9, 16, 16), "4": (1, 1, 8, 8)}
    write_voc(tmp_path / "VOC2007", boxes)

    strict = table2(colors, tmp_path, classes=["cow"], crf=False, report=quiet)
    wide = table2(colors, tmp_path, classes=["cow"], crf=False, filter="difficult", report=quiet)

    for table, expected in ((strict, 1 / 3), (wide, 2 / 4)):
        rows = rows_of(table)
        assert rows["images, filter difficult-or-truncated"] == [3, None]
        assert rows["images, filter difficult"] == [4, None]
        assert rows["DFF"] == rows["PCA"] == [pytest.approx(expected)] * 2
        # The published mean is over all twenty classes.
        assert rows_of(table, "paper")["DFF-CRF"] == [0.53, None]
    assert "4 images" in wide.source


def test_a_class_that_fails_is_reported_and_the_rest_run(tmp_path: Path, colors: Network) -> None:
    write_voc(tmp_path / "VOC2007", {"1": (1, 1, 8, 8)})
    reports: list[str] = []

    table = table2(colors, tmp_path, classes=["horse", "cow"], crf=False, report=reports.append)

    assert rows_of(table)["DFF"] == [None, 1, 1]
    assert any(report.startswith("horse failed: no image set of horse") for report in reports)
    assert any(note.startswith("**horse failed**") for note in table.notes)
    assert "| DFF | this run | – | 1.000 | 1.000 |" in table.markdown()


def test_nothing_that_runs_is_an_error(tmp_path: Path, colors: Network) -> None:
    reports: list[str] = []
    with pytest.raises(InputError, match="nothing could be evaluated: no folder VOC2007"):
        table2(colors, tmp_path, classes=["cow", "horse"], report=reports.append)
    assert reports[0].startswith("cow failed: no folder VOC2007")
    assert reports[1] == "horse failed for the same reason"


# --- iCoseg: Table 1 ---


def write_group(root: Path, name: str, truth: np.ndarray) -> None:
    write_photo(root / "images" / name / "1.jpg")
    (root / "ground_truth" / name).mkdir(parents=True)
    Image.fromarray(truth * 255).save(root / "ground_truth" / name / "1.png")


def test_table_1_measures_objects_and_parts(tmp_path: Path, colors: Network) -> None:
    root, parts = tmp_path / "icoseg", tmp_path / "parts" / "021 Elephants"
    write_group(root, "021 Elephants", mask(RED, GREEN))
    write_group(root, "033 Kite", mask(RED))
    (root / "images" / "050 No masks").mkdir()
    write_photo(root / "images" / "050 No masks" / "1.jpg")
    parts.mkdir(parents=True)
    (parts / "labels.txt").write_text("head\ntrunk\n")
    Image.fromarray(mask(RED) + 2 * mask(GREEN)).save(parts / "1.png")

    tables = table1(colors, root, groups=["all"], parts=parts.parent, crf=False, report=quiet)

    top = tables["table1-top"]
    assert list(top.columns) == ["Elephants (021)", "Kite (033)", "No masks (050)", "mean"]
    assert rows_of(top)["DFF"] == [0.5, 1, None, 0.75]
    assert rows_of(top)["images"] == [1, 1, None, None]
    for failed in ("No masks (050)", "Kite (033), parts"):
        assert any(note.startswith(f"**{failed} failed**") for note in top.notes)
    assert rows_of(top, "paper")["DFF-CRF"] == [0.76, None, None, None]
    bottom = tables["table1-bottom"]
    assert rows_of(bottom)["DFF, k = 2"] == [1, None, 1]
    factors = rows_of(tables["table1-bottom-factors"])
    assert factors["Elephants (021), DFF, k = 3, factor 1"] == ["trunk", 1]
    printed = rows_of(tables["table1-bottom-factors"], "paper")
    assert printed["Elephants, DFF, k = 3, factor 1"] == ["torso", 0.25]
    assert len(printed) == 2 + 3 + 4


def test_table_1_looks_for_parts_inside_the_object_too(tmp_path: Path, colors: Network) -> None:
    write_group(tmp_path, "021 Elephants", mask(RED))
    (tmp_path / "parts/021 Elephants").mkdir(parents=True)
    (tmp_path / "parts/021 Elephants/labels.txt").write_text("head\n")
    Image.fromarray(mask(RED)).save(tmp_path / "parts/021 Elephants/1.png")

    tables = table1(colors, tmp_path, groups=["all"], parts=tmp_path / "parts", report=quiet)

    # Four parts and the background are more than the four channels have clusters.
    expected = f"Elephants (021): no row for {INSIDE}: 5 factors were asked for"
    assert any(note.startswith(expected) for note in tables["table1-bottom"].notes)


def test_table_1_keeps_objects_where_no_group_has_parts(tmp_path: Path, colors: Network) -> None:
    write_group(tmp_path, "033 Kite", mask(RED))
    (tmp_path / "parts").mkdir()

    tables = table1(
        colors, tmp_path, groups=["Kite"], parts=tmp_path / "parts", crf=False, report=quiet
    )

    assert list(tables) == ["table1-top"]
    assert rows_of(tables["table1-top"])["DFF"] == [1, 1]
    assert any("labels.txt" in note for note in tables["table1-top"].notes)
    with pytest.raises(InputError, match="no folder of part masks"):
        table1(colors, tmp_path, parts=tmp_path / "none", report=quiet)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("021 Elephants-safari June 2008-timd2000", "Elephants (021)"),
        ("018", "Taj Mahal (018)"),
        ("002 Alaskan Brown Bear-Eukaryote", "Alaskan Brown Bear (002)"),
        ("bear", "bear"),
        ("999", "999"),
    ],
)
def test_groups_have_short_names(group: str, name: str) -> None:
    assert column_names([group]) == [name]


def test_no_two_groups_share_a_column() -> None:
    groups = [
        "036 Gymnastics-1",
        "036 Gymnastics-2",
        "025 Airshows-helicopter",
        "025 Airshows-planes",
    ]
    names = column_names([*groups, "021 Elephants-safari"])
    assert names == [*groups, "Elephants (021)"]
    with pytest.raises(InputError, match="named twice"):
        column_names(["021", "018", "021"])


def test_a_layer_that_goes_negative_is_refused() -> None:
    backbone = load_backbone(nn.Sequential(nn.Conv2d(3, 4, 1)).eval())
    with pytest.raises(InputError, match="DFF needs a layer that is never negative"):
        Network(backbone, map_layers(backbone, SIDE).resolve("0"), SIDE)


def test_table_1_on_real_groups_is_near_an_independent_measurement(data_root: Path) -> None:
    backbone = load_backbone()
    network = Network(backbone, map_layers(backbone).resolve())

    table = table1(network, data_root / "icoseg", groups=["018", "020"], report=quiet)["table1-top"]

    rows = rows_of(table)
    # Measured with another program, square resizing and scikit-image.
    assert rows["DFF"][:2] == pytest.approx([0.25, 0.47], abs=0.05)
    assert rows["DFF-CRF"][1] > rows["DFF"][1] + 0.05
    assert rows["PCA"] == pytest.approx(rows["DFF"], abs=0.01)


def test_the_recipe_contrast_stands_beside_the_papers_in_table_1(
    data_root: Path, tmp_path: Path
) -> None:
    """As `deepff discover --recipe contrast` and `deepff segment` find it, in numbers and shown."""
    backbone = load_backbone()
    layer_map = map_layers(backbone)
    network = Network(
        backbone,
        layer_map.resolve(),
        object_layers=contrast_layers(layer_map),
        cell_layers=pixel_layers(layer_map),
    )
    table = table1(network, data_root / "icoseg", groups=["036"], report=quiet)["table1-top"]
    rows = rows_of(table)

    (truth,) = load_icoseg(data_root / "icoseg", ["036"])
    result = discover([item.image for item in truth.images], recipe="contrast", model=backbone)
    labels = [item.labels() for item in truth.images]
    pairs = zip((found.masks for found in find_regions(result)), labels, strict=True)
    assert rows["contrast"][0] == pytest.approx(float(iou(count_overlaps(pairs, 1))[0, 1]))
    # 0.35, 0.60, 0.84 and 0.92 when measured
    assert rows["contrast, unrefined"][0] > rows["DFF"][0] + 0.2
    assert rows["contrast, dense CRF"][0] > rows["DFF"][0] + 0.4
    assert rows["contrast"][0] > rows["DFF"][0] + 0.5

    paths = write_tables({"top": table}, tmp_path)
    assert tmp_path / "top-01.jpg" in paths
    assert "![" in (tmp_path / "top.md").read_text() and "pictures" not in table.json()


def test_the_poorest_images_are_shown_the_poorest_first(tmp_path: Path) -> None:
    poorest = Poorest()
    for score in (0.9, 0.2, 0.5, 0.7):
        image = ImageRecord(f"{score}.png", tmp_path / f"{score}.png", (8, 8), (1, 1))
        Image.new("RGB", (8, 8), (int(250 * score), 0, 0)).save(image.path)
        drawn = {"DFF": torch.zeros(1, 8, 8).bool(), "PCA": torch.ones(1, 8, 8).bool()}
        poorest.add(image, drawn, {"DFF": score, "PCA": 0.0})
    assert "0.20, 0.50, 0.70" in poorest.caption("set")
    picture = poorest.picture()
    side = len(picture) // 3
    reds = [int(picture[row * side + side // 2, side // 2, 0]) for row in range(3)]
    assert reds == [50, 125, 175]
