"""What an image set is given as, and reading images wherever they come from."""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from deepff.errors import InputError, InputWarning
from deepff.images.decoding import UnreadableImageError, unreadable_reason
from deepff.images.image_files import ImageFile, find_images
from deepff.images.items import ImageItem, pixels_digest
from deepff.images.reading import (
    Picture,
    SkippedFile,
    content_digest,
    image_size,
    read_picture,
)

# What the pixels of an image are read from; None where that is gone.
Origin = Path | ImageItem | None
SetImage = ImageFile | ImageItem
Images = str | Path | Iterable[Any]

_GONE = "it was not a file, so a saved result cannot read it again: load it with images=..."


def resolve_images(images: Images) -> list[SetImage]:
    """The images that a caller means, in order, with their names.

    Parameters
    ----------
    images : path, glob, sequence of these, or images
        A folder stands for its files in natural order; a list keeps its order. Images are what
        :func:`deepff.images.items.as_pixels` takes: in a list, or anything with ``__len__`` and
        ``__getitem__``, which is asked for one item at a time. They are named by their place.

    Raises
    ------
    InputError
        There are none, or files and images are mixed.
    """
    if isinstance(images, str | Path):
        return list(find_images(images))
    if isinstance(images, Image.Image):
        images = [images]
    if not (hasattr(images, "__len__") and hasattr(images, "__getitem__")):
        images = list(images)
    if isinstance(images, np.ndarray | torch.Tensor) and images.ndim == 3:
        images = [images]
    assert hasattr(images, "__len__") and hasattr(images, "__getitem__")
    if not isinstance(images, list | tuple):
        return _by_place(images)
    are_paths = [isinstance(image, str | Path) for image in images]
    are_named = [isinstance(image, ImageFile | ImageItem) for image in images]
    if all(are_named) and images:
        return list(images)
    if all(are_paths):
        found = find_images(images)
        if len(found) < len(images):
            warnings.warn(
                f"{len(images)} paths name {len(found)} images: each is taken once",
                InputWarning,
                stacklevel=2,
            )
        return list(found)
    if any(are_paths) or any(are_named):
        raise InputError("files and images are mixed in one list; give the one or the other")
    return _by_place(images)


def nothing_readable(skipped: Sequence[SkippedFile]) -> str:
    """What to say of a set in which no image can be read."""
    if not skipped:
        return "no images were named: give at least one"
    return (
        f"none of the {len(skipped)} files is an image that can be read; the first, "
        f"{skipped[0].name}, was skipped for this reason: {skipped[0].reason}"
    )


def check_readable(files: Sequence[SetImage]) -> None:
    """Raise InputError unless at least one of the images looks as if it could be read."""
    skipped = []
    for file in files:
        try:
            origin_size(file.origin)
            return
        except UnreadableImageError as error:
            skipped.append(SkippedFile(file.name, str(error)))
    raise InputError(nothing_readable(skipped))


def read_pixels(
    origin: Origin, min_longest_side: int | None = None, stretch: bool = False
) -> np.ndarray:
    """The pixels of an image, RGB: uint8 (height, width, 3).

    Parameters
    ----------
    origin : Path, ImageItem or None
    min_longest_side, stretch
        As for :func:`deepff.images.reading.read_picture`; for files.

    Raises
    ------
    UnreadableImageError
        It cannot be read, or not any more.
    """
    return read_origin(origin, min_longest_side, stretch).pixels


def read_origin(
    origin: Origin, min_longest_side: int | None = None, stretch: bool = False
) -> Picture:
    """As :func:`read_pixels`, and what range of values a file has."""
    if origin is None:
        raise UnreadableImageError(_GONE)
    if isinstance(origin, ImageItem):
        return Picture(origin.read(), None, 255)
    return read_picture(origin, min_longest_side, stretch)


def origin_size(origin: Origin) -> tuple[int, int]:
    """Height and width in pixels of an image as seen upright; of a file from its header alone.

    Raises
    ------
    UnreadableImageError
        As :func:`read_pixels`.
    """
    if isinstance(origin, Path):
        return image_size(origin)
    height, width = read_pixels(origin).shape[:2]
    return height, width


def origin_digest(origin: Origin) -> str:
    """What tells an image from another: SHA-256 of a file's bytes, or of an item's pixels.

    Raises
    ------
    UnreadableImageError
        As :func:`read_pixels`.
    """
    if origin is None:
        raise UnreadableImageError(_GONE)
    return origin.digest() if isinstance(origin, ImageItem) else content_digest(origin)


def origin_size_and_digest(origin: Origin) -> tuple[tuple[int, int], str]:
    """:func:`origin_size` and :func:`origin_digest`, an item being fetched once for both.

    Raises
    ------
    UnreadableImageError
        As :func:`read_pixels`.
    """
    if isinstance(origin, ImageItem):
        pixels = origin.read()
        return (pixels.shape[0], pixels.shape[1]), pixels_digest(pixels)
    size = origin_size(origin)
    try:
        return size, origin_digest(origin)
    except OSError as error:
        raise UnreadableImageError(unreadable_reason(error)) from error


def _by_place(items: Any) -> list[SetImage]:
    n = len(items)
    if not n:
        raise InputError("no images were named: give a folder, files, a glob, or images")
    width = len(str(n - 1))
    return [ImageItem(items, index, f"{index:0{width}d}") for index in range(n)]
