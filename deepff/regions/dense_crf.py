"""Sharper maps: the fully connected CRF with colour edges of Krähenbühl & Koltun, in PyTorch."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.errors import InputError
from deepff.images.reduced import REDUCED_SIDE
from deepff.regions.bilateral_grid import BilateralGrid
from deepff.regions.guided_crf import as_image_batch, at_working_size, with_background
from deepff.runtime.memory import Kept

DENSE_CRF_SIZE = REDUCED_SIDE  # pixels

# Bytes of kernels that are kept: of some 400 images at the full size.
_MOST_KEPT = 3 * 2**27

# What is too small to change a sum of probabilities in single precision.
_NEGLIGIBLE = 1e-20

# Rounding may take the sum of the labels this far above 1.
_ROUNDING = 1e-4


def dense_crf(
    image: Tensor | np.ndarray,
    probabilities: Tensor,
    *,
    smoothness_sigma: float = 2.0,
    smoothness_weight: float = 3.0,
    position_sigma: float = 0.12,
    color_sigma: float = 13.0,
    bilateral_weight: float = 5.0,
    n_iter: int = 5,
    size: int = DENSE_CRF_SIZE,
) -> Tensor:
    """Refine the factors' probabilities along the edges of their image.

    Mean field in the CRF that links every pixel with every other (Krähenbühl & Koltun, NeurIPS
    2011), over the k factors and the background, with Potts compatibility:

        Q⁰ = softmax(−U),   Qᵗ⁺¹ = softmax(−U + w₁ · K₁ Qᵗ + w₂ · K₂ Qᵗ).

    K₁ is a Gaussian of the distance between two pixels and keeps labels smooth; K₂ is a Gaussian of
    their distance and of the difference of their colours and draws pixels that look alike to one
    label. Both are normalised symmetrically, to D^−½ K D^−½ with D the sums of K's rows, as
    pydensecrf does by default. It runs on the image reduced to `size` pixels; the probabilities are
    upsampled bilinearly.

    Parameters
    ----------
    image : ndarray uint8 (H, W, 3), or Tensor float (3, H, W) or (B, 3, H, W) in [0, 1]
        A batch holds images of one shape.
    probabilities : Tensor, (k, h, w) or (B, k, h, w)
        exp(−U) of the factors, as `deepff.regions.guided_crf.unary_probabilities` gives them, at
        the image's size or any other: they cover the whole image. What they lack of 1 in sum is the
        background's.
    smoothness_sigma : float
        Standard deviation of K₁ in pixels of the reduced image.
    smoothness_weight : float
        w₁; 0 leaves K₁ out.
    position_sigma : float
        Standard deviation of K₂ over distance, as a share of the image's longer side.
    color_sigma : float
        Standard deviation of K₂ over each of red, green and blue, in steps of 255.
    bilateral_weight : float
        w₂; 0 leaves K₂ out. With both at 0 the unaries come back.
    n_iter : int
        Mean-field iterations.
    size : int
        The longer side in pixels that the CRF works at; smaller images keep theirs.

    Returns
    -------
    Tensor, (k, H, W) or (B, k, H, W)
        Each factor's probability at the image's size, in [0, 1]; what they lack of 1 in sum is the
        background's. See `deepff.regions.guided_crf.refined_labels`.

    Raises
    ------
    InputError
        Image and probabilities aren't of the shapes above, the probabilities aren't ones, or a
        standard deviation isn't positive.

    Notes
    -----
    K₁ is exact. K₂ is filtered on a grid of places and colours
    (:class:`deepff.regions.bilateral_grid.BilateralGrid`), where the paper's own code and
    pydensecrf have a permutohedral lattice: to sort its vertices takes longer than the mean field.
    Where its deviation is below six pixels each pixel is a node, which takes many times as long.
    """
    images = as_image_batch(image, probabilities)
    kernels = crf_kernels(
        images,
        smoothness_sigma=smoothness_sigma,
        position_sigma=position_sigma,
        color_sigma=color_sigma,
        size=size,
    )
    refined = refined_by_kernels(
        kernels,
        probabilities if probabilities.ndim == 4 else probabilities[None],
        smoothness_weight=smoothness_weight,
        bilateral_weight=bilateral_weight,
        n_iter=n_iter,
    )
    refined = functional.interpolate(refined, images.shape[-2:], mode="bilinear")
    return refined if probabilities.ndim == 4 else refined[0]


Kernel = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class NormalizedKernel:
    """D^−½ K D^−½, with D the sums of K's rows.

    Attributes
    ----------
    kernel : callable
        K times labels (B, labels, H, W), each label by itself.
    root : Tensor, (B, 1, H, W)
        D^−½.
    of_root : Tensor, (B, 1, H, W)
        K D^−½.
    """

    kernel: Kernel
    root: Tensor
    of_root: Tensor

    def __call__(self, labels: Tensor, weight: float) -> Tensor:
        """What it makes of labels, `weight` times."""
        return self.kernel(self.root * labels).mul_(self.root).mul_(weight)

    def of_ones(self, weight: float) -> Tensor:
        """What it makes of a label that is 1 everywhere, `weight` times."""
        return weight * self.root * self.of_root


def normalized_kernel(kernel: Kernel, ones: Tensor) -> NormalizedKernel:
    """A kernel normalised, by a label (B, 1, H, W) that is 1 everywhere."""
    root = kernel(ones).rsqrt()
    return NormalizedKernel(kernel, root, kernel(root))


@dataclass(frozen=True)
class CrfKernels:
    """What the dense CRF needs of images, whatever their maps are: most of its work.

    Attributes
    ----------
    shape : (H, W)
        Of the reduced images.
    smoothness, bilateral : NormalizedKernel
        K₁ and K₂ of :func:`dense_crf`.
    n_bytes : int
        What they take in memory, beside what all images of a shape share.
    """

    shape: tuple[int, int]
    smoothness: NormalizedKernel
    bilateral: NormalizedKernel
    n_bytes: int


_KEPT: Kept[CrfKernels] = Kept(_MOST_KEPT)


def crf_kernels(
    images: Tensor,
    *,
    smoothness_sigma: float = 2.0,
    position_sigma: float = 0.12,
    color_sigma: float = 13.0,
    size: int = DENSE_CRF_SIZE,
) -> CrfKernels:
    """The kernels of images (B, 3, H, W) in [0, 1]; parameters and errors as :func:`dense_crf`.

    Those of some hundred images are kept, as several steps ask for the same.
    """
    if not all(sigma > 0 for sigma in (smoothness_sigma, position_sigma, color_sigma)):
        raise InputError("each standard deviation of a dense CRF must be above 0")
    guide = (at_working_size(images, size) * 255).round().to(torch.uint8)
    sigmas = (smoothness_sigma, position_sigma * max(guide.shape[-2:]), color_sigma)
    pixels = guide.cpu().numpy()
    key = (hashlib.sha256(pixels.tobytes()).digest(), pixels.shape, guide.device, sigmas)
    return _KEPT.get(key, lambda: _kernels(guide, *sigmas))


def _kernels(
    guide: Tensor, smoothness_sigma: float, position_sigma: float, color_sigma: float
) -> CrfKernels:
    """Of images, uint8 (B, 3, H, W), at the size that is worked at, and distances in pixels."""
    shape = (guide.shape[-2], guide.shape[-1])
    grid = BilateralGrid(guide, position_sigma, color_sigma)
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
    *,
    smoothness_weight: float = 3.0,
    bilateral_weight: float = 5.0,
    n_iter: int = 5,
) -> Tensor:
    """As :func:`dense_crf`, by kernels that serve several maps, at their images' reduced size.

    Parameters
    ----------
    kernels : CrfKernels
    probabilities : Tensor, (B, k, h, w)
    smoothness_weight, bilateral_weight, n_iter
        As for :func:`dense_crf`.

    Returns
    -------
    Tensor, (B, k, *kernels.shape)

    Raises
    ------
    InputError
        The probabilities aren't ones.
    """
    unary = functional.interpolate(probabilities.float(), kernels.shape, mode="bilinear")
    if not (unary.min() >= 0 and unary.sum(1).max() <= 1 + _ROUNDING):
        raise InputError(
            "the factors' probabilities go below 0 or above 1 in sum; make them from heat maps "
            "with deepff.regions.guided_crf.unary_probabilities"
        )
    weighted = [(smoothness_weight, kernels.smoothness), (bilateral_weight, kernels.bilateral)]
    return mean_field(unary, [pair for pair in weighted if pair[0]], n_iter)


def mean_field(
    unary: Tensor, kernels: Sequence[tuple[float, NormalizedKernel]], n_iter: int
) -> Tensor:
    """Mean field of :func:`dense_crf` at the images' own resolution.

    Parameters
    ----------
    unary : Tensor, (B, k, H, W)
        The factors' exp(−U), non-negative and at most 1 in sum.
    kernels : sequence of (weight, kernel)
    n_iter : int

    Returns
    -------
    Tensor, (B, k, H, W)
    """

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
    """exp(−|xᵢ − xⱼ|² / 2σ²) of the pixels' positions x, without truncation.

    Parameters
    ----------
    images : Tensor, (B, 3, H, W)
    sigma : float
        In pixels.
    """

    def along(side: int) -> Tensor:
        x = torch.arange(side, device=images.device, dtype=images.dtype)
        kernel = (x / sigma).square().mul(-0.5).exp()
        # Products of such values are denormal, which a CPU multiplies 30 times as slowly.
        kernel = kernel.masked_fill(kernel < _NEGLIGIBLE, 0)
        return kernel[(x[:, None] - x).abs().long()]

    rows, columns = map(along, images.shape[-2:])
    return lambda labels: rows @ labels @ columns
