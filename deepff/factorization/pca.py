"""Principal components without centring: the signed alternative to NMF (the paper's Eq. 2)."""

import math
from typing import Self

import torch
from torch import Tensor

from deepff.factorization.blocks import (
    Matrix,
    RowBlocks,
    as_row_blocks,
    check_finite,
    check_fitted,
    check_n_components,
    sums,
)
from deepff.runtime.distributed import all_reduce_sum, from_first_rank


class PCA:
    """A ≈ H W with V_k = top eigenvectors of AᵀA (A is not centred), H = A V_k, W = V_kᵀ.

    H and W are signed. Of ±v, the sign is taken that makes the entry of largest magnitude
    (the first of these) positive.

    Parameters
    ----------
    n_components : int
        k, at most rows and channels.
    device : where to compute; None is where A is. Rows elsewhere are sent block by block.
    memory : int or None
        Bytes that may be taken beside A, as of `NMF`.

    Attributes
    ----------
    components_ : Tensor (k, c)
        W, orthonormal rows, by falling eigenvalue.
    reconstruction_err_, relative_err_ : float
        ‖A − HW‖ and ‖A − HW‖ / ‖A‖ (0 if A is zero).
    n_iter_, n_reads_ : int
        1 and 1: one read gives AᵀA, summed in float64. `fit_transform` reads once more for H.

    Notes
    -----
    Where `torch.distributed` is initialised, every rank calls `fit` with its own rows, of any
    number, and all get the W of all rows together.
    """

    needs_non_negative = False

    def __init__(
        self,
        n_components: int,
        device: str | torch.device | None = None,
        memory: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.device = device
        self.memory = memory

    @torch.no_grad()
    def fit(self, A: Matrix | RowBlocks) -> Self:
        """Find `components_` for A (rows, c).

        Raises
        ------
        InputError
            A is not a real matrix of finite values, or k is more than its rows or channels.
        """
        rows = as_row_blocks(A, self.device, self.memory)
        check_n_components(self.n_components, rows)
        gram = sums(rows.n_channels, rows.n_channels, device=rows.device)
        for _, block in rows:
            # Scaled to entries of at most 1, the block's squares fit float32.
            high = block.abs().amax()
            scaled = block / torch.where(high == 0, 1.0, high)
            gram += (scaled.T @ scaled).to(gram) * high.to(gram).square()
        gram = all_reduce_sum(gram).cpu()
        check_finite(float(gram.sum()))
        # One LAPACK scale for all magnitudes.
        scale = float(gram.diagonal().amax()) or 1.0
        values, vectors = torch.linalg.eigh(gram / scale)
        values = values.clamp_min(0) * scale
        V = vectors.flip(1)[:, : self.n_components]
        largest = V.gather(0, V.abs().argmax(0, keepdim=True))
        V = V * torch.where(largest < 0, -1.0, 1.0)
        W = V.T.contiguous().to(rows.device, torch.float32)
        self.components_ = from_first_rank(W)
        residual = float(values[: rows.n_channels - self.n_components].sum())
        total = float(gram.trace())
        self.reconstruction_err_ = math.sqrt(residual)
        self.relative_err_ = math.sqrt(residual / total) if total > 0 else 0.0
        self.n_iter_ = 1
        self.n_reads_ = rows.n_reads
        return self

    @torch.no_grad()
    def transform(self, A: Matrix | RowBlocks) -> Tensor:
        """H = A Wᵀ (rows, k); raises InputError before `fit`, or for other channels than then."""
        rows = as_row_blocks(A, self.device, self.memory)
        check_fitted(self, rows)
        W = self.components_.to(rows.device)
        H = rows.coefficients(len(W))
        finite = torch.ones((), dtype=torch.bool, device=rows.device)
        for place, block in rows:
            H[place] = block @ W.T
            finite &= H[place].isfinite().all()
        check_finite(0.0 if finite else math.nan)
        return H

    def fit_transform(self, A: Matrix | RowBlocks) -> Tensor:
        """`fit(A)`, then `transform(A)`."""
        return self.fit(A).transform(A)
