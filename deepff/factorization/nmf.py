"""Non-negative matrix factorization, A ≈ H W with H, W ≥ 0, by blocks of rows."""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization.blocks import (
    Matrix,
    RowBlocks,
    as_row_blocks,
    check_finite,
    check_fitted,
    check_n_components,
    check_non_negative,
)
from deepff.factorization.nnls import solve, sweep
from deepff.factorization.start import SAMPLE_ROWS, nndsvda_start, normalize, random_start

_H_SWEEPS, _W_SWEEPS = 5, 20
# Below this share of ‖A‖², the loss from P and Q is mostly rounding error of float32.
_CANCELLATION = 1e-3
# Largest entries between these need no scaling for float32 to hold the sums of squares.
_SAFE = (2.0**-30, 2.0**30)

Update = Callable[[Tensor, Tensor, Tensor], Tensor]


class NMF:
    """Non-negative matrix factorization with the Frobenius norm.

    Parameters
    ----------
    n_components : int
        k, at most rows and channels.
    solver : {"hals", "mu"}
        "hals" (Cichocki & Phan 2009) starts on a sample of the rows and finishes in a few
        reads of all. "mu": the multiplicative updates of Lee & Seung 2001, from a random start.
    init : {"random", "nndsvda"}
        "nndsvda" (Boutsidis & Gallopoulos 2008) is deterministic whatever `random_state` is.
    random_state : int or None
        Seed of every draw; None draws another one each time. Draws are made on the CPU,
        so that they are the same for every device.
    max_iter : int
        The most iterations over all rows.
    tol : float
        Stop when the error falls by less than this share in one iteration ("mu": in ten).
    n_init : int
        Random starts that "hals" tries on the sample.
    device : where to compute; None is where A is. Rows elsewhere are sent block by block.

    Attributes
    ----------
    components_ : Tensor (k, c)
        W: rows of length 1, the factor that carries most of A first; zero for a factor not needed.
    reconstruction_err_, relative_err_ : float
        ‖A − HW‖ and ‖A − HW‖ / ‖A‖ (0 if A is zero).
    errors_ : list of float
        The relative error after each iteration over all rows and after the last solution
        for H; never rises.
    n_iter_ : int
        Iterations over all rows.
    n_reads_ : int
        Full reads of A, checks and the last solution for H included.

    Notes
    -----
    Computation is in float32, of float64 input too (converted block by block), with sums over
    blocks in float64. H, (rows, k), is kept; of A, never more than a block and a
    sample of 6000 rows is copied.
    """

    def __init__(
        self,
        n_components: int,
        solver: str = "hals",
        init: str = "random",
        random_state: int | None = None,
        max_iter: int = 200,
        tol: float = 1e-4,
        n_init: int = 8,
        device: str | torch.device | None = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.init = init
        self.random_state = random_state
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.device = device

    def fit(self, A: Matrix | RowBlocks) -> Self:
        """Find `components_` for A (rows, c); see `fit_transform`."""
        self.fit_transform(A)
        return self

    @torch.no_grad()
    def fit_transform(self, A: Matrix | RowBlocks) -> Tensor:
        """Factorise A (rows, c), all ≥ 0; returns H (rows, k), optimal for `components_`.

        Raises
        ------
        InputError
            A is not a real matrix, or holds a negative or non-finite value; k is more than
            its rows or channels; or a parameter is out of its range.
        """
        self._check_parameters()
        rows = as_row_blocks(A, self.device)
        k = self.n_components
        check_n_components(k, rows)
        norms = _scan(rows)
        total = float(norms.cpu().double().square().sum())

        W = self._start(rows, norms)
        update_H: Update
        update_W: Update
        if self.solver == "hals":
            update_H, update_W, check_every = _sweep_coefficients, _sweep_components, 1
            H = torch.zeros(k, rows.n_rows, device=rows.device)
        else:
            update_H, update_W, check_every = _multiply, _multiply, 10
            H = torch.ones(k, rows.n_rows, device=rows.device)
        self.errors_: list[float] = []
        checked = math.inf
        for iteration in range(1, self.max_iter + 1):
            P, Q, loss = _accumulate(rows, norms, W, H, update_H)
            error = _relative_error(loss, total)
            self.errors_.append(error)
            W = update_W(W.cpu().double(), P, Q).to(W)
            H *= W.norm(dim=1, keepdim=True)
            W = normalize(W)
            if iteration % check_every == 0:
                if checked - error <= self.tol * error:
                    break
                checked = error
        _, Q, loss = _accumulate(rows, norms, W, H, _solve_coefficients)
        self.errors_.append(_relative_error(loss, total))

        order = Q.diagonal().argsort(descending=True, stable=True)
        self.components_ = W[order.to(W.device)]
        self.relative_err_ = self.errors_[-1]
        self.reconstruction_err_ = math.ldexp(math.sqrt(loss), -rows.power)
        self.n_iter_ = iteration
        self.n_reads_ = rows.n_reads
        return _unscale(H[order.to(H.device)].T.contiguous(), rows.power)

    @torch.no_grad()
    def transform(self, A: Matrix | RowBlocks) -> Tensor:
        """H (rows, k) ≥ 0 that minimises ‖A − HW‖ for the fitted W, exact but for rounding.

        Raises
        ------
        InputError
            Before `fit`, or if A is not a real matrix with the fitted number of channels, or holds
            a negative or non-finite value.
        """
        rows = as_row_blocks(A, self.device)
        check_fitted(self, rows)
        W = self.components_.to(rows.device)
        H = torch.empty(len(W), rows.n_rows, device=rows.device)
        for place, block in rows:
            check_non_negative(*(float(x) for x in block.aminmax()))
            G = W @ block.T
            H[:, place] = _solve_coefficients(H[:, place], G, W @ W.T)
        return H.T.contiguous()

    def _start(self, rows: RowBlocks, norms: Tensor) -> Tensor:
        """The first W (k, c), rows of length one."""
        k = self.n_components
        generator = torch.Generator()
        if self.init == "nndsvda":
            generator.manual_seed(0)
        elif self.random_state is None:
            generator.seed()
        else:
            generator.manual_seed(self.random_state)
        if self.solver == "mu" and self.init == "random":
            W = torch.randn(k, rows.n_channels, generator=generator).abs()
            return normalize(W).to(rows.device)
        indices = norms.cpu().nonzero().squeeze(1)
        if len(indices) > SAMPLE_ROWS:
            chosen = torch.randint(len(indices), (SAMPLE_ROWS,), generator=generator).unique()
            indices = indices[chosen]
        if len(indices) == 0:
            return torch.zeros(k, rows.n_channels, device=rows.device)
        sample = rows.take(indices)
        if self.init == "nndsvda":
            return normalize(nndsvda_start(sample, k, generator))
        return random_start(sample, k, self.n_init, generator)

    def _check_parameters(self) -> None:
        if self.solver not in ("hals", "mu"):
            raise InputError(f'solver is {self.solver!r}; it must be "hals" or "mu".')
        if self.init not in ("random", "nndsvda"):
            raise InputError(f'init is {self.init!r}; it must be "random" or "nndsvda".')
        if self.max_iter < 1 or self.n_init < 1:
            raise InputError(
                f"max_iter is {self.max_iter} and n_init {self.n_init}; both must be at least 1."
            )
        if not self.tol >= 0:
            raise InputError(f"tol is {self.tol}; it must be at least 0.")


def _scan(rows: RowBlocks) -> Tensor:
    """Check all entries, set the scale, and return the scaled rows' lengths (rows,)."""
    norms = torch.empty(rows.n_rows, device=rows.device)
    low, high = math.inf, 0.0
    for place, block in rows:
        least, most = (float(x) for x in block.aminmax())
        check_finite(least + most)
        low, high = min(low, least), max(high, most)
        # Divided by the largest entry, squares neither overflow nor vanish.
        divisor = most if most > 0 and not _SAFE[0] < most < _SAFE[1] else 1.0
        norms[place] = torch.linalg.vector_norm(block / divisor if divisor != 1 else block, dim=1)
        norms[place] *= divisor
    check_non_negative(low, high)
    if high > 0 and not _SAFE[0] < high < _SAFE[1]:
        rows.power = max(-126, min(126, -math.frexp(high)[1]))
    return _unscale(norms, -rows.power)


def _accumulate(
    rows: RowBlocks, norms: Tensor, W: Tensor, H: Tensor, update: Update
) -> tuple[Tensor, Tensor, float]:
    """One read of A: update H in place; P = HᵀA (k, c), Q = HᵀH (k, k), and ‖A − HW‖².

    P and Q are float64 on the CPU. Sums over rows end here and nowhere else, so with rows
    spread over processes this is where P, Q and the loss would be added up.

    The loss is ‖A‖² − 2⟨H, AWᵀ⟩ + ⟨Q, WWᵀ⟩, except for blocks fitted so well that float32
    would leave little of the difference: there it is taken from A − HW, still in the cache.
    """
    k, c = W.shape
    P = torch.zeros(k, c, dtype=torch.float64)
    Q = torch.zeros(k, k, dtype=torch.float64)
    loss = 0.0
    gram = W @ W.T
    gram64 = gram.cpu().double()
    for place, block in rows:
        G = W @ block.T
        h = update(H[:, place], G, gram)
        H[:, place] = h
        q = (h @ h.T).cpu().double()
        P += (h @ block).cpu()
        Q += q
        energy = float(norms[place].cpu().double().square().sum())
        block_loss = (
            energy - 2 * float((h * G).sum(1).cpu().double().sum()) + float((q * gram64).sum())
        )
        if block_loss < _CANCELLATION * energy:
            residual = torch.linalg.vector_norm(block - h.T @ W, dim=1)
            block_loss = float(residual.cpu().double().square().sum())
        loss += block_loss
    return P, Q, loss


def _sweep_coefficients(H: Tensor, G: Tensor, gram: Tensor) -> Tensor:
    H = H.contiguous()
    sweep(H[None], G[None], gram[None], _H_SWEEPS)
    return H


def _solve_coefficients(H: Tensor, G: Tensor, gram: Tensor) -> Tensor:
    """The optimum from zero, whatever H is: where it is not unique, always the same one."""
    return solve(torch.zeros_like(G), G, gram)


def _sweep_components(W: Tensor, P: Tensor, Q: Tensor) -> Tensor:
    sweep(W[None], P[None], Q[None], _W_SWEEPS)
    return W


def _multiply(X: Tensor, G: Tensor, Q: Tensor) -> Tensor:
    """Lee & Seung's update of X (k, m), for the problem of `nnls.py`."""
    return X * (G / (Q @ X).clamp_min(1e-30))


def _relative_error(loss: float, total: float) -> float:
    return math.sqrt(loss / total) if total > 0 else 0.0


def _unscale(X: Tensor, power: int) -> Tensor:
    return X if power == 0 else torch.ldexp(X, torch.tensor(-power))
