"""k-means as a factorization: every row is one center."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization.blocks import RowBlocks, check_finite
from deepff.factorization.estimator import Factorization, checked_seed
from deepff.runtime.distributed import is_distributed

# On the cells of 100 cars, 1152 channels, k = 3 to 6, every seed reaches the best inertia that 40
# full runs find; the best of four full runs is up to 0.3 % above it, and takes longer.
SUBSPACE, N_INIT = 8, 16
_PART = 4096  # rows


@dataclass(eq=False, repr=False)
class KMeans(Factorization):
    """A ≈ H W with the cluster centers as W and one-hot membership as H (scikit-learn's KMeans).

    Unlike the other factorizations, `fit` holds all of A in host memory as float32, and runs in
    one process only.

    Parameters
    ----------
    n_components : int
        k, at most rows and channels.
    random_state : int, numpy.random.RandomState or None
        Seed of the starting centers; None draws a new one each time.
    device : str, torch.device or None
        Device of H and W; None is that of A. The clustering runs on the CPU.
    memory : int or None
        Bytes that may be used in addition to A; None is what the machine has free.

    Attributes
    ----------
    components_ : (k, c)
        Centers, the largest cluster first.
    reconstruction_err_, relative_err_ : float
        ‖A − HW‖ and ‖A − HW‖ / ‖A‖ (0 if A is zero).
    n_iter_, n_reads_ : int
        Iterations of the best run; 1 read of A, into memory.

    Examples
    --------
    >>> import numpy as np
    >>> from deepff import KMeans
    >>> A = np.repeat([[0.0, 5.0], [5.0, 0.0]], [30, 10], axis=0)
    >>> model = KMeans(2, random_state=0)
    >>> H = model.fit_transform(A)
    >>> (H @ model.components_)[[0, -1]].round(5) + 0.0
    array([[0., 5.],
           [5., 0.]], dtype=float32)
    """

    n_components: int = 4
    random_state: int | np.random.RandomState | None = None
    device: str | torch.device | None = None
    memory: int | None = None

    def _fit(self, rows: RowBlocks) -> tuple[Tensor, Tensor | None]:
        import warnings

        from sklearn.cluster import KMeans as SklearnKMeans
        from sklearn.exceptions import ConvergenceWarning

        if is_distributed():
            raise InputError("k-means runs in one process; start one, or choose nmf or pca.")
        seed = checked_seed(self.random_state)
        matrix, exponent = _in_memory(rows)
        n_reads = rows.n_reads
        total = _sum_of_squares(matrix)
        # Distances are lost in the rounding of rows that are far from zero.
        mean = matrix.mean(0, dtype=np.float64).astype(np.float32)
        matrix -= mean
        with warnings.catch_warnings():
            # Fewer distinct rows than clusters leaves equal centers, which is what H shows.
            warnings.simplefilter("ignore", ConvergenceWarning)
            start = _start(matrix, self.n_components, seed)
            estimator = SklearnKMeans(self.n_components, init=start, n_init=1)
            estimator.fit(matrix)
        sizes = np.bincount(estimator.labels_, minlength=self.n_components)
        order = np.argsort(-sizes, stable=True)
        centers = estimator.cluster_centers_[order]
        W = torch.from_numpy(np.ldexp(centers + mean, exponent)).to(rows.device, torch.float32)
        H = self._coefficients(rows, W)
        loss = sum(
            _sum_of_squares(part - centers[h.argmax(1).cpu().numpy()])
            for part, h in zip(_parts(matrix), H.split(_PART), strict=True)
        )
        self.reconstruction_err_ = math.ldexp(math.sqrt(loss), exponent)
        self.relative_err_ = math.sqrt(loss / total) if total > 0 else 0.0
        self.n_iter_ = int(estimator.n_iter_)
        self.n_reads_ = n_reads
        return W, H

    def _coefficients(self, rows: RowBlocks, W: Tensor) -> Tensor:
        """One-hot membership H (rows, k): the nearest center of each row, the first of equals."""
        H = rows.coefficients(len(W))
        for index, block in rows:
            high = float(block.abs().amax())
            check_finite(high)
            scale = 2.0 ** -math.frexp(max(high, float(W.abs().amax())))[1]
            centers = W * scale
            # From their middle: of what is far from zero, distances would be rounding errors.
            mean = centers.mean(0)
            distances = torch.cdist(block * scale - mean, centers - mean)
            H[index].scatter_(1, distances.argmin(1, keepdim=True), 1.0)
        return H


def _in_memory(rows: RowBlocks) -> tuple[np.ndarray, int]:
    """All rows as float32 with entries of at most 1, and e: they are 2^−e times what was given."""
    n_bytes = 4 * rows.n_rows * rows.n_channels
    if n_bytes > rows.memory:
        raise InputError(
            f"k-means needs all {n_bytes / 2**30:.3g} GiB of activations in memory, but only "
            f"{rows.memory / 2**30:.3g} GiB may be used; choose nmf or pca, or fewer images."
        )
    matrix = np.empty((rows.n_rows, rows.n_channels), dtype=np.float32)
    for index, block in rows:
        matrix[index] = block.cpu().numpy()
    high = float(np.abs(matrix).max())
    check_finite(high)
    exponent = math.frexp(high)[1]
    return np.ldexp(matrix, -exponent, out=matrix), exponent


def _start(matrix: np.ndarray, k: int, seed: int | None) -> np.ndarray:
    """The centers (k, c) of the best of several runs in the leading subspace of the rows. Centers
    of clusters lie near it (Ding & He 2004), and runs in it cost next to nothing."""
    from sklearn.cluster import KMeans as SklearnKMeans
    from sklearn.utils.extmath import randomized_svd

    dimension = min(SUBSPACE * k, *matrix.shape)
    _, _, basis = randomized_svd(matrix, dimension, n_iter=2, random_state=seed)
    estimator = SklearnKMeans(k, n_init=N_INIT, random_state=seed).fit(matrix @ basis.T)
    return estimator.cluster_centers_ @ basis


def _parts(matrix: np.ndarray) -> list[np.ndarray]:
    return [matrix[start : start + _PART] for start in range(0, len(matrix), _PART)]


def _sum_of_squares(matrix: np.ndarray) -> float:
    return sum(float(np.square(part, dtype=np.float64).sum()) for part in _parts(matrix))


ESTIMATOR = KMeans
