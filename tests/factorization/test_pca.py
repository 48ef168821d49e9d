"""PCA against numpy's singular value decomposition."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from deepff.errors import InputError
from deepff.factorization import PCA


def signed(V: np.ndarray) -> np.ndarray:
    """Each row with its entry of largest magnitude positive."""
    largest = V[np.arange(len(V)), np.abs(V).argmax(1)]
    return V * np.sign(largest)[:, None]


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(3, 60), channels=st.integers(3, 60), seed=st.integers(0, 99))
def test_agrees_with_the_singular_value_decomposition(rows: int, channels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = min(rows, channels, 3)
    # Singular values a factor apart, so that the vectors are unique.
    Q, _ = np.linalg.qr(rng.normal(size=(rows, k)))
    V, _ = np.linalg.qr(rng.normal(size=(channels, k)))
    A = (Q * [9.0, 4.0, 2.0]) @ V.T + 0.01 * rng.normal(size=(rows, channels))
    _, S, Vh = np.linalg.svd(A, full_matrices=False)
    model = PCA(2)
    H = model.fit_transform(A)
    np.testing.assert_allclose(model.components_, signed(Vh[:2]), atol=1e-4)
    np.testing.assert_allclose(H, A @ signed(Vh[:2]).T, atol=1e-3)
    residual = math.sqrt((S[2:] ** 2).sum())
    assert model.reconstruction_err_ == pytest.approx(residual, rel=1e-4)
    assert model.relative_err_ == pytest.approx(residual / np.linalg.norm(A), rel=1e-4)


def test_activations_are_not_centred() -> None:
    A = np.full((10, 4), 3.0)
    model = PCA(1)
    H = model.fit_transform(A)
    np.testing.assert_allclose(model.components_, np.full((1, 4), 0.5), atol=1e-6)
    np.testing.assert_allclose(H, np.full((10, 1), 6.0), atol=1e-5)
    assert model.relative_err_ < 1e-6


def test_an_exact_fit_is_seen_to_be_exact() -> None:
    rng = np.random.default_rng(0)
    A = (rng.random((5000, 3)) @ rng.random((3, 60))).astype(np.float32)
    assert PCA(3).fit(A).relative_err_ < 1e-6


@pytest.mark.parametrize("offset", [1e2, 1e3, 1e4])
def test_components_do_not_turn_beside_a_large_mean(offset: float) -> None:
    rng = np.random.default_rng(0)
    A = (rng.normal(size=(4000, 3)) * [3, 2, 1]) @ rng.normal(size=(3, 40))
    A = (A + 0.1 * rng.normal(size=A.shape) + offset).astype(np.float32)
    _, S, Vh = np.linalg.svd(A.astype(np.float64), full_matrices=False)
    model = PCA(4).fit(A)
    assert np.abs((model.components_ * Vh[:4]).sum(1)).min() > 1 - 1e-5
    expected = np.linalg.norm(S[4:]) / np.linalg.norm(S)
    assert model.relative_err_ == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("shape", [(20, 4000), (20, 20_000), (300, 500)])
def test_of_fewer_rows_than_channels_nothing_is_as_large_as_channels_squared(
    shape: tuple[int, int],
) -> None:
    A = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with Largest() as largest:
        model = PCA(3).fit(A)
    assert largest.n_entries <= A.size
    _, S, Vh = np.linalg.svd(A.astype(np.float64), full_matrices=False)
    np.testing.assert_allclose(model.components_, signed(Vh[:3]), atol=1e-5)
    assert model.relative_err_ == pytest.approx(np.linalg.norm(S[3:]) / np.linalg.norm(S), rel=1e-5)
    assert model.n_reads_ == 1


class Largest(TorchDispatchMode):
    """The entries of the largest tensor that is made, A itself and views of it aside."""

    n_entries = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [
            x for x in tree_leaves(result) if isinstance(x, Tensor) and x.dtype == torch.float64
        ]
        self.n_entries = max([self.n_entries, *(x.numel() for x in made)])
        return result


def test_one_read_finds_the_components() -> None:
    model = PCA(2).fit(torch.rand(50, 6))
    assert (model.n_reads_, model.n_iter_) == (1, 1)


@settings(deadline=None, max_examples=20)
@given(cuts=st.lists(st.integers(0, 80), max_size=5))
def test_result_does_not_depend_on_the_split_into_blocks(cuts: list[int]) -> None:
    A = torch.randn(80, 7, generator=torch.Generator().manual_seed(0))
    H = PCA(3).fit_transform(A)
    torch.testing.assert_close(PCA(3).fit_transform(A.tensor_split(sorted(cuts))), H)


@pytest.mark.parametrize(
    "A",
    [
        torch.zeros(9, 4),
        torch.ones(9, 4),
        torch.randn(9, 4) * 1e30,
        torch.randn(9, 4) * 1e-30,
        torch.cat([torch.ones(9, 4), torch.full((1, 4), -1e30)]),
        torch.zeros(4, 9),
        torch.ones(4, 9),
        torch.randn(4, 9) * 1e30,
        torch.randn(4, 9) * 1e-30,
    ],
)
def test_degenerate_matrices(A: torch.Tensor) -> None:
    model = PCA(3)
    H = model.fit_transform(A)
    W = model.components_
    assert H.isfinite().all()
    torch.testing.assert_close(W @ W.T, torch.eye(3), atol=1e-5, rtol=0)
    scale = float(A.abs().max()) or 1.0
    residual = float((A.double() / scale - H.double() / scale @ W.double()).norm())
    assert model.reconstruction_err_ / scale == pytest.approx(residual, rel=1e-3, abs=1e-5)
    assert 0 <= model.relative_err_ <= 1


def test_user_mistakes_are_refused() -> None:
    for k in (0, 5, 1.5):
        with pytest.raises(InputError, match="n_components"):
            PCA(k).fit(torch.rand(9, 4))
    for value in (math.nan, math.inf):
        with pytest.raises(InputError, match="NaN or infinite"):
            PCA(1).fit(torch.tensor([[1.0, value]]))
    with pytest.raises(InputError, match="not fitted"):
        PCA(1).transform(torch.rand(9, 4))
    with pytest.raises(InputError, match="5 features"):
        PCA(1).fit(torch.rand(9, 4)).transform(torch.rand(9, 5))
