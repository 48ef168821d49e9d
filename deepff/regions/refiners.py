"""Refinements of one image's maps along its edges: which there are, the photograph, and parts."""

from importlib import import_module

import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import ImageRecord
from deepff.errors import InputError
from deepff.images.decoding import UnreadableImageError
from deepff.images.reduced import read_reduced
from deepff.layers.layer import Extent
from deepff.options import Refinement
from deepff.regions.dense_crf import DENSE_CRF_SIZE, CrfKernels, crf_kernels, refined_by_kernels
from deepff.regions.probabilities import Refiner
from deepff.results.sampling import cell_means

# Each refinement is the file in this folder that has its name. The classifier is none of them: its
# probabilities come with the factorization, not with the image.
REFINERS: dict[Refinement, Refiner] = {
    name: import_module(f"deepff.regions.{name.replace('-', '_')}").REFINER
    for name in Refinement
    if name not in (Refinement.NONE, Refinement.CLASSIFIER)
}


def photo_of(image: ImageRecord, size: int) -> Tensor:
    """An image of the set as (3, h, w) in [0, 1], reduced to the size that a CRF works at.

    Raises InputError where it cannot be read any more, or has another size than it had.
    """
    try:
        photo = read_reduced(image.origin, size, image.stretch)
    except UnreadableImageError as error:
        back = "" if image.path is None else f": put it back at {image.path}"
        raise InputError(
            f"the CRF needs the photograph {image.name}, which cannot be read any more "
            f"({error}){back}, say where it is now (--photos, or load(folder, images=...)), "
            "or go without CRF"
        ) from error
    if photo.size != image.size:
        raise InputError(
            f"the CRF needs the photograph {image.name} as it was, {image.size} pixels, but it "
            f"now has {photo.size}" + ("" if image.path is None else f": {image.path}")
        )
    return photo.pixels.float() / 255


def photo_kernels(image: ImageRecord, device: torch.device) -> CrfKernels:
    """The dense CRF's kernels of an image of the set, computed on a device."""
    return crf_kernels(photo_of(image, DENSE_CRF_SIZE)[None].to(device))


# A pixel's share of a part is never 0, so that the image's edges can overrule it.
_EVEN_SHARE = 0.02


def part_probabilities(object_probability: Tensor, maps: Tensor) -> Tensor:
    """Share the object's probability (1, H, W) among the parts, pixel by pixel: (k, H, W).

    In proportion to the maps (k, h, w), which are nowhere negative, have one unit and cover the
    image, but for 2 % shared evenly; evenly where all maps are 0.
    """
    upsampled = functional.interpolate(
        maps[None], object_probability.shape[-2:], mode="bilinear", align_corners=False
    )[0]
    upsampled = upsampled + torch.finfo(upsampled.dtype).tiny
    share = upsampled / upsampled.sum(0)
    even = torch.full_like(share, 1 / len(share))
    return object_probability * torch.lerp(share, even, _EVEN_SHARE)


def refined_parts(kernels: CrfKernels, object_probability: Tensor, maps: Tensor) -> Tensor:
    """The parts of one image refined together along its edges: (k, H, W).

    They sum to the object's probability (1, H, W), which stays as it is; maps (k, h, w) are as for
    :func:`part_probabilities`.
    """
    # A dense CRF over the k parts alone shares the object's probability, which is refined already.
    # With the background as one more label, the parts would lose pixels to it at every edge because
    # there are several (Car Parts, every other image, k = 2, 4, 6: factor quality 0.375, and 0.378
    # this way; mutual information with the parts 0.348 and 0.354).
    everywhere = maps.new_ones(1, *kernels.shape)
    refined = refined_by_kernels(kernels, part_probabilities(everywhere, maps)[None])
    shape = object_probability.shape[-2:]
    refined = functional.interpolate(refined, shape, mode="bilinear")[0]
    return object_probability * refined / refined.sum(0)


def object_shares(
    object_probability: Tensor, grid: tuple[int, int], extent: Extent | None = None
) -> Tensor:
    """The share of each cell of a grid (h, w) that is object: (h · w,), row-major as rows of A.

    Object is where its probability (1, H, W) is 1/2 or more. The grid covers ``extent``, by default
    the image.
    """
    mask = (object_probability >= 0.5).float()
    return cell_means(mask, grid, extent).flatten()
