"""Sharper maps: the fully connected CRF of Krähenbühl & Koltun (NeurIPS 2011), in PyTorch.

Mean field over the k factors and the background, with Potts compatibility: Q⁰ = softmax(−U),
Qᵗ⁺¹ = softmax(−U + w₁ · K₁ Qᵗ + w₂ · K₂ Qᵗ). K₁ is a Gaussian of the distance between two pixels,
K₂ of their distance and colors, both normalized to D^−½ K D^−½, D the sums of K's rows. K₂ is
filtered on a grid of positions and colors: sorting a permutohedral lattice would take longer.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import ImageRecord
from deepff.images.image_set import REDUCED_SIDE
from deepff.regions.bilateral_grid import BilateralGrid
from deepff.regions.probabilities import (
    Refiner,
    as_image_batch,
    at_working_size,
    part_probabilities,
    photo_of,
    unary_probabilities,
    with_background,
)
from deepff.runtime.parallel import Kept

DENSE_CRF_SIZE = REDUCED_SIDE  # pixels

_SMOOTHNESS_SIGMA = 2.0  # of K₁, in pixels of the reduced image
_SMOOTHNESS_WEIGHT = 3.0  # w₁
_POSITION_SIGMA = 0.12  # of K₂ over distance, as a share of the image's longer side
_COLOR_SIGMA = 13.0  # of K₂ over each of red, green and blue, in steps of 255
_BILATERAL_WEIGHT = 5.0  # w₂
_ITERATIONS = 5

# Bytes of kernels that are kept: of some 400 images at the full size.
_MOST_KEPT = 3 * 2**27
# What is too small to change a sum of probabilities in single precision.
_NEGLIGIBLE = 1e-20


def dense_crf(
    image: Tensor | np.ndarray, probabilities: Tensor, size: int = DENSE_CRF_SIZE
) -> Tensor:
    """Refine probabilities (k, h, w), exp(−U), along the edges of their image, uint8 (H, W, 3) or
    float (3, H, W) in [0, 1]: (k, H, W), upsampled from ``size`` pixels along the longer side."""
    images = as_image_batch(image, probabilities)
    refined = refined_by_kernels(crf_kernels(images, size), probabilities[None])
    return functional.interpolate(refined, images.shape[-2:], mode="bilinear")[0]


def _refined_maps(
    image: Tensor | np.ndarray, maps: Tensor, thresholds: Tensor, size: int
) -> Tensor:
    images = as_image_batch(image, maps)
    refined = refined_densely(crf_kernels(images, size), maps[None], thresholds)
    return functional.interpolate(refined, images.shape[-2:], mode="bilinear")[0]


REFINER = Refiner(DENSE_CRF_SIZE, _refined_maps, fills_holes=True)

Kernel = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class NormalizedKernel:
    """D^−½ K D^−½, with D the sums of K's rows."""

    kernel: Kernel  # K times labels (B, labels, H, W), each label by itself
    root: Tensor  # D^−½, (B, 1, H, W)
    of_root: Tensor  # K D^−½, (B, 1, H, W)

    def __call__(self, labels: Tensor, weight: float) -> Tensor:
        """The kernel times labels, ``weight`` times."""
        return self.kernel(self.root * labels).mul_(self.root).mul_(weight)

    def of_ones(self, weight: float) -> Tensor:
        """The kernel times a label that is 1 everywhere, ``weight`` times."""
        return weight * self.root * self.of_root


def normalized_kernel(kernel: Kernel, ones: Tensor) -> NormalizedKernel:
    """A kernel normalized, by a label (B, 1, H, W) that is 1 everywhere."""
    root = kernel(ones).rsqrt()
    return NormalizedKernel(kernel, root, kernel(root))


@dataclass(frozen=True)
class CrfKernels:
    """K₁ and K₂ of images: most of the dense CRF's work, whatever the images' maps are."""

    shape: tuple[int, int]  # (H, W) of the reduced images
    smoothness: NormalizedKernel
    bilateral: NormalizedKernel
    n_bytes: int  # in memory, without what all images of a shape share


_KEPT: Kept[CrfKernels] = Kept(_MOST_KEPT)


def crf_kernels(
    images: Tensor, size: int = DENSE_CRF_SIZE, smoothness_sigma: float = _SMOOTHNESS_SIGMA
) -> CrfKernels:
    """The kernels of images (B, 3, H, W) in [0, 1], reduced to ``size`` pixels; some are kept."""
    guide = (at_working_size(images, size) * 255).round().to(torch.uint8)
    pixels = guide.cpu().numpy()
    digest = hashlib.sha256(pixels.tobytes()).digest()
    key = (digest, pixels.shape, guide.device, smoothness_sigma)
    return _KEPT.get(key, lambda: _kernels(guide, smoothness_sigma))


def photo_kernels(image: ImageRecord, device: torch.device) -> CrfKernels:
    """The kernels of an image of the set, computed on a device."""
    return crf_kernels(photo_of(image, DENSE_CRF_SIZE)[None].to(device))


def _kernels(guide: Tensor, smoothness_sigma: float) -> CrfKernels:
    """The kernels of images, uint8 (B, 3, H, W), at the size that is worked at."""
    shape = (guide.shape[-2], guide.shape[-1])
    grid = BilateralGrid(guide, _POSITION_SIGMA * max(shape), _COLOR_SIGMA)
    ones = torch.ones(len(guide), 1, *shape, device=guide.device)
    bilateral = normalized_kernel(grid.filter, ones)
    n_bytes = grid.n_bytes + 2 * ones.nbytes
    smoothness = _normalized_smoothness(shape, smoothness_sigma, guide.device)
    return CrfKernels(shape, smoothness, bilateral, n_bytes)


@lru_cache(maxsize=16)
def _normalized_smoothness(
    shape: tuple[int, int], sigma: float, device: torch.device
) -> NormalizedKernel:
    ones = torch.ones(1, 1, *shape, device=device)
    return normalized_kernel(smoothness_kernel(ones, sigma), ones)


def refined_by_kernels(
    kernels: CrfKernels,
    probabilities: Tensor,
    bilateral_weight: float = _BILATERAL_WEIGHT,
    n_iter: int = _ITERATIONS,
) -> Tensor:
    """:func:`dense_crf` of probabilities (B, k, h, w) by kernels that serve several maps. The
    result, (B, k, *kernels.shape), has the size of the reduced images."""
    unary = functional.interpolate(probabilities.float(), kernels.shape, mode="bilinear")
    weighted = [(_SMOOTHNESS_WEIGHT, kernels.smoothness), (bilateral_weight, kernels.bilateral)]
    return mean_field(unary, weighted, n_iter)


def refined_densely(kernels: CrfKernels, maps: Tensor, thresholds: Tensor) -> Tensor:
    """:func:`refined_by_kernels` of maps (B, k, h, w) in [0, 1] with thresholds; holes are left."""
    # Probabilities change faster than the maps that they come from: upsampling these first is
    # worth 0.009 IoU on iCoseg.
    smooth = functional.interpolate(maps.float(), kernels.shape, mode="bilinear")
    return refined_by_kernels(kernels, unary_probabilities(smooth, thresholds))


def refined_parts(kernels: CrfKernels, object_probability: Tensor, maps: Tensor) -> Tensor:
    """The parts of one image refined together along its edges: (k, H, W), in sum the object's
    probability (1, H, W). For ``maps`` (k, h, w) see `regions.probabilities.part_probabilities`."""
    # A dense CRF over the k parts alone shares the object's probability, which is refined already.
    # With the background as one more label, the parts would lose pixels to it at every edge because
    # there are several (Car Parts, every other image, k = 2, 4, 6: factor quality 0.375, and 0.378
    # this way; mutual information with the parts 0.348 and 0.354).
    everywhere = maps.new_ones(1, *kernels.shape)
    refined = refined_by_kernels(kernels, part_probabilities(everywhere, maps)[None])
    shape = object_probability.shape[-2:]
    refined = functional.interpolate(refined, shape, mode="bilinear")[0]
    return object_probability * refined / refined.sum(0)


def mean_field(
    unary: Tensor, kernels: Sequence[tuple[float, NormalizedKernel]], n_iter: int
) -> Tensor:
    """The formula of :func:`dense_crf` for weighted kernels, at the images' size: (B, k, H, W).
    ``unary`` (B, k, H, W) is not negative and at most 1 in sum."""
    tiny = torch.finfo(unary.dtype).tiny
    log_unary = with_background(unary).clamp_min(tiny).log()
    # K is linear and the labels sum to 1, so the background's needs no filtering.
    of_everything = torch.zeros_like(unary[:, :1])
    for weight, kernel in kernels:
        of_everything += kernel.of_ones(weight)
    probabilities = unary
    for _ in range(n_iter):
        logits = log_unary.clone()
        logits[:, :1] += of_everything
        for weight, kernel in kernels:
            of_factors = kernel(probabilities, weight)
            logits[:, 1:] += of_factors
            logits[:, :1] -= of_factors.sum(1, keepdim=True)
        # Of two labels the sigmoid is the same, and faster.
        probabilities = (
            (logits[:, 1:] - logits[:, :1]).sigmoid()
            if unary.shape[1] == 1
            else logits.softmax(1)[:, 1:]
        )
    return probabilities


def smoothness_kernel(images: Tensor, sigma: float) -> Kernel:
    """exp(−|xᵢ − xⱼ|² / 2σ²) of the positions x of the images' pixels, σ in pixels, not cut off."""

    def along(side: int) -> Tensor:
        x = torch.arange(side, device=images.device, dtype=images.dtype)
        kernel = (x / sigma).square().mul(-0.5).exp()
        # Products of values this small are denormal, which a CPU multiplies 30 times as slowly.
        kernel = kernel.masked_fill(kernel < _NEGLIGIBLE, 0)
        return kernel[(x[:, None] - x).abs().long()]

    rows, columns = map(along, images.shape[-2:])
    return lambda labels: rows @ labels @ columns
