"""Maps of the compared methods, each in the place of DFF's coefficients.

All of them give coefficients (rows, k), one column a map, which then go the same way as DFF's: maps
at the image's size, the 75th percentile over the set, masks.
"""

import torch
from torch import Tensor

from deepff.activations.activations import Activations
from deepff.evaluation.predictions import DFF, Variant
from deepff.factorization import METHODS

FACTORIZATIONS = {DFF: "nmf", "PCA": "pca", "k-means": "kmeans"}
CATEGORY_CONSISTENT_CLUSTERS = 5


def factor_coefficients(activations: Activations, k: int, seed: int = 0) -> dict[Variant, Tensor]:
    """H of every factorization with k factors, DFF, PCA and k-means: (rows, k) each.

    The sign of a principal component is the estimator's, whose largest loading is positive; only
    positive coefficients count in masks. On activations that are never negative the first component
    is not negative either, and is what NMF finds with k = 1 (Perron and Frobenius): there the rows
    of DFF and PCA agree. One cluster would be on everywhere, so k-means with k = 1 is
    :func:`object_cluster`.
    """
    return {
        Variant(name, k, seed): factorize(activations, method, k, seed)
        for name, method in FACTORIZATIONS.items()
    }


def object_coefficients(activations: Activations, seed: int = 0) -> dict[Variant, Tensor]:
    """One map of the whole object by every method: (rows, 1) each.

    Those of :func:`factor_coefficients` with k = 1, and two without a factorization.
    """
    return {
        **factor_coefficients(activations, 1, seed),
        Variant("mean activation", 1, seed): mean_activation(activations),
        Variant("Le et al.", 1, seed): category_consistent(activations, seed=seed),
    }


def factorize(activations: Activations, method: str, k: int, seed: int) -> Tensor:
    """H (rows, k) of a method of `deepff.factorization`, or of :func:`object_cluster`."""
    if method == "kmeans" and k == 1:
        return object_cluster(activations, seed)
    options = {} if method == "pca" else {"random_state": seed}
    return METHODS[method](k, **options).fit_transform(activations.blocks)


def object_cluster(activations: Activations, seed: int = 0) -> Tensor:
    """k-means with two clusters, of which that with the longer centre is the object: (rows, 1).

    No label takes part: a network trained to name objects responds to them more strongly than to
    what surrounds them.
    """
    estimator = METHODS["kmeans"](2, random_state=seed)
    membership = estimator.fit_transform(activations.blocks)
    cluster = int(estimator.components_.norm(dim=1).argmax())
    return membership[:, cluster : cluster + 1].clone()


def mean_activation(activations: Activations) -> Tensor:
    """The mean over channels, without any factorization: (rows, 1)."""
    return torch.cat([block.mean(1, keepdim=True) for block in activations.blocks])


def category_consistent(
    activations: Activations, n_clusters: int = CATEGORY_CONSISTENT_CLUSTERS, seed: int = 0
) -> Tensor:
    """Sum of the channels that fire strongly in all images of the set: (rows, 1).

    After the category-consistent features of Le, Yu, Zelinsky and Samaras, *Co-localization with
    Category-Consistent Features and Geodesic Distance Propagation*, ICCV Workshops 2017: a channel
    is described by its spatial maximum in each image, channels are clustered with k-means, and the
    cluster that fires strongest is kept. Of that paper only the abstract was available; the number
    of clusters, taking the cluster with the highest mean maximum, and adding its channels up
    unweighted are our reading. Its spreading of the map over superpixels is left out, so that what
    is compared is the map.
    """
    from sklearn.cluster import KMeans

    maxima = torch.stack([rows.amax(0) for rows in activations.image_rows], dim=1).cpu().numpy()
    clusters = KMeans(min(n_clusters, len(maxima)), n_init=4, random_state=seed).fit(maxima)
    strongest = clusters.cluster_centers_.mean(axis=1).argmax()
    kept = torch.from_numpy(clusters.labels_ == strongest)
    return torch.cat(
        [block[:, kept.to(block.device)].sum(1, keepdim=True) for block in activations.blocks]
    )
