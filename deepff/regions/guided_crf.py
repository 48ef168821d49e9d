"""Two CRFs whose pairwise filter is the image's guided filter: the paper's DFF-CRF, and ours."""

import math
from collections.abc import Sequence
from tempfile import NamedTemporaryFile
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import ImageRecord
from deepff.images.image_set import reduced_shape
from deepff.regions.probabilities import (
    Refiner,
    as_image_batch,
    at_working_size,
    photo_of,
    unary_probabilities,
    with_background,
)
from deepff.results.heatmaps import HeatMaps
from deepff.results.sampling import sampled
from deepff.runtime.files import reserve_space
from deepff.runtime.parallel import in_parallel

_SIZE = 128  # pixels


class Numbers(NamedTuple):
    """The numbers of a guided CRF; docs/decisions.md says how they were chosen."""

    weight: float  # λ: how strongly pixels that look the same and are close are drawn to one label
    radius: float  # half the side of the filter's window, as a share of the image's longer side
    eps: float  # ε in squared intensities: windows whose colors vary by less than √ε count as flat
    n_iter: int


_OURS = Numbers(12.0, 0.1, 1e-4, 3)
_PAPERS = Numbers(32.0, 0.5, 1e-5, 1)

_CERTAINTY = 0.98  # a map of 0 to 1 becomes a probability of 1 % to 99 %, so that U is finite
_IMAGE_BYTES = 2**25  # that DFF-CRF takes for each factor


def guided_crf(
    image: Tensor | np.ndarray, maps: Tensor, thresholds: Tensor, size: int = _SIZE
) -> Tensor:
    """Probabilities (k, H, W) of maps (k, h, w), normalized to [0, 1], refined along the edges of
    their image, as `dense_crf`, by mean field with the guided filter GF_I (He, Sun & Tang, PAMI
    2013): Q⁰ = softmax(−U), Qᵗ⁺¹ = softmax(−U + λ · GF_I(Qᵗ)). At ``thresholds`` (k,) a factor is
    as likely as the background."""
    images = as_image_batch(image, maps)
    guide = at_working_size(images, size)
    small_maps = functional.interpolate(maps[None].float(), guide.shape[-2:], mode="bilinear")
    unary = unary_probabilities(small_maps, thresholds)
    refined = mean_field(guide, unary, _OURS).softmax(1)[:, 1:]
    return functional.interpolate(refined, images.shape[-2:], mode="bilinear")[0]


REFINER = Refiner(_SIZE, guided_crf, fills_holes=False)


def mean_field(images: Tensor, unary: Tensor, numbers: Numbers) -> Tensor:
    """The formula of :func:`guided_crf` on images (B, 3, H, W) at their size. ``unary`` (B, k, H,
    W) is positive and below 1 in sum. Returns the logits of Q, (B, 1 + k, H, W), the background
    first."""
    from kornia.filters import guided_blur

    # The filter mirrors the image at its borders, which needs more pixels than the radius.
    sides = images.shape[-2:]
    radius = round(numbers.radius * max(sides))
    kernel = 2 * min(radius, sides[0] - 1) + 1, 2 * min(radius, sides[1] - 1) + 1
    logits = log_unary = with_background(unary).log()
    for _ in range(numbers.n_iter):
        factors = logits.softmax(1)[:, 1:]
        filtered = guided_blur(images, factors, kernel, numbers.eps, separable=True)
        # The filter is linear and keeps constants, so the background's needs no filtering.
        logits = log_unary + numbers.weight * with_background(filtered)
    return logits


def dff_crf(photo: Tensor, maps: Tensor) -> Tensor:
    """The paper's DFF-CRF: each factor's map (h, w) is the unary of a CRF over the factor and its
    background, (k, H, W) in [0, 1]. Values are the log-odds of Q on a linear scale, 1/2 where Q is:
    percentiles choose the same pixels as those of Q, which is too close to 0 and 1 for a histogram.
    ``photo`` (3, H, W) and ``maps``, which are normalized over the set, are in [0, 1]."""
    upsampled = sampled(maps.float(), (photo.shape[1], photo.shape[2]))
    unary = upsampled.clamp(0, 1) * _CERTAINTY + (1 - _CERTAINTY) / 2
    logits = mean_field(photo.expand(len(maps), -1, -1, -1), unary[:, None], _PAPERS)
    most = _PAPERS.weight + math.log((1 + _CERTAINTY) / (1 - _CERTAINTY))
    refined = ((logits[:, 1] - logits[:, 0]) / most + 1) / 2
    # An image whose map is 0 has none of the factor; rounding in the filter would make some.
    return refined.clamp(0, 1).masked_fill(upsampled.amax((1, 2), keepdim=True) <= 0, 0)


def refined_maps(
    heatmaps: HeatMaps, images: Sequence[ImageRecord], size: int | None = None
) -> HeatMaps:
    """The heat maps of a whole set refined by :func:`dff_crf`, 49 KB or less per image and factor.
    They are in a temporary file, since those of a large set don't fit in memory."""
    size = min(_SIZE, size or _SIZE)
    grids = [reduced_shape(shape, size) for shape in heatmaps.image_sizes]
    shape = sum(map(math.prod, grids)), heatmaps.n_factors
    with NamedTemporaryFile(prefix="deepff-") as file:
        reserve_space(file, 4 * math.prod(shape))
        rows = torch.from_numpy(np.memmap(file, np.float32, "r+", shape=shape))

    def refined(index: int) -> Tensor:
        photo = photo_of(images[index], size).to(heatmaps.scale.device)
        return dff_crf(photo, heatmaps.normalized(index)).flatten(1).T

    first = 0
    for of_image in in_parallel(refined, [_IMAGE_BYTES * heatmaps.n_factors] * len(images)):
        rows[first : first + len(of_image)] = of_image
        first += len(of_image)
    return HeatMaps(rows, grids, heatmaps.image_sizes, torch.ones(heatmaps.n_factors))
