"""The kinds of things in an image set: images, clustered by what their object looks like.

One contrast for several kinds of things blurs them. So images are clustered by the features of
their object, the border contrast and the pixel classifier are fitted to each cluster, and each
cluster's object is a factor of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import Activations, ImageRecord
from deepff.discovery.activation_set import ActivationSet, Findings
from deepff.results.classifier import PixelClassifier
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.sampling import cell_means
from deepff.runtime.distributed import gather_rows, rows_before

# The cosine distance beyond which clusters are different kinds. With 0.6 to 0.65 sets of one kind
# stay whole and pairs of kinds come apart; 0.5 splits sets of one kind.
_DISTANCE = 0.65
_FEWEST = 5  # images of a kind; fewer join the kind that is most like them
_MAX_IMAGES = 2000  # that are clustered; others join the nearest kind


def find_kinds(whole: HeatMaps, head: Activations, n_kinds: int | None = None) -> Tensor:
    """The kind of each image of the set, over all ranks: (n,), the most frequent kind is 0.
    ``whole`` are the maps of one object for the whole set, ``head`` the activations that tell kinds
    apart, of this rank's images. By default their number follows from how different objects are."""
    if n_kinds == 1:
        return torch.zeros(len(whole), dtype=torch.int64)
    before, total = rows_before(len(head.images))
    step = max(1, -(-total // _MAX_IMAGES))
    rows = head.image_rows

    def feature(index: int) -> Tensor:
        weights = cells_of(whole.covering(before + index), head.images[index])
        return weighted_mean(rows[index], weights[0]).cpu()

    sample = [index for index in range(len(rows)) if (before + index) % step == 0]
    none = torch.zeros(0, head.channels)  # a rank may have no image of the sample
    features = gather_rows(torch.cat([none, *(feature(index)[None] for index in sample)]))
    labels = torch.from_numpy(clusters(features.numpy(), n_kinds))
    if step == 1:
        return labels
    means = torch.stack(
        [weighted_mean(features[labels == kind]) for kind in range(labels.max() + 1)]
    )
    nearest = [int((means @ feature(index)).argmax()) for index in range(len(rows))]
    return gather_rows(torch.tensor(nearest, dtype=torch.int64)[:, None])[:, 0]


def clusters(features: np.ndarray, n_clusters: int | None = None) -> np.ndarray:
    """The cluster of each row (n, c) by average linkage on cosine distance; 0 is the largest."""
    from sklearn.cluster import AgglomerativeClustering

    if len(features) < 2:
        return np.zeros(len(features), np.int64)
    linkage = AgglomerativeClustering(
        None if n_clusters is None else min(n_clusters, len(features)),
        metric="cosine",
        linkage="average",
        distance_threshold=_DISTANCE if n_clusters is None else None,
    )
    labels = linkage.fit_predict(features)
    while n_clusters is None and len(counts := np.bincount(labels)) > 1:
        smallest = int(counts.argmin())
        if counts[smallest] >= _FEWEST:
            break
        means = np.stack([features[labels == label].mean(0) for label in range(len(counts))])
        means /= np.linalg.norm(means, axis=1, keepdims=True).clip(np.finfo(np.float32).tiny)
        likeness = means @ means[smallest]
        likeness[smallest] = -np.inf
        labels[labels == smallest] = likeness.argmax()
        labels = np.unique(labels, return_inverse=True)[1]
    _, first, numbers = np.unique(labels, return_index=True, return_inverse=True)
    order = sorted(range(len(first)), key=lambda label: (-(numbers == label).sum(), first[label]))
    return np.argsort(order)[numbers]


def cells_of(maps: Tensor, image: ImageRecord) -> Tensor:
    """Maps that cover an image, (k, h, w), as means over the cells of a layer: (k, cells)."""
    return cell_means(maps, image.grid, image.extent).flatten(1)


def weighted_mean(rows: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of rows (m, c) at length 1: (c,); zero where all weights (m,) are."""
    total = rows.sum(0) if weights is None else weights.to(rows) @ rows
    return functional.normalize(total, dim=0, eps=torch.finfo(torch.float32).tiny)


def joined(of_kinds: Sequence[Findings], kinds: Tensor, activation_set: ActivationSet) -> Findings:
    """The objects of all kinds as factors of one set, 0 in images of other ``kinds`` (n,)."""
    if len(of_kinds) == 1:
        return of_kinds[0]
    objects = [findings.factorizations[1] for findings in of_kinds]
    heatmaps = _joined_maps([each.heatmaps for each in objects], kinds)
    whole = Factorization(
        torch.cat([each.components for each in objects]),
        heatmaps,
        math.sqrt(sum(each.relative_error**2 for each in objects) / len(objects)),
        max(each.n_iter for each in objects),
    )
    weights = [each.channel_weights for each in of_kinds if each.channel_weights is not None]
    classifiers = [each.classifier for each in objects if each.classifier is not None]
    probabilities = [each.probabilities for each in objects if each.probabilities is not None]
    if len(classifiers) == len(objects):
        classifier = PixelClassifier(
            torch.cat([each.weights for each in classifiers]),
            torch.cat([each.bias for each in classifiers]),
            classifiers[0].sources,
        )
        whole = replace(
            whole, classifier=classifier, probabilities=_joined_maps(probabilities, kinds)
        )
    return replace(
        of_kinds[0],
        activation_set=activation_set,
        factorizations={len(objects): whole},
        channel_weights=torch.stack(weights) if weights else None,
        separation=min((f.separation for f in of_kinds if f.separation is not None), default=None),
    )


def _joined_maps(maps: Sequence[HeatMaps], kinds: Tensor) -> HeatMaps:
    """Each kind's maps, of its images, as one factor over the images of all kinds."""
    following = [iter(range(len(of_kind))) for of_kind in maps]
    grids, sizes, extents, rows = [], [], [], []
    for kind in kinds.tolist():
        index = next(following[kind])
        of_kind = maps[kind]
        grids.append(of_kind.grids[index])
        sizes.append(of_kind.image_sizes[index])
        extents.append(of_kind.extents[index])
        column = of_kind.rows(slice(index, index + 1))
        rows.append(functional.pad(column, (kind, len(maps) - 1 - kind)))
    scale = torch.cat([of_kind.scale for of_kind in maps])
    return HeatMaps(torch.cat(rows), grids, sizes, scale, extents)
