"""Factorizations A ≈ H W of the activations: estimators over blocks of rows."""

from importlib import import_module
from typing import Any, Protocol

from torch import Tensor

from deepff.factorization.kmeans import KMeans
from deepff.factorization.nmf import NMF
from deepff.factorization.pca import PCA
from deepff.factorization.semi_nmf import SemiNMF
from deepff.options import Method


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


# Each method is the file in this folder that has its name.
METHODS: dict[str, type[Any]] = {
    name: import_module(f"deepff.factorization.{name.replace('-', '_')}").ESTIMATOR
    for name in Method
    if name != Method.AUTO
}

__all__ = ["METHODS", "NMF", "PCA", "Factorizer", "KMeans", "SemiNMF"]
