"""Factorizations A ≈ H W of the activations: estimators over blocks of rows."""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from deepff.factorization.kmeans import KMeans
from deepff.factorization.nmf import NMF
from deepff.factorization.pca import PCA


class Factorizer(Protocol):
    """What finds the factors of activations: one of `METHODS`, or an estimator like them.

    Attributes
    ----------
    needs_non_negative : bool
        Whether activations must all be ≥ 0.
    components_ : Tensor or array (k, c)
        W, once it is fitted.
    relative_err_ : float
        ‖A − HW‖ / ‖A‖.
    n_iter_ : int
    """

    needs_non_negative: ClassVar[bool]
    components_: Any
    relative_err_: float
    n_iter_: int

    def fit_transform(self, X: Any, y: None = None) -> Any:
        """Fit, and return H (rows, k)."""

    def transform(self, X: Any) -> Any:
        """H (rows, k) for the fitted components."""


METHODS: dict[str, Callable[..., Factorizer]] = {
    "nmf": NMF,
    "pca": PCA,
    "kmeans": KMeans,
}

__all__ = ["METHODS", "NMF", "PCA", "Factorizer", "KMeans"]
