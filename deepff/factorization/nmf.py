"""Non-negative matrix factorization, A ≈ H W with H, W ≥ 0, by blocks of rows."""

import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization.blocks import RowBlocks
from deepff.factorization.estimator import Factorization, checked_seed
from deepff.factorization.nnls import sweep
from deepff.factorization.refinement import refine_best, revive
from deepff.factorization.sparse import dense
from deepff.factorization.start import (
    SAMPLE_ROWS,
    Sample,
    balanced_start,
    distant_starts,
    draw,
    nndsvda_start,
    normalize,
    race,
)
from deepff.factorization.updates import (
    CANCELLATION,
    Progress,
    Update,
    accumulate,
    coefficients,
    finish,
    multiply,
    scan,
    sweep_coefficients,
    unscaled,
)
from deepff.runtime.distributed import from_first_rank

# Of H in the first read, where it starts at zero, and in those after it; of W, which is small.
FIRST_SWEEPS, H_SWEEPS, _W_SWEEPS = 5, 2, 20
MAX_READS = 8  # of A by "hals" unless `max_iter` is given
MAX_ITER = {"hals": 500, "mu": 200}  # where reads do not count
# Measured: after a fit to the sample, the first update of W by all rows gains what the sample
# lacked, the second 0.03 to 0.09 of that, and each later one 0.3 to 0.6 of the one before it.
_SECOND_GAIN, _LATER_GAIN = 0.06, 0.4
_SAMPLE_SHARE = 8  # the start holds the sample a few times
# Rows of the sample that a factor needs; entries of A that are fitted in memory, whole.
_ROWS_A_FACTOR, WHOLE_ENTRIES = 32, 2**21
# Of the starts, fitted to all of an A with no more entries than the second.
_FINALISTS, _FINAL_ENTRIES = 3, 2**19


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
        Seed of every draw; None draws another one each time. Draws are made on the CPU,
        so that they are the same for every device.
    max_iter : int or None
        The most iterations over all rows; None is 200 for "mu" and 500 for "hals", but where
        "hals" starts on a sample as many as leave 8 reads of A in all.
    tol : float
        Stop when ten iterations lower the error by no more than this share ("hals" looks at the
        last five); after a start on a sample, when the next update of W is expected to. A fit
        that its limit of iterations stops before warns (`ConvergenceWarning`).
    n_init : int
        Random starts that "hals" tries on the sample.
    device : where to compute; None is where A is. Rows elsewhere are sent block by block.
    memory : int or None
        Bytes that the fit may take beside A; None is what the machine has free. H goes to a
        temporary file, mapped into memory, where it would take more than a quarter of them.
        The sample takes an eighth at most, but 32 rows for each factor whatever they take; one
        below 6000 rows can cost a few per cent of error, so that the fit warns.

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
    n_features_in_ : int
        c.

    Notes
    -----
    Computation is in float32, of float64 input too (converted block by block), with sums over
    blocks in float64. H, (rows, k), is kept, and four bytes a row; of A, never more than a few
    blocks and a sample of 6000 rows is copied, which is all of A where that has no more rows, or
    no more than 2²¹ entries. On the CPU, where nearly all entries of A are
    zero, the others are copied too, as far as they fit in an eighth of the memory (of 1 GiB if
    None is given), and read instead of A.

    Where `torch.distributed` is initialised, every rank calls `fit` with its own rows, of any
    number; all get the W of all rows together, and H of their own. The ranks exchange sums
    over rows, (k, c) and (k, k), and the sample.

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

    def __init__(
        self,
        n_components: int = 4,
        solver: str = "hals",
        init: str = "random",
        random_state: int | np.random.RandomState | None = None,
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

    def _fit(self, rows: RowBlocks) -> tuple[Tensor, Tensor]:
        self._check_parameters()
        k = self.n_components
        lengths, total = scan(rows)
        generator = seeded(0 if self.init == "nndsvda" else self.random_state)
        W = torch.zeros(k, rows.n_channels, dtype=torch.float32, device=rows.device)
        H = rows.coefficients(k, 1.0 if self.solver == "mu" else 0.0)
        progress = Progress(W, H, torch.ones_like(W[:, 0]), total)
        if self.solver == "mu":
            converged = self._multiply(rows, progress, lengths, generator)
        else:
            converged = self._descend(rows, progress, lengths, generator)
        return concluded(self, rows, progress, lengths, converged)

    def _coefficients(self, rows: RowBlocks, W: Tensor) -> Tensor:
        return coefficients(rows, W)

    def _multiply(
        self, rows: RowBlocks, progress: Progress, lengths: Tensor, generator: torch.Generator
    ) -> bool:
        """Multiplicative updates; whether they have converged."""
        if self.init == "random":
            shape = progress.W.shape
            W = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").abs()
        elif sample := start_sample(rows, lengths, self.n_components, generator):
            W = nndsvda_start(sample, self.n_components, generator)
        else:
            W = progress.W
        progress.W = from_first_rank(normalize(W).to(progress.W))
        errors = progress.errors
        while len(errors) < (self.max_iter or MAX_ITER["mu"]):
            P, Q, _ = read_sums(rows, progress, multiply, math.inf)
            progress.set_components(multiply(progress.W.cpu().double(), P, Q))
            checked = len(errors) % 10 == 0 and len(errors) > 10
            if checked and errors[-11] - errors[-1] <= self.tol * errors[-1]:
                return True
        return False

    def _descend(
        self, rows: RowBlocks, progress: Progress, lengths: Tensor, generator: torch.Generator
    ) -> bool:
        """HALS; whether it has converged, or made all the reads that it may."""
        sample = start_sample(rows, lengths, self.n_components, generator)
        if sample is None:
            progress.note(0.0)
            return True
        if sample.is_whole:
            return self._descend_in_memory(progress, sample, generator)
        if self.init == "nndsvda":
            W = nndsvda_start(sample, self.n_components, generator)
        else:
            W = race(sample, self.n_components, self.n_init, 1, generator)[0]
        progress.W = from_first_rank(normalize(W))
        return self._descend_by_blocks(rows, progress, sample)

    def _descend_in_memory(
        self, progress: Progress, sample: Sample, generator: torch.Generator
    ) -> bool:
        A, k = sample.rows, self.n_components
        n_kept = _FINALISTS if A.shape[0] * A.shape[1] <= _FINAL_ENTRIES else 1
        if self.init == "nndsvda":
            starts = nndsvda_start(sample, k, generator)[None]
        elif 2 * k > min(A.shape):
            starts = distant_starts(dense(A), k, self.n_init, generator)
        else:
            starts = race(sample, k, self.n_init, n_kept, generator)[:n_kept]
            if n_kept > 1:
                balanced = balanced_start(sample, k, self.n_init, generator)
                starts = torch.cat([balanced, starts[: n_kept - 1]])
        W, progress.errors, converged = refine_best(
            A, normalize(starts), n_kept, self.max_iter or MAX_ITER["hals"], self.tol
        )
        progress.W = from_first_rank(normalize(W).to(progress.W))
        error = torch.tensor(progress.errors[-1], dtype=torch.float64, device="cpu")
        progress.by_residual = float(from_first_rank(error)) ** 2 < CANCELLATION
        return converged

    def _descend_by_blocks(self, rows: RowBlocks, progress: Progress, sample: Sample) -> bool:
        # The last read is left for the solution.
        enough_reads = MAX_READS - 1 if self.max_iter is None else math.inf
        full_sample = round(float(sample.mass.sum())) >= SAMPLE_ROWS
        while len(progress.errors) < (self.max_iter or MAX_READS):
            first = not progress.errors
            update: Update = partial(sweep_coefficients, FIRST_SWEEPS if first else H_SWEEPS)
            P, Q, loss = read_sums(rows, progress, update, enough_reads)
            old = progress.W.cpu().double()
            new = old.clone()
            sweep(new[None], P[None], Q[None], _W_SWEEPS)
            progress.set_components(new)
            dead = (new.norm(dim=1) == 0) | (Q.diagonal() == 0)
            revived = bool(dead.any()) and _revived(progress, sample, dead.to(progress.W.device))
            if rows.n_reads >= enough_reads:
                return True
            gain = 2 * (P * (new - old)).sum() - (Q * (new @ new.T - old @ old.T)).sum()
            if self.init == "random":
                gain *= next_gain(progress, full_sample)
            if gain <= 2 * self.tol * loss and not revived:
                return True
        return False

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


def seeded(random_state: int | np.random.RandomState | None) -> torch.Generator:
    """A generator on the CPU, the same for every rank; of None, another one each time."""
    generator = torch.Generator("cpu")
    seed = checked_seed(random_state)
    if seed is None:
        drawn = torch.tensor(generator.seed() & (2**63 - 1), dtype=torch.int64, device="cpu")
        seed = int(from_first_rank(drawn))
    return generator.manual_seed(seed)


def start_sample(
    rows: RowBlocks,
    lengths: Tensor,
    k: int,
    generator: torch.Generator,
    n_rows: int = SAMPLE_ROWS,
) -> Sample | None:
    """About `n_rows` rows for a fit of k factors to start on; None if all are zero.

    All of few are taken; and fewer where the memory is short.
    """
    bound = rows.memory // (_SAMPLE_SHARE * 4 * rows.n_channels)
    # Some rows more or less than asked for are drawn.
    n_allowed = min(SAMPLE_ROWS, max(bound * 49 // 50, _ROWS_A_FACTOR * k))
    n_draws, n_whole = min(n_rows, n_allowed), min(WHOLE_ENTRIES // rows.n_channels, bound)
    sample = draw(rows, lengths, n_draws, max(n_whole, n_allowed), generator)
    if n_draws < n_rows and sample is not None and not sample.is_whole:
        enough = _SAMPLE_SHARE * 4 * rows.n_channels * n_rows
        warnings.warn(
            f"memory is {rows.memory / 2**20:.3g} MiB, so that the fit starts on {n_draws} "
            f"rows instead of {n_rows} and its error may be a few per cent higher; "
            f"{math.ceil(enough / 2**20)} MiB are enough.",
            stacklevel=6,
        )
    return sample


def read_sums(
    rows: RowBlocks, progress: Progress, update: Update, enough_reads: float
) -> tuple[Tensor, Tensor, float]:
    """One iteration's sums and loss; read once more where the loss is lost in rounding."""
    P, Q, loss = accumulate(rows, progress, update)
    if not progress.by_residual and loss < CANCELLATION * progress.total:
        progress.by_residual = True
        if rows.n_reads < enough_reads:
            progress.scale = torch.ones_like(progress.scale)
            P, Q, loss = accumulate(rows, progress, update)
    progress.note(loss)
    return P, Q, loss


def next_gain(progress: Progress, full_sample: bool) -> float:
    """The gain of the next update of W as a share of the last one's, after a fit to a sample."""
    return _SECOND_GAIN if len(progress.errors) == 1 and full_sample else _LATER_GAIN


def concluded(
    model: Any,
    rows: RowBlocks,
    progress: Progress,
    lengths: Tensor,
    converged: bool,
    signed: bool = False,
) -> tuple[Tensor, Tensor]:
    """W (k, c) and the last H (rows, k), the factor that carries most first; sets the errors."""
    if not converged and model.tol > 0:
        warnings.warn(
            f"{type(model).__name__} stopped after {len(progress.errors)} iterations, before its "
            "tolerance was reached; a larger max_iter or tol would let it converge.",
            ConvergenceWarning,
            stacklevel=5,
        )
    model.n_iter_ = len(progress.errors)
    Q, loss = finish(rows, progress, lengths, signed)
    progress.note(loss)

    H = progress.H
    order = Q.diagonal().argsort(descending=True, stable=True)
    needed = (Q.diagonal()[order] > 0).to(H.device)
    order = order.to(H.device)
    for part in H.split(2**16):
        part.copy_(unscaled(part[:, order], rows.power))
    model.errors_ = progress.errors
    model.relative_err_ = progress.errors[-1]
    model.reconstruction_err_ = math.ldexp(math.sqrt(loss), -rows.power)
    model.n_reads_ = rows.n_reads
    return progress.W[order] * needed[:, None], H


def _revived(progress: Progress, sample: Sample, dead: Tensor) -> bool:
    """Whether rows of the sample need a factor that is dead (k,), which then starts as one."""
    progress.W = from_first_rank(revive(dense(sample.rows), progress.W, dead))
    progress.scale = progress.scale * ~dead
    return bool(progress.W[dead].any())
