"""NMF of matrices of every kind beside scikit-learn's, and what each fit must keep."""

import warnings

import numpy as np
import pytest
import torch
from matrices import MATRICES, relative_error
from rounding import coefficient_rounding
from scipy.sparse import csr_array
from sklearn import decomposition
from sklearn.datasets import load_digits

from deepff.factorization import NMF

ROUNDING = 2e-6  # what float32 leaves uncertain of a relative error


def scikit_learns_best(A: np.ndarray, k: int) -> float:
    """The lesser error of its two starts."""
    errors = []
    A = A / A.max()
    for init in ("random", "nndsvda"):
        model = decomposition.NMF(k, init=init, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            H = model.fit_transform(A)
        errors.append(relative_error(A, H, model.components_))
    return min(errors)


@pytest.mark.parametrize("name", MATRICES)
def test_the_fit_is_right(name: str) -> None:
    made, k = MATRICES[name](np.random.default_rng(0))
    A = made.astype(np.float32).astype(np.float64)
    model = NMF(k, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        H = model.fit_transform(A)
    W = model.components_
    assert np.isfinite(H).all() and np.isfinite(W).all()
    assert (H >= 0).all() and (W >= 0).all()
    # What is non-negative can't add up to a row and be longer than it.
    assert (H.max(1) <= 1.001 * np.linalg.norm(A, axis=1)).all()
    error = relative_error(A, H, W)
    assert error <= 1.005 * scikit_learns_best(A, k) + ROUNDING
    assert model.relative_err_ == pytest.approx(error, rel=1e-4, abs=ROUNDING)
    assert np.diff(model.errors_).max() <= ROUNDING
    transformed = model.transform(A)
    assert relative_error(A, transformed, W) == pytest.approx(error, rel=1e-4, abs=ROUNDING)
    eigenvalues = np.linalg.eigvalsh(W.astype(np.float64) @ W.T)
    if eigenvalues[0] > 1e-3 * eigenvalues[-1]:  # else several H are as good
        np.testing.assert_allclose(transformed, H, rtol=0, atol=coefficient_rounding(A, W))
    weights = np.linalg.norm(H.astype(np.float64), axis=0)
    assert (np.diff(weights) <= 1e-6 * weights.max()).all()
    assert ((weights == 0) == (W == 0).all(1)).all()


def _counts(rng: np.random.Generator) -> csr_array:
    H = rng.exponential(size=(2000, 10)) * (rng.random((2000, 10)) < 0.2)
    W = rng.exponential(size=(10, 300)) * (rng.random((10, 300)) < 0.15)
    return csr_array(rng.poisson(0.3 * H @ W).astype(np.float32))


def _noisy_low_rank(rng: np.random.Generator) -> np.ndarray:
    product = rng.exponential(size=(300, 8)) @ rng.exponential(size=(8, 50))
    return np.abs(product + rng.normal(size=product.shape))


SMALL = {
    "digits": lambda rng: load_digits().data,
    "low rank": _noisy_low_rank,
    "heavy tail": lambda rng: rng.pareto(1.5, (400, 50)),
    "sparse counts": _counts,
}


@pytest.mark.parametrize("k", [2, 6, 10])
@pytest.mark.parametrize("name", SMALL)
def test_small_matrices_end_at_scikit_learns_error_or_below(name: str, k: int) -> None:
    """That of its defaults, which stop early or after 200 iterations; whatever the seed."""
    A = SMALL[name](np.random.default_rng(0))
    dense = A.toarray() if name == "sparse counts" else A
    theirs = decomposition.NMF(k, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        H = theirs.fit_transform(A)
    bound = relative_error(dense, H, theirs.components_) + 1e-4
    for seed in range(2):
        assert NMF(k, random_state=seed).fit(A).relative_err_ <= bound


def test_factors_that_nothing_needs_stay_in_range() -> None:
    """Random factors of which half is zero, of rank at most three, in six."""
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        H = (torch.rand(100, 3, generator=generator) - 0.5).clamp_min(0)
        A = H @ (torch.rand(3, 40, generator=generator) - 0.5).clamp_min(0)
        model = NMF(6, random_state=0)
        found = model.fit_transform(A)
        assert found.max() <= 1.001 * A.norm(dim=1).max()
        assert model.relative_err_ < 1e-4
        weights = found.norm(dim=0)
        assert torch.equal(weights > 0, model.components_.norm(dim=1) > 0)
        assert (weights.diff() <= 0).all()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("rows", "strong", "strength"), [(40_000, 3, 1e3), (90_000, 20, 20.0)])
@pytest.mark.parametrize("limit", [None, 20])
def test_a_few_strong_rows_are_not_missed(
    rows: int, strong: int, strength: float, limit: int | None, seed: int
) -> None:
    """Rows with channels of their own that are in no even sample, of a matrix of many reads."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.zeros(rows, 60)
    A[:, :50] = torch.rand(rows, 50, generator=generator)
    chosen = torch.randperm(rows, generator=generator)[:strong]
    A[chosen] = 0
    A[chosen, 55:] = strength * (0.5 + torch.rand(strong, 5, generator=generator))
    model = NMF(3, random_state=seed, max_iter=limit, tol=0)
    model.fit(A)
    # Their factor is a singular vector nearly, so the fit is near PCA's.
    assert float(model.components_[:, 50:].norm(dim=1).max()) > 0.99
    S = torch.linalg.svdvals(A.double())
    assert model.relative_err_ <= 1.02 * float(S[3:].norm() / S.norm())
