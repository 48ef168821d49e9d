"""Tables 1 and 2 on ground truth made by hand, and on real images."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from color_squares import BELOW_GREEN, BLUE, GREEN, RED, SIDE, mask, rows_of, write_photo
from pascal_part_files import voc_annotation
from PIL import Image
from torch import nn

from deepff.discovery.discover import discover
from deepff.errors import InputError
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.discovered_parts import INSIDE
from deepff.evaluation.metrics import count_overlaps, iou
from deepff.evaluation.objects import column_names, icoseg_part_sets, table1, table2
from deepff.evaluation.paper_figures import figure4
from deepff.evaluation.predictions import Network
from deepff.evaluation.tables import write_tables
from deepff.networks.loading import load_backbone
from deepff.regions.regions import find_regions


def write_voc(folder: Path, boxes: dict[str, tuple[int, int, int, int]]) -> None:
    sets = folder / "ImageSets/Main"
    for created in (sets, folder / "Annotations"):
        created.mkdir(parents=True)
    (sets / "cow_trainval.txt").write_text("".join(f"{image_id} 1\n" for image_id in boxes))
    for image_id, box in boxes.items():
        write_photo(folder / "JPEGImages" / f"{image_id}.jpg")
        annotation = voc_annotation([("cow", int(image_id == "4"), 0)], box)
        (folder / "Annotations" / f"{image_id}.xml").write_text(annotation)


def test_table_2_counts_images_whose_box_is_right(tmp_path: Path, colors: Network) -> None:
    # One factor is the red square, columns and rows 1 to 8 as VOC counts. Image 2's box has an IoU
    # of exactly 1/2 with it, which is not enough; image 4's object is truncated.
    boxes = {"1": (1, 1, 8, 7), "2": (1, 1, 16, 8), "3": (9, 9, 16, 16), "4": (1, 1, 8, 8)}
    write_voc(tmp_path / "VOC2007", boxes)

    strict = table2(colors, tmp_path, classes=["cow"], crf=False)
    wide = table2(colors, tmp_path, classes=["cow"], crf=False, filter="difficult")

    for table, expected in ((strict, 1 / 3), (wide, 2 / 4)):
        rows = rows_of(table)
        assert rows["images, filter difficult-or-truncated"] == [3, None]
        assert rows["images, filter difficult"] == [4, None]
        assert rows["DFF"] == rows["PCA"] == [pytest.approx(expected)] * 2
        # The published mean is over all twenty classes.
        assert rows_of(table, "paper")["DFF-CRF"] == [0.53, None]
    assert "4 images" in wide.source


def test_a_class_that_fails_is_reported_and_the_rest_run(
    tmp_path: Path, colors: Network, capsys: pytest.CaptureFixture
) -> None:
    write_voc(tmp_path / "VOC2007", {"1": (1, 1, 8, 8)})

    table = table2(colors, tmp_path, classes=["horse", "cow"], crf=False)

    assert rows_of(table)["DFF"] == [None, 1, 1]
    assert "\ndeepff: horse failed: no image set of horse" in f"\n{capsys.readouterr().err}"
    assert any(note.startswith("**horse failed**") for note in table.notes)
    assert "| DFF | this run | – | 1.000 | 1.000 |" in table.markdown()


def test_nothing_that_runs_is_an_error(
    tmp_path: Path, colors: Network, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(InputError, match="no folder VOC2007 with JPEGImages"):
        table2(colors, tmp_path, classes=["cow", "horse"])
    assert not capsys.readouterr().err  # once, and not for each class


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

    tables = table1(colors, root, groups=["all"], parts=parts.parent, crf=False)

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


def test_figure_4_is_of_icosegs_parts(tmp_path: Path, colors: Network) -> None:
    root, parts = tmp_path / "icoseg", tmp_path / "parts" / "021 Elephants"
    write_group(root, "021 Elephants", mask(RED, GREEN))
    parts.mkdir(parents=True)
    (parts / "labels.txt").write_text("head\ntrunk\n")
    # The trunk is the green square and half as much below it.
    Image.fromarray(mask(RED) + 2 * mask(GREEN, BELOW_GREEN)).save(parts / "1.png")

    sets = icoseg_part_sets(root, parts.parent, ["all"])
    networks = {"one": lambda: colors, "two": lambda: replace(colors, solver="mu")}
    table, curves = figure4("figure4b", networks, sets, [1, 3], seeds=2, in_paper=True)

    # The one factor of k = 1 is the red square, the head.
    for curve in curves.values():
        np.testing.assert_allclose(curve.qualities, [[1, 1], [(1 + 64 / 96) / 3] * 2])
    assert any("mean over Elephants (021)" in note for note in table.notes)
    assert any("without printing values" in note for note in table.notes)
    assert [words in table.source for words in ("HALS", "multiplicative updates")] == [True] * 2
    with pytest.raises(InputError, match="no folder of part masks"):
        icoseg_part_sets(root, tmp_path / "none", ["all"])


def test_table_1_looks_for_parts_inside_the_object_too(tmp_path: Path, colors: Network) -> None:
    write_group(tmp_path, "021 Elephants", mask(RED))
    (tmp_path / "parts/021 Elephants").mkdir(parents=True)
    (tmp_path / "parts/021 Elephants/labels.txt").write_text("head\n")
    Image.fromarray(mask(RED)).save(tmp_path / "parts/021 Elephants/1.png")

    tables = table1(colors, tmp_path, groups=["all"], parts=tmp_path / "parts")

    # Four parts and the background are more than the four channels have clusters.
    expected = f"Elephants (021): no row for {INSIDE}: 5 factors were asked for"
    assert any(note.startswith(expected) for note in tables["table1-bottom"].notes)


def test_table_1_keeps_objects_where_no_group_has_parts(tmp_path: Path, colors: Network) -> None:
    write_group(tmp_path, "033 Kite", mask(RED))
    (tmp_path / "parts").mkdir()

    tables = table1(colors, tmp_path, groups=["Kite"], parts=tmp_path / "parts", crf=False)

    assert list(tables) == ["table1-top"]
    assert rows_of(tables["table1-top"])["DFF"] == [1, 1]
    assert any("labels.txt" in note for note in tables["table1-top"].notes)
    with pytest.raises(InputError, match="no folder of part masks"):
        table1(colors, tmp_path, parts=tmp_path / "none")


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
        Network.of(backbone, "0", SIDE)


def test_table_1_on_real_groups_is_near_an_independent_measurement(data_root: Path) -> None:
    network = Network.of(load_backbone())
    table = table1(network, data_root / "icoseg", groups=["018", "020"])["table1-top"]

    rows = rows_of(table)
    # Measured with another program, square resizing and scikit-image.
    assert rows["DFF"][:2] == pytest.approx([0.25, 0.47], abs=0.05)
    assert rows["DFF-CRF"][1] > rows["DFF"][1] + 0.05
    assert rows["DFF, guided CRF"][1] > rows["DFF"][1] + 0.05
    assert rows["PCA"] == pytest.approx(rows["DFF"], abs=0.01)


def test_the_recipe_contrast_stands_beside_the_papers_in_table_1(
    data_root: Path, tmp_path: Path
) -> None:
    """As `deepff discover --recipe contrast` and `deepff segment` find it, in numbers and shown."""
    backbone = load_backbone()
    network = Network.of(backbone, contrast=True)
    table = table1(network, data_root / "icoseg", groups=["036"])["table1-top"]
    rows = rows_of(table)

    (truth,) = load_icoseg(data_root / "icoseg", ["036"])
    result = discover([item.image for item in truth.images], recipe="contrast", model=backbone)
    labels = [item.labels() for item in truth.images]
    pairs = zip((found.masks for found in find_regions(result)), labels, strict=True)
    # Lines between things that touch are left out of regions, and not in the table.
    assert rows["contrast"][0] == pytest.approx(
        float(iou(count_overlaps(pairs, 1))[0, 1]), abs=1e-3
    )
    # 0.35, 0.60, 0.84 and 0.92 when measured
    assert rows["contrast, unrefined"][0] > rows["DFF"][0] + 0.2
    assert rows["contrast, dense CRF"][0] > rows["DFF"][0] + 0.4
    assert rows["contrast"][0] > rows["contrast, dense CRF"][0] + 0.04
    assert result.factorization(1).probabilities.coefficients.amax() <= 1

    paths = write_tables({"top": table}, tmp_path)
    assert tmp_path / "top-01.jpg" in paths
    assert "![" in (tmp_path / "top.md").read_text() and "pictures" not in table.json()


def test_the_poorest_images_are_shown_the_poorest_first(tmp_path: Path, colors: Network) -> None:
    truths = [mask(RED), mask(BLUE), mask(RED, GREEN), mask(RED, GREEN, BLUE)]
    images, ground_truth = tmp_path / "images" / "Kite", tmp_path / "ground_truth" / "Kite"
    images.mkdir(parents=True)
    ground_truth.mkdir(parents=True)
    for number, truth in enumerate(truths):
        Image.fromarray(truth * 255).save(ground_truth / f"{number}.png")
        pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
        pixels[(*RED, 0)] = 255 - 20 * number
        Image.fromarray(pixels).save(images / f"{number}.png")

    table = table1(colors, tmp_path, groups=["Kite"], crf=False)["table1-top"]

    ((caption, picture),) = table.pictures.items()
    # The mask is the red square in every image: IoU 1, 0, 1/2 and 1/3.
    assert "(DFF: 0.00, 0.33, 0.50)" in caption
    side = len(picture) // 3
    second, fourth, third = (picture[row * side + side // 4, side // 4, 0] for row in range(3))
    assert second > third > fourth
