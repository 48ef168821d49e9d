"""k-means as a factorization: every row is one centre."""

import math
from typing import Self

import numpy as np
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
)
from deepff.runtime.distributed import is_distributed

# On the cells of 100 cars, 1152 channels, k = 3 to 6, every seed reaches the best inertia that 40
# full runs find; the best of four full runs is up to 0.3 % above it, and takes longer.
SUBSPACE, N_INIT = 8, 16


class KMeans:
    """A ≈ H W with the cluster centres as W and one-hot membership as H (scikit-learn's KMeans).

    Unlike the other factorizations, `fit` holds all of A in host memory as float32, and runs in
    one process only.

    Parameters
    ----------
    n_components : int
        k, at most rows and channels.
    random_state : int or None
        Seed of the starting centres; None draws another one each time.
    device : where H and W are put; None is where A is. Clustering itself is on the CPU.
    memory : int or None
        Bytes that may be taken beside A; None is what the machine has free.

    Attributes
    ----------
    components_ : Tensor (k, c)
        Centres, the largest cluster first.
    reconstruction_err_, relative_err_ : float
        ‖A − HW‖ and ‖A − HW‖ / ‖A‖ (0 if A is zero).
    n_iter_, n_reads_ : int
        Iterations of the best run; 1 read of A, into memory.
    """

    needs_non_negative = False

    def __init__(
        self,
        n_components: int,
        random_state: int | None = None,
        device: str | torch.device | None = None,
        memory: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.random_state = random_state
        self.device = device
        self.memory = memory

    def fit(self, A: Matrix | RowBlocks) -> Self:
        """Find `components_` for A (rows, c); see `fit_transform`."""
        self.fit_transform(A)
        return self

    @torch.no_grad()
    def fit_transform(self, A: Matrix | RowBlocks) -> Tensor:
        """Cluster the rows of A (rows, c); returns the one-hot H (rows, k).

        Raises
        ------
        InputError
            A is not a real matrix of finite values, or k is more than its rows or channels;
            there are several processes; or A does not fit in the memory.
        """
        import warnings

        from sklearn.cluster import KMeans as SklearnKMeans
        from sklearn.exceptions import ConvergenceWarning

        if is_distributed():
            raise InputError("k-means runs in one process; start one, or choose nmf or pca.")
        rows = as_row_blocks(A, self.device, self.memory)
        check_n_components(self.n_components, rows)
        n_bytes = 4 * rows.n_rows * rows.n_channels
        if n_bytes > rows.memory:
            raise InputError(
                f"k-means holds all {n_bytes / 2**30:.3g} GiB of activations in memory, and "
                f"{rows.memory / 2**30:.3g} GiB may be used; choose nmf or pca, or fewer images."
            )
        matrix = np.empty((rows.n_rows, rows.n_channels), dtype=np.float32)
        for place, block in rows:
            matrix[place] = block.cpu().numpy()
        high = float(np.abs(matrix).max())
        check_finite(high)
        # Scaled to entries of at most 1, squared distances fit float32.
        scale = high or 1.0
        matrix /= scale
        with warnings.catch_warnings():
            # Fewer distinct rows than clusters leaves equal centres, which is what H shows.
            warnings.simplefilter("ignore", ConvergenceWarning)
            estimator = SklearnKMeans(self.n_components, init=self._start(matrix), n_init=1)
            estimator.fit(matrix)
        order = np.argsort(
            -np.bincount(estimator.labels_, minlength=self.n_components), stable=True
        )
        centers = estimator.cluster_centers_[order]
        self.components_ = torch.from_numpy(centers * scale).to(rows.device, torch.float32)
        H = self.transform(A)
        labels = H.argmax(1).cpu().numpy()
        loss = total = 0.0
        for start in range(0, rows.n_rows, 4096):
            part = slice(start, start + 4096)
            residual = matrix[part] - centers[labels[part]]
            loss += float(np.square(residual, dtype=np.float64).sum())
            total += float(np.square(matrix[part], dtype=np.float64).sum())
        self.reconstruction_err_ = math.sqrt(loss) * scale
        self.relative_err_ = math.sqrt(loss / total) if total > 0 else 0.0
        self.n_iter_ = int(estimator.n_iter_)
        self.n_reads_ = rows.n_reads
        return H

    def _start(self, matrix: np.ndarray) -> np.ndarray:
        """The centres (k, c) of the best of several runs in the leading subspace of the rows.

        Centres of clusters lie near it (Ding & He 2004), and runs in it cost next to nothing.
        """
        from sklearn.cluster import KMeans as SklearnKMeans
        from sklearn.utils.extmath import randomized_svd

        k, seed = self.n_components, self.random_state
        dimension = min(SUBSPACE * k, *matrix.shape)
        _, _, basis = randomized_svd(matrix, dimension, n_iter=2, random_state=seed)
        estimator = SklearnKMeans(k, n_init=N_INIT, random_state=seed).fit(matrix @ basis.T)
        return estimator.cluster_centers_ @ basis

    @torch.no_grad()
    def transform(self, A: Matrix | RowBlocks) -> Tensor:
        """One-hot membership H (rows, k): the nearest centre of each row, the first of equals."""
        rows = as_row_blocks(A, self.device, self.memory)
        check_fitted(self, rows)
        W = self.components_.to(rows.device)
        H = torch.zeros(rows.n_rows, len(W), device=rows.device)
        for place, block in rows:
            high = float(block.abs().amax())
            check_finite(high)
            scale = max(high, float(W.abs().amax())) or 1.0
            distances = torch.cdist(block / scale, W / scale)
            H[place].scatter_(1, distances.argmin(1, keepdim=True), 1.0)
        return H
