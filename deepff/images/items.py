"""Images that are no files: arrays, tensors, PIL images, the items of a data set in Python."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from deepff.images.decoding import UnreadableImageError
from deepff.images.reading import read_image
from deepff.images.rgb import to_rgb


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

    items: Any
    index: int
    name: str

    @property
    def source(self) -> "ImageItem":
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
        pixels = self.read()
        return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()


def as_pixels(item: Any) -> np.ndarray:
    """An image in any of the forms that Python programs have it in, as RGB.

    Parameters
    ----------
    item : PIL image, ndarray, Tensor, path, or tuple that begins with one of these
        Arrays are uint8, (H, W, 3) or grey (H, W); tensors (3, H, W) or (1, H, W), uint8 or
        floating-point in [0, 1]. A PIL image is turned as its EXIF data say.

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
    is_grey = item.ndim == 2
    if item.dtype != np.uint8 or not (is_grey or (item.ndim == 3 and item.shape[2] == 3)):
        raise UnreadableImageError(
            f"an array {item.shape} of {item.dtype}; give (H, W, 3) or grey (H, W), uint8"
        )
    if not item.size:
        raise UnreadableImageError("an array without pixels")
    return np.ascontiguousarray(np.repeat(item[..., None], 3, axis=2) if is_grey else item)


def _from_tensor(item: torch.Tensor) -> np.ndarray:
    pixels = item.detach().cpu()
    if pixels.ndim != 3 or len(pixels) not in (1, 3) or not pixels.numel():
        raise UnreadableImageError(f"a tensor {tuple(item.shape)}; give (3, H, W) or (1, H, W)")
    if pixels.is_floating_point():
        if not (pixels.min() >= 0 and pixels.max() <= 1):
            raise UnreadableImageError(
                "a tensor of values outside 0 to 1; give images before their normalisation"
            )
        pixels = (pixels.float() * 255).round().to(torch.uint8)
    if pixels.dtype != torch.uint8:
        raise UnreadableImageError(f"a tensor of {pixels.dtype}; give uint8, or floats in [0, 1]")
    return np.ascontiguousarray(pixels.expand(3, -1, -1).permute(1, 2, 0).numpy())
