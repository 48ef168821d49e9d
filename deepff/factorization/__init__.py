"""Factorizations A ≈ H W of the activations: estimators over blocks of rows."""

from deepff.factorization.kmeans import KMeans
from deepff.factorization.nmf import NMF
from deepff.factorization.pca import PCA

METHODS = {"nmf": NMF, "pca": PCA, "kmeans": KMeans}

__all__ = ["METHODS", "NMF", "PCA", "KMeans"]
