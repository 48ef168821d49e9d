"""Least squares, mostly non-negative, for few unknowns and many right-hand sides.

min over X ≥ 0 of ½⟨X, Q X⟩ − ⟨G, X⟩, column by column, where Q = W Wᵀ and G = W Aᵀ
for the coefficients (X = Hᵀ), or Q = Hᵀ H and G = Hᵀ A for the components (X = W).
"""

import numpy as np
import torch
from torch import Tensor

# Beside the 6e-8 of an operation in float32, 1e-16 in float64: a gradient below this, relative
# to the right-hand side's largest entry, is zero.
_SLACK = {torch.float32: 1e-6, torch.float64: 1e-10}
_LACKING = {torch.float32: 1e-8, torch.float64: 1e-14}
_CPU_COLUMNS = 1024  # whose matrices stay in the cache


def sweep(X: Tensor, G: Tensor, Q: Tensor, n_sweeps: int) -> None:
    """HALS: solve for one row of X after the other, in place; never raises the objective.

    Cichocki & Phan 2009; several sweeps for each G and Q as in Gillis & Glineur 2012.

    Parameters
    ----------
    X, G : (batch, k, m)
    Q : (batch, k, k)
    """
    diagonal = Q.diagonal(dim1=1, dim2=2)
    # A factor that is zero in Q is zero in G as well, and must stay finite: 0/1, not 0/0.
    diagonal = torch.where(diagonal > 0, diagonal, 1.0).unsqueeze(2)
    G, Q = G / diagonal, Q / diagonal
    Q.diagonal(dim1=1, dim2=2).zero_()
    # Unbound once: for small X, Python's part of the time is most of it.
    views = list(zip(*(M.unsqueeze(2).unbind(1) for M in (X, G, Q)), strict=True))
    for _ in range(n_sweeps):
        for x, g, q in views:
            torch.clamp(torch.baddbmm(g, q, X, alpha=-1), min=0, out=x)


def solve(X: Tensor, G: Tensor, Q: Tensor) -> Tensor:
    """The minimiser (k, m), exact but for rounding, from the start X (k, m); Q may be float64.

    Sweeps find which entries are zero; the others follow from a k × k system in float64.
    Columns whose solution is not yet optimal (Karush-Kuhn-Tucker) are swept again; the few
    that many sweeps do not settle, where factors are nearly dependent, go to scipy.
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
    """X swept, in place, and where its zeros are the solution's, solved; and where that is so."""
    sweep(X[None], G[None], Q.to(X)[None], n_sweeps)
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
    """Each column of X (k, m) times its own of the matrices (n, k, k), `which` (m,)."""
    products = torch.empty_like(X.T, memory_format=torch.contiguous_format)
    step = _CPU_COLUMNS if X.device.type == "cpu" else max(1, len(which))
    for start in range(0, len(which), step):
        part = slice(start, start + step)
        own = matrices.index_select(0, which[part])  # a third of the time of indexing
        torch.bmm(own, X.T[part].unsqueeze(2), out=products[part].unsqueeze(2))
    return products.T.contiguous()


def _lawson_hanson(G: Tensor, Q: Tensor) -> Tensor:
    """The same minimiser by scipy's active-set method, a column at a time, on the CPU."""
    from scipy.optimize import nnls

    dtype, Q, G = G.dtype, Q.cpu().double(), G.cpu().double()
    X = torch.zeros_like(G)
    # Rounding would give a factor that is zero in Q a column of its own below, and so any value.
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
    """The minimiser (..., k, m) where X may go negative; zero for a factor that is zero in Q.

    Parameters
    ----------
    G : (..., k, m)
    Q : (..., k, k)
    """
    device = torch.device("cpu") if G.device.type == "mps" else G.device  # mps has no float64
    rhs, Q = G.to(device).double(), Q.to(device).double()
    # Factors of one length each: a weak one is solved for as precisely as a strong one.
    lengths = Q.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)[..., None]
    ridge = 1e-10 + (lengths == 0)  # equal factors make Q singular
    system = Q * inverse * inverse.mT + torch.diag_embed(ridge)
    return (torch.linalg.solve(system, rhs * inverse) * inverse).to(G.device, G.dtype)
