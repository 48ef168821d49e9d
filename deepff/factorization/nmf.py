"""Non-negative matrix factorization, A ≈ H W with H, W ≥ 0, by blocks of rows.

`alternate` is the method: one loop under its formula, which SemiNMF uses as well. `NMF` chooses
the start, the updates and when to stop. `Fit` is the state of a fit.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization.blocks import RowBlocks, sums, unscaled
from deepff.factorization.estimator import Factorization, seeded_generator
from deepff.factorization.nnls import (
    CANCELLATION,
    SOLVE_BLOCKS,
    CoefficientSolver,
    coefficients,
    gram_matrix,
    hals,
    multiply,
)
from deepff.factorization.refinement import refine_best, revive
from deepff.factorization.start import (
    SAMPLE_ROWS,
    Sample,
    nndsvda_start,
    normalize,
    race,
    start_sample,
    starts_in_memory,
)
from deepff.runtime.distributed import all_reduce_sum, from_first_rank, rows_before

# Sweeps of HALS: for H in the first read (from zero), in later ones, and for W, which is small.
_FIRST_SWEEPS, _H_SWEEPS, _W_SWEEPS = 5, 2, 20
MAX_READS = 8  # of A by "hals" unless `max_iter` is given
MAX_ITER = {"hals": 500, "mu": 200}  # where reads do not count
# Measured: after a fit to the sample, the first update of W by all rows gains what the sample
# lacked, the second 0.03 to 0.09 of that, and each later one 0.3 to 0.6 of the one before it.
_SECOND_GAIN, _LATER_GAIN = 0.06, 0.4

# H (k, b) of a block, G = W · blockᵀ (k, b) and W Wᵀ (k, k) to the next H.
UpdateH = Callable[[Tensor, Tensor, Tensor], Tensor]
# W (k, c), P = HᵀA (k, c) and Q = HᵀH (k, k) to the next W, all in float64 on the CPU.
UpdateW = Callable[[Tensor, Tensor, Tensor], Tensor]


def alternate(
    fit: "Fit",
    update_H: UpdateH,
    update_W: UpdateW,
    is_done: Callable[["Step"], bool],
    max_iter: int,
    max_reads: float = math.inf,
) -> bool:
    """Alternate between H and W until `is_done`; whether that was before `max_iter` iterations.

    An iteration is one read of A:

        for each block b of rows:  H_b ← update(H_b, A_b Wᵀ, W Wᵀ);  P += H_bᵀ A_b;  Q += H_bᵀ H_b
        all-reduce P (k, c), Q (k, k)
        ‖A − HW‖² = ‖A‖² − 2⟨P, W⟩ + ⟨Q, W Wᵀ⟩
        W ← update(W, P, Q)

    An update of X (H_bᵀ or W) minimizes ½⟨X, QX⟩ − ⟨G, X⟩, with G = W A_bᵀ, Q = W Wᵀ or G = P:

        HALS, row by row:  x_j ← max(0, (g_j − Σ_{i ≠ j} q_ji x_i) / q_jj)
        multiplicative:    X ← X · G / (Q X)
        W of any sign:     W ← Q⁻¹ P

    Cichocki & Phan 2009, in several sweeps (Gillis & Glineur 2012); Lee & Seung 2001; Ding, Li &
    Jordan 2010. They are `hals`, `multiply` and `solve_free` of `nnls.py`. Whoever reads for the
    method may stop after `read_and_update`: the rest makes it fast and safe.
    """
    while len(fit.errors) < max_iter:
        P, Q, loss = read_and_update(fit, update_H)
        if not fit.by_residual and loss < CANCELLATION * fit.total:
            fit.by_residual = True  # so small a loss, from sums, is mostly rounding
            if fit.rows.n_reads < max_reads:
                P, Q, loss = read_and_update(fit, update_H)
        fit.note(loss)
        old = fit.W.cpu().double()
        new = update_W(old, P, Q)
        fit.set_components(new)
        if is_done(Step(P, Q, loss, old, new)):
            return True
    return False


def read_and_update(fit: "Fit", update_H: UpdateH) -> tuple[Tensor, Tensor, float]:
    """One read of A: updates H; P = HᵀA (k, c) and Q = HᵀH (k, k) in float64, and ‖A − HW‖².
    Nothing here waits for an accelerator before all blocks are read."""
    W, gram = fit.W, fit.W @ fit.W.T
    P, Q, loss = (sums(*shape, device=W.device) for shape in (W.shape, gram.shape, (1,)))
    for index, block in fit.rows:
        G = W @ block.T  # measured: this order leaves the block in the cache
        H = update_H(fit.H[index].T.contiguous().mul_(fit.scale[:, None]), G, gram)
        fit.H[index] = H.T
        P += (H @ block).to(P.device)
        Q += (H @ H.T).to(Q.device)
        loss += fit.block_loss(block, H, G).to(loss.device)
    fit.scale = torch.ones_like(fit.scale)
    P, Q, loss = all_reduced(P, Q, loss)
    return P, Q, fit.total_loss(loss, Q)


@dataclass(eq=False, repr=False)
class NMF(Factorization):
    """Non-negative matrix factorization with the Frobenius norm.

    Parameters
    ----------
    n_components : int
        k, at most rows and channels.
    solver : {"hals", "mu"}
        "hals" (Cichocki & Phan 2009) starts on a sample of the rows, drawn half evenly and half
        by energy, and finishes in a few reads of all; a small A is fitted whole. "mu": the
        multiplicative updates of Lee & Seung 2001, from a random start.
    init : {"random", "nndsvda"}
        "nndsvda" (Boutsidis & Gallopoulos 2008) is deterministic whatever `random_state` is.
    random_state : int, numpy.random.RandomState or None
        Seed of all random numbers; None draws a new one each time. Random numbers come from the
        CPU, so they are the same for every device.
    max_iter : int or None
        Maximum number of iterations over all rows. None means 200 for "mu" and 500 for "hals", or
        as many as fit in 8 reads of A if "hals" starts on a sample.
    tol : float
        Stop when ten iterations lower the error by no more than this share. After a start on a
        sample, stop when the next update of W is expected to do so. A fit that reaches max_iter
        before that warns (`ConvergenceWarning`). Where "hals" fits A whole, the gain of ten is
        taken from four, as a share of the error, but of no less than 0.3 ‖A‖.
    n_init : int
        Random starts that "hals" tries on the sample. A small A has one or two starts, which are
        not random, or up to four where k is more than half of its rows or channels.
    device : str, torch.device or None
        Device to compute on; None is that of A. Rows on other devices are sent block by block.
    memory : int or None
        Bytes that the fit may use in addition to A; None is what the machine has free. H goes to
        a temporary file, mapped into memory, if it needs more than a quarter of them. The sample
        uses an eighth at most, but always at least 32 rows per factor. With fewer than 6000 rows
        the error can be a few percent higher, and the fit warns.

    Attributes
    ----------
    components_ : (k, c)
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
    blocks in float64. H, (rows, k), is kept, and four bytes a row; of A, never more than a few
    blocks and a sample of 6000 rows is copied, which is all of A where that has no more rows, or
    no more than 2²¹ entries.

    Where `torch.distributed` is initialized, every rank calls `fit` with its rows, of any number;
    all get the W of all rows together, and H of their rows. The ranks exchange sums over rows,
    (k, c) and (k, k), and the sample.

    Examples
    --------
    >>> import numpy as np
    >>> from deepff import NMF
    >>> random = np.random.default_rng(0)
    >>> A = random.random((500, 3)) @ random.random((3, 20))  # of three factors
    >>> nmf = NMF(3, random_state=0)
    >>> H = nmf.fit_transform(A)
    >>> H.shape, nmf.components_.shape
    ((500, 3), (3, 20))
    >>> nmf.relative_err_ < 0.01, bool((H >= 0).all())
    (True, True)
    """

    needs_non_negative = True

    n_components: int = 4
    solver: str = "hals"
    init: str = "random"
    random_state: int | np.random.RandomState | None = None
    max_iter: int | None = None
    tol: float = 1e-4
    n_init: int = 8
    device: str | torch.device | None = None
    memory: int | None = None

    def _fit(self, rows: RowBlocks) -> tuple[Tensor, Tensor]:
        self._check_parameters()
        fit = Fit.begin(rows, self.n_components, 1.0 if self.solver == "mu" else 0.0)
        generator = seeded_generator(0 if self.init == "nndsvda" else self.random_state)
        method = self._multiplicative if self.solver == "mu" else self._hals
        return conclude(self, fit, method(fit, generator))

    def _coefficients(self, rows: RowBlocks, W: Tensor) -> Tensor:
        return coefficients(rows, W)

    def _multiplicative(self, fit: "Fit", generator: torch.Generator) -> bool:
        """Lee & Seung's updates; whether they have converged."""
        W = fit.W
        if self.init == "random":
            W = torch.randn(W.shape, generator=generator, dtype=torch.float32, device="cpu").abs()
        elif sample := start_sample(fit.rows, fit.lengths, len(W), generator):
            W = nndsvda_start(sample, len(W), generator)
        fit.W = from_first_rank(normalize(W).to(fit.W))

        def is_converged(step: Step) -> bool:
            errors = fit.errors
            is_checked = len(errors) % 10 == 0 and len(errors) > 10
            return is_checked and errors[-11] - errors[-1] <= self.tol * errors[-1]

        return alternate(fit, multiply, multiply, is_converged, self.max_iter or MAX_ITER["mu"])

    def _hals(self, fit: "Fit", generator: torch.Generator) -> bool:
        """HALS; whether it has converged, or made all the reads that it may."""
        k = self.n_components
        sample = start_sample(fit.rows, fit.lengths, k, generator)
        if sample is None:
            fit.note(0.0)
            return True
        if sample.is_whole:
            return self._hals_in_memory(fit, sample, generator)
        if self.init == "nndsvda":
            W = nndsvda_start(sample, k, generator)
        else:
            W = race(sample, k, self.n_init, generator)
        fit.W = from_first_rank(normalize(W))
        return self._hals_by_blocks(fit, sample)

    def _hals_in_memory(self, fit: "Fit", sample: Sample, generator: torch.Generator) -> bool:
        starts = starts_in_memory(sample, self.n_components, self.init, self.n_init, generator)
        H, W, fit.errors, converged = refine_best(
            sample.rows, normalize(starts), self.max_iter or MAX_ITER["hals"], self.tol
        )
        fit.set_components(W)
        indices = fit.lengths.nonzero()[:, 0]
        first, _ = rows_before(len(indices))
        fit.H[indices] = H.T[first : first + len(indices)].to(fit.H)
        error = torch.tensor(fit.errors[-1], dtype=torch.float64, device="cpu")
        fit.by_residual = float(from_first_rank(error)) ** 2 < CANCELLATION
        return converged

    def _hals_by_blocks(self, fit: "Fit", sample: Sample) -> bool:
        # The last read is left for the solution of H.
        max_reads = MAX_READS - 1 if self.max_iter is None else math.inf
        full_sample = round(float(sample.mass.sum())) >= SAMPLE_ROWS

        def is_done(step: Step) -> bool:
            dead = (step.new.norm(dim=1) == 0) | (step.Q.diagonal() == 0)
            revived = bool(dead.any()) and revive_factors(fit, sample, dead)
            if fit.rows.n_reads >= max_reads:
                return True
            share = next_gain(fit, full_sample) if self.init == "random" else 1.0
            return step.gain * share <= 2 * self.tol * step.loss and not revived

        def sweep_components(W: Tensor, P: Tensor, Q: Tensor) -> Tensor:
            return hals(W.clone(), P, Q, _W_SWEEPS)

        max_iter = self.max_iter or MAX_READS
        return alternate(fit, hals_update(fit), sweep_components, is_done, max_iter, max_reads)

    def _check_parameters(self) -> None:
        if self.solver not in ("hals", "mu"):
            raise InputError(f'solver is {self.solver!r}; it must be "hals" or "mu".')
        if self.init not in ("random", "nndsvda"):
            raise InputError(f'init is {self.init!r}; it must be "random" or "nndsvda".')
        check_limits(self.max_iter, self.n_init, self.tol)


class Step(NamedTuple):
    """One iteration: its sums, ‖A − HW‖² before W changed, and W before and after."""

    P: Tensor
    Q: Tensor
    loss: float
    old: Tensor
    new: Tensor

    @property
    def gain(self) -> float:
        """By how much the update of W lowered ‖A − HW‖²."""
        P, Q, _, old, new = self
        return float(2 * (P * (new - old)).sum() - (Q * (new @ new.T - old @ old.T)).sum())


def hals_update(fit: "Fit") -> UpdateH:
    """HALS for H, with more sweeps in the first read."""
    return lambda H, G, gram: hals(H, G, gram, _H_SWEEPS if fit.errors else _FIRST_SWEEPS)


def next_gain(fit: "Fit", full_sample: bool) -> float:
    """The gain of the next update of W as a share of the last one's, after a fit to a sample."""
    return _SECOND_GAIN if len(fit.errors) == 1 and full_sample else _LATER_GAIN


def revive_factors(fit: "Fit", sample: Sample, dead: Tensor) -> bool:
    """Dead factors (k,) become rows of the sample that the others miss; False if none is needed."""
    dead = dead.to(fit.W.device)
    fit.W = from_first_rank(revive(sample.rows, fit.W, dead))
    fit.scale = fit.scale * ~dead
    return bool(fit.W[dead].any())


@dataclass
class Fit:
    """A ≈ H W as far as the fit has come."""

    rows: RowBlocks  # A
    lengths: Tensor  # (rows,), of A's rows
    total: float  # ‖A‖²
    signed: bool  # whether W may be negative
    W: Tensor  # (k, c), rows of length one, or zero
    H: Tensor  # (rows, k), to be multiplied by diag(scale)
    scale: Tensor  # (k,)
    errors: list[float] = field(default_factory=list)  # ‖A − HW‖ / ‖A‖ after each iteration
    # Whether ‖A − HW‖ is taken from A − HW, block by block in the cache: where A is fitted well,
    # float32 would leave little of the difference of the sums.
    by_residual: bool = False

    @classmethod
    def begin(cls, rows: RowBlocks, k: int, value: float = 0.0, signed: bool = False) -> "Fit":
        """Check A and choose its scale; W is zero, and H is `value`."""
        lengths, total = rows.scan(signed)
        W = torch.zeros(k, rows.n_channels, dtype=torch.float32, device=rows.device)
        H = rows.coefficients(k, value)
        return cls(rows, lengths, total, signed, W, H, torch.ones_like(W[:, 0]))

    def set_components(self, W: Tensor) -> None:
        """Take W (k, c) of any length, and H to match."""
        W = from_first_rank(W)
        lengths = W.norm(dim=1)
        self.scale = lengths.to(self.scale)
        self.W = (W / lengths.clamp_min(torch.finfo(W.dtype).tiny)[:, None]).to(self.W)

    def note(self, loss: float) -> None:
        """Append to the errors; 0 if A is zero."""
        self.errors.append(math.sqrt(loss / self.total) if self.total > 0 else 0.0)

    def block_loss(self, block: Tensor, H: Tensor, G: Tensor) -> Tensor:
        """What a block adds to the loss, for H (k, b) and G = W · blockᵀ: −2⟨H, G⟩ or ‖A − HW‖²."""
        if not self.by_residual:
            return -2 * (H * G).sum(1).to(sums(device=H.device)).sum()
        norms = torch.linalg.vector_norm(block - H.T @ self.W, dim=1)
        return norms.to(sums(device=H.device)).square().sum()

    def total_loss(self, block_losses: Tensor, Q: Tensor) -> float:
        """‖A − HW‖² of all blocks (1,), where Q = HᵀH."""
        loss = float(block_losses)
        if not self.by_residual:
            loss += self.total + float((Q * gram_matrix(self.W.cpu())).sum())
        return max(loss, 0.0)


def all_reduced(*summands: Tensor) -> list[Tensor]:
    """The sums over all processes, on the CPU, exchanged at once."""
    packed = torch.cat([values.flatten() for values in summands])
    parts = all_reduce_sum(packed).cpu().split([values.numel() for values in summands])
    return [part.view(values.shape) for part, values in zip(parts, summands, strict=True)]


def conclude(model: Any, fit: Fit, converged: bool) -> tuple[Tensor, Tensor]:
    """W (k, c) and its best H (rows, k), the factor that carries most first; sets the errors."""
    if not converged and model.tol > 0:
        warnings.warn(
            f"{type(model).__name__} stopped after {len(fit.errors)} iterations, before it reached "
            "its tolerance; raise max_iter or tol.",
            ConvergenceWarning,
            stacklevel=5,
        )
    model.n_iter_ = len(fit.errors)
    rows, H = fit.rows, fit.H
    Q, loss = solve_coefficients(fit)
    fit.note(loss)
    order = Q.diagonal().argsort(descending=True, stable=True)
    needed = (Q.diagonal()[order] > 0).to(H.device)
    order = order.to(H.device)
    for part in H.split(2**16):
        part.copy_(unscaled(part[:, order], rows.power))
    model.errors_ = fit.errors
    model.relative_err_ = fit.errors[-1]
    model.reconstruction_err_ = math.ldexp(math.sqrt(loss), -rows.power)
    model.n_reads_ = rows.n_reads
    return fit.W[order] * needed[:, None], H


def solve_coefficients(fit: Fit) -> tuple[Tensor, float]:
    """One read of A: H becomes optimal for W; Q = HᵀH (k, k), and ‖A − HW‖²."""
    solver = CoefficientSolver(fit.W, fit.signed)
    k = len(fit.W)
    Q, loss = sums(k, k, device=fit.W.device), sums(1, device=fit.W.device)
    for index, block in fit.rows.read(SOLVE_BLOCKS):
        start = fit.H[index].T * fit.scale[:, None]
        H, G = solver.solve(block, fit.lengths[index], start)
        fit.H[index] = H.T
        Q += (H @ H.T).to(Q)
        loss += fit.block_loss(block, H, G).to(loss.device)
    Q, loss = all_reduced(Q, loss)
    return Q, fit.total_loss(loss, Q)


def check_limits(max_iter: int | None, n_init: int, tol: float) -> None:
    """Raise InputError where one of these parameters is out of its range."""
    if (max_iter is not None and max_iter < 1) or n_init < 1:
        raise InputError(f"max_iter is {max_iter} and n_init {n_init}; both must be at least 1.")
    if not tol >= 0:
        raise InputError(f"tol is {tol}; it must be at least 0.")


ESTIMATOR = NMF
