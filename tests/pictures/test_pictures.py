"""Colours, overlays and the figure."""

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from deepff.activations.activations import FeatureSource, ImageRecord
from deepff.errors import InputError
from deepff.images.painting import factor_colors, overlay, stripes
from deepff.pictures.figures import figure, spread
from deepff.result import Result
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps

# Machado, Oliveira & Fernandes (2009), severity 1.0, for linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}


@pytest.mark.parametrize("vision", VISIONS)
# 2.3 is just noticeable; Okabe and Ito's own seven colours keep 17.0 apart.
@pytest.mark.parametrize(("k", "least"), [(8, 20.0), (12, 15.0)])
def test_colors_stay_apart_for_colour_blind_viewers(vision: str, k: int, least: float) -> None:
    from skimage.color import rgb2lab

    encoded = factor_colors(k) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ VISIONS[vision].T, 0, 1)
    seen = np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055)
    lab = rgb2lab(seen[None])[0]
    distances = np.linalg.norm(lab[:, None] - lab[None], axis=-1)
    assert distances[~np.eye(k, dtype=bool)].min() > least


def test_a_factor_keeps_its_color_whatever_k_is_and_none_repeats() -> None:
    colors = factor_colors(200)
    assert colors.dtype == np.uint8
    assert len(np.unique(colors, axis=0)) == 200
    for k in (0, 1, 7, 12, 13, 50):
        np.testing.assert_array_equal(factor_colors(k), colors[:k])


RED_GREEN = np.array([[200, 0, 0], [0, 200, 0]], np.uint8)


def pixel(photo: list[int], values: list[float], opacity: float, style: str = "mixed") -> list[int]:
    image = np.array(photo, np.uint8).reshape(1, 1, 3)
    maps = torch.tensor(values).reshape(-1, 1, 1)
    return overlay(image, maps, RED_GREEN[: len(values)], opacity, style)[0, 0].tolist()


@pytest.mark.parametrize(
    ("values", "opacity", "expected"),
    [
        ([0.0], 1.0, [100, 100, 40]),
        ([0.0, 0.0], 0.8, [100, 100, 40]),
        ([1.0], 0.0, [100, 100, 40]),
        ([1.0], 1.0, [200, 0, 0]),
        ([7.0], 1.0, [200, 0, 0]),
        ([0.6], 1.0, [160, 40, 16]),  # 0.6 · (200, 0, 0) + 0.4 · (100, 100, 40)
        ([1.0], 0.6, [160, 40, 16]),
        ([1.0, 1.0], 1.0, [100, 100, 0]),  # half red, half green
        ([0.6, 0.2], 1.0, [130, 70, 16]),  # 0.6 · (¾ red + ¼ green) + 0.4 · photo
        ([0.0, 0.4], 1.0, [60, 140, 24]),
    ],
)
def test_overlay_values(values: list[float], opacity: float, expected: list[int]) -> None:
    assert pixel([100, 100, 40], values, opacity) == expected


@pytest.mark.parametrize(
    ("values", "opacity", "expected"),
    [
        ([], 1.0, [100, 100, 40]),
        ([0.0, 0.0], 0.8, [100, 100, 40]),
        ([1.0, 0.9], 1.0, [200, 0, 0]),  # nothing of green
        ([0.9, 1.0], 0.6, [40, 160, 16]),
        ([0.1, 0.5], 1.0, [38, 162, 15]),  # 0.5^0.7 = 0.616
    ],
)
def test_the_strongest_factor_alone_has_a_pixel(
    values: list[float], opacity: float, expected: list[int]
) -> None:
    assert pixel([100, 100, 40], values, opacity, "strongest") == expected


def test_contours_run_inside_of_what_a_factor_has() -> None:
    """Factor 0 has the left 10 columns of 30, and factor 1 the next 10; lines are 2 pixels wide."""
    photo = np.full((20, 30, 3), 90, np.uint8)
    maps = np.zeros((2, 20, 30))
    maps[0, :, :10], maps[1, :, 8:20] = 0.5, 0.4
    maps[1, :, 20:] = 0.29
    painted = overlay(photo, maps, RED_GREEN, 1.0, "contours")
    red, green, plain = [200, 0, 0], [0, 200, 0], [90, 90, 90]
    expected = [plain] * 8 + [red] * 2 + [green] * 2 + [plain] * 6 + [green] * 2 + [plain] * 10
    assert painted.tolist() == [expected] * 20
    with pytest.raises(InputError, match="choose one of strongest, mixed, contours"):
        overlay(photo, maps, RED_GREEN, 1.0, "contour")


unit = st.floats(0, 1, width=32)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(unit, min_size=1, max_size=2),
    unit,
    st.lists(st.integers(0, 255), min_size=3, max_size=3),
)
def test_overlay_follows_its_formula(values: list[float], opacity: float, photo: list[int]) -> None:
    weights = np.array(values) / max(sum(values), 1e-30)
    alpha = opacity * max(values)
    expected = alpha * weights @ RED_GREEN[: len(values)] + (1 - alpha) * np.array(photo)
    # Colour, alpha and blend are each rounded to 8 bits.
    np.testing.assert_allclose(pixel(photo, values, opacity), expected, atol=1.6)


def test_negative_values_are_painted_on_stripes_only() -> None:
    photo = np.full((64, 160, 3), 90, np.uint8)
    maps = torch.full((2, 64, 160), -0.6)
    maps[:, :, 80:] = 0.6
    painted = overlay(photo, maps, RED_GREEN, 1.0, "mixed")
    striped = stripes(64, 160)
    assert 0.45 < striped.mean() < 0.55
    positive = painted[:, 80:]
    assert np.unique(positive.reshape(-1, 3), axis=0).tolist() == [[96, 96, 36]]
    negative = painted[:, :80]
    assert np.unique(negative[striped[:, :80]], axis=0).tolist() == [[96, 96, 36]]
    assert np.unique(negative[~striped[:, :80]], axis=0).tolist() == [[90, 90, 90]]


def test_overlay_refuses_an_opacity_above_one() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        overlay(np.zeros((4, 4, 3), np.uint8), np.zeros((1, 4, 4)), None, 1.1)


@pytest.fixture
def grey_result(tmp_path: Path) -> Callable[..., Result]:
    """Grey images of 120 × 160 pixels; factor j is 1 in cell j of the 3 × 4 grid, else 0."""

    def make(n: int, ks: list[int]) -> Result:
        images = []
        for i in range(n):
            path = tmp_path / f"{i}.png"
            Image.new("L", (160, 120), 100).save(path)
            images.append(ImageRecord(path.name, path, (120, 160), (3, 4)))
        factorizations = {
            k: Factorization(
                torch.ones(k, 5),
                HeatMaps(torch.eye(12)[:, :k].repeat(n, 1), [(3, 4)] * n, [(120, 160)] * n),
                0.5,
                1,
            )
            for k in ks
        }
        triple = (0.5, 0.5, 0.5)
        source = FeatureSource(
            "net", "random", "0" * 64, "layer", 5, 32, 128, 32, triple, triple, "bilinear", False
        )
        return Result(images, [], factorizations, "nmf", (source,), {}, "deepff run images", {})

    return make


def top_left_cells(picture: Image.Image, row: int) -> np.ndarray:
    """RGB at the centres of the first image's upper left 2 cells, in one row of the figure."""
    y = row * 186 + 30
    return np.array([picture.getpixel((96 + 30, y)), picture.getpixel((96 + 90, y))])


def test_figure_has_a_row_for_every_k(grey_result: Callable[..., Result]) -> None:
    picture = figure(grey_result(n=20, ks=[1, 2]))
    assert picture.width == 96 + 8 * (240 + 6)
    painted = (0.8 * factor_colors(2) + 0.2 * 100).round()
    grey = [100, 100, 100]
    np.testing.assert_array_equal(top_left_cells(picture, 0), [grey, grey])
    np.testing.assert_allclose(top_left_cells(picture, 1), [painted[0], grey], atol=4)
    np.testing.assert_allclose(top_left_cells(picture, 2), painted, atol=4)


def test_figure_of_a_single_k_shows_each_factor_alone(grey_result: Callable[..., Result]) -> None:
    picture = figure(grey_result(n=2, ks=[2]), images=[1])
    painted = (0.8 * factor_colors(2) + 0.2 * 100).round()
    grey = [100, 100, 100]
    np.testing.assert_allclose(top_left_cells(picture, 1), painted, atol=4)
    np.testing.assert_allclose(top_left_cells(picture, 2), [painted[0], grey], atol=4)
    np.testing.assert_allclose(top_left_cells(picture, 3), [grey, painted[1]], atol=4)


def test_figure_draws_a_lost_photo_grey_and_refuses_unknown_indices(
    grey_result: Callable[..., Result],
) -> None:
    result = grey_result(n=2, ks=[1])
    result.paths[0].unlink()
    np.testing.assert_array_equal(top_left_cells(figure(result), 0), np.full((2, 3), 128))
    for images in ([], [2], [-1]):
        with pytest.raises(InputError):
            figure(result, images=images)


def test_figure_for_notebooks_is_the_figure(grey_result: Callable[..., Result]) -> None:
    result = grey_result(n=1, ks=[1, 2, 3])
    encoded = re.fullmatch(r'<img [^>]*src="data:image/jpeg;base64,([^"]+)">', result._repr_html_())
    assert encoded is not None
    decoded = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded[1])))).astype(int)
    assert np.abs(decoded - np.asarray(figure(result))).mean() < 2


def test_columns_are_spread_over_the_set() -> None:
    assert spread(3) == [0, 1, 2]
    assert spread(15) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert spread(1) == [0]
