"""NMF of rows that are all in memory: HALS ahead of itself, and factors that come back to life."""

import math
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from deepff.factorization.nnls import CANCELLATION, hals, solve

Matrix: TypeAlias = Any  # an array on a CPU, where its calls take less time; otherwise a tensor

_SWEEPS, _FIRST_SWEEPS = 3, 5
# The extrapolation's first step, and by how much it changes (Ang & Gillis 2019).
_STEP, _FASTER, _LIMIT_FASTER, _SLOWER = 0.5, 1.05, 1.01, 1.5
_CHECKED = 5  # iterations
_TRIED = 20  # iterations, after which the best of several runs goes on: fewer often choose another
_EXACT = 1e-15  # of ‖A‖²; H is float32 in the end
# Of ‖A‖: where the error is less, what an iteration gains is compared with this.
_LEAST_ERROR = 0.3


def refine_best(
    A: Tensor, starts: Tensor, max_iter: int, tol: float
) -> tuple[Tensor, Tensor, list[float], bool]:
    """What `refine` yields last from the best of the starts (n, k, c)."""
    on_cpu = A.device.type == "cpu"
    runs = [refine(A.numpy(), W.numpy(), tol) if on_cpu else refine(A, W, tol) for W in starts]
    tried = [deque(islice(run, min(_TRIED, max_iter)), 1)[0] for run in runs]
    run, best = min(zip(runs, tried, strict=True), key=lambda pair: pair[1][2][-1])
    H, W, errors, converged = deque(chain([best], islice(run, max_iter - len(best[2]))), 1)[0]
    return _tensor(H), _tensor(W), errors, converged


def refine(A: Matrix, W: Matrix, tol: float) -> Iterator[tuple[Matrix, Matrix, list[float], bool]]:
    """Extrapolated HALS (Ang & Gillis 2019) of A (m, c) from W. Yields after each iteration H
    (k, m), W (k, c), the relative errors, and whether ten more would lower these by `tol` at most;
    then it ends."""
    total, G, Q = _energy(A), W @ A.T, W @ W.T
    H = hals(0 * G, G, Q, _FIRST_SWEEPS)
    if 2 * len(W) > min(A.shape):  # a start may be exact, and sweeps would lose that
        H = _like(A, solve(*map(_tensor, (H, G, Q))))
    ahead_H, ahead_W, best = H, W, W
    step, limit, least = 0.0, 1.0, math.inf
    errors: list[float] = []
    while True:
        new_H = hals(1 * ahead_H, ahead_W @ A.T, ahead_W @ ahead_W.T, _SWEEPS)
        next_H = _ahead(new_H, H, step)
        P, Q = next_H @ A, next_H @ next_H.T
        new_W = hals(1 * ahead_W, P, Q, _SWEEPS)
        loss = total - 2 * _inner(P, new_W) + _inner(Q, new_W @ new_W.T)
        if W.dtype in (np.float32, torch.float32) and loss < CANCELLATION * total:
            A, H, W = (_double(X) for X in (A, new_H, new_W))
            total = _energy(A)
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
        if not converged and len(errors) > 1 and len(errors) % _CHECKED == 1:
            gain = errors[-1 - _CHECKED] - errors[-1]
            converged = 10 / _CHECKED * gain <= tol * max(errors[-1], _LEAST_ERROR)
            dead = ~((H > 0).any(1) & (W > 0).any(1))
            if dead.any():
                W = _like(A, revive(*map(_tensor, (A, W, dead))))
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


def _double(X: Matrix) -> Matrix:
    if isinstance(X, np.ndarray):
        return X.astype(np.float64)
    return X.to("cpu" if X.device.type == "mps" else X.device, torch.float64)


def _tensor(X: Matrix) -> Tensor:
    return torch.from_numpy(X) if isinstance(X, np.ndarray) else X


def _like(A: Matrix, X: Tensor) -> Matrix:
    return X.numpy() if isinstance(A, np.ndarray) else X


def _ahead(X: Matrix, last: Matrix, step: float) -> Matrix:
    X = X + step * (X - last)
    return X * (X > 0)


def _energy(A: Matrix) -> float:
    norms = torch.linalg.vector_norm(_tensor(A), dim=1).cpu().double()
    return float(norms @ norms)


def _inner(X: Matrix, Y: Matrix) -> float:
    if isinstance(X, Tensor):
        return float(X.flatten().cpu().double() @ Y.flatten().cpu().double())
    return float(np.vdot(X.astype(np.float64, copy=False), Y.astype(np.float64, copy=False)))
