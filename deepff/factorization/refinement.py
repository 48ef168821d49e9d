"""NMF of rows that are all in memory: HALS ahead of itself, and factors that come back to life.

It runs in NumPy on the CPU, whose calls take less time than an accelerator's, for so few numbers.
"""

import math
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor

from deepff.factorization.nnls import CANCELLATION, hals, solve

_SWEEPS, _FIRST_SWEEPS = 3, 5
# The extrapolation's first step, and by how much it changes (Ang & Gillis 2019).
_STEP, _FASTER, _LIMIT_FASTER, _SLOWER = 0.3, 1.05, 1.01, 1.5
_GAINED = 4  # iterations, whose gain tells when to stop
_TRIED = 20  # iterations, after which the best of several runs goes on: fewer often choose another
_EXACT = 1e-15  # of ‖A‖²; H is float32 in the end
# Of ‖A‖: where the error is less, what an iteration gains is compared with this.
_LEAST_ERROR = 0.3


def refine_best(
    A: Tensor, starts: Tensor, max_iter: int, tol: float
) -> tuple[Tensor, Tensor, list[float], bool]:
    """What `refine` yields last from the best of the starts (n, k, c)."""
    runs = [refine(A.cpu().numpy(), W.cpu().numpy(), tol) for W in starts]
    tried = [deque(islice(run, min(_TRIED, max_iter)), 1)[0] for run in runs]
    run, best = min(zip(runs, tried, strict=True), key=lambda pair: pair[1][2][-1])
    H, W, errors, converged = deque(chain([best], islice(run, max_iter - len(best[2]))), 1)[0]
    return torch.from_numpy(H), torch.from_numpy(W), errors, converged


def refine(
    A: np.ndarray, W: np.ndarray, tol: float
) -> Iterator[tuple[np.ndarray, np.ndarray, list[float], bool]]:
    """Extrapolated HALS (Ang & Gillis 2019) of A (m, c) from W. Yields after each iteration H
    (k, m), W (k, c), the relative errors, and whether ten more would lower these by `tol` at most;
    then it ends."""
    # For few components, products with a view of Aᵀ take up to four times as long.
    total, columns = _inner(A, A), A.T.copy()
    G, Q = W @ columns, W @ W.T
    H = hals(0 * G, G, Q, _FIRST_SWEEPS)
    if 2 * len(W) > min(A.shape):  # a start may be exact, and sweeps would lose that
        H = solve(*map(torch.from_numpy, (H, G, Q))).numpy()
    ahead_H, ahead_W, best = H, W, W
    step, limit, least = 0.0, 1.0, math.inf
    errors: list[float] = []
    while True:
        new_H = hals(1 * ahead_H, ahead_W @ columns, ahead_W @ ahead_W.T, _SWEEPS)
        next_H = _ahead(new_H, H, step)
        P, Q = next_H @ A, next_H @ next_H.T
        new_W = hals(1 * ahead_W, P, Q, _SWEEPS)
        loss = total - 2 * _inner(P, new_W) + _inner(Q, new_W @ new_W.T)
        if W.dtype == np.float32 and loss < CANCELLATION * total:
            A, H, W = (X.astype(np.float64) for X in (A, new_H, new_W))
            total, columns = _inner(A, A), A.T.copy()
            ahead_H, ahead_W, step = H, W, 0.0
            continue
        if loss <= least:
            ahead_H, ahead_W = next_H, _ahead(new_W, W, step)
            H, W, best, least = new_H, new_W, new_W, loss
            step = min(limit, step * _FASTER) or _STEP
            limit = min(1.0, limit * _LIMIT_FASTER)
        else:
            ahead_H, ahead_W = H, W
            limit, step = step, step / _SLOWER
        errors.append(math.sqrt(max(least, 0.0) / total))
        converged = least <= _EXACT * total
        if not converged and len(errors) > _GAINED:
            gain = errors[-1 - _GAINED] - errors[-1]
            converged = 10 / _GAINED * gain <= tol * max(errors[-1], _LEAST_ERROR)
            dead = ~((H > 0).any(1) & (W > 0).any(1))
            if dead.any():
                W = revive(*map(torch.from_numpy, (A, W, dead))).numpy()
                H = H * ~dead[:, None]
                ahead_H, ahead_W, step = H, W, 0.0
                converged &= not (W[dead] > 0).any()
        yield H, best, errors, bool(converged)
        if converged:
            return


def revive(A: Tensor, W: Tensor, dead: Tensor) -> Tensor:
    """W (k, c) with rows of A (m, c) that it fits worst in place of its `dead` rows (k,). A dead
    row that A does not need becomes zero."""
    W = W * ~dead[:, None]
    G = W @ A.T
    missed = A - solve(torch.zeros_like(G), G, W @ W.T).T @ W
    least = _EXACT * float(torch.linalg.vector_norm(A).square())
    for j in dead.nonzero()[:, 0].tolist():
        energy = missed.clamp_min(0).square().sum(1)
        if float(energy.max()) <= least:
            break
        row = missed[energy.argmax()].clamp_min(0)
        W[j] = row / row.norm()
        missed = missed - (missed @ W[j]).clamp_min(0)[:, None] * W[j]
    return W


def _ahead(X: np.ndarray, last: np.ndarray, step: float) -> np.ndarray:
    ahead = X - last
    ahead *= step
    ahead += X
    return np.maximum(ahead, 0, out=ahead)


def _inner(X: np.ndarray, Y: np.ndarray) -> float:
    return float(np.vdot(X.astype(np.float64, copy=False), Y.astype(np.float64, copy=False)))
