"""Principal components without centering: the signed alternative to NMF (the paper's Eq. 2)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepff.factorization.blocks import RowBlocks, check_finite, check_range, sums
from deepff.factorization.estimator import Factorization
from deepff.runtime.distributed import all_reduce_sum, from_first_rank, gather_rows, rows_before

_LARGEST = 2048  # of rows or channels, for an exact solution: 2 s; the cube of it counts
_COPIES = 4  # of the matrix that is solved, at the same time
# Subspace iteration (Halko, Martinsson & Tropp 2011): vectors besides k, and when it ends: as the
# squares of the singular values rise by no more than this share, or after so many reads.
_OVERSAMPLING, _CONVERGED, _MOST_READS = 10, 1e-10, 50


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
        1 and 1: one read gives AᵀA, or A where it has fewer rows than channels, in float64. With
        more than 2048 of both, or where that does not fit in `memory`, the reads of a subspace
        iteration, by blocks. `fit_transform` reads once more for H.

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

    def __init__(
        self,
        n_components: int = 4,
        device: str | torch.device | None = None,
        memory: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.device = device
        self.memory = memory

    def _fit(self, rows: RowBlocks) -> tuple[Tensor, Tensor | None]:
        n_rows, c, k = rows_before(rows.n_rows)[1], rows.n_channels, self.n_components
        smaller = min(n_rows, c)
        fits = torch.tensor(8 * _COPIES * smaller * c <= rows.memory, device="cpu")
        if smaller > _LARGEST or not from_first_rank(fits.int()):
            solution = _by_iteration(rows, k)
        else:
            solution = _by_rows(rows, k) if n_rows < c else _by_gram(rows, k)
        V, residual, total, self.n_iter_ = solution
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
    n_iter: int = 1


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


def _by_iteration(rows: RowBlocks, k: int) -> _Solution:
    """By V ← orthonormal basis of AᵀA V, (c, k + 10), from random numbers: nothing is larger."""
    c = rows.n_channels
    generator = torch.Generator("cpu").manual_seed(0)
    start = torch.randn(
        c, min(c, k + _OVERSAMPLING), generator=generator, dtype=torch.float64, device="cpu"
    )
    V, last = torch.linalg.qr(start)[0], 0.0
    for n_iter in range(1, _MOST_READS + 1):
        product, energy = sums(*V.shape, device=rows.device), sums(1, device=rows.device)
        moved = V.to(product)
        for _, block in rows:
            block = block.to(product)
            product += block.T @ (block @ moved)
            energy += block.square().sum()
        product, energy = all_reduce_sum(product).cpu(), all_reduce_sum(energy)
        check_finite(float(energy))
        # The best of this subspace (Rayleigh and Ritz).
        values, turn = torch.linalg.eigh(V.T @ product)
        held, V = float(from_first_rank(values[-k:].sum())), V @ turn.flip(1)
        if held - last <= _CONVERGED * held:
            break
        if n_iter < _MOST_READS:
            last, V = held, from_first_rank(torch.linalg.qr(product @ turn.flip(1))[0])
    total = float(energy)
    return _Solution(V[:, :k], max(total - held, 0.0), total, n_iter)


ESTIMATOR = PCA
