"""Refinements of one image's maps along its edges: which there are, and the photograph for them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.features.activations import ImageRecord
from deepff.images.reading import UnreadableImageError
from deepff.options import Refinement
from deepff.regions.dense_crf import DENSE_CRF_SIZE, dense_crf
from deepff.regions.guided_crf import (
    GUIDED_CRF_SIZE,
    as_image_batch,
    at_working_size,
    guided_crf,
    unary_probabilities,
    without_holes,
)


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
    # Probabilities change faster than the maps that they come from: upsampling these first is
    # worth 0.009 IoU on iCoseg.
    _, smooth = at_working_size(as_image_batch(image, maps), maps, size)
    smooth = smooth if maps.ndim == 4 else smooth[0]
    return dense_crf(image, unary_probabilities(smooth, thresholds), size=size)


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
        pixels = image.read()
    except UnreadableImageError as error:
        back = "" if image.path is None else f": put it back at {image.path}"
        raise InputError(
            f"the CRF needs the photograph {image.name}, which cannot be read any more "
            f"({error}){back}, say where it is now (--photos, or load(folder, images=...)), "
            "or go without CRF"
        ) from error
    if pixels.shape[:2] != image.size:
        raise InputError(
            f"the CRF needs the photograph {image.name} as it was, {image.size} pixels, but it "
            f"now has {pixels.shape[:2]}" + ("" if image.path is None else f": {image.path}")
        )
    # One channel at a time, as a large image in floats takes many times what its file does.
    channels = (torch.from_numpy(pixels[..., i]).float()[None, None].div_(255) for i in range(3))
    reduced = [at_working_size(channel, channel, size)[0][0] for channel in channels]
    return torch.cat(reduced)
