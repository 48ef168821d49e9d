"""The compared methods on activations made by hand."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepff.activations.activations import Activations, ImageRecord
from deepff.evaluation.predictions import (
    Variant,
    category_consistent,
    factor_coefficients,
    mean_activation,
    object_cluster,
    object_coefficients,
)
from deepff.factorization.nmf import NMF


def activations(*blocks: Tensor, cells: list[int]) -> Activations:
    images = [ImageRecord(f"{i}", Path(f"{i}"), (8, 8), (1, n)) for i, n in enumerate(cells)]
    return Activations(images, list(blocks))


# Three images of 2, 1 and 2 cells in two blocks. Channels 0 and 1 fire in every image; channel 2
# fires strongest of all, but in the first image only.
SET = activations(
    torch.tensor([[9.0, 8.0, 20.0, 0.0], [0.0, 1.0, 0.0, 1.0], [8.0, 9.0, 0.0, 0.0]]),
    torch.tensor([[9.0, 1.0, 0.0, 1.0], [1.0, 9.0, 0.0, 0.0]]),
    cells=[2, 1, 2],
)


def test_rows_of_images_in_blocks() -> None:
    assert [rows[:, 0].tolist() for rows in SET.image_rows] == [[9.0, 0.0], [8.0], [9.0, 1.0]]


def test_mean_activation_is_the_mean_over_channels() -> None:
    assert mean_activation(SET).tolist() == [[9.25], [0.5], [4.25], [2.75], [2.5]]


def test_category_consistent_channels_fire_in_every_image() -> None:
    # Maxima by image: (9, 8, 9), (8, 9, 9), (20, 0, 0), (1, 0, 1). Three clusters: the first two
    # channels with a mean of 8.7, the third with 6.7, the fourth with 0.7.
    found = category_consistent(SET, n_clusters=3)
    assert found.tolist() == [[17.0], [1.0], [17.0], [10.0], [10.0]]


def test_category_consistent_with_fewer_channels_than_clusters() -> None:
    # Each channel is a cluster of its own: channels 0 and 1 have equal means, the others lower.
    found = category_consistent(SET, n_clusters=5)
    blocks = torch.cat(SET.blocks)
    assert any(torch.equal(found, blocks[:, j : j + 1]) for j in (0, 1))


def test_the_object_is_the_cluster_with_the_longer_center() -> None:
    weak, strong = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 4.0, 3.0])
    rows = torch.stack([weak, strong, weak, weak])
    assert object_cluster(activations(rows, cells=[4])).tolist() == [[0.0], [1.0], [0.0], [0.0]]


def test_one_factor_of_nmf_is_the_first_principal_component() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(60, 5, generator=generator)
    found = factor_coefficients(activations(rows, cells=[60]), 1)
    dff, pca = found[Variant("DFF", 1)], found[Variant("PCA", 1)]
    torch.testing.assert_close(dff / dff.norm(), pca / pca.norm(), atol=1e-3, rtol=0)
    assert (pca > 0).all()


@pytest.mark.parametrize("solver", ["hals", "mu"])
def test_nmf_is_solved_as_asked(solver: str) -> None:
    rows = torch.rand(60, 5, generator=torch.Generator().manual_seed(0))
    found = factor_coefficients(activations(rows, cells=[60]), 3, seed=4, solver=solver)
    expected = NMF(3, solver=solver, random_state=4).fit_transform([rows])
    assert torch.equal(found[Variant("DFF", 3, 4)], expected)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_factorization_gives_k_columns_for_all_rows(k: int) -> None:
    found = factor_coefficients(SET, k, seed=4)
    assert {variant: tuple(H.shape) for variant, H in found.items()} == {
        Variant(method, k, 4): (5, k) for method in ("DFF", "PCA", "k-means")
    }


def test_objects_have_one_map_a_method() -> None:
    found = object_coefficients(SET)
    assert [variant.method for variant in found] == [
        "DFF", "PCA", "k-means", "mean activation", "Le et al.",
    ]  # fmt: skip
    assert all(H.shape == (5, 1) for H in found.values())
