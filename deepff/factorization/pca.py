"""Principal components without centering: the signed alternative to NMF (the paper's Eq. 2)."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from deepff.factorization.blocks import RowBlocks, check_finite, check_range, sums
from deepff.factorization.estimator import Factorization
from deepff.runtime.distributed import all_reduce_sum, from_first_rank, gather_rows, rows_before


@dataclass(eq=False, repr=False)
class PCA(Factorization):
    """Without centering A, A ≈ H W with V_k = top eigenvectors of AᵀA, H = A V_k, W = V_kᵀ.

    Unlike scikit-learn's PCA it leaves the mean in A, as the paper does (its Eq. 2). H and W are
    signed. Of ±v, the sign is taken that makes the entry of largest magnitude (the first of these)
    positive. With several processes, every rank calls `fit` with its rows, and all get the same W.

    Parameters
    ----------
    n_components : int
        k, at most rows and channels.
    device, memory :
        As of `NMF`.

    Attributes
    ----------
    components_ : (k, c)
        W, orthonormal rows, by falling eigenvalue.
    reconstruction_err_, relative_err_ : float
        ‖A − HW‖ and ‖A − HW‖ / ‖A‖ (0 if A is zero).
    n_iter_, n_reads_ : int
        1 and 1: one read gives AᵀA, or A where it has fewer rows than channels, in float64, which
        `memory` does not limit. `fit_transform` reads once more for H.

    Examples
    --------
    >>> import numpy as np
    >>> from deepff import PCA
    >>> A = np.random.default_rng(0).normal(size=(500, 20))
    >>> pca = PCA(3)
    >>> H = pca.fit_transform(A)
    >>> W = pca.components_
    >>> bool(np.allclose(W @ W.T, np.eye(3), atol=1e-5)), bool(np.allclose(H, A @ W.T, atol=1e-4))
    (True, True)
    """

    n_components: int = 4
    device: str | torch.device | None = None
    memory: int | None = None

    def _fit(self, rows: RowBlocks) -> tuple[Tensor, Tensor | None]:
        solve = _by_rows if rows_before(rows.n_rows)[1] < rows.n_channels else _by_gram
        V, residual, total = solve(rows, self.n_components)
        self.n_iter_ = 1
        largest = V.gather(0, V.abs().argmax(0, keepdim=True))
        V = V * torch.where(largest < 0, -1.0, 1.0)
        W = V.T.contiguous().to(rows.device, torch.float32)
        self.reconstruction_err_ = math.sqrt(residual)
        self.relative_err_ = math.sqrt(residual / total) if total > 0 else 0.0
        self.n_reads_ = rows.n_reads
        return from_first_rank(W), None

    def _coefficients(self, rows: RowBlocks, W: Tensor) -> Tensor:
        H = rows.coefficients(len(W))
        high = torch.zeros((), dtype=torch.float32, device=rows.device)
        for index, block in rows:
            H[index] = block @ W.T
            high = torch.maximum(high, block.abs().amax())
        check_finite(float(high))
        check_range(H)
        return H


class _Solution(NamedTuple):
    V: Tensor  # (c, k), float64, on the CPU
    residual: float  # ‖A − AVVᵀ‖²
    total: float  # ‖A‖²


def _by_gram(rows: RowBlocks, k: int) -> _Solution:
    """By the eigenvectors of AᵀA (c, c)."""
    gram = sums(rows.n_channels, rows.n_channels, device=rows.device)
    for _, block in rows:
        # In float32, rounding would hide what lies 10⁻⁷ below the largest eigenvalue: all but
        # the mean of rows that are far from zero.
        block = block.to(gram)
        gram.addmm_(block.T, block)
    gram = all_reduce_sum(gram).cpu()
    check_finite(float(gram.sum()))
    # One LAPACK scale for all magnitudes.
    scale = float(gram.diagonal().amax()) or 1.0
    values, vectors = torch.linalg.eigh(gram / scale)
    values = values.clamp_min(0) * scale
    residual = float(values[: rows.n_channels - k].sum())
    return _Solution(vectors.flip(1)[:, :k], residual, float(gram.trace()))


def _by_rows(rows: RowBlocks, k: int) -> _Solution:
    """By the singular vectors of A (rows, c), of fewer rows than channels."""
    A = sums(rows.n_rows, rows.n_channels, device=torch.device("cpu"))
    for index, block in rows:
        A[index] = block.to(A)
    A = gather_rows(A)
    check_finite(float(A.sum()))
    scale = float(A.abs().amax()) or 1.0
    _, S, Vh = torch.linalg.svd(A.div_(scale), full_matrices=False)
    squares = (S * scale).square()
    return _Solution(Vh[:k].T, float(squares[k:].sum()), float(squares.sum()))


ESTIMATOR = PCA
