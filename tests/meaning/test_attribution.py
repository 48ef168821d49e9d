"""Attribution, faithfulness and TCAV where they are known by hand, and on real photographs."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deepff
from deepff.errors import InputError
from deepff.result import Result
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps


class Squared(nn.Module):
    """One score, the square of the mean of red plus that of green; and one that is always 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        score = self.layer(x)[:, :2].sum(1).mean((1, 2)) ** 2
        return torch.stack([score, 0 * score], 1)


def of_colors(network: nn.Module, **options: object) -> Result:
    """An image, red on its left half and green on the right, at half strength below, and one that
    is blue, but for a black corner; factor j is color j."""
    images = np.zeros((2, 8, 8, 3), np.uint8)
    images[0, :, :4, 0] = images[0, :, 4:, 1] = images[1, ..., 2] = 255
    images[0, 4:] //= 5
    images[1, :2, :2] = 0
    backbone = deepff.load_backbone(network, mean=(0, 0, 0), std=(1, 1, 1), device="cpu", **options)
    result = deepff.discover(list(images), 1, model=backbone, layer=network.layer, size=8)
    heatmaps = HeatMaps.of_images(result.activations.rows, result.images)
    result.factorizations = {3: Factorization(torch.eye(3), heatmaps, 0.0, 1)}
    return result


@pytest.fixture(scope="module")
def colors(linear) -> Result:
    return of_colors(linear, labels=["warm", "cold"])


def test_attribution_of_a_linear_head_is_its_weights_over_the_cells(colors):
    """Of 64 cells each adds its weight times what it holds, over 64: red 3, green 4 for warm."""
    found = colors.attribution(0)
    assert (found.label, found.image) == ("warm", 0)
    expected = torch.zeros(3, 8, 8)
    expected[0, :, :4], expected[1, :, 4:] = 3 / 64, 4 / 64
    expected[:, 4:] /= 5
    torch.testing.assert_close(found.heatmaps.grid(0), expected)
    torch.testing.assert_close(found.falls, torch.tensor([0.9, 1.2, 0.0]))  # · 32 · 0.6 cells
    torch.testing.assert_close(
        colors.attribution("0", "cold").heatmaps.grid(0)[1], -expected[1] / 4
    )
    assert found.heatmaps[0].shape == (3, 8, 8)


def test_attribution_sums_to_the_fall_where_the_score_is_no_linear_function():
    """The score is (r + g)², with r = g = 0.3 in the mean: without red it falls from 0.36 to 0.09.
    The gradient at the image alone would say 2 · 0.6 · 0.3 = 0.36."""
    found = of_colors(Squared()).attribution(0, 0)
    assert found.label == "output 0"
    torch.testing.assert_close(found.falls, torch.tensor([0.27, 0.27, 0.0]))


def test_on_photographs_attributions_sum_to_the_falls(group):
    result = deepff.discover(group("021", 3), 3, layer="blocks.6.0.bn1", size=224)
    importance = result.importance()
    found = result.attribution(0, importance.labels[0])
    torch.testing.assert_close(found.falls, importance.falls[0, :, 0], rtol=0.02, atol=0.02)


def test_a_picture_shows_where_factors_are_and_matter(colors):
    """In columns the photo and three factors of 64 × 64 pixels; red is the left half's factor."""
    picture = np.asarray(colors.attribution(0).plot(height=64)).astype(int)
    left = (picture[16] == [255, 0, 0]).all(1).argmax()
    red = np.array([0xD5, 0x5E, 0x00])
    for top in (0, 70):
        np.testing.assert_allclose(
            picture[top + 8, left + 70 + 8], 0.2 * np.array([255, 0, 0]) + 0.8 * red, atol=60
        )
        np.testing.assert_allclose(picture[top + 8, left + 70 + 60], [0, 255, 0], atol=2)


def test_curves_of_a_linear_head_by_hand(colors):
    """Warm is 0.9 + 1.2 + 0 above the head's bias in the first image, its only one. Without green,
    red, blue: 2.1, 0.9, 0, 0. The other way round: 2.1, 2.1, 1.2, 0. In random order each takes a
    third of 2.1."""
    bias = float(colors.opened[0].backbone.network.head.bias[0].detach())
    found = colors.faithfulness("warm")
    assert (found.label, found.order) == ("warm", (1, 0, 2))
    expected = {
        "deletion, importance": [2.1, 0.9, 0, 0],
        "deletion, random": [2.1, 1.4, 0.7, 0],
        "deletion, reverse": [2.1, 2.1, 1.2, 0],
        "insertion, importance": [0, 1.2, 2.1, 2.1],
        "insertion, random": [0, 0.7, 1.4, 2.1],
        "insertion, reverse": [0, 0, 0.9, 2.1],
    }
    assert list(found.curves) == list(expected)
    for name, curve in expected.items():
        above = found.curves[name] - bias
        torch.testing.assert_close(above, torch.tensor(curve), atol=1e-5, rtol=0)
    areas = {name: area - bias for name, area in found.areas.items()}
    assert areas == pytest.approx(
        {
            "deletion, importance": (1.05 + 0.9) / 3,
            "deletion, random": 1.05,
            "deletion, reverse": (1.05 + 2.1 + 1.2) / 3,
            "insertion, importance": (1.05 + 2.1 + 1.2) / 3,
            "insertion, random": 1.05,
            "insertion, reverse": (1.05 + 0.9) / 3,
        },
        abs=1e-5,
    )
    table = found.to_dataframe()
    assert table["deletion, reverse"].tolist() == found.curves["deletion, reverse"].tolist()
    assert list(table.index) == [0, 1, 2, 3]


def test_on_photographs_deletion_by_importance_is_the_fastest(group):
    result = deepff.discover(group("021", 4), 5, size=224)
    areas = result.faithfulness("African elephant").areas
    assert areas["deletion, importance"] < areas["deletion, random"] < areas["deletion, reverse"]
    assert areas["insertion, importance"] > areas["insertion, random"]


def test_tcav_of_a_linear_head_by_hand(colors):
    """The slope along (1, 1, 0) / √2 is (3 + 4) / √2 for warm and −1 / √2 for cold, in all images;
    the head takes means, so that the slopes of the cells sum to that."""
    warm = colors.tcav([1, 1, 0], "warm")
    assert warm.score == 1
    assert warm.sensitivity == pytest.approx(7 / 2**0.5)
    cold = colors.tcav(torch.tensor([5.0, 5.0, 0.0]), "cold")
    assert cold.score == 0
    assert cold.sensitivity == pytest.approx(-(2**-0.5))
    importance = colors.importance()
    for factor in range(3):
        one = colors.tcav(factor, 1)
        assert one.sensitivity == pytest.approx(float(importance.sensitivity[factor, 1]))
        assert one.p_value == pytest.approx(float(importance.p_values[factor, 1]))


@pytest.mark.parametrize("direction", [[1, 2], 3, -1, [0, 0, 0], 0.5 * torch.ones(1, 3)])
def test_what_is_no_direction_is_told(colors, direction):
    with pytest.raises(InputError, match="a direction is a factor, from 0 to 2, or 3 numbers"):
        colors.tcav(direction, "warm")
