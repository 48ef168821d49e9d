"""Reads of A: its checks, the sums that an update of W needs, and H for a fixed W."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from deepff.factorization.blocks import (
    RowBlocks,
    check_finite,
    check_non_negative,
    check_range,
    scaled,
    sums,
)
from deepff.factorization.nnls import solve, sweep
from deepff.factorization.sparse import SparseBlock, dense, row_norms
from deepff.runtime.distributed import all_reduce_max, all_reduce_sum, from_first_rank

SOLVE_BLOCKS = 16  # blocks at once where there is one product only
_PRECISE_ROWS = 2048  # in float64 at once
# Of ‖A‖²: below, float32 moves an error that is computed from sums by more than about 1e-6.
CANCELLATION = 0.03
# Of the length of H where W may be signed, beside that of A: ten times float32's rounding.
_SHRUNK = 1e-6
# Largest entries between these need no scaling for float32 to hold the sums of squares.
_SAFE = (2.0**-30, 2.0**30)

# H (k, b), G = W · blockᵀ (k, b) and W Wᵀ (k, k) to the next H.
Update = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass
class Progress:
    """Where a fit stands.

    Attributes
    ----------
    W : Tensor (k, c)
        Its rows of length one, or zero.
    H : Tensor (rows, k)
        To be multiplied by diag(`scale`).
    scale : Tensor (k,)
    total : float
        ‖A‖².
    errors : list of float
        ‖A − HW‖ / ‖A‖ after each iteration.
    by_residual : bool
        Whether A − HW is computed, and not only its norm from sums.
    """

    W: Tensor
    H: Tensor
    scale: Tensor
    total: float
    errors: list[float] = field(default_factory=list)
    by_residual: bool = False

    def set_components(self, W: Tensor) -> None:
        """Take W (k, c) of any length, and H to match."""
        W = from_first_rank(W)
        lengths = W.norm(dim=1)
        self.scale = lengths.to(self.scale)
        self.W = (W / lengths.clamp_min(torch.finfo(W.dtype).tiny)[:, None]).to(self.W)

    def note(self, loss: float) -> None:
        """Append to the errors."""
        self.errors.append(relative_error(loss, self.total))


def scan(rows: RowBlocks, signed: bool = False) -> tuple[Tensor, float]:
    """Check all entries and set the scale; the lengths of the rows (rows,), and ‖A‖².

    Entries below zero are refused unless A may be `signed`: then the lengths alone say whether all
    is well, as they mostly do.
    """
    if signed:
        lengths, energy, (_, longest) = _measured(rows, by_entry=False)
        if _SAFE[0] < longest < _SAFE[1]:
            return lengths, energy
    lengths, energy, extremes = _measured(rows, by_entry=True)
    if power := _power(_check_extremes(extremes, signed)):  # squares overflow or vanish
        rows.power = power
        lengths, energy, _ = _measured(rows, by_entry=False)
    return lengths, energy


def _measured(rows: RowBlocks, by_entry: bool) -> tuple[Tensor, float, Tensor]:
    """One read of A: the lengths of its rows, ‖A‖², and the extremes of entries, or of lengths."""
    lengths = torch.empty(rows.n_rows, dtype=torch.float32, device=rows.device)
    energy = sums(1, device=rows.device)
    extremes = torch.zeros(2, dtype=torch.float32, device=rows.device)
    for index, block in rows.compress():
        norms = row_norms(block)
        parts = block.entries() if isinstance(block, SparseBlock) else [block]
        for part in parts if by_entry else [norms]:
            extremes = torch.maximum(extremes, _extremes(part))
        lengths[index] = norms
        energy += norms.to(energy).square().sum()
    return lengths, float(all_reduce_sum(energy)), all_reduce_max(extremes)


def accumulate(rows: RowBlocks, progress: Progress, update: Update) -> tuple[Tensor, Tensor, float]:
    """One read of A: update H; P = HᵀA (k, c), Q = HᵀH (k, k), and ‖A − HW‖².

    P and Q are float64. Nothing here waits for an accelerator before all blocks are read.

    The loss is ‖A‖² − 2⟨H, AWᵀ⟩ + ⟨Q, WWᵀ⟩, or, where A is fitted so well that float32 would
    leave little of the difference, taken from A − HW by block, still in the cache.
    """
    W, H = progress.W, progress.H
    k, c = W.shape
    gram = W @ W.T
    packed = sums(k * c + k * k + 1, device=W.device)
    P, Q = packed[: k * c].view(k, c), packed[k * c : -1].view(k, k)
    for index, block in rows.read_compressed():
        # Measured: the first leaves the block in the cache.
        G = W @ block.T if isinstance(block, Tensor) else (block @ W.T).T
        h = update(H[index].T.contiguous().mul_(progress.scale[:, None]), G, gram)
        H[index] = h.T
        Q += (h @ h.T).to(packed.device)
        weighted = block.weighted_sums(h) if isinstance(block, SparseBlock) else h @ block
        P += weighted.to(packed.device)
        packed[-1] += _loss(block, W, h, G, progress.by_residual).to(packed.device)
    packed = all_reduce_sum(packed).cpu()
    P, Q, loss = packed[: k * c].view(k, c), packed[k * c : -1].view(k, k), float(packed[-1])
    if not progress.by_residual:
        loss += progress.total + float((Q * _gram(W.cpu())).sum())
    return P, Q, max(loss, 0.0)


def finish(
    rows: RowBlocks, progress: Progress, lengths: Tensor, signed: bool = False
) -> tuple[Tensor, float]:
    """One read of A: H becomes optimal for W; Q = HᵀH (k, k), and ‖A − HW‖²."""
    W, H = progress.W, progress.H
    solver = _Solver(W, signed)
    packed = sums(len(W) ** 2 + 1, device=W.device)
    for index, block in rows.read_compressed(SOLVE_BLOCKS):
        start = H[index].T * progress.scale[:, None]
        h, G = solver.solve(block, lengths[index], start)
        H[index] = h.T
        packed[:-1] += (h @ h.T).flatten().to(packed)
        packed[-1] += _loss(block, W, h, G, progress.by_residual).to(packed.device)
    packed = all_reduce_sum(packed).cpu()
    Q, loss = packed[:-1].view(len(W), len(W)), float(packed[-1])
    if not progress.by_residual:
        loss += progress.total + float((Q * _gram(W.cpu())).sum())
    return Q, max(loss, 0.0)


def coefficients(rows: RowBlocks, W: Tensor, signed: bool = False) -> Tensor:
    """The optimal H (rows, k) for W (k, c); every block is checked and scaled by itself."""
    H = rows.coefficients(len(W))
    solver = _Solver(W, signed)
    for index, block in rows.read(SOLVE_BLOCKS):
        power = _power(_check_extremes(_extremes(block), signed))
        block = scaled(block, power)
        h, _ = solver.solve(block, row_norms(block))
        H[index] = unscaled(h.T, power)
    return H


def sweep_coefficients(n_sweeps: int, H: Tensor, G: Tensor, gram: Tensor) -> Tensor:
    """HALS for H (k, b), in place."""
    sweep(H[None], G[None], gram[None], n_sweeps)
    return H


def multiply(X: Tensor, G: Tensor, Q: Tensor) -> Tensor:
    """Lee & Seung's update of X (k, m), for the problem of `nnls.py`."""
    return X * (G / (Q @ X).clamp_min(1e-30))


def relative_error(loss: float, total: float) -> float:
    """‖A − HW‖ / ‖A‖ from the squares; 0 if A is zero."""
    return math.sqrt(loss / total) if total > 0 else 0.0


def unscaled(X: Tensor, power: int) -> Tensor:
    """X / 2^power; raises InputError where that is past float32."""
    X = scaled(X, -power)
    if power < 0:
        check_range(X)
    return X


class _Solver:
    """H that minimises ‖A − HW‖ for one W (k, c), where it is not unique always the same one."""

    def __init__(self, W: Tensor, signed: bool) -> None:
        gram = _gram(W)
        if signed:  # components that cancel would let coefficients grow without end
            gram.diagonal().mul_(1 + _SHRUNK)
        values = torch.linalg.eigvalsh(gram.cpu())
        self._is_unique = bool(values[0] > 1e-3 * values[-1])
        if not self._is_unique:  # in an order that does not depend on how the rows of W come
            order = torch.from_numpy(np.lexsort(W.cpu().numpy().T)).to(W.device)
            self._inverse = order.argsort()
            W, gram = W[order], gram[order][:, order]
        self._W, self._gram = W, gram

    def solve(
        self, block: Tensor | SparseBlock, lengths: Tensor, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """H (k, b) of a block (b, c) whose rows have these lengths, and W · blockᵀ (k, b).

        Where little is left of the block, the rounding of float32 is a part of it that counts, and
        more so in H where rows of W are alike: it is solved once more, in float64.
        """
        G = (block @ self._W.T).T
        if start is None or not self._is_unique:
            start = torch.zeros_like(G)
        H = solve(start.contiguous(), G, self._gram)
        energy = float(lengths.to(sums(device=lengths.device)).square().sum())
        left = energy - 2 * float((H * G).sum()) + float(((H @ H.T) * self._gram.to(H)).sum())
        if left < CANCELLATION * energy:
            precise = self._precise_products(block)
            H = solve(H.to(precise), precise, self._gram.to(precise)).to(G)
        return (H, G) if self._is_unique else (H[self._inverse], G[self._inverse])

    def _precise_products(self, block: Tensor | SparseBlock) -> Tensor:
        """W · blockᵀ (k, b) in float64, by parts of the block."""
        W = self._W.to(sums(device=self._W.device))
        return torch.cat([W @ part.T.to(W) for part in dense(block).split(_PRECISE_ROWS)], dim=1)


def _loss(
    block: Tensor | SparseBlock, W: Tensor, H: Tensor, G: Tensor, by_residual: bool
) -> Tensor:
    if not by_residual:
        return -2 * (H * G).sum(1).to(sums(device=H.device)).sum()
    norms = torch.linalg.vector_norm(dense(block) - H.T @ W, dim=1)
    return norms.to(sums(device=H.device)).square().sum()


def _gram(W: Tensor) -> Tensor:
    """W Wᵀ (k, k) in float64."""
    W = W.to(sums(device=W.device))
    return W @ W.T


def _power(high: float) -> int:
    """The power of two that brings the largest entry near one, or 0 where it need not."""
    if high == 0 or _SAFE[0] < high < _SAFE[1]:
        return 0
    return max(-126, min(126, -math.frexp(high)[1]))


def _extremes(block: Tensor) -> Tensor:
    """The least entry, negated, and the largest (2,); infinite where one is not a number."""
    low, high = block.aminmax()
    return torch.stack([-low, high]).nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)


def _check_extremes(extremes: Tensor, signed: bool) -> float:
    """The largest magnitude; refuses matrices with a non-finite entry, or a negative one."""
    negative, high = extremes.tolist()
    if signed:
        check_finite(negative)
        check_finite(high)
        return max(negative, high)
    check_non_negative(-negative, high)
    return high
