"""Deep Feature Factorization: Section 3 of Collins, Achanta & Süsstrunk (ECCV 2018).

    A ≈ H W,    A (rows, c), H (rows, k) and W (k, c), none of them negative

1. A network runs over n images up to one layer (`activations/extraction.py`). Each cell of the
   layer's grid on an image is a row of A, and each channel a column (`activations/activations.py`).
2. A is factorized (`factorization/nmf.py`, updates in `nnls.py`). The k rows of W are directions in
   feature space: what the layer treats as the same thing, in whichever image it is. H says how much
   of each factor there is in each cell.
3. A column of H, reshaped to the images' grids and upsampled, is a heat map of one factor in each
   image (`results/heatmaps.py`, `results/sampling.py`). With k = 1 it shows the object that the
   images share, with k = 3 or 4 its parts.
4. A factor's maps, thresholded at their 75th percentile over the set, are its masks
   (`regions/thresholds.py`). That is done later, when masks are asked for.

By default NMF is solved by HALS from a start on a sample of the rows; `NMF(solver="mu")` are the
paper's multiplicative updates from a random start.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from deepff.activations.activations import Activations
from deepff.discovery.activation_set import ActivationSet, Findings
from deepff.discovery.arguments import Estimators, RunSettings
from deepff.discovery.choose_k import select_k
from deepff.discovery.contrast import BorderContrast, scaled_by
from deepff.factorization import Factorizer
from deepff.factorization.blocks import RowBlocks
from deepff.images.image_set import SetImage
from deepff.layers.layer import Layer
from deepff.networks.backbone import Backbone
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.runtime import distributed
from deepff.runtime.progress import Stopwatch, track


def factorize(
    activations: Activations,
    estimator: Factorizer,
    channel_weights: Tensor | None = None,
    device: torch.device | None = None,
) -> Factorization:
    """A ≈ H W, or A·diag(channel_weights) ≈ H W, with the columns of H as heat maps. It is computed
    on ``device``, by default where A is. With several processes, A is all their rows together, and
    the heat maps are those of all images."""
    A = RowBlocks(activations.blocks, device, scaled_by(channel_weights))
    H = distributed.gather_rows(estimator.fit_transform(A))
    heatmaps = HeatMaps.of_images(H, distributed.gather(activations.images))
    return Factorization(
        estimator.components_, heatmaps, float(estimator.relative_err_), int(estimator.n_iter_)
    )


def discover_by_paper(
    images: Sequence[SetImage],
    backbone: Backbone,
    layer: Layer,
    factor_counts: list[int] | Literal["auto"],
    estimators: Estimators,
    settings: RunSettings,
    watch: Stopwatch,
    weigh: Callable[[Activations], BorderContrast] | None = None,
) -> Findings:
    """The factors of one layer, for each k; `weigh` and choosing k are not the paper's."""
    activation_set = ActivationSet.extracted(images, backbone, [layer], settings, watch)
    activations = activation_set.activations[layer.path]

    contrast = None if weigh is None else weigh(activations)
    weights = None if contrast is None else contrast.weights
    agreements = None
    if factor_counts == "auto":
        k, agreements = select_k(
            activations,
            transform=None if weights is None else lambda rows: rows * weights,
            estimator=estimators.for_k,
            random_state=settings.random_state,
            progress=settings.progress,
        )
        factor_counts = [k]
    watch.lap("choosing k")

    factorizations = {}
    n_runs = len(factor_counts)
    with track("factorization", n_runs, unit="runs", enabled=settings.progress) as advance:
        for k in factor_counts:
            factorizations[k] = factorize(
                activations, estimators.for_k(k), weights, backbone.device
            )
            advance(1)
    watch.lap("factorization")
    return Findings(
        activation_set,
        [layer],
        factorizations,
        estimators.name,
        estimators.options,
        agreements,
        weights,
        None if contrast is None else contrast.separation,
    )
