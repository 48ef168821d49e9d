"""Least squares, mostly non-negative, for few unknowns and many right-hand sides.

min over X ≥ 0 of ½⟨X, Q X⟩ − ⟨G, X⟩, column by column, where Q = W Wᵀ and G = W Aᵀ
for the coefficients (X = Hᵀ), or Q = Hᵀ H and G = Hᵀ A for the components (X = W).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepff.factorization.blocks import RowBlocks, safe_power, scaled, sums, unscaled

# Of ‖A‖²: below, float32 moves an error that is computed from sums by more than about 1e-6.
CANCELLATION = 0.03
# A gradient below this, relative to the right-hand side's largest entry, is zero. One operation
# rounds by 6e-8 in float32, by 1e-16 in float64.
_SLACK = {torch.float32: 1e-6, torch.float64: 1e-10}
_LACKING = {torch.float32: 1e-8, torch.float64: 1e-14}
SOLVE_BLOCKS = 16  # blocks at once where there is one product only
_CPU_COLUMNS = 1024  # whose matrices stay in the cache
_PRECISE_ROWS = 2048  # in float64 at once
# Added to |A - HW|², as a share of |H|², where W may be signed: ten times float32's rounding.
_SHRINKAGE = 1e-6


def multiply(X: Tensor, G: Tensor, Q: Tensor) -> Tensor:
    """One multiplicative update of X (k, m): X · G / (Q X) (Lee & Seung 2001)."""
    return X * (G / (Q @ X).clamp_min(1e-30))


def hals(X: Any, G: Any, Q: Any, n_sweeps: int) -> Any:
    """HALS over the rows of X ([batch,] k, m), in place; the formula is in `nmf.alternate`. All are
    arrays, or all are tensors; those on a CPU are taken as arrays, whose calls take less time."""
    if isinstance(X, np.ndarray):
        return _sweep_rows(X, G, Q, n_sweeps)
    if X.ndim == 2:
        hals(X[None], G[None], Q[None], n_sweeps)
    elif X.device.type == "cpu":
        for arrays in zip(X.numpy(), G.numpy(), Q.numpy(), strict=True):
            _sweep_rows(*arrays, n_sweeps)
    else:
        diagonal = Q.diagonal(dim1=1, dim2=2)
        diagonal = torch.where(diagonal > 0, diagonal, 1.0).unsqueeze(2)
        G, Q = G / diagonal, Q / diagonal
        Q.diagonal(dim1=1, dim2=2).zero_()
        views = list(zip(*(M.unsqueeze(2).unbind(1) for M in (X, G, Q)), strict=True))
        for _ in range(n_sweeps):
            for x, g, q in views:
                torch.clamp(torch.baddbmm(g, q, X, alpha=-1), min=0, out=x)
    return X


def _sweep_rows(X: np.ndarray, G: np.ndarray, Q: np.ndarray, n_sweeps: int) -> np.ndarray:
    # A factor that is zero in Q is zero in G as well, and must stay finite: not 0/0.
    diagonal = np.maximum(Q.diagonal(), np.finfo(Q.dtype).tiny)[:, None]
    G, Q = G / diagonal, Q / diagonal
    Q.flat[:: len(Q) + 1] = 0
    product = np.empty_like(G[0])
    rows = list(zip(X, G, Q, strict=True))
    for _ in range(n_sweeps):
        for x, g, q in rows:
            np.dot(q, X, product)
            np.minimum(product, g, out=product)
            np.subtract(g, product, out=x)  # max(0, g − q X)
    return X


def solve(X: Tensor, G: Tensor, Q: Tensor) -> Tensor:
    """The minimizer (k, m), exact but for rounding, from the start X (k, m); Q may be float64.

    Sweeps find which entries are zero; the others follow from a k × k system in float64. The few
    columns that sweeps do not settle go to scipy.
    """
    X, optimal = _swept_and_solved(X.clone(), G, Q, 4)
    open_columns = (~optimal).nonzero()[:, 0]
    for n_sweeps in (6, 10, 20, 40, 80):
        if len(open_columns) == 0:
            break
        part = X[:, open_columns].contiguous()
        part, optimal = _swept_and_solved(part, G[:, open_columns], Q, n_sweeps)
        X[:, open_columns] = part
        open_columns = open_columns[~optimal]
    if len(open_columns) > 0:
        X[:, open_columns] = _lawson_hanson(G[:, open_columns], Q).to(X)
    return X


def _swept_and_solved(X: Tensor, G: Tensor, Q: Tensor, n_sweeps: int) -> tuple[Tensor, Tensor]:
    """X after sweeps, exact in the columns whose zeros are the solution's; and which those are."""
    hals(X, G, Q.to(X), n_sweeps)
    exact, optimal = _solve_support(X, G, Q)
    return torch.where(optimal, exact, X), optimal


def _solve_support(X: Tensor, G: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares over the non-zero entries of each column, and whether that is optimal."""
    k = len(Q)
    device = torch.device("cpu") if X.device.type == "mps" else X.device  # mps has no float64
    support, rhs, Q = (X > 0).to(device), G.to(device).double(), Q.to(device).double()
    if k <= 53:  # each support that occurs is inverted once
        powers = torch.arange(k, device=device).double().exp2()
        codes, which = (powers @ support.double()).long().unique(return_inverse=True)
        kinds = (codes[:, None] >> torch.arange(k, device=device)) & 1 == 1
    else:
        kinds, which = support.T, torch.arange(support.shape[1], device=device)
    inside = kinds[:, :, None] & kinds[:, None, :]
    eye = torch.eye(k, dtype=torch.float64, device=device)
    # Equal or vanishing factors make Q singular; the ridge is far below float32's resolution.
    ridge = 1e-12 * Q.diagonal().max().clamp_min(torch.finfo(torch.float64).tiny)
    systems = torch.where(inside, Q + ridge * eye, eye)
    inverses = torch.where(inside, torch.linalg.inv(systems), 0.0)
    exact = _products(inverses, which, rhs)
    if X.dtype == torch.float64:
        # Once more for what is left: where Q is singular, the ridge is an error of 1e-6.
        exact += _products(inverses, which, rhs - Q @ exact)
    slack = _SLACK[X.dtype] * G.abs().amax(0).to(rhs)
    gradient = torch.addmm(rhs, Q, exact, beta=-1).masked_fill_(support, 0)
    optimal = (exact.amin(0) >= 0) & (gradient.amin(0) >= -slack)
    return exact.to(X.device, X.dtype), optimal.to(X.device)


def _products(matrices: Tensor, which: Tensor, X: Tensor) -> Tensor:
    """Column i of X (k, m) times the matrix (k, k) number `which[i]` of `matrices` (n, k, k)."""
    columns = X.T.contiguous()  # half the time of a view's
    products = torch.empty_like(columns)
    step = _CPU_COLUMNS if X.device.type == "cpu" else max(1, len(which))
    for start in range(0, len(which), step):
        part = slice(start, start + step)
        selected = matrices.index_select(0, which[part])  # a third of the time of indexing
        torch.bmm(selected, columns[part].unsqueeze(2), out=products[part].unsqueeze(2))
    return products.T.contiguous()


def _lawson_hanson(G: Tensor, Q: Tensor) -> Tensor:
    """The same minimizer by scipy's active-set method, a column at a time, on the CPU."""
    from scipy.optimize import nnls

    dtype, Q, G = G.dtype, Q.cpu().double(), G.cpu().double()
    X = torch.zeros_like(G)
    # Rounding would turn a factor that is zero in Q into a column below, with any value.
    alive = Q.diagonal() > 0
    Q, G = Q[alive][:, alive], G[alive]
    values, vectors = torch.linalg.eigh(Q)
    # Q = RᵀR and G = RᵀB turn the problem into min ‖R x − b‖. Directions that Q lacks say nothing
    # about x; a little below rounding, so that none with a say in G is lost.
    kept = values > _LACKING[dtype] * values[-1]
    roots = values[kept].sqrt()
    R = (vectors[:, kept] * roots).T
    B = (vectors[:, kept] / roots).T @ G
    columns = [nnls(R.numpy(), b, maxiter=100 * len(Q))[0] for b in B.T.numpy()]
    X[alive] = torch.from_numpy(np.stack(columns, axis=1))
    return X


def solve_free(G: Tensor, Q: Tensor) -> Tensor:
    """The minimizer (..., k, m) where X may go negative; zero for a factor that is zero in Q."""
    device = torch.device("cpu") if G.device.type == "mps" else G.device  # mps has no float64
    rhs, Q = G.to(device).double(), Q.to(device).double()
    # Factors of one length each: a weak one is solved for as precisely as a strong one.
    lengths = Q.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)[..., None]
    ridge = 1e-10 + (lengths == 0)  # equal factors make Q singular
    system = Q * inverse * inverse.mT + torch.diag_embed(ridge)
    return (torch.linalg.solve(system, rhs * inverse) * inverse).to(G.device, G.dtype)


class CoefficientSolver:
    """H that minimizes ‖A − HW‖ for one W (k, c); of several minima always the same one."""

    def __init__(self, W: Tensor, signed: bool) -> None:
        self._W, self._gram = W, gram_matrix(W)
        values = np.linalg.eigvalsh(self._gram.cpu().numpy())
        self._is_unique = bool(values[0] > 1e-3 * values[-1])
        if not self._is_unique:  # in an order that does not depend on the order of W's rows
            order = torch.from_numpy(np.lexsort(W.cpu().numpy().T)).to(W.device)
            self._inverse = order.argsort()
            self._W = W[order]
            self._gram = gram_matrix(self._W)  # the last bit of a product depends on the order
        if signed:  # components that cancel would let coefficients grow without end
            self._gram.diagonal().mul_(1 + _SHRINKAGE)

    def solve(
        self, block: Tensor, lengths: Tensor, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Hᵀ (k, b) of a block (b, c) whose rows have these lengths, and W · blockᵀ (k, b).

        Where HW is nearly the whole block, float32's rounding is much of what remains, and more of
        it in H where rows of W are alike: then it is solved once more, in float64.
        """
        G = (block @ self._W.T).T
        if start is None or not self._is_unique:
            start = torch.zeros_like(G)
        H = solve(start.contiguous(), G, self._gram)
        energy = float(lengths.to(sums(device=lengths.device)).square().sum())
        # Where H is the best, ⟨H, W Wᵀ H⟩ = ⟨H, G⟩.
        if energy - float(torch.dot(H.flatten(), G.flatten())) < CANCELLATION * energy:
            W = self._W.to(sums(device=self._W.device))
            precise = torch.cat([W @ part.T.to(W) for part in block.split(_PRECISE_ROWS)], dim=1)
            H = solve(H.to(precise), precise, self._gram.to(precise)).to(G)
        return (H, G) if self._is_unique else (H[self._inverse], G[self._inverse])


def coefficients(rows: RowBlocks, W: Tensor, signed: bool = False) -> Tensor:
    """The optimal H (rows, k) for W (k, c); every block is checked and scaled by itself."""
    H = rows.coefficients(len(W))
    solver = CoefficientSolver(W, signed)
    for index, block in rows.read(SOLVE_BLOCKS):
        power = safe_power(block, signed)
        block = scaled(block, power)
        h, _ = solver.solve(block, torch.linalg.vector_norm(block, dim=1))
        H[index] = unscaled(h.T, power)
    return H


def gram_matrix(W: Tensor) -> Tensor:
    """W Wᵀ (k, k) in float64."""
    W = W.to(sums(device=W.device))
    return W @ W.T
