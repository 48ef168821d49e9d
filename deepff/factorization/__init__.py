"""Factorizations A ≈ H W of the activations: estimators over blocks of rows."""

from typing import Any, Protocol

from torch import Tensor

from deepff.factorization.kmeans import KMeans
from deepff.factorization.nmf import NMF
from deepff.factorization.pca import PCA
from deepff.factorization.semi_nmf import SemiNMF


class Factorizer(Protocol):
    """What a factorization must have: the methods and fitted attributes of a scikit-learn one."""

    needs_non_negative: bool  # whether A must not go negative
    components_: Tensor  # W (k, c)
    relative_err_: float  # ‖A − HW‖ / ‖A‖
    n_iter_: int

    def fit_transform(self, X: Any, /) -> Any:
        """Fit W to A and return H (rows, k)."""

    def transform(self, X: Any, /) -> Any:
        """H (rows, k) of other rows for the same W."""


METHODS: dict[str, type[Any]] = {"nmf": NMF, "semi-nmf": SemiNMF, "pca": PCA, "kmeans": KMeans}

__all__ = ["METHODS", "NMF", "PCA", "Factorizer", "KMeans", "SemiNMF"]
