"""Importance, where it is known by hand, and on real photographs."""

import numpy as np
import pytest
import torch

import deepff
from deepff.errors import InputError
from deepff.meaning.importance import sobol_indices, sobol_masks
from deepff.result import Result
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps


def test_total_sobol_indices_of_functions_whose_indices_are_known():
    """Of 3 m₀ + 4 m₁ the variances are as 9 : 16; of m₀ m₁, with V = 7/144 and V₀ = V₁ = 3/144, the
    total indices are 4/7 each; m₂ has no part in either."""
    m = sobol_masks(3, 2048)
    values = torch.stack([3 * m[:, 0] + 4 * m[:, 1], m[:, 0] * m[:, 1], torch.ones(len(m))], 1)
    expected = torch.tensor([[9 / 25, 4 / 7, 0], [16 / 25, 4 / 7, 0], [0, 0, 0]])
    torch.testing.assert_close(sobol_indices(values, 3), expected, atol=0.01, rtol=0)


def test_jansens_formula_by_hand():
    """Two rows a design, one factor: f(A) = 1, 3; f(B) = 5, 7; f(A with B's column) = 5, 7.

    The variance of f(A) is 2, and the mean of 4² and 4² over twice that is 4.
    """
    values = torch.tensor([1.0, 3.0, 5.0, 7.0, 5.0, 7.0])[:, None]
    assert sobol_indices(values, 1).tolist() == [[4.0]]


@pytest.fixture(scope="module")
def of_colors(linear) -> Result:
    """Two images, red and green in equal halves, and blue; factor j is colour j."""
    images = np.zeros((2, 8, 8, 3), np.uint8)
    images[0, :, :4, 0] = images[0, :, 4:, 1] = images[1, ..., 2] = 255
    images[1, 4:] //= 5
    backbone = deepff.load_backbone(
        linear, mean=(0, 0, 0), std=(1, 1, 1), labels=["warm", "cold"], device="cpu"
    )
    result = deepff.discover(list(images), 1, model=backbone, layer="layer", size=8)
    heatmaps = HeatMaps.of_images(result.activations.rows, result.images)
    result.factorizations = {3: Factorization(torch.eye(3), heatmaps, 0.0, 1)}
    return result


def test_importance_of_a_linear_head_is_its_weights(of_colors):
    found = of_colors.importance()
    assert found.labels == ("warm", "cold")
    assert found.is_of.tolist() == [[True, False], [False, True]]
    # of the first image red and green are each half the mean; the second is blue, half of it a 5th
    weights = torch.tensor([[3.0, 4.0, 0.0], [0.0, -1.0, 2.0]])
    held = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 0.6]])
    expected = torch.einsum("ik,mk->ikm", held, weights)
    torch.testing.assert_close(found.falls, expected)
    torch.testing.assert_close(found.mean_falls[:, 0], torch.tensor([1.5, 2.0, 0.0]))
    exact = torch.tensor([[9 / 25, 0.0], [16 / 25, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(found.sobol, exact, atol=0.15, rtol=0)  # of 32 rows a design
    torch.testing.assert_close(found.sensitivity, weights.T)
    assert found.agreement.tolist() == [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]


def test_importance_of_classes_that_are_asked_for(of_colors):
    found = of_colors.importance(classes=["cold"], n_images=1)
    assert (found.labels, found.images) == (("cold",), (0,))
    assert found.is_of.tolist() == [[True]]  # no image's first choice: all count
    torch.testing.assert_close(found.falls[0, :, 0], torch.tensor([0.0, -0.5, 0.0]))
    assert of_colors.importance(
        classes=[of_colors.classes().labels.index("cold")], n_images=1
    ).labels == ("cold",)
    with pytest.raises(InputError, match="no class 99"):
        of_colors.importance(classes=[99])
    with pytest.raises(InputError, match="no class 'cool'; the closest are cold"):
        of_colors.importance(classes=["cool"])


@pytest.mark.parametrize("classes", [[], (), 1, "cold", "", np.array([]), np.int64(1)])
def test_classes_that_are_no_list_of_classes_are_named(of_colors, classes):
    with pytest.raises(InputError, match=r"classes is .*: pass a list of one class or more"):
        of_colors.importance(classes=classes)


def test_on_photographs_a_linear_head_weighs_what_the_factors_hold(group):
    """The head of EfficientNet-Lite0 is linear in the mean: of class c a factor's fall is
    mean(h) · w · C, and its share of the variance that squared over the sum of all squared."""
    result = deepff.discover(group("021", 5), 3)
    found = result.importance()
    assert found.labels[0] == "African elephant"
    weights = result.opened[0].backbone.network.classifier.weight.detach()
    of_class = weights[result.classes().labels.index("African elephant")]
    held = torch.stack([result.heatmaps.grid(i).mean((1, 2)) for i in found.images])
    falls = held * (result.components @ of_class)
    torch.testing.assert_close(found.falls[..., 0], falls, rtol=1e-3, atol=1e-4)

    exact = (falls**2 / (falls**2).sum(1, keepdim=True)).mean(0)
    torch.testing.assert_close(found.sobol[:, 0], exact, atol=0.15, rtol=0)
    named = result.factor_names.index("African elephant")
    assert found.sensitivity[named, 0] > 0
    assert found.p_values[named, 0] == 1 / 201
    rows = found.to_dataframe()
    assert rows["factor"][0] == int(falls.mean(0).argmax())
    assert set(rows["name"]) == set(result.factor_names)
