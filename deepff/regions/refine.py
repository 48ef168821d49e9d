"""Refinements of one image's maps along its edges: which there are, and the photograph for them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import ImageRecord
from deepff.errors import InputError
from deepff.images.decoding import UnreadableImageError
from deepff.images.reduced import read_reduced
from deepff.layers.layer import Extent
from deepff.options import Refinement
from deepff.regions.dense_crf import (
    DENSE_CRF_SIZE,
    CrfKernels,
    crf_kernels,
    refined_by_kernels,
)
from deepff.regions.guided_crf import (
    GUIDED_CRF_SIZE,
    as_image_batch,
    guided_crf,
    unary_probabilities,
    without_holes,
)
from deepff.results.sampling import cell_means


class Refiner(NamedTuple):
    """A refinement.

    Attributes
    ----------
    size : int
        The longer side in pixels that it works at.
    probabilities : callable
        Of image, maps normalised to [0, 1], thresholds and size, as :func:`refined` has them: the
        factors' probabilities (..., k, h, w).
    fills_holes : bool
        Whether what the factors enclose afterwards is theirs.
    """

    size: int
    probabilities: Callable[[Tensor | np.ndarray, Tensor, Tensor, int], Tensor]
    fills_holes: bool


def _guided(image: Tensor | np.ndarray, maps: Tensor, thresholds: Tensor, size: int) -> Tensor:
    return guided_crf(image, maps, thresholds, size=size)


def _dense(image: Tensor | np.ndarray, maps: Tensor, thresholds: Tensor, size: int) -> Tensor:
    images = as_image_batch(image, maps)
    batch = maps if maps.ndim == 4 else maps[None]
    found = refined_densely(crf_kernels(images, size=size), batch, thresholds)
    found = functional.interpolate(found, images.shape[-2:], mode="bilinear")
    return found if maps.ndim == 4 else found[0]


def refined_densely(kernels: CrfKernels, maps: Tensor, thresholds: Tensor) -> Tensor:
    """As :func:`refined` by the dense CRF, by kernels that serve several maps, with holes.

    Parameters
    ----------
    kernels : CrfKernels
    maps : Tensor, (B, k, h, w)
    thresholds : Tensor, (k,) or (B, k)

    Returns
    -------
    Tensor, (B, k, *kernels.shape)
    """
    # Probabilities change faster than the maps that they come from: upsampling these first is
    # worth 0.009 IoU on iCoseg.
    smooth = functional.interpolate(maps.float(), kernels.shape, mode="bilinear")
    return refined_by_kernels(kernels, unary_probabilities(smooth, thresholds))


# Those that need no more than an image and its maps.
REFINERS = {
    Refinement.GUIDED_CRF: Refiner(GUIDED_CRF_SIZE, _guided, fills_holes=False),
    Refinement.DENSE_CRF: Refiner(DENSE_CRF_SIZE, _dense, fills_holes=True),
}


def refined(image: Tensor | np.ndarray, maps: Tensor, thresholds: Tensor, refine: str) -> Tensor:
    """The factors' probabilities along the edges of one image, or of a batch of one shape.

    Parameters
    ----------
    image : ndarray uint8 (H, W, 3), or Tensor float (..., 3, H, W) in [0, 1]
    maps : Tensor, (..., k, h, w)
        At any size, normalised to [0, 1] over the set.
    thresholds : Tensor, (..., k)
        In the same units.
    refine : "guided-crf" or "dense-crf"
        After the latter, holes are filled (:func:`deepff.regions.guided_crf.without_holes`).

    Returns
    -------
    Tensor, (..., k, H, W)

    Raises
    ------
    InputError
        There is no such refinement.
    """
    if refine not in REFINERS:
        raise InputError(
            f"there is no refinement {refine!r} of one image; choose {' or '.join(REFINERS)}"
        )
    refiner = REFINERS[Refinement(refine)]
    found = refiner.probabilities(image, maps, thresholds, refiner.size)
    return without_holes(found) if refiner.fills_holes else found


def photo_of(image: ImageRecord, size: int) -> Tensor:
    """An image of the set as (3, h, w) in [0, 1], reduced to the size that a CRF works at.

    Raises
    ------
    InputError
        It cannot be read any more, or has another size than it had.
    """
    try:
        found = read_reduced(image.origin, size, image.stretch)
    except UnreadableImageError as error:
        back = "" if image.path is None else f": put it back at {image.path}"
        raise InputError(
            f"the CRF needs the photograph {image.name}, which cannot be read any more "
            f"({error}){back}, say where it is now (--photos, or load(folder, images=...)), "
            "or go without CRF"
        ) from error
    if found.size != image.size:
        raise InputError(
            f"the CRF needs the photograph {image.name} as it was, {image.size} pixels, but it "
            f"now has {found.size}" + ("" if image.path is None else f": {image.path}")
        )
    return found.pixels.float() / 255


def photo_kernels(image: ImageRecord, device: torch.device) -> CrfKernels:
    """The dense CRF's kernels of an image of the set, worked out on a device.

    Raises
    ------
    InputError
        As :func:`photo_of`.
    """
    return crf_kernels(photo_of(image, DENSE_CRF_SIZE)[None].to(device))


# A pixel's share of a part is never 0, so that the image's edges can overrule it.
_EVEN_SHARE = 0.02


def part_probabilities(object_probability: Tensor, maps: Tensor) -> Tensor:
    """Share the object's probability among the parts, pixel by pixel.

    Parameters
    ----------
    object_probability : Tensor, (1, H, W)
        In [0, 1].
    maps : Tensor, (k, h, w)
        Nowhere negative, and in the same unit for all parts; they cover the whole image. They are
        upsampled bilinearly.

    Returns
    -------
    Tensor, (k, H, W)
        In proportion to the maps, but for 2 % shared evenly; evenly where all maps are 0. Sums to
        `object_probability`.
    """
    upsampled = functional.interpolate(
        maps[None], object_probability.shape[-2:], mode="bilinear", align_corners=False
    )[0]
    upsampled = upsampled + torch.finfo(upsampled.dtype).tiny
    share = upsampled / upsampled.sum(0)
    even = torch.full_like(share, 1 / len(share))
    return object_probability * torch.lerp(share, even, _EVEN_SHARE)


def refined_parts(kernels: CrfKernels, object_probability: Tensor, maps: Tensor) -> Tensor:
    """The parts of one image, refined together along its edges; the object is left as it is.

    A dense CRF over the k parts alone shares the object's probability, which is refined already:
    beside the background as one more label, the parts would lose pixels to it at every edge for
    being several (Car Parts, every other image, k = 2, 4, 6: factor quality 0.375, and 0.378 so;
    mutual information with the parts 0.348 and 0.354).

    Parameters
    ----------
    kernels : CrfKernels
        Of the image, by :func:`deepff.regions.dense_crf.crf_kernels`.
    object_probability : Tensor, (1, H, W)
    maps : Tensor, (k, h, w)
        As for :func:`part_probabilities`.

    Returns
    -------
    Tensor, (k, H, W)
        Sums to `object_probability`.
    """
    everywhere = maps.new_ones(1, *kernels.shape)
    refined = refined_by_kernels(kernels, part_probabilities(everywhere, maps)[None])
    shape = object_probability.shape[-2:]
    refined = functional.interpolate(refined, shape, mode="bilinear")[0]
    return object_probability * refined / refined.sum(0)


def object_shares(
    object_probability: Tensor, grid: tuple[int, int], extent: Extent | None = None
) -> Tensor:
    """The share of each cell of a grid that is object: where its probability is 1/2 or more.

    Parameters
    ----------
    object_probability : Tensor, (1, H, W)
    grid : (h, w)
        In cells.
    extent : Extent, optional
        What the grid lies on; by default the image.

    Returns
    -------
    Tensor, (h · w,)
        Row-major, as rows of A.
    """
    mask = (object_probability >= 0.5).float()
    return cell_means(mask, grid, extent).flatten()
