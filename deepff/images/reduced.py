"""Images reduced to the size that pictures and CRFs take, and kept for later steps."""

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from deepff.images.decoding import UnreadableImageError, unreadable_reason
from deepff.images.image_set import Origin, read_origin, read_pixels
from deepff.images.reading import Picture, image_size, reading_size, resize
from deepff.runtime.memory import Kept

REDUCED_SIDE = 256  # pixels of the longer side, for the report's pictures and the dense CRF


@dataclass(frozen=True)
class ReducedImage:
    """An image whose longer side has been reduced."""

    size: tuple[int, int]  # (H, W) of the original, upright
    pixels: Tensor  # uint8 (3, h, w), see :func:`reduced_shape`

    @property
    def n_bytes(self) -> int:
        """What it takes in memory."""
        return self.pixels.nbytes


_KEPT: Kept[ReducedImage] = Kept(3 * 2**25)  # bytes: at least 500 images


def reduced_shape(size: Sequence[int], side: int) -> tuple[int, int]:
    """The shape (h, w) of an image (H, W) whose longer side is reduced to ``side`` pixels."""
    height, width = size
    reduction = min(1.0, side / max(height, width))
    return max(1, round(height * reduction)), max(1, round(width * reduction))


def read_reduced(origin: Origin, side: int, stretch: bool = False) -> ReducedImage:
    """An image whose longer side is at most ``side`` pixels. Those of recent files are kept as long
    as the file does not change."""

    def read() -> ReducedImage:
        pixels = read_pixels(origin, side, stretch)
        # A JPEG may be decoded at fewer pixels than it has.
        size = image_size(origin) if isinstance(origin, os.PathLike) else pixels.shape[:2]
        return _reduced((size[0], size[1]), pixels, side)

    return (
        _KEPT.get(_state(origin, side, stretch), read)
        if isinstance(origin, os.PathLike)
        else read()
    )


def read_and_reduce(origin: Origin, size: tuple[int, int], side: int, stretch: bool) -> Picture:
    """The picture at ``side`` or more pixels of the longer side, of an image (H, W). A file's
    reduced image is kept, too, if :func:`read_reduced` would decode it at the same scale."""
    if not isinstance(origin, os.PathLike):
        return read_origin(origin, side, stretch)
    key = _state(origin, REDUCED_SIDE, stretch)
    picture = read_origin(origin, side, stretch)
    if reading_size(size, side) == reading_size(size, REDUCED_SIDE):
        _KEPT.get(key, lambda: _reduced(size, picture.pixels, REDUCED_SIDE))
    return picture


def _state(path: os.PathLike[str], side: int, stretch: bool) -> Hashable:
    try:
        state = os.stat(path)
    except OSError as error:
        raise UnreadableImageError(unreadable_reason(error)) from error
    return path, side, stretch, state.st_mtime_ns, state.st_size


def _reduced(size: tuple[int, int], pixels: np.ndarray, side: int) -> ReducedImage:
    return ReducedImage(size, resize(pixels, reduced_shape(pixels.shape[:2], side)))
