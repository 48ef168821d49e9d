"""Semi-NMF of signed matrices of every kind, beside the updates of Ding, Li & Jordan."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import MATRICES, relative_error

from deepff.errors import InputError
from deepff.factorization import NMF, SemiNMF

ROUNDING = 5e-6  # what float32 leaves uncertain of a relative error where factors nearly cancel


def signed_matrix(name: str, seed: int = 0) -> tuple[np.ndarray, int]:
    """One of `MATRICES`, its largest entry one, less a random multiple of each channel's mean."""
    rng = np.random.default_rng(seed)
    A, k = MATRICES[name](rng)
    A = A[:: math.ceil(len(A) / 4000)] / A.max()
    A = A - A.mean(0) * rng.uniform(0, 1.5, A.shape[1])
    return A.astype(np.float32).astype(np.float64), k


def ding(A: np.ndarray, k: int, iterations: int = 300) -> float:
    """The error of their multiplicative updates, from k-means (their Section 3.2)."""
    from sklearn.cluster import KMeans

    H = np.eye(k)[KMeans(k, n_init=1, random_state=0).fit(A).labels_] + 0.2
    for _ in range(iterations):
        W = np.linalg.pinv(H.T @ H) @ (H.T @ A)
        G, Q = A @ W.T, W @ W.T
        up = G.clip(0) + H @ (-Q).clip(0)
        H = H * np.sqrt(up / ((-G).clip(0) + H @ Q.clip(0) + 1e-30))
    return relative_error(A, H, np.linalg.pinv(H.T @ H) @ (H.T @ A))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", MATRICES)
def test_the_fit_is_right(name: str) -> None:
    A, k = signed_matrix(name)
    model = SemiNMF(k, random_state=0)
    H = model.fit_transform(A)
    W = model.components_
    assert np.isfinite(H).all() and np.isfinite(W).all()
    assert (H >= 0).all() and (W < 0).any()
    error = relative_error(A, H, W)
    assert error <= 1.005 * ding(A, k) + ROUNDING
    assert model.relative_err_ == pytest.approx(error, rel=1e-4, abs=ROUNDING)
    assert np.diff(model.errors_).max() <= ROUNDING
    lengths = np.linalg.norm(W, axis=1)
    np.testing.assert_allclose(lengths[lengths > 0], 1, rtol=1e-5)
    strengths = np.linalg.norm(H.astype(np.float64), axis=0)
    assert (np.diff(strengths) <= 1e-6 * strengths.max()).all()
    # Where W is nearly singular, several H are as good.
    transformed = model.transform(A)
    assert relative_error(A, transformed, W) == pytest.approx(error, rel=1e-4, abs=ROUNDING)


def test_with_one_factor_it_is_the_first_singular_vector_cut_at_zero() -> None:
    rng = np.random.default_rng(0)
    W = rng.normal(size=20)
    A = rng.random((300, 1)) * W + 0.01 * rng.normal(size=(300, 20))
    model = SemiNMF(1, random_state=0).fit(A)
    first = np.linalg.svd(A, full_matrices=False)[2][0]
    assert abs(model.components_[0] @ first) == pytest.approx(1, abs=1e-4)
    assert model.components_[0] @ W > 0
    S = np.linalg.svd(A, compute_uv=False)
    assert model.relative_err_ == pytest.approx(
        np.sqrt((S[1:] ** 2).sum() / (S**2).sum()), rel=0.01
    )


def test_planted_factors_are_found() -> None:
    """Rows of one factor each, whose directions have any sign: unique, and found."""
    rng = np.random.default_rng(1)
    W = rng.normal(size=(4, 50))
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    which = rng.integers(4, size=20_000)
    A = np.float32(rng.uniform(0.5, 1, (20_000, 1)) * W[which])
    A += 0.01 * rng.normal(size=A.shape).astype(np.float32)
    for seed in range(3):
        model = SemiNMF(4, random_state=seed)
        H = model.fit_transform(A)
        cosines = model.components_ @ W.T
        assert (cosines.max(0) > 0.995).all()
        assert (cosines.argmax(1)[H.argmax(1)] == which).mean() > 0.999


@settings(deadline=None, max_examples=15)
@given(cuts=st.lists(st.integers(0, 300), max_size=5))
def test_result_does_not_depend_on_the_split_into_blocks(cuts: list[int]) -> None:
    A = torch.randn(300, 12, generator=torch.Generator().manual_seed(0))
    H = SemiNMF(3, random_state=0).fit_transform(A)
    split = SemiNMF(3, random_state=0).fit_transform(A.tensor_split(sorted(cuts)))
    torch.testing.assert_close(split, H)


def test_the_same_seed_gives_the_same_factors() -> None:
    A = torch.randn(500, 30, generator=torch.Generator().manual_seed(0))
    fits = [SemiNMF(4, random_state=3).fit(A).components_ for _ in range(2)]
    assert torch.equal(*fits)


def test_of_many_rows_few_reads_are_made() -> None:
    """More rows than the sample has, and with a bound on memory."""
    generator = torch.Generator().manual_seed(0)
    A = torch.rand(40_000, 5, generator=generator) @ torch.randn(5, 64, generator=generator)
    A += 0.3 * torch.randn(A.shape, generator=generator)
    model = SemiNMF(5, random_state=0)
    model.fit(A)
    assert model.n_reads_ <= 8
    bounded = SemiNMF(5, random_state=0, memory=16 * 2**20)
    bounded.fit(A)
    assert bounded.relative_err_ == pytest.approx(model.relative_err_, rel=2e-3)
    S = torch.linalg.svdvals(A)
    assert model.relative_err_ <= 1.05 * float(S[5:].norm() / S.norm())


def test_of_rows_that_are_never_negative_it_fits_no_worse_than_nmf() -> None:
    A = torch.rand(400, 5) @ torch.rand(5, 40) + 0.1 * torch.rand(400, 40)
    semi, nmf = SemiNMF(3, random_state=0).fit(A), NMF(3, random_state=0).fit(A)
    assert semi.relative_err_ <= 1.001 * nmf.relative_err_


@pytest.mark.parametrize(
    "A",
    [
        torch.zeros(9, 4),
        torch.ones(9, 4),
        -torch.ones(9, 4),
        torch.randn(9, 4) * 1e30,
        torch.randn(9, 4) * 1e-30,
        torch.cat([torch.ones(9, 4), torch.full((1, 4), -1e30)]),
        torch.cat([torch.ones(9, 1), -torch.ones(9, 1)], dim=1).repeat(1, 2),
    ],
)
def test_degenerate_matrices(A: torch.Tensor) -> None:
    model = SemiNMF(3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        H = model.fit_transform(A)
    W = model.components_
    assert H.isfinite().all() and W.isfinite().all() and (H >= 0).all()
    assert torch.equal((H > 0).any(0), (W != 0).any(1))
    scale = float(A.abs().max()) or 1.0
    residual = float((A.double() / scale - H.double() / scale @ W.double()).norm())
    assert model.reconstruction_err_ / scale == pytest.approx(residual, rel=1e-3, abs=1e-5)


def test_user_mistakes_are_refused() -> None:
    for options in ({"max_iter": 0}, {"n_init": 0}, {"tol": -1.0}, {"random_state": "one"}):
        with pytest.raises(InputError, match=next(iter(options))):
            SemiNMF(2, **options).fit(torch.randn(9, 4))
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match="NaN or infinite"):
            SemiNMF(1).fit(torch.tensor([[1.0, value], [1.0, 2.0]]))
        with pytest.raises(InputError, match="NaN or infinite"):
            SemiNMF(1).fit(torch.randn(9, 2)).transform(torch.tensor([[1.0, value]]))
