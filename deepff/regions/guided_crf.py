"""Sharper masks: a mean-field CRF whose pairwise filter is the image's guided filter."""

import numpy as np
from torch import Tensor
from torch.nn import functional

from deepff.regions.probabilities import (
    Refiner,
    as_image_batch,
    at_working_size,
    unary_probabilities,
    with_background,
)

_SIZE = 128  # pixels

# Picked by the mean over the twelve iCoseg groups that Table 1 reports (docs/decisions.md).
_WEIGHT = 12.0  # λ: how strongly pixels that look the same and are close are drawn to one label
_RADIUS = 0.1  # half the side of the filter's window, as a share of the image's longer side
_EPS = 1e-4  # ε in squared intensities: windows whose colors vary by less than √ε count as flat
_ITERATIONS = 3


def guided_crf(
    image: Tensor | np.ndarray, maps: Tensor, thresholds: Tensor, size: int = _SIZE
) -> Tensor:
    """Refine heat maps along the edges of their image: probabilities at the image's size.

    Mean field (Krähenbühl & Koltun, NeurIPS 2011) with the guided filter GF_I (He, Sun & Tang, PAMI
    2013) as the pairwise filter, over the k factors and the background:

        Q⁰ = softmax(−U),   Qᵗ⁺¹ = softmax(−U + λ · GF_I(Qᵗ)).

    ``image`` is uint8 (H, W, 3), or float (3, H, W) in [0, 1]. ``maps`` (k, h, w), of any size,
    cover it and are normalized to [0, 1] over the set; at ``thresholds`` (k,) a factor is as likely
    as the background. The CRF works on ``size`` pixels along the longer side, and its result is
    upsampled bilinearly.
    """
    images = as_image_batch(image, maps)
    guide = at_working_size(images, size)
    small_maps = functional.interpolate(maps[None].float(), guide.shape[-2:], mode="bilinear")
    unary = unary_probabilities(small_maps, thresholds)
    radius = round(_RADIUS * max(guide.shape[-2:]))
    refined = mean_field(guide, unary, _WEIGHT, radius, _EPS, _ITERATIONS).softmax(1)[:, 1:]
    return functional.interpolate(refined, images.shape[-2:], mode="bilinear")[0]


REFINER = Refiner(_SIZE, guided_crf, fills_holes=False)


def mean_field(
    images: Tensor, unary: Tensor, weight: float, radius: int, eps: float, n_iter: int
) -> Tensor:
    """The formula of :func:`guided_crf` on images (B, 3, H, W) at their size.

    Returns the logits, (B, 1 + k, H, W) with the background first, whose softmax is Q. ``unary``
    (B, k, H, W) is positive and below 1 in sum. The filter's window has (2 · radius + 1)² pixels,
    and is cut where the image is smaller.
    """
    from kornia.filters import guided_blur

    # The filter mirrors the image at its borders, which needs more pixels than the radius.
    height, width = images.shape[-2:]
    kernel = 2 * min(radius, height - 1) + 1, 2 * min(radius, width - 1) + 1
    logits = log_unary = with_background(unary).log()
    for _ in range(n_iter):
        filtered = guided_blur(images, logits.softmax(1)[:, 1:], kernel, eps, separable=True)
        # The filter is linear and keeps constants, so the background's needs no filtering.
        logits = log_unary + weight * with_background(filtered)
    return logits
