"""The paper's DFF-CRF: heat maps refined along the edges of their images before any threshold."""

import math
from collections.abc import Sequence
from tempfile import NamedTemporaryFile

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import ImageRecord
from deepff.images.reduced import reduced_shape
from deepff.regions.guided_crf import mean_field
from deepff.regions.probabilities import as_image_batch, at_working_size, photo_of
from deepff.results.heatmaps import HeatMaps
from deepff.runtime.files import reserve_space
from deepff.runtime.parallel import in_parallel

_SIZE = 128  # pixels

# Chosen on every other one of the twelve iCoseg groups (docs/decisions.md).
_WEIGHT = 32.0  # λ
_RADIUS = 0.5  # half the side of the filter's window, as a share of the image's longer side
_EPS = 1e-5  # ε in squared intensities
_ITERATIONS = 1

_CERTAINTY = 0.98  # a map of 0 to 1 becomes a probability of 1 % to 99 %, so that U is finite
_IMAGE_BYTES = 2**25  # that the CRF takes for each factor


def dff_crf(image: Tensor | np.ndarray, maps: Tensor, size: int = _SIZE) -> Tensor:
    """Each factor's heat map refined by itself, (k, h, w) in [0, 1] at the size that is worked at.

    The upsampled map is the unary of a CRF over the factor and its background, whose mean field is
    that of :func:`deepff.regions.guided_crf.guided_crf`. Values are the log-odds of Q on a linear
    scale, 1/2 where Q is: percentiles choose the same pixels as those of Q, which lies too close to
    0 and 1 for a histogram. ``image`` is uint8 (H, W, 3), or float (3, H, W) in [0, 1]; ``maps``
    (k, h, w) cover it and are normalized to [0, 1] over the set.
    """
    guide = at_working_size(as_image_batch(image, maps), size)
    upsampled = functional.interpolate(maps[None].float(), guide.shape[-2:], mode="bilinear")[0]
    unary = upsampled.clamp(0, 1) * _CERTAINTY + (1 - _CERTAINTY) / 2
    guides, radius = guide.expand(len(maps), -1, -1, -1), round(_RADIUS * max(guide.shape[-2:]))
    logits = mean_field(guides, unary[:, None], _WEIGHT, radius, _EPS, _ITERATIONS)
    most = _WEIGHT + math.log((1 + _CERTAINTY) / (1 - _CERTAINTY))
    refined = ((logits[:, 1] - logits[:, 0]) / most + 1) / 2
    # An image whose map is 0 has none of the factor; rounding in the filter would make some.
    return refined.clamp(0, 1).masked_fill(upsampled.amax((1, 2), keepdim=True) <= 0, 0)


def refined_maps(
    heatmaps: HeatMaps, images: Sequence[ImageRecord], size: int | None = None
) -> HeatMaps:
    """The heat maps of a whole set refined by :func:`dff_crf`, 49 KB or less per image and factor.

    They are in a temporary file, since those of a large set don't fit in memory.
    """
    size = min(_SIZE, size or _SIZE)
    grids = [reduced_shape(shape, size) for shape in heatmaps.image_sizes]
    shape = sum(map(math.prod, grids)), heatmaps.n_factors
    with NamedTemporaryFile(prefix="deepff-") as file:
        reserve_space(file, 4 * math.prod(shape))
        rows = torch.from_numpy(np.memmap(file, np.float32, "r+", shape=shape))

    def refined(index: int) -> Tensor:
        photo = photo_of(images[index], size).to(heatmaps.scale.device)
        return dff_crf(photo, heatmaps.normalized(index), size).flatten(1).T

    first = 0
    for of_image in in_parallel(refined, [_IMAGE_BYTES * heatmaps.n_factors] * len(images)):
        rows[first : first + len(of_image)] = of_image
        first += len(of_image)
    return HeatMaps(rows, grids, heatmaps.image_sizes, torch.ones(heatmaps.n_factors))
