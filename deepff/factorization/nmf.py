"""Non-negative matrix factorization, A ≈ H W with H, W ≥ 0, by blocks of rows."""

import math
from collections.abc import Callable
from functools import partial
from typing import Self

import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization.blocks import (
    Matrix,
    RowBlocks,
    as_row_blocks,
    check_fitted,
    check_n_components,
    check_non_negative,
    sums,
)
from deepff.factorization.nnls import solve, sweep
from deepff.factorization.sparse import SparseBlock
from deepff.factorization.start import SAMPLE_ROWS, nndsvda_start, normalize, random_start
from deepff.runtime.distributed import (
    all_reduce_max,
    all_reduce_sum,
    from_first_rank,
    gather_rows,
    is_distributed,
    rows_before,
)

# Of H in the first read, where it starts at zero, and in those after it; of W, which is small.
_FIRST_SWEEPS, _H_SWEEPS, _W_SWEEPS = 5, 2, 20
MAX_READS = 8  # of A by "hals" unless `max_iter` is given
# Measured: after a fit to the sample, the first update of W by all rows gains what the sample
# lacked, the second 0.03 to 0.09 of that, and each later one 0.3 to 0.6 of the one before it.
_SECOND_GAIN, _LATER_GAIN = 0.06, 0.4
_SOLVE_BLOCKS = 16  # blocks at once where there is one product only
# Below this share of ‖A‖², the loss from P and Q is mostly rounding error of float32.
_CANCELLATION = 1e-3
_SAMPLE_SHARE = 8  # the start holds the sample a few times
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
    max_iter : int or None
        The most iterations over all rows; None is 200 for "mu", and for "hals" as many as leave
        8 reads of A in all.
    tol : float
        Stop when an update of W lowers the error by less than this share or, after a fit to a
        sample, when the next one is expected to ("mu": when ten iterations do).
    n_init : int
        Random starts that "hals" tries on the sample.
    device : where to compute; None is where A is. Rows elsewhere are sent block by block.
    memory : int or None
        Bytes that the fit may take beside A; None is what the machine has free. H goes to a
        temporary file, mapped into memory, where it would take more than a quarter of them.

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
    blocks in float64. H, (rows, k), is kept, and one byte a row; of A, never more than a few
    blocks and a sample of 6000 rows is copied. On the CPU, where nearly all entries of A are
    zero, the others are copied too, as far as they fit in an eighth of the memory (of 1 GiB if
    None is given), and read instead of A.

    Where `torch.distributed` is initialised, every rank calls `fit` with its own rows, of any
    number; all get the W of all rows together, and H of their own. The ranks exchange sums
    over rows, (k, c) and (k, k), and the sample.
    """

    needs_non_negative = True

    def __init__(
        self,
        n_components: int,
        solver: str = "hals",
        init: str = "random",
        random_state: int | None = None,
        max_iter: int | None = None,
        tol: float = 1e-4,
        n_init: int = 8,
        device: str | torch.device | None = None,
        memory: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.init = init
        self.random_state = random_state
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.device = device
        self.memory = memory

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
        rows = as_row_blocks(A, self.device, self.memory)
        k = self.n_components
        check_n_components(k, rows)
        filled, total = _scan(rows)
        W, sampled = self._start(rows, filled)
        W = from_first_rank(W)
        hals = self.solver == "hals"
        H = rows.coefficients(k, 0.0 if hals else 1.0)
        scale = torch.ones(k, device=rows.device)
        # The last read is left for the solution.
        enough_reads = MAX_READS - 1 if hals and self.max_iter is None else math.inf
        self.errors_: list[float] = []
        by_residual = False
        checked = math.inf
        for iteration in range(1, (self.max_iter or 200) + 1):
            n_sweeps = _FIRST_SWEEPS if iteration == 1 else _H_SWEEPS
            update: Update = partial(_sweep_coefficients, n_sweeps) if hals else _multiply
            P, Q, loss = _accumulate(rows, W, H, scale, update, total, by_residual)
            if not by_residual and loss < _CANCELLATION * total:
                by_residual = True
                if rows.n_reads < enough_reads:
                    scale = torch.ones_like(scale)
                    P, Q, loss = _accumulate(rows, W, H, scale, update, total, by_residual)
            self.errors_.append(_relative_error(loss, total))
            old = W.cpu().double()
            new = _sweep_components(old.clone(), P, Q) if hals else _multiply(old, P, Q)
            new = from_first_rank(new)
            scale = new.norm(dim=1).to(scale)
            W = normalize(new).to(W)
            if rows.n_reads >= enough_reads:
                break
            if hals:
                gain = 2 * (P * (new - old)).sum() - (Q * (new @ new.T - old @ old.T)).sum()
                if sampled:  # what the next update will gain
                    gain *= _SECOND_GAIN if iteration == 1 else _LATER_GAIN
                if gain <= 2 * self.tol * loss:
                    break
            elif iteration % 10 == 0:
                if checked - self.errors_[-1] <= self.tol * self.errors_[-1]:
                    break
                checked = self.errors_[-1]
        solve_coefficients = _solver(W)
        _, Q, loss = _accumulate(
            rows, W, H, scale, solve_coefficients, total, by_residual, with_P=False
        )
        self.errors_.append(_relative_error(loss, total))

        order = Q.diagonal().argsort(descending=True, stable=True).to(W.device)
        for part in H.split(2**16):
            part.copy_(_unscale(part[:, order], rows.power))
        self.components_ = W[order]
        self.relative_err_ = self.errors_[-1]
        self.reconstruction_err_ = math.ldexp(math.sqrt(loss), -rows.power)
        self.n_iter_ = iteration
        self.n_reads_ = rows.n_reads
        return H

    @torch.no_grad()
    def transform(self, A: Matrix | RowBlocks) -> Tensor:
        """H (rows, k) ≥ 0 that minimises ‖A − HW‖ for the fitted W, exact but for rounding.

        Raises
        ------
        InputError
            Before `fit`, or if A is not a real matrix with the fitted number of channels, or holds
            a negative or non-finite value.
        """
        rows = as_row_blocks(A, self.device, self.memory)
        check_fitted(self, rows)
        W = self.components_.to(rows.device)
        H = rows.coefficients(len(W))
        gram = W @ W.T
        for place, block in rows.read(_SOLVE_BLOCKS):
            _check_extremes(_extremes(block))
            G = (block @ W.T).T
            H[place] = solve(torch.zeros_like(G), G, gram).T
        return H

    def _start(self, rows: RowBlocks, filled: Tensor) -> tuple[Tensor, bool]:
        """The first W (k, c), rows of length one, and whether it is fitted to a part of A only."""
        k = self.n_components
        generator = torch.Generator()
        if self.init == "nndsvda":
            generator.manual_seed(0)
        elif self.random_state is None:
            seed = torch.tensor(generator.seed() & (2**63 - 1))
            generator.manual_seed(int(from_first_rank(seed)))
        else:
            generator.manual_seed(self.random_state)
        if self.solver == "mu" and self.init == "random":
            W = torch.randn(k, rows.n_channels, generator=generator).abs()
            return normalize(W).to(rows.device), False
        first, n_filled = rows_before(int(filled.sum()))
        if n_filled == 0:
            return torch.zeros(k, rows.n_channels, device=rows.device), False
        n_sampled = min(SAMPLE_ROWS, rows.memory // (_SAMPLE_SHARE * 4 * rows.n_channels))
        if n_filled > n_sampled:
            chosen = torch.randint(n_filled, (n_sampled,), generator=generator).unique()
        else:
            chosen = torch.arange(n_filled)
        sample = rows.take_again(_places(filled, chosen - first))
        if is_distributed():
            sample = gather_rows(sample.to_dense())
        if self.init == "nndsvda":
            return normalize(nndsvda_start(sample, k, generator)), False
        return random_start(sample, k, self.n_init, generator), n_filled > n_sampled

    def _check_parameters(self) -> None:
        if self.solver not in ("hals", "mu"):
            raise InputError(f'solver is {self.solver!r}; it must be "hals" or "mu".')
        if self.init not in ("random", "nndsvda"):
            raise InputError(f'init is {self.init!r}; it must be "random" or "nndsvda".')
        if (self.max_iter is not None and self.max_iter < 1) or self.n_init < 1:
            raise InputError(
                f"max_iter is {self.max_iter} and n_init {self.n_init}; both must be at least 1."
            )
        if not self.tol >= 0:
            raise InputError(f"tol is {self.tol}; it must be at least 0.")


def _scan(rows: RowBlocks) -> tuple[Tensor, float]:
    """Check all entries and set the scale; which rows are not zero (rows,), and ‖A‖²."""
    filled = torch.empty(rows.n_rows, dtype=torch.bool, device=rows.device)
    energy = sums(1, device=rows.device)
    extremes = torch.zeros(2, device=rows.device)
    for place, block in rows.compress():
        if isinstance(block, SparseBlock):
            parts, filled[place] = block.entries(), block.filled()
            for part in parts:
                energy += torch.linalg.vector_norm(part, dtype=torch.float64).square()
        else:
            norms = torch.linalg.vector_norm(block, dim=1)
            parts, filled[place] = [block], norms > 0
            energy += norms.to(energy).square().sum()
        for part in parts:
            extremes = torch.maximum(extremes, _extremes(part))
    if rows.power == 0:
        high = _check_extremes(all_reduce_max(extremes))
        if high > 0 and not _SAFE[0] < high < _SAFE[1]:
            # Squares overflow or vanish: once more, scaled.
            rows.power = max(-126, min(126, -math.frexp(high)[1]))
            return _scan(rows)
    return filled, float(all_reduce_sum(energy))


def _extremes(block: Tensor) -> Tensor:
    """The least entry, negated, and the largest (2,); infinite where one is not a number."""
    low, high = block.aminmax()
    return torch.stack([-low, high]).nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)


def _check_extremes(extremes: Tensor) -> float:
    """The largest entry; refuses matrices with a negative or a non-finite one."""
    negative, high = extremes.tolist()
    check_non_negative(-negative, high)
    return high


def _places(filled: Tensor, ordinals: Tensor) -> Tensor:
    """Where the rows are that come at these ordinals (ascending) among the filled ones."""
    found = [torch.empty(0, dtype=torch.int64)]
    first = before = 0
    for part in filled.split(2**20):  # the places of all would take eight bytes a row
        places = part.cpu().nonzero().squeeze(1) + first
        inside = (ordinals >= before) & (ordinals < before + len(places))
        found.append(places[ordinals[inside] - before])
        first, before = first + len(part), before + len(places)
    return torch.cat(found)


def _accumulate(
    rows: RowBlocks,
    W: Tensor,
    H: Tensor,
    scale: Tensor,
    update: Update,
    total: float,
    by_residual: bool,
    with_P: bool = True,
) -> tuple[Tensor, Tensor, float]:
    """One read of A: update H · diag(scale); P = HᵀA (k, c), Q = HᵀH (k, k), and ‖A − HW‖².

    P and Q are float64. Nothing here waits for an accelerator before all blocks are read.

    The loss is ‖A‖² − 2⟨H, AWᵀ⟩ + ⟨Q, WWᵀ⟩, or, where A is fitted so well that float32 would
    leave little of the difference, taken from A − HW by block, still in the cache.
    """
    k, c = W.shape
    gram = W @ W.T
    packed = sums(k * c + k * k + 1, device=W.device)
    P, Q = packed[: k * c].view(k, c), packed[k * c : -1].view(k, k)
    for place, block in rows.read_again(1 if with_P else _SOLVE_BLOCKS):
        # Measured: the second is faster on its own, the first leaves the block in the cache.
        G = W @ block.T if with_P and isinstance(block, Tensor) else (block @ W.T).T
        h = update(H[place].T.contiguous().mul_(scale[:, None]), G, gram)
        H[place] = h.T
        Q += (h @ h.T).to(packed.device)
        if with_P:
            weighted = block.weighted_sums(h) if isinstance(block, SparseBlock) else h @ block
            P += weighted.to(packed.device)
        if by_residual:
            dense = block.to_dense() if isinstance(block, SparseBlock) else block
            residual = torch.linalg.vector_norm(dense - h.T @ W, dim=1)
            packed[-1] += residual.to(packed).square().sum()
        else:
            packed[-1] -= 2 * (h * G).sum(1).to(packed).sum()
    packed = all_reduce_sum(packed).cpu()
    P, Q, loss = packed[: k * c].view(k, c), packed[k * c : -1].view(k, k), float(packed[-1])
    if not by_residual:
        loss += total + float((Q * gram.cpu().double()).sum())
    return P, Q, max(loss, 0.0)


def _sweep_coefficients(n_sweeps: int, H: Tensor, G: Tensor, gram: Tensor) -> Tensor:
    sweep(H[None], G[None], gram[None], n_sweeps)
    return H


def _solver(W: Tensor) -> Update:
    """The optimum for H: from what it is, or, where it is not unique, always the same one."""
    values = torch.linalg.eigvalsh(W.cpu().double() @ W.cpu().double().T)
    if values[0] > 1e-3 * values[-1]:
        return solve
    return lambda H, G, gram: solve(torch.zeros_like(G), G, gram)


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
