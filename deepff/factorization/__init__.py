"""Factorizations A ≈ H W of the activations: estimators over blocks of rows."""

from typing import Any, Protocol

from torch import Tensor

from deepff.factorization.kmeans import KMeans
from deepff.factorization.nmf import NMF
from deepff.factorization.pca import PCA
from deepff.factorization.semi_nmf import SemiNMF


class Factorizer(Protocol):
    """What a factorization must have to be one: an estimator in the manner of scikit-learn.

    Attributes
    ----------
    needs_non_negative : bool
        Whether A must not go negative.
    components_ : Tensor, (k, c)
        W, once fitted; and so the others.
    relative_err_ : float
        ‖A − HW‖ / ‖A‖.
    n_iter_ : int
    """

    needs_non_negative: bool
    components_: Tensor
    relative_err_: float
    n_iter_: int

    def fit_transform(self, X: Any, /) -> Any:
        """Find W of A and give H, (rows, k)."""

    def transform(self, X: Any, /) -> Any:
        """H, (rows, k), of other rows for the same W."""


METHODS: dict[str, type[Any]] = {
    "nmf": NMF,
    "semi-nmf": SemiNMF,
    "pca": PCA,
    "kmeans": KMeans,
}

__all__ = ["METHODS", "NMF", "PCA", "Factorizer", "KMeans", "SemiNMF"]
