"""Factors' probabilities, pixel by pixel: from heat maps, and what CRFs and labels do with them.

Tensors of probabilities are (k, H, W); what they lack of 1 in sum is the background's.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import ImageRecord
from deepff.errors import InputError
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import read_reduced, reduced_shape
from deepff.regions.thresholds import largest_factor

# A unary never says more than 49 to 1, so that the image's edges can overrule it.
_CERTAINTY = 0.98
# For the same reason no part's share of a pixel is 0.
_EVEN_SHARE = 0.02


class Refiner(NamedTuple):
    """A refinement of one image's maps along its edges: ``probabilities`` takes an image, maps (k,
    h, w) in [0, 1], thresholds (k,) and a size, and returns (k, H, W) at the image's size."""

    size: int  # the longer side in pixels that it works at
    probabilities: Callable[[Tensor | np.ndarray, Tensor, Tensor, int], Tensor]
    fills_holes: bool  # whether background that the factors enclose becomes theirs


def unary_probabilities(maps: Tensor, thresholds: Tensor) -> Tensor:
    """exp(−U), what each pixel's values alone say: (..., k, H, W), like the maps. ``maps`` are
    normalized to [0, 1] over the set, and ``thresholds`` (..., k) have their units. Factor j alone
    would be on with p_j = u_j² / (u_j² + t_j²), 1/2 at its threshold t_j, and 1 above a threshold
    of 0. A pixel belongs to any factor with p = max_j p_j, held within [0.02, 0.98]. The factors
    share p in proportion to p_j · u_j, 2 % of it evenly, which favors the factor that is largest
    relative to its maximum over the set."""
    tiny = torch.finfo(torch.float32).tiny
    energy = maps.clamp_min(0).square()
    limit = thresholds.to(maps).clamp_min(0).square()[..., None, None]
    alone = energy / (energy + limit).clamp_min(tiny)
    any_factor = alone.amax(-3, keepdim=True).clamp(1 - _CERTAINTY, _CERTAINTY)
    share = alone * maps.clamp_min(0) + tiny
    share = share / share.sum(-3, keepdim=True)
    return any_factor * torch.lerp(torch.full_like(share, 1 / share.shape[-3]), share, _CERTAINTY)


def part_probabilities(object_probability: Tensor, maps: Tensor) -> Tensor:
    """Share the object's probability (1, H, W) among the parts, pixel by pixel: (k, H, W). In
    proportion to the maps (k, h, w), which are nowhere negative, have one unit and cover the image,
    but for 2 % shared evenly; evenly where all maps are 0."""
    upsampled = functional.interpolate(
        maps[None], object_probability.shape[-2:], mode="bilinear", align_corners=False
    )[0]
    upsampled = upsampled + torch.finfo(upsampled.dtype).tiny
    share = upsampled / upsampled.sum(0)
    even = torch.full_like(share, 1 / len(share))
    return object_probability * torch.lerp(share, even, _EVEN_SHARE)


def with_background(factors: Tensor) -> Tensor:
    """(B, k, H, W) to (B, 1 + k, H, W), so that the labels sum to 1."""
    return torch.cat([1 - factors.sum(1, keepdim=True), factors], dim=1)


def refined_masks(probabilities: Tensor) -> Tensor:
    """The most likely factor of each pixel, of equal ones the first, as masks (k, H, W); none where
    the background is more likely than all factors together."""
    factors = torch.arange(1, len(probabilities) + 1, device=probabilities.device)
    return largest_factor(probabilities, probabilities.sum(0) >= 0.5) == factors[:, None, None]


def without_holes(probabilities: Tensor) -> Tensor:
    """Probabilities where background that the factors enclose is theirs, in proportion to them."""
    # Worth 0.002 IoU on iCoseg, where no group loses more than 0.004, and 0.005 mutual information
    # of parts inside the object on Car Parts, whose windows and wheels a CRF cuts out.
    total = probabilities.sum(0)
    shares = probabilities / total.clamp_min(torch.finfo(total.dtype).tiny)
    return torch.where(enclosed(total < 0.5), shares, probabilities)


def enclosed(background: Tensor) -> Tensor:
    """The components (4-connected) of a mask (H, W) that don't touch its border."""
    from scipy import ndimage

    array = background.cpu().numpy()
    holes = np.zeros_like(array)
    # All that is enclosed lies between the outermost pixels of the foreground. Not scipy's
    # binary_fill_holes, which takes six times as long on photographs.
    for within in ndimage.find_objects((~array).astype(np.uint8)):
        components, n = ndimage.label(array[within])
        inside = np.arange(n + 1) > 0
        for edge in (components[0], components[-1], components[:, 0], components[:, -1]):
            inside[edge] = False
        holes[within] = inside[components]
    return torch.from_numpy(holes).to(background.device)


def photo_of(image: ImageRecord, size: int) -> Tensor:
    """An image of the set as (3, h, w) in [0, 1], reduced to the size that a CRF works at."""
    try:
        photo = read_reduced(image.unchanged_origin(), size, image.stretch)
    except UnreadableImageError as error:
        back = "" if image.path is None else f": put it back at {image.path}"
        raise InputError(
            f"the CRF needs the photograph {image.name}, which can no longer be used "
            f"({error}){back}, say where it is now (--photos, or load(folder, images=...)), or "
            "leave out the CRF"
        ) from error
    if photo.size != image.size:
        raise InputError(
            f"the CRF needs the photograph {image.name} as it was, {image.size} pixels, but it "
            f"now has {photo.size}" + ("" if image.path is None else f": {image.path}")
        )
    return photo.pixels.float() / 255


def at_working_size(images: Tensor, size: int) -> Tensor:
    """Images (B, 3, H, W) with at most ``size`` pixels along the longer side."""
    shape = reduced_shape(images.shape[-2:], size)
    if shape == images.shape[-2:]:
        return images
    return functional.interpolate(images, shape, mode="bilinear", antialias=True)


def as_image_batch(image: Tensor | np.ndarray, maps: Tensor) -> Tensor:
    """An image, uint8 (H, W, 3) or float (3, H, W), as (1, 3, H, W) float32 on the maps' device."""
    if isinstance(image, np.ndarray):
        image = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).float() / 255
    return image[None].float().to(maps.device)
