"""What the app shows of a result."""

import re
from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from planted import result_of

from deepff.app.edits import drop_factors, keep_factor, name_factor, set_settings
from deepff.app.labels import Labels, Settings
from deepff.app.pictures import SIDE, Pictures, covering, data_uris
from deepff.discovery.discover import discover
from deepff.discovery.discover_parts import discover_parts
from deepff.export.folder import segment
from deepff.images.painting import factor_colors
from deepff.options import RegionOptions
from deepff.regions.regions import find_regions
from deepff.result import Result
from deepff.results.heatmaps import HeatMaps

GROUP = "036 Gymnastics-1"


def quartered(folder: Path, n: int = 1) -> Result:
    """Images of `SIDE` × `SIDE` pixels, of which each of four factors holds a quarter."""
    maps = torch.zeros(n, 4, SIDE, SIDE)
    half = SIDE // 2
    maps[:, 0, :half, :half] = maps[:, 1, :half, half:] = 1
    maps[:, 2, half:, :half] = maps[:, 3, half:, half:] = 1
    names = [f"{i}.png" for i in range(n)]
    for name in names:
        Image.new("RGB", (SIDE, SIDE), "white").save(folder / name)
    return result_of(maps, names, folder)


def labelled() -> Labels:
    """Factors 0 and 3 are one class, 1 is background; in 0.png 2 is dropped."""
    labels = Labels("run", Settings(4, "max-fraction", 0.5), Path())
    labels = name_factor(name_factor(labels, 0, "a"), 3, "a")
    return drop_factors(keep_factor(labels, 1, False), "0.png", [2], True)


def test_a_picture_shows_names_background_and_drops(tmp_path: Path) -> None:
    pictures = Pictures(quartered(tmp_path, n=2))
    labels = labelled()
    quarters = (slice(None, None, SIDE // 2), slice(None, None, SIDE // 2))
    assert pictures.region_labels(labels, 0)[quarters].tolist() == [[1, 0], [0, 1]]
    assert pictures.region_labels(labels, 1)[quarters].tolist() == [[1, 0], [3, 1]]
    assert pictures.classes_present(labels, 0) == ["a", "factor 2"]
    colors = factor_colors(4)
    assert (pictures.merged_colors(labels)[[0, 2, 3]] == colors[[0, 2, 0]]).all()
    middle = SIDE // 4
    points = [(y, x) for y in (middle, 3 * middle) for x in (middle, 3 * middle)]
    white = (255, 255, 255)
    for picture in (pictures.masks(labels, 0), pictures.heat_maps(labels, 0)):
        drawn = [tuple(picture[point].tolist()) for point in points]
        assert drawn[0] == drawn[3] != white and drawn[1] == drawn[2] == white
    alone = pictures.factor(4, 1, 0)
    assert [tuple(alone[point].tolist()) == white for point in points] == [True, False, True, True]


@pytest.fixture(scope="module")
def gymnasts(data_root: Path) -> Result:
    return discover(data_root / "icoseg" / "images" / GROUP, 3)


def agreement(result: Result, labels: Labels) -> float:
    """Set-wide IoU of what the pictures show of factors 0 and 2 with what an export writes."""
    labels = keep_factor(labels, 1, False)
    options = replace(labels.settings.region_options, parts=labels.parts)
    pictures = Pictures(result)
    shared = either = 0
    for index, regions in enumerate(find_regions(result, 3, options)):
        written = regions.labels.cpu().numpy()
        shown = Image.fromarray(pictures.region_labels(labels, index))
        small = np.asarray(shown.resize(written.shape[::-1], Image.Resampling.NEAREST))
        # Region 1 of the export is factor 2, whose color it has in the picture.
        for region, factor in ((0, 0), (1, 2)):
            shared += ((written == region + 1) & (small == factor + 1)).sum()
            either += ((written == region + 1) | (small == factor + 1)).sum()
    return shared / either


@pytest.mark.parametrize("refine", ["none", "guided-crf", "dense-crf"])
def test_pictures_show_what_an_export_writes(gymnasts: Result, refine: str) -> None:
    labels = set_settings(Labels("run", Settings(3), Path()), refine=refine, value=80)
    assert agreement(gymnasts, labels) > 0.97


def test_pictures_show_parts_of_the_object_as_an_export_writes_them(data_root: Path) -> None:
    result = discover_parts(data_root / "icoseg" / "images" / GROUP, 3)
    assert result.parts_of == "object"
    for refine in ("none", "dense-crf"):
        labels = Labels("run", Settings(3, "otsu-image", 75, refine), Path())
        assert agreement(result, labels) > 0.93


def test_a_class_keeps_the_color_of_its_factor_over_k(tmp_path: Path) -> None:
    """At k = 2 the halves are the other way round than their quarters are at k = 4."""
    result = quartered(tmp_path)
    fine = result.factorizations[4]
    top, bottom = fine.coefficients[:, :2].sum(1), fine.coefficients[:, 2:].sum(1)
    maps = HeatMaps(torch.stack([bottom, top], 1), fine.heatmaps.grids, fine.heatmaps.image_sizes)
    coarse = replace(fine, heatmaps=maps, components=fine.components[:2].clone())
    result.factorizations = {2: coarse, 4: fine}
    pictures = Pictures(result)
    colors = factor_colors(4)
    # The first quarter of each half has its color, the others the two that are left.
    assert (pictures.colors(2) == colors[:2]).all()
    assert (pictures.colors(4) == colors[[1, 2, 0, 3]]).all()
    labels = name_factor(
        name_factor(Labels("run", Settings(4, "max-fraction", 0.5), Path()), 0, "a"), 3, "b"
    )
    assert pictures.color_numbers(labels) == {"a": 1, "factor 1": 2, "factor 2": 0, "b": 3}
    assert (pictures.merged_colors(labels) == colors[[1, 2, 0, 3]]).all()
    middle = SIDE // 4
    shown = pictures.region_labels(labels, 0)
    assert [shown[y, x] - 1 for y in (middle, -middle) for x in (middle, -middle)] == [1, 2, 0, 3]
    out = tmp_path / "result"
    result.save(out)
    segment(result, out, 4, RegionOptions("max-fraction", 0.5, parts={0: "a", 3: "b"}))
    drawn = np.asarray(Image.open(out / "regions/masks-k4/00000.jpg")).astype(int)
    height, width = drawn.shape[:2]
    for (y, x), color in (((0.25, 0.25), colors[1]), ((0.75, 0.75), colors[3])):
        pixel = drawn[int(y * height), int(x * width)]
        assert np.abs(pixel - (0.55 * color + 0.45 * 255)).max() <= 4
    chips = re.findall(r'chip region" style="--color: (#\w+)"', (out / "report.html").read_text())
    assert chips == ["#" + bytes(color).hex() for color in colors[[1, 3]]]


def test_a_photograph_that_is_gone_is_gray_and_its_masks_stay(tmp_path: Path) -> None:
    result = quartered(tmp_path)
    (tmp_path / "0.png").unlink()
    pictures = Pictures(result)
    labels = set_settings(labelled(), refine="guided-crf")
    photo, reason = pictures.photo(0)
    assert (photo == 128).all() and reason
    assert pictures.region_labels(labels, 0)[0, 0] == 1
    picture = pictures.masks(labels, 0)
    assert picture.shape == (SIDE, SIDE, 3) and (picture[0, -1] == 128).all()


def test_images_that_cover_all_factors_come_first() -> None:
    strengths = np.array(
        [[9.0, 0, 0], [8, 0, 0], [0, 0.5, 0], [0, 0, 0], [5, 0.4, 0], [0, 0, 0.01]], np.float32
    )
    # 4 shows 5/9 of factor 0 and 0.8 of 1; then 5 all of factor 2; then 0 what 0 lacks.
    assert covering(strengths, 3) == [4, 5, 0]
    assert sorted(covering(strengths, 9)) == [0, 1, 2, 3, 4, 5]
    assert covering(np.zeros((1, 2), np.float32), 5) == [0]


def test_every_image_has_one_place_and_factors_name_their_strongest(tmp_path: Path) -> None:
    maps = torch.zeros(7, 2, 2, 2)
    maps[:, 0] = torch.tensor([1.0, 7, 3, 5, 2, 6, 4])[:, None, None]
    maps[3, 1] = 1
    pictures = Pictures(result_of(maps, [f"{i}.png" for i in range(7)], tmp_path))
    assert pictures.strongest(2, 0) == [1, 5, 3, 6, 2]
    assert pictures.strongest(2, 1) == [3]
    order = pictures.order(2)
    assert sorted(order) == list(range(7)) and order[5:] == sorted(order[5:])
    assert order[0] == 3


def test_pictures_come_as_data_in_their_order() -> None:
    grays = data_uris(lambda i: np.full((8, 8, 3), 40 * i, np.uint8), [3, 0, 5])
    read = []
    for uri in grays:
        head, data = uri.split(",")
        assert head == "data:image/jpeg;base64"
        read.append(np.asarray(Image.open(BytesIO(b64decode(data)))).mean())
    assert read == pytest.approx([120, 0, 200], abs=2)
