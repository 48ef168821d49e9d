"""What the report says of factors: names, importance, crops, colors over k; and in a browser."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from planted import planted, result_of

from deepff.activations.activations import ImageRecord
from deepff.images.painting import factor_colors
from deepff.meaning.importance import Importance
from deepff.pictures.crops import strongest_crops, write_crops
from deepff.pictures.figures import captions
from deepff.pictures.tree_drawing import colors_over_k
from deepff.report.report import write_report
from deepff.result import Result
from deepff.results.factorization import FactorClasses, Factorization
from deepff.results.heatmaps import HeatMaps


def test_crops_lie_around_peaks_at_the_photographs_resolution(tmp_path: Path) -> None:
    """An image of 600 × 900 pixels with a red square of 10 where its one strong cell is, of 100
    pixels; three cells around it are cut out, and near the edge as much of the image."""
    picture = np.full((600, 900, 3), 90, np.uint8)
    picture[445:455, 245:255] = (255, 0, 0)
    path = tmp_path / "square.png"
    Image.fromarray(picture).save(path)
    H = torch.zeros(54, 2)
    H[4 * 9 + 2, 0] = 1
    H[8, 1] = 2  # the upper right cell
    image = ImageRecord("square.png", path, (600, 900), (6, 9))
    result = planted(tmp_path)
    result.images = [image]
    result.factorizations = {2: Factorization(torch.eye(2), HeatMaps.of_images(H, [image]), 0.0, 1)}
    crops = strongest_crops(result)
    (first,), (second,) = crops[2]
    assert np.abs(np.array(first.box) - [100, 300, 400, 600]).max() <= 3  # pixels of a thumbnail
    assert second.box == (600, 0, 900, 300)
    write_crops(result, tmp_path, crops)
    cut = np.asarray(Image.open(tmp_path / first.file)).astype(int)
    assert cut.shape == (300, 300, 3)
    centre = cut[120:180, 120:180]
    rows, columns = np.nonzero(centre[..., 0] - centre[..., 1] > 100)
    rows, columns = rows + 120, columns + 120
    assert abs(rows.mean() - 150) <= 4 and abs(columns.mean() - 150) <= 4
    assert 90 <= len(rows) <= 130  # one pixel of the photograph is one of the crop
    # Bilinear between cells of 100 pixels, the value is half 50 to either side of the center.
    rows, columns = np.nonzero(np.abs(cut - factor_colors(1)[0]).sum(-1) < 60)
    inside = (np.abs(rows - 150) < 40) & (np.abs(columns - 150) < 40)
    rows, columns = rows[~inside], columns[~inside]
    for found in (rows, columns):
        assert abs(found.min() - 100) <= 4 and abs(found.max() - 199) <= 4


def test_a_crop_of_a_small_image_is_all_of_it(tmp_path: Path) -> None:
    result = planted(tmp_path)
    assert strongest_crops(result)[3][0][0].box == (0, 0, 8, 6)


def test_a_factor_keeps_its_color_over_k() -> None:
    """Left, middle and right thirds: k = 1 is all; at k = 2 factor 1 has most of it, so it keeps
    the color; at k = 3 that is cut in two, and the other keeps its own under another number."""
    cells = torch.zeros(30, 3)
    cells[:10, 0] = cells[10:20, 1] = cells[20:, 2] = 1
    left, middle, right = cells.T
    by_k = {
        1: [left + middle + right],
        2: [left, middle + right],
        3: [middle, right + 0.1 * middle, left],
    }
    factorizations = {
        k: Factorization(
            torch.eye(k), HeatMaps(torch.stack(columns, 1), [(1, 30)], [(1, 30)]), 0.0, 1
        )
        for k, columns in by_k.items()
    }
    colors = colors_over_k(factorizations)
    palette = factor_colors(3)
    index = {
        k: [int((palette == color).all(1).nonzero()[0][0]) for color in own]
        for k, own in colors.items()
    }
    assert index[1] == [0]
    assert sorted(index[2]) == [0, 1]
    assert index[3][2] == index[2][0]  # the left third
    assert index[2][1] in index[3][:2]  # one half of what it was has its color
    assert sorted(index[3]) == [0, 1, 2]


@pytest.fixture
def named(tmp_path: Path) -> Result:
    result = planted(tmp_path / "photos")
    scores = torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 0.1]])
    classes = FactorClasses(("<b>cat</b>", "dog"), scores, ("<b>cat</b>", "dog", None))
    result.factorizations = {
        3: replace(result.factorizations[3], classes=classes, relative_error=0.6)
    }
    falls = torch.tensor([[[2.0], [-1.0], [0.5]]])
    numbers = torch.tensor([[0.7], [0.2], [0.1]])
    result.importances = {
        3: Importance(
            ("dog",),
            classes.names,
            (2, 0, 1),
            (0,),
            torch.tensor([[3.0]]),
            falls,
            torch.tensor([[True]]),
            *[numbers] * 4,
        )
    }
    return result


def test_the_page_has_names_classes_and_importance(named: Result, tmp_path: Path) -> None:
    write_report(named, tmp_path / "out")
    page = (tmp_path / "out/report.html").read_text()
    assert "<b>cat</b></b>" not in page
    assert "<b>&lt;b&gt;cat&lt;/b&gt;</b>" in page
    assert "explain 64 % of the activations" in page
    assert "2.00 (Sobol 0.70)" in page and "-1.00 (Sobol 0.20)" in page
    assert 'class="negative" style="width: 50.0%"' in page
    assert not (tmp_path / "out/overlays").exists()


def test_a_name_that_is_not_the_likeliest_class_says_why(named: Result, tmp_path: Path) -> None:
    write_report(named, tmp_path / "out")
    assert "fits more of the images" not in (tmp_path / "out/report.html").read_text()
    found = named.factorizations[3]
    classes = replace(found.classes, names=("dog", "dog", None))
    named.factorizations = {3: replace(found, classes=classes)}
    write_report(named, tmp_path / "out")
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("fits more of the images") == 1
    # Equal names are numbered next to their crops, and in the legend of a figure.
    assert "<b>dog 1</b>" in page and "<b>dog 2</b>" in page
    assert captions(named.factorizations[3]) == ["factor 0: dog 1", "factor 1: dog 2", "factor 2"]


def test_what_the_run_knows_of_its_factors_is_loaded_again(named: Result, tmp_path: Path) -> None:
    import deepff

    named.save(tmp_path / "result")
    loaded = deepff.load(tmp_path / "result")
    assert loaded.factor_names == ["<b>cat</b>", "dog", None]
    before, after = named.importances[3], loaded.importances[3]
    assert (before.labels, before.names, before.images) == (after.labels, after.names, after.images)
    assert torch.equal(before.falls, after.falls) and torch.equal(before.is_of, after.is_of)
    table = loaded.importances[3]._repr_html_()
    assert "2.00" in table
    drawn = re.findall(r"background: (#\w+|none)", table)  # by importance: factors 0, 2 and 1
    shades = ["#" + bytes(color).hex() for color in factor_colors(3)]
    assert drawn == [shades[2], shades[1], "none"]


def test_a_set_with_little_in_common_is_told_so(tmp_path: Path) -> None:
    result = result_of(torch.rand(3, 1, 6, 8), ["a.png", "b.png", "c.png"], tmp_path)
    result.factorizations = {1: replace(result.factorizations[1], relative_error=0.96)}
    result.unnamed = "the weights are <random>"
    write_report(result, tmp_path / "out")
    page = (tmp_path / "out/report.html").read_text()
    assert "explains 8 % of the activations: the set has little in common" in page
    assert "The factors have no names: the weights are &lt;random&gt;." in page


def test_images_are_found_ordered_and_asked_for_similar_places(browser, tmp_path: Path) -> None:
    """Image i has factor 0 at its left by i + 1 and factor 1 at its right by 3 − i."""
    maps = torch.zeros(3, 2, 4, 4)
    for i in range(3):
        maps[i, 0, :, :2], maps[i, 1, :, 2:] = i + 1, 3 - i
    names = ["one.png", "two.png", "Three.png"]
    result = result_of(maps, names, tmp_path)
    for name in names:
        Image.new("RGB", (4, 4), (90, 90, 90)).save(tmp_path / name)
    write_report(result, tmp_path / "out")
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "out/report.html").as_uri())

    def shown() -> list[str]:
        return page.locator("#images .card:visible figcaption").all_text_contents()

    assert shown() == names
    page.locator(".controls button.chip").nth(0).click()
    assert shown() == ["Three.png", "two.png", "one.png"]
    page.locator(".controls button.chip").nth(0).click()
    assert shown() == names
    page.select_option("#order", "2 1")
    assert shown() == names
    page.fill("#find", "t")
    assert shown() == ["two.png", "Three.png"]
    assert page.locator("#found").text_content() == "2 of 3"
    page.fill("#find", "")

    page.locator("#images .open").nth(0).click()
    box = page.locator(".stage .spot").bounding_box()
    page.mouse.click(box["x"] + 0.75 * box["width"], box["y"] + 0.5 * box["height"])
    page.wait_for_selector(".similar canvas")
    # its right half is like the others' right halves, and not at all like left ones
    likeness = page.evaluate(
        "[...document.querySelectorAll('.similar .tile')].map(t => [t.image, ...t.likeness])"
    )
    assert [row[0] for row in likeness] == [0, 1, 2]
    for row in likeness:
        np.testing.assert_allclose(np.reshape(row[1:], (4, 4)), [[0, 0, 1, 1]] * 4, atol=1e-3)
    assert errors == []
    page.close()


PIXEL = """([tile, x, y]) => {
    const canvas = document.querySelectorAll("#images .tile canvas")[tile];
    const at = [Math.floor(x * canvas.width), Math.floor(y * canvas.height), 1, 1];
    return [...canvas.getContext("2d").getImageData(...at).data];
}"""


def test_one_k_at_a_time_in_the_strongest_factors_color(browser, tmp_path: Path) -> None:
    """At k = 1 the factor is everywhere; at k = 2 factor 0 has the left half and factor 1, which is
    half as strong there as on the right, the right half."""
    folder = tmp_path / "it's here"
    maps = torch.zeros(1, 2, 4, 4)
    maps[0, 0, :, :2] = 1
    maps[0, 1] = torch.tensor([0.5, 0.5, 1, 1])
    result = result_of(maps, ["one.png"], folder)
    result.images = [replace(result.images[0], size=(300, 400))]
    H = {1: torch.ones(16, 1), 2: maps[0].flatten(1).T}
    result.factorizations = {
        k: Factorization(torch.eye(k), HeatMaps.of_images(H[k], result.images), 0.5, 1) for k in H
    }
    folder.mkdir()
    Image.new("RGB", (400, 300), (90, 90, 90)).save(folder / "one.png")
    write_report(result, folder)
    page = browser.new_page()
    page.goto((folder / "report.html").as_uri())
    page.wait_for_selector("#images canvas")
    first, second = colors_over_k(result.factorizations)[2].tolist()

    assert page.locator(".factor:visible").count() == 2
    assert page.evaluate(PIXEL, [0, 0.1, 0.5]) == [*first, 255]  # nothing of factor 1
    assert page.evaluate(PIXEL, [0, 0.9, 0.5]) == [*second, 255]
    page.select_option("#style", "mixed")
    mean = np.average([first, second], axis=0, weights=[1, 0.5])
    page.wait_for_timeout(100)
    assert np.abs(np.array(page.evaluate(PIXEL, [0, 0.1, 0.5])) - [*mean, 255]).max() <= 2
    page.select_option("#style", "contours")
    page.wait_for_timeout(100)
    assert page.evaluate(PIXEL, [0, 0.1, 0.5])[3] == 0
    page.select_option("#style", "strongest")

    page.locator("label:has(#k-1)").click()
    page.wait_for_timeout(100)
    assert page.locator(".factor:visible").count() == 1
    assert page.evaluate(PIXEL, [0, 0.9, 0.5]) == [*factor_colors(1)[0].tolist(), 255]

    page.locator("#images .open").click()
    assert (
        page.locator(".stage .tile").bounding_box()["width"] == 448
    )  # the least; the photo has 400
    page.locator("#close").click()
    quoted = "'" + str(folder).replace("'", "'\\''") + "'"
    commands = page.locator("#next pre").all_text_contents()
    assert commands == [f"deepff {verb} {quoted}" for verb in ("segment", "label", "explain")]
    page.close()
