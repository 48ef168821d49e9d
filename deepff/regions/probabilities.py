"""Factors' probabilities, pixel by pixel: from heat maps, and what CRFs and labels do with them.

Tensors of probabilities are (..., k, H, W); what they lack of 1 in sum is the background's.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.errors import InputError
from deepff.images.reduced import reduced_shape

# A unary never says more than 49 to 1, so that the image's edges can overrule it.
_CERTAINTY = 0.98


class Refiner(NamedTuple):
    """A refinement of one image's maps along its edges.

    ``probabilities`` takes an image, its maps (k, h, w) in [0, 1], thresholds (k,) in their units
    and a size, and returns (k, H, W) at the image's size.
    """

    size: int  # the longer side in pixels that it works at
    probabilities: Callable[[Tensor | np.ndarray, Tensor, Tensor, int], Tensor]
    fills_holes: bool  # whether background that the factors enclose becomes theirs


def unary_probabilities(maps: Tensor, thresholds: Tensor) -> Tensor:
    """exp(−U), what each pixel's values alone say: (..., k, H, W), like the maps.

    ``maps`` are normalized to [0, 1] over the set, and ``thresholds`` (..., k) have their units.
    Negative values count as 0; at a threshold of 0 each positive value is certain, at an infinite
    one none is.

    Factor j alone would be on with p_j = u_j² / (u_j² + t_j²), which is 1/2 at its threshold t_j. A
    pixel belongs to any factor with p = max_j p_j, held within [0.02, 0.98], so p ≥ 1/2 exactly
    where some factor reaches its threshold, however many factors there are. The factors share p in
    proportion to p_j · u_j, 2 % of it evenly. As in :func:`deepff.regions.thresholds.label_map`,
    this favors the factor that is largest relative to its maximum over the set.
    """
    tiny = torch.finfo(torch.float32).tiny
    energy = maps.clamp_min(0).square()
    limit = thresholds.to(maps).clamp_min(0).square()[..., None, None]
    alone = energy / (energy + limit).clamp_min(tiny)
    any_factor = alone.amax(-3, keepdim=True).clamp(1 - _CERTAINTY, _CERTAINTY)
    share = alone * maps.clamp_min(0) + tiny
    share = share / share.sum(-3, keepdim=True)
    return any_factor * torch.lerp(torch.full_like(share, 1 / share.shape[-3]), share, _CERTAINTY)


def with_background(factors: Tensor) -> Tensor:
    """(B, k, H, W) to (B, 1 + k, H, W), so that the labels sum to 1."""
    return torch.cat([1 - factors.sum(1, keepdim=True), factors], dim=1)


def refined_labels(probabilities: Tensor) -> Tensor:
    """One factor per pixel, (..., H, W): 0 is the background, factor j is j + 1.

    A pixel is background where that is more likely than all the factors together, else the most
    likely factor's; of equal ones the first. uint8, or int32 for k > 255.
    """
    dtype = torch.uint8 if probabilities.shape[-3] <= 255 else torch.int32
    foreground = probabilities.sum(-3) >= 0.5
    return ((probabilities.max(-3).indices + 1) * foreground).to(dtype)


def refined_masks(probabilities: Tensor) -> Tensor:
    """Where :func:`refined_labels` names each factor, (..., k, H, W) bool; they don't overlap."""
    factors = torch.arange(1, probabilities.shape[-3] + 1, device=probabilities.device)
    return refined_labels(probabilities)[..., None, :, :] == factors[:, None, None]


def without_holes(probabilities: Tensor) -> Tensor:
    """Probabilities where background that the factors enclose is theirs, in proportion to them."""
    # Worth 0.002 IoU on iCoseg, where no group loses more than 0.004, and 0.005 mutual information
    # of parts inside the object on Car Parts, whose windows and wheels a CRF cuts out.
    total = probabilities.sum(-3, keepdim=True)
    holes = enclosed((total < 0.5).flatten(0, -3)).view(total.shape)
    shares = probabilities / total.clamp_min(torch.finfo(total.dtype).tiny)
    return torch.where(holes, shares, probabilities)


def enclosed(background: Tensor) -> Tensor:
    """The components (4-connected) of masks, (H, W) or (B, H, W), that don't touch the border."""
    images = background.reshape(-1, *background.shape[-2:]).cpu().numpy()
    holes = torch.from_numpy(np.stack([_enclosed(image) for image in images]))
    return holes.view(background.shape).to(background.device)


def _enclosed(background: np.ndarray) -> np.ndarray:
    from scipy import ndimage

    holes = np.zeros_like(background)
    # All that is enclosed lies between the outermost pixels of the foreground.
    within = ndimage.find_objects((~background).astype(np.uint8))
    if not within:
        return holes
    components, n = ndimage.label(background[within[0]])
    inside = np.arange(n + 1) > 0
    for edge in (components[0], components[-1], components[:, 0], components[:, -1]):
        inside[edge] = False
    holes[within[0]] = inside[components]
    return holes


def at_working_size(images: Tensor, size: int) -> Tensor:
    """Images (B, 3, H, W) with at most ``size`` pixels along the longer side."""
    shape = reduced_shape(images.shape[-2:], size)
    if shape == images.shape[-2:]:
        return images
    return functional.interpolate(images, shape, mode="bilinear", antialias=True)


def as_image_batch(image: Tensor | np.ndarray, maps: Tensor) -> Tensor:
    """An image, uint8 (H, W, 3) or float (3, H, W), as (1, 3, H, W) float32 in [0, 1].

    It is on the maps' device. Raises InputError where it is no image, or maps are not (k, h, w).
    """
    if isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise InputError(
                f"an image array of {image.dtype} {image.shape} can't be refined; it should be "
                "uint8 (H, W, 3)"
            )
        image = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).float() / 255
    if image.ndim != 3 or image.shape[0] != 3 or not image.is_floating_point():
        raise InputError(
            f"an image tensor of {image.dtype} {tuple(image.shape)} can't be refined; it should be "
            "float (3, H, W) in [0, 1]"
        )
    if maps.ndim != 3:
        raise InputError(
            f"an image of shape {tuple(image.shape)} does not fit maps of {tuple(maps.shape)}; "
            "give (H, W, 3) or (3, H, W) with (k, h, w)"
        )
    return image[None].float().to(maps.device)
