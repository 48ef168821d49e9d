"""Images that are no files: arrays, tensors, PIL images, the items of a data set in Python."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from deepff.images.decoding import UnreadableImageError
from deepff.images.reading import read_image, to_rgb


@dataclass(frozen=True, eq=False)
class ImageItem:
    """One item of a sequence of images, fetched anew whenever it is needed.

    Attributes
    ----------
    items : sequence
        Anything with ``__len__`` and ``__getitem__``, a ``torch.utils.data.Dataset`` for example.
    index : int
        Its place.
    name : str
        What it is called in the set.
    """

    items: Any = field(repr=False)
    index: int
    name: str

    @property
    def origin(self) -> "ImageItem":
        """What the pixels are read from: the item itself."""
        return self

    def read(self) -> np.ndarray:
        """The item's pixels, RGB: uint8 (height, width, 3); see :func:`as_pixels`.

        Raises
        ------
        UnreadableImageError
            The sequence raises an error of its own, or the item is no image.
        """
        try:
            item = self.items[self.index]
        except Exception as error:
            raise UnreadableImageError(f"item {self.index} raises {error!r}") from error
        return as_pixels(item)

    def digest(self) -> str:
        """SHA-256 of the pixels and their shape, in hexadecimal."""
        return pixels_digest(self.read())


def pixels_digest(pixels: np.ndarray) -> str:
    """SHA-256 of pixels and their shape, in hexadecimal."""
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()


def as_pixels(item: Any) -> np.ndarray:
    """An image in any of the forms that Python programs have it in, as RGB.

    Parameters
    ----------
    item : PIL image, ndarray, Tensor, path, or tuple that begins with one of these
        Arrays are (H, W, 3), (H, W, 4) with transparency, or grey (H, W); tensors (3, H, W) or
        (1, H, W). Both are uint8, uint16, bool, or floating-point in [0, 1]. A PIL image is turned
        as its EXIF data say.

    Returns
    -------
    ndarray, uint8, (H, W, 3)

    Raises
    ------
    UnreadableImageError
        It is none of these.
    """
    if isinstance(item, tuple | list) and item:
        item = item[0]
    if isinstance(item, str | Path):
        return read_image(item)
    if isinstance(item, Image.Image):
        rgb, _, _ = to_rgb(ImageOps.exif_transpose(item))
        return np.array(rgb)
    if isinstance(item, torch.Tensor):
        return _from_tensor(item)
    if not isinstance(item, np.ndarray):
        raise UnreadableImageError(f"a {type(item).__name__} is not an image")
    if not (item.ndim == 2 or (item.ndim == 3 and item.shape[2] in (3, 4))):
        raise UnreadableImageError(f"an array {item.shape}; give (H, W, 3) or grey (H, W)")
    pixels = _in_8_bits(item, f"an array {item.shape}")
    if item.ndim == 2:
        return np.repeat(pixels[..., None], 3, axis=2)
    return np.array(to_rgb(Image.fromarray(pixels))[0]) if item.shape[2] == 4 else pixels


def _from_tensor(item: torch.Tensor) -> np.ndarray:
    if item.ndim != 3 or len(item) not in (1, 3):
        raise UnreadableImageError(f"a tensor {tuple(item.shape)}; give (3, H, W) or (1, H, W)")
    values = item.detach().cpu()
    values = values.float() if values.is_floating_point() else values
    pixels = _in_8_bits(values.numpy(), f"a tensor {tuple(item.shape)}")
    rgb = np.broadcast_to(pixels, (3, *pixels.shape[1:]))
    return np.array(rgb.transpose(1, 2, 0), order="C")


def _in_8_bits(values: np.ndarray, what: str) -> np.ndarray:
    """A copy of pixels as uint8, white being 255."""
    if not values.size:
        raise UnreadableImageError(f"{what} has no pixels")
    if np.issubdtype(values.dtype, np.floating):
        if not (values.min() >= 0 and values.max() <= 1):
            raise UnreadableImageError(
                f"{what} of values outside 0 to 1; give images before their normalisation"
            )
        return np.rint(values * 255).astype(np.uint8)
    if values.dtype == np.uint16:
        return ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    if values.dtype == bool:
        return values.astype(np.uint8) * 255
    if values.dtype != np.uint8:
        raise UnreadableImageError(
            f"{what} of {values.dtype}; give uint8, uint16, bool, or floats in [0, 1]"
        )
    return np.array(values, order="C")
