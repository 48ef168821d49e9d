"""Semi-NMF, A ≈ H W with H ≥ 0 and W of any sign, by blocks of rows."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepff.factorization.blocks import RowBlocks
from deepff.factorization.estimator import Factorization, seeded_generator
from deepff.factorization.nmf import (
    MAX_ITER,
    MAX_READS,
    Fit,
    Step,
    alternate,
    check_limits,
    conclude,
    hals_update,
    next_gain,
)
from deepff.factorization.nnls import coefficients, solve_free
from deepff.factorization.start import SIGNED_ROWS, normalize, race, start_sample
from deepff.runtime.distributed import from_first_rank

_EXACT = 1e-12  # of ‖A‖²: what rounding leaves of a matrix that is fitted whole


@dataclass(eq=False, repr=False)
class SemiNMF(Factorization):
    """Semi-NMF with the Frobenius norm (Ding, Li & Jordan 2010), for matrices that go negative.

    In the loop of `NMF`: HALS for H, and W ← (HᵀH)⁻¹HᵀA.

    Parameters
    ----------
    n_components : int
        k, at most rows and channels.
    random_state : int, numpy.random.RandomState or None
        Seed of every draw, as of `NMF`.
    max_iter : int or None
        The most iterations over all rows; None is 500, but where the fit starts on a sample as
        many as leave 8 reads of A in all.
    tol : float
        Stop when the next update of W is expected to lower the error by no more than this share;
        of a matrix that is fitted whole, when the last one did by no more than a thirtieth of it. A
        fit that `max_iter`, or the 500 iterations, stop short of it warns.
    n_init : int
        Random starts that are tried on the sample.
    device, memory :
        As of `NMF`.

    Attributes
    ----------
    components_ : (k, c)
        W: rows of length 1, the factor that carries most of A first; zero for a factor not needed.
    reconstruction_err_, relative_err_, errors_, n_iter_, n_reads_, n_features_in_
        As of `NMF`.

    Notes
    -----
    Precision, memory, and rows over several processes are as for `NMF`. The factors are less
    unique than NMF's: where PCA with k components leaves about the same error, many H and W are
    about as good, and another seed may find others.

    Examples
    --------
    >>> import numpy as np
    >>> from deepff import SemiNMF
    >>> random = np.random.default_rng(0)
    >>> A = random.random((500, 3)) @ random.normal(size=(3, 20))  # of three factors, signed
    >>> A += 0.01 * random.normal(size=A.shape)
    >>> model = SemiNMF(3, random_state=0)
    >>> H = model.fit_transform(A)
    >>> model.relative_err_ < 0.02, bool((H >= 0).all()), bool((model.components_ < 0).any())
    (True, True, True)
    """

    n_components: int
    random_state: int | np.random.RandomState | None = None
    max_iter: int | None = None
    tol: float = 3e-4
    n_init: int = 8
    device: str | torch.device | None = None
    memory: int | None = None

    def _fit(self, rows: RowBlocks) -> tuple[Tensor, Tensor]:
        check_limits(self.max_iter, self.n_init, self.tol)
        fit = Fit.begin(rows, self.n_components, signed=True)
        return conclude(self, fit, self._alternate(fit))

    def _coefficients(self, rows: RowBlocks, W: Tensor) -> Tensor:
        return coefficients(rows, W, signed=True)

    def _alternate(self, fit: Fit) -> bool:
        """Whether it has converged, or made all the reads that it may."""
        k, generator = self.n_components, seeded_generator(self.random_state)
        sample = start_sample(fit.rows, fit.lengths, k, generator, SIGNED_ROWS)
        if sample is None:
            fit.note(0.0)
            return True
        W = race(sample, k, self.n_init, generator, signed=True)
        fit.W = from_first_rank(normalize(W))
        # Components that cancel each other, which many iterations may come to, lose the difference.
        fit.by_residual = sample.is_whole
        # The last read is left for the solution of H.
        by_reads = self.max_iter is None and not sample.is_whole
        max_reads = MAX_READS - 1 if by_reads else math.inf
        full_sample = float(sample.mass.sum()) > 0.99 * SIGNED_ROWS  # some less than asked for

        def is_done(step: Step) -> bool:
            gain = step.gain * (30 if sample.is_whole else next_gain(fit, full_sample))
            is_exact = step.loss <= _EXACT * fit.total
            return is_exact or gain <= 2 * self.tol * step.loss or fit.rows.n_reads >= max_reads

        def solve_components(W: Tensor, P: Tensor, Q: Tensor) -> Tensor:
            return solve_free(P, Q)

        max_iter = self.max_iter or MAX_ITER["hals"]
        return alternate(fit, hals_update(fit), solve_components, is_done, max_iter, max_reads)


ESTIMATOR = SemiNMF
