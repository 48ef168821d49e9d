"""Figures 3 and 5 on photos of colored squares."""

from pathlib import Path

import numpy as np
import pytest
from color_squares import BLUE, GREEN, HEAD, LEG, RED, SIDE, TORSO, mask, rows_of, write_photo
from pascal_part_files import write_parts
from PIL import Image

from deepff.errors import InputError
from deepff.evaluation.paper_figures import figure3, figure5
from deepff.evaluation.predictions import Network
from deepff.images.painting import factor_colors

# A photo's row in a figure, in pixels, where the photos begin, and the gap between them.
HEIGHT, LEFT, GAP = 180, 96, 6
STEP = HEIGHT // SIDE


def middle(square: tuple[slice, slice]) -> tuple[int, int]:
    """The middle of a square in a photo of HEIGHT pixels."""
    y, x = (round((side.start + side.stop) / 2 * HEIGHT / SIDE) for side in square)
    return y, x


def write_group(root: Path, group: str, n_photos: int) -> None:
    (root / "ground_truth" / group).mkdir(parents=True)
    for number in range(1, n_photos + 1):
        write_photo(root / f"images/{group}/{number}.jpg")
        Image.fromarray(mask(RED)).save(root / f"ground_truth/{group}/{number}.png")


def test_figure_3_has_a_row_of_heat_maps_per_k(tmp_path: Path, colors: Network) -> None:
    write_group(tmp_path, "021 Elephants", 3)

    picture = np.asarray(figure3(colors, tmp_path, [1, 3], ["021"]))

    assert picture.shape[0] > 3 * (HEIGHT + GAP) and picture.shape[1] >= LEFT + 3 * (HEIGHT + GAP)
    red, green, blue = factor_colors(3).astype(int)
    for column in range(3):
        left = LEFT + column * (HEIGHT + GAP)
        photo, one, three = (picture[row * (HEIGHT + GAP) :, left:].astype(int) for row in range(3))
        # k = 1 paints the brightest square and leaves the others; k = 3 paints each in a color.
        y, x = middle(RED)
        assert abs(photo[y, x] - [254, 0, 0]).max() < 8
        assert abs(one[y, x] - photo[y, x]).max() > 30
        for square, color in ((RED, red), (GREEN, green), (BLUE, blue)):
            y, x = middle(square)
            expected = 0.8 * color + 0.2 * photo[y, x]
            assert abs(three[y, x] - expected).max() < 12
            if square != RED:
                assert abs(one[y, x] - photo[y, x]).max() < 8


def test_figure_3_takes_groups_of_icoseg_and_the_images_of_a_list(
    tmp_path: Path, colors: Network
) -> None:
    for group in ("021 Elephants", "036 Gymnastics"):
        write_group(tmp_path, group, 2)
    (tmp_path / "list.txt").write_text("021 Elephants/1.jpg\n036 Gymnastics/2.jpg\n")

    one = figure3(colors, tmp_path, [1], ["036"])
    both = figure3(colors, tmp_path, [1], ["036", "021"])
    listed = figure3(colors, tmp_path, [1], ["036", "021"], tmp_path / "list.txt")

    assert (both.height, both.width) == (2 * one.height, one.width)
    second = slice(LEFT + HEIGHT + GAP, LEFT + 2 * HEIGHT + GAP)
    assert np.asarray(both)[:HEIGHT, second].min() < 10
    assert np.asarray(listed)[:HEIGHT, second].min() == 255  # a single photo each


def test_figure_5_shows_the_best_and_the_worst_with_their_ious(
    pascal_part: Path, colors: Network
) -> None:
    table = figure5(colors, pascal_part, ["cow", "dog"])

    assert rows_of(table) == {
        "cow, factor 0": ["head", pytest.approx(HEAD)],
        "cow, factor 1": ["torso", pytest.approx(TORSO)],
        "cow, factor 2": ["leg", pytest.approx(LEG)],
    }
    assert any(note.startswith("**dog failed**") for note in table.notes)
    ((caption, picture),) = table.pictures.items()
    # The second image fits in all three parts, so it is on the left.
    assert caption == "cow, mean IoU: 1.00, 0.50"
    left = picture[HEIGHT + GAP :, LEFT:].astype(int)  # the row with all factors
    for square, color in zip((RED, GREEN, BLUE), factor_colors(3), strict=True):
        photo = picture[:, LEFT:][middle(square)]
        assert abs(left[middle(square)] - (0.8 * color + 0.2 * photo)).max() < 12


def test_figure_5_chooses_four_successes_and_one_failure(
    pascal_part: Path, colors: Network
) -> None:
    heads = [8, 7, 6, 5, 4, 3]  # columns of the red square, 8, that are the head
    ids = [f"{number:06}" for number in range(1, 8)]
    for image_id, width in zip(ids, [*heads, 0], strict=True):
        write_photo(pascal_part / f"JPEGImages/{image_id}.jpg")
        head = mask((slice(0, 8), slice(0, width)))
        parts = [("head", head)] if width else []
        write_parts(pascal_part / f"Annotations_Part/{image_id}.mat", [("cow", mask(RED), parts)])
        (pascal_part / f"Annotations/{image_id}.xml").write_text("<annotation></annotation>")
    sets = pascal_part / "ImageSets/Main"
    (sets / "cow_trainval.txt").write_text("".join(f"{image_id} 1\n" for image_id in ids))

    table = figure5(colors, pascal_part, ["cow"])

    # 33 of 48 columns; the seventh image shows no part, so that the sixth is the failure.
    assert rows_of(table)["cow, factor 0"] == ["head", pytest.approx(33 / (7 * 8))]
    ((caption, picture),) = table.pictures.items()
    assert caption.startswith("cow, mean IoU: 1.00, 0.8")
    assert picture.shape[1] == LEFT + 5 * (HEIGHT + GAP)
    assert rows_of(table)["cow, factor 1"][0] == "background"


def test_figure_5_without_a_factor_that_has_parts_says_so(
    pascal_part: Path, colors: Network
) -> None:
    (pascal_part / "ImageSets/Main/cow_trainval.txt").write_text("000002 1\n")
    nowhere = mask((slice(12, 16), slice(12, 16)))  # black in the photo
    parts = [("head", nowhere)]
    write_parts(pascal_part / "Annotations_Part/000002.mat", [("cow", nowhere, parts)])
    with pytest.raises(InputError, match="no factor of cow covers more than half of a part"):
        figure5(colors, pascal_part, ["cow"])
