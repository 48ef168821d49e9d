"""NMF of rows that are all in memory: HALS ahead of itself, and factors that come back to life."""

import math

import torch
from torch import Tensor

from deepff.factorization.nnls import CANCELLATION, hals, solve

_SWEEPS = 3
# The extrapolation's first step, and by how much it changes (Ang & Gillis 2019).
_STEP, _FASTER, _LIMIT_FASTER, _SLOWER = 0.5, 1.05, 1.01, 1.5
_CHECKED = 5  # iterations
_EXACT = 1e-15  # of ‖A‖²; H is float32 in the end


def refine_best(
    A: Tensor, starts: Tensor, n_kept: int, max_iter: int, tol: float
) -> tuple[Tensor, list[float], bool]:
    """`refine` from each of the `n_kept` best of the starts (n, k, c), and the best of that."""
    if len(starts) > n_kept:
        tried = [refine(A, W, _CHECKED, 0.0)[1][-1] for W in starts]
        starts = starts[torch.tensor(tried, device=starts.device).argsort()[:n_kept]]
    runs = []
    for W in starts:
        runs.append(refine(A, W, max_iter, tol))
        if runs[-1][1][-1] ** 2 <= _EXACT:
            break
    return min(runs, key=lambda run: run[1][-1])


def refine(A: Tensor, W: Tensor, max_iter: int, tol: float) -> tuple[Tensor, list[float], bool]:
    """Extrapolated HALS (Ang & Gillis 2019) from W: components (k, c), the relative error after
    each iteration, and whether ten more would lower it by `tol` at most. A (m, c) is in memory."""
    total = float(torch.linalg.vector_norm(A, dim=1).cpu().double().square().sum())
    # Exact, for a start that is: of k rows and channels, sweeps would lose what it has.
    G = W @ A.T
    H = solve(torch.zeros_like(G), G, W @ W.T)
    ahead_H, ahead_W, best = H, W, W
    step, limit, least = 0.0, 1.0, math.inf
    errors: list[float] = []
    while len(errors) < max_iter:
        new_H = hals(ahead_H.clone(), ahead_W @ A.T, ahead_W @ ahead_W.T, _SWEEPS)
        next_H = (new_H + step * (new_H - H)).clamp_min(0)
        P, Q = next_H @ A, next_H @ next_H.T
        new_W = hals(ahead_W.clone(), P, Q, _SWEEPS)
        loss = total - 2 * _inner(P, new_W) + _inner(Q, new_W @ new_W.T)
        if W.dtype == torch.float32 and loss < CANCELLATION * total:
            A, H, W = (_double(X) for X in (A, new_H, new_W))
            total = float(A.square().sum())
            ahead_H, ahead_W, step = H, W, 0.0
            continue
        if loss <= least:
            ahead_H, ahead_W = next_H, (new_W + step * (new_W - W)).clamp_min(0)
            H, W, best, least = new_H, new_W, new_W, loss
            step = min(limit, step * _FASTER) or _STEP
            limit = min(1.0, limit * _LIMIT_FASTER)
        else:
            ahead_H, ahead_W = H, W
            limit, step = step, step / _SLOWER
        errors.append(math.sqrt(max(least, 0.0) / total))
        if least <= _EXACT * total:
            return best, errors, True
        if len(errors) % _CHECKED != 1 % _CHECKED or len(errors) < _CHECKED:
            continue
        dead = (H.norm(dim=1) == 0) | (W.norm(dim=1) == 0)
        if dead.any():
            W = revive(A, W, dead)
            H = H * ~dead[:, None]
            ahead_H, ahead_W, step = H, W, 0.0
            if W[dead].any():
                continue
        gain = errors[-1 - _CHECKED] - errors[-1] if len(errors) > _CHECKED else math.inf
        if 10 / _CHECKED * gain <= tol * errors[-1]:
            return best, errors, True
    return best, errors, False


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


def _double(X: Tensor) -> Tensor:
    return X.to("cpu" if X.device.type == "mps" else X.device, torch.float64)


def _inner(X: Tensor, Y: Tensor) -> float:
    return float(X.flatten().cpu().double() @ Y.flatten().cpu().double())
