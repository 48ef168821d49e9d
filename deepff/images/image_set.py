"""An image set, of files or of images in a Python program: their pixels, sizes and digests."""

import hashlib
import math
import os
import shutil
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from deepff.errors import InputError, warn_user
from deepff.images.decoding import UnreadableImageError, unreadable_reason
from deepff.images.image_files import ImageFile, find_images
from deepff.images.reading import (
    SIXTEEN_BITS,
    Picture,
    SkippedFile,
    image_size,
    read_picture,
    reading_size,
    resize,
    scaled,
    to_rgb,
)
from deepff.images.stored import CACHED_BYTES, StoredFile
from deepff.runtime.distributed import n_ranks, rank
from deepff.runtime.parallel import Kept


@dataclass(frozen=True, eq=False)
class ImageItem:
    """One item of a sequence of images, such as a torch Dataset, fetched whenever it is needed."""

    items: Any = field(repr=False)
    index: int
    name: str  # in the set
    statistics: "Statistics | None" = None

    @property
    def origin(self) -> "ImageItem":
        """What the pixels are read from: the item itself."""
        return self

    def read(self) -> np.ndarray:
        """The item's pixels, RGB: uint8 (height, width, 3); see :func:`as_pixels`."""
        try:
            item = self.items[self.index]
        except Exception as error:
            raise UnreadableImageError(f"item {self.index} raises {error!r}") from error
        return as_pixels(item, self.statistics)


_SMALL = 2**16  # bytes of a file that is decoded at once
REPLACED = "not the photograph that the result was made from"

# What an image's pixels are read from; None when a saved result no longer has it.
Origin = Path | StoredFile | ImageItem | None
SetImage = ImageFile | ImageItem
Images = str | Path | Iterable[Any]
Statistics = tuple[Sequence[float], Sequence[float]]  # mean and deviation of normalized tensors


def resolve_images(images: Images, statistics: Statistics | None = None) -> list[SetImage]:
    """The images that a caller means, in order, with their names. Paths and globs are for
    :func:`find_images`. Images are what :func:`as_pixels` takes, in a list, anything with
    ``__len__`` and ``__getitem__``, or an iterable that gives them once; they are named by their
    index."""
    if isinstance(images, str | Path):
        return list(find_images(images))
    if isinstance(images, Image.Image) or (
        isinstance(images, np.ndarray | torch.Tensor) and images.ndim == 3
    ):
        images = [images]
    elif type(images).__name__ == "DataFrame":
        raise InputError("a data frame is not a list of images; pass its column of paths")
    elif hasattr(images, "to_pylist"):  # Arrow's
        images = images.to_pylist()
    elif getattr(images, "ndim", 0) == 1 or (
        hasattr(images, "to_list") and not hasattr(images, "features")
    ):
        # NumPy, and columns of tables, whose index need not count from 0; data sets of Hugging Face
        # have features, and are read image by image.
        images = list(images)
    elif not (hasattr(images, "__len__") and hasattr(images, "__getitem__")):
        if not isinstance(images, Iterable):
            raise InputError(f"images are {images!r}; give a folder, files, a glob, or images")
        images = _taken_once(images, statistics)
    assert hasattr(images, "__len__") and hasattr(images, "__getitem__")
    if not isinstance(images, list | tuple):
        return _named_by_index(images, statistics)
    images = [image for item in images for image in _of_batch(item)]
    are_paths = [isinstance(image, str | Path) for image in images]
    are_named = [isinstance(image, ImageFile | ImageItem) for image in images]
    if all(are_named) and images:
        return list(images)
    if all(are_paths):
        files = find_images(images)
        if len(files) < len(images):
            warn_user(f"{len(images)} paths name {len(files)} images; each is used once")
        return list(files)
    if any(are_paths) or any(are_named):
        raise InputError("the list mixes files and images; pass only files or only images")
    return _named_by_index(images, statistics)


def _taken_once(images: Iterable[Any], statistics: Statistics | None) -> list[Any]:
    """What an iterable without a length gives. Pixels, which are needed again, are in a temporary
    file, which goes when nothing needs them."""
    taken: list[Any] = []
    kept: dict[int, tuple[int, tuple[int, ...]]] = {}  # where in the file, and shape, by index
    most = min(CACHED_BYTES, shutil.disk_usage(gettempdir()).free // 2)
    with TemporaryFile() as file:
        for image in (image for item in images for image in _of_batch(item)):
            taken.append(image)
            if not isinstance(image, str | Path | ImageFile | ImageItem):
                with suppress(UnreadableImageError):  # which is said where it is read
                    pixels = as_pixels(image, statistics)
                    kept[len(taken) - 1] = file.tell(), pixels.shape
                    taken[-1] = file.write(pixels.tobytes())
            if file.tell() > most:
                raise InputError(
                    f"the first {len(taken)} images of an iterable without a length fill the space "
                    "for temporary files; take some with itertools.islice, or give files, or a "
                    "data set with a length, whose images are read whenever they are needed"
                )
        file.flush()
        values = np.memmap(file, np.uint8, "r") if kept else np.zeros(0, np.uint8)
    for index, (start, shape) in kept.items():
        taken[index] = values[start : start + math.prod(shape)].reshape(shape)
    return taken


def _of_batch(item: Any) -> Iterable[Any]:
    """The images of a batch as DataLoaders give it, (b, 3, H, W); else the item alone."""
    batch = _image_of(item)
    return batch if isinstance(batch, torch.Tensor) and batch.ndim == 4 else [item]


def _image_of(item: Any) -> Any:
    """What stands for the image in an item of a data set: its first part, or its "image"."""
    if isinstance(item, Mapping):
        keys = [key for key in ("image", "img", "pixel_values") if key in item]
        others = (value for value in item.values() if isinstance(value, Image.Image))
        return item[keys[0]] if keys else next(others, item)
    return item[0] if isinstance(item, tuple | list) and item else item


def _named_by_index(items: Any, statistics: Statistics | None) -> list[SetImage]:
    if not len(items):
        raise InputError("no images are given; pass a folder, files, a glob, or images")
    width = len(str(len(items) - 1))
    return [ImageItem(items, i, f"{i:0{width}d}", statistics) for i in range(len(items))]


def nothing_readable(skipped: Sequence[SkippedFile]) -> str:
    """The message for a set in which no image can be read."""
    if not skipped:
        return "no images are given; pass at least one"
    return (
        f"none of the {len(skipped)} files is an image that can be read; the first, "
        f"{skipped[0].name}, was skipped for this reason: {skipped[0].reason}"
    )


def check_readable(images: Sequence[SetImage]) -> None:
    """Raise InputError unless the size of at least one of the images can be read."""
    skipped = []
    for image in images:
        try:
            origin_size(image.origin)
            return
        except UnreadableImageError as error:
            skipped.append(SkippedFile(image.name, str(error)))
    raise InputError(nothing_readable(skipped))


def read_pixels(
    origin: Origin, min_longest_side: int | None = None, stretch: bool = False
) -> np.ndarray:
    """The pixels of an image, upright RGB: uint8 (height, width, 3). For the options, which apply
    to files, see :func:`deepff.images.reading.read_picture`."""
    return read_origin(origin, min_longest_side, stretch).pixels


def read_origin(
    origin: Origin, min_longest_side: int | None = None, stretch: bool = False
) -> Picture:
    """Like :func:`read_pixels`, with the range of values that a file has."""
    if origin is None:
        raise UnreadableImageError(
            "it did not come from a file, so a saved result cannot read it again; load the result "
            "with images=..."
        )
    if isinstance(origin, ImageItem):
        return Picture(origin.read(), None, 255)
    return read_picture(origin, min_longest_side, stretch)


def origin_size(origin: Origin) -> tuple[int, int]:
    """Height and width of an upright image in pixels; for a file, read from its header alone."""
    if isinstance(origin, PathLike):
        return image_size(origin)
    height, width = read_pixels(origin).shape[:2]
    return height, width


def origin_digest(origin: Origin) -> str:
    """SHA-256 of a file's bytes, or of an item's pixels and their shape, in hexadecimal."""
    if not isinstance(origin, Path | StoredFile):
        return _pixels_digest(read_pixels(origin))
    state = _state(origin)
    try:
        return _file_digest(origin, state)
    except OSError as error:
        raise UnreadableImageError(unreadable_reason(error)) from error


@lru_cache(2**16)
def _file_digest(path: Path | StoredFile, state: Hashable) -> str:
    if isinstance(path, StoredFile):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def as_it_was(origin: Origin, digest: str | None) -> Origin:
    """The origin of an image; UnreadableImageError if it has another digest than it had."""
    if isinstance(origin, PathLike) and digest not in (None, origin_digest(origin)):
        raise UnreadableImageError(REPLACED)
    return origin


def warn_unreadable(reasons: Mapping[str, str], consequence: str) -> None:
    """Warn once of images, by name, that could not be read again, and what came of it."""
    if reasons:
        (name, reason), *others = reasons.items()
        more = f", and {len(others)} more" if others else ""
        warn_user(f"{name} ({reason}){more}: {consequence}", above=2)


def read_header(
    origin: Origin, stretch: bool = False
) -> tuple[tuple[int, int], str, Picture | None]:
    """:func:`origin_size` and :func:`origin_digest`, by reading the image once; and the picture of
    a small item, or a small file that is stored."""
    if isinstance(origin, Path):
        return origin_size(origin), origin_digest(origin), None
    if isinstance(origin, StoredFile):
        data = origin.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if len(data) >= _SMALL:
            return image_size(data), digest, None
        picture = read_picture(data, stretch=stretch)
    else:
        picture = read_origin(origin)
        digest = _pixels_digest(picture.pixels)
    height, width = picture.pixels.shape[:2]
    return (height, width), digest, picture if picture.pixels.nbytes < 4 * _SMALL else None


def _pixels_digest(pixels: np.ndarray) -> str:
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()


def own_share(images: Sequence[SetImage]) -> Sequence[SetImage]:
    """This rank's consecutive images, as many as any other rank's; no image is opened for this."""
    first, last = (len(images) * number // n_ranks() for number in (rank(), rank() + 1))
    return images[first:last]


def as_pixels(item: Any, statistics: Statistics | None = None) -> np.ndarray:
    """An image as Python programs hold it, as RGB: uint8 (H, W, 3). A PIL image, a path, an array
    (H, W, 3), (H, W, 4) or (H, W), a tensor (3, H, W) or (1, H, W), a tuple that begins with one,
    or a mapping with one as "image"; uint8, uint16, bool, or floating-point in [0, 1]."""
    item = _image_of(item)
    if statistics is not None and not isinstance(item, np.memmap):  # read before
        mean, std = (torch.tensor(numbers)[:, None, None] for numbers in statistics)
        if not isinstance(item, torch.Tensor) or item.shape[-3:-2] != mean.shape[:1]:
            raise UnreadableImageError(f"normalized images are tensors ({len(mean)}, H, W)")
        item = torch.addcmul(mean, item.detach().cpu().float(), std).clamp(0, 1)
    if isinstance(item, str | Path):
        return read_picture(item).pixels
    if isinstance(item, Image.Image):
        return np.array(to_rgb(ImageOps.exif_transpose(item))[0])
    if isinstance(item, torch.Tensor):
        form = f"a tensor {tuple(item.shape)}"
        if item.ndim != 3 or len(item) not in (1, 3):
            raise UnreadableImageError(f"{form}; give (3, H, W) or (1, H, W)")
        values = item.detach().cpu()
        # numpy has no bfloat16.
        values = values.float() if values.is_floating_point() else values
        pixels = _in_8_bits(values.permute(1, 2, 0).numpy(), form)
    elif isinstance(item, np.ndarray):
        form = f"an array {item.shape}"
        if not (item.ndim == 2 or (item.ndim == 3 and item.shape[2] in (3, 4))):
            raise UnreadableImageError(f"{form}; give (H, W, 3) or gray (H, W)")
        pixels = _in_8_bits(item if item.ndim == 3 else item[..., None], form)
    else:
        raise UnreadableImageError(f"a {type(item).__name__} is not an image")
    if pixels.shape[2] == 4:
        return np.array(to_rgb(Image.fromarray(pixels))[0])
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels


def _in_8_bits(values: np.ndarray, form: str) -> np.ndarray:
    """A copy of the pixels as uint8, row-major, with white at 255."""
    values = np.ascontiguousarray(values)
    if not values.size:
        raise UnreadableImageError(f"{form} has no pixels")
    if np.issubdtype(values.dtype, np.floating):
        if not (values.min() >= 0 and values.max() <= 1):
            raise UnreadableImageError(
                f"{form} of values outside 0 to 1; give images before their normalization, or "
                "normalized=True to discover"
            )
        return np.rint(values * 255).astype(np.uint8)
    if values.dtype == np.uint16:
        return scaled(values, SIXTEEN_BITS)
    if values.dtype == bool:
        return values.astype(np.uint8) * 255
    if values.dtype != np.uint8:
        raise UnreadableImageError(
            f"{form} of {values.dtype}; give uint8, uint16, bool, or floats in [0, 1]"
        )
    return values.copy()


REDUCED_SIDE = 256  # pixels of the longer side, for the report's pictures and the dense CRF


@dataclass(frozen=True)
class ReducedImage:
    """An image whose longer side has been reduced."""

    size: tuple[int, int]  # (H, W) of the original, upright
    pixels: torch.Tensor  # uint8 (3, h, w), see :func:`reduced_shape`

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
    """An image whose longer side is at most ``side`` pixels; those of recent files are kept."""

    if not isinstance(origin, Path | StoredFile):
        pixels = read_pixels(origin)
        return _reduced((pixels.shape[0], pixels.shape[1]), pixels, side)
    # A JPEG may be decoded at fewer pixels than it has.
    return _KEPT.get(
        (origin, side, stretch, _state(origin)),
        lambda: _reduced(image_size(origin), read_pixels(origin, side, stretch), side),
    )


def read_and_reduce(origin: Origin, size: tuple[int, int], side: int, stretch: bool) -> Picture:
    """The picture at ``side`` or more pixels of the longer side, of an image (H, W). A file's
    reduced image is kept, too, if :func:`read_reduced` would decode it at the same scale."""
    if not isinstance(origin, Path | StoredFile):
        return read_origin(origin, side, stretch)
    key = origin, REDUCED_SIDE, stretch, _state(origin)
    picture = read_origin(origin, side, stretch)
    if reading_size(size, side) == reading_size(size, REDUCED_SIDE):
        _KEPT.get(key, lambda: _reduced(size, picture.pixels, REDUCED_SIDE))
    return picture


def _state(path: Path | StoredFile) -> Hashable:
    """What differs once a file has changed."""
    if isinstance(path, StoredFile):
        return path.state
    try:
        state = os.stat(path)
    except OSError as error:
        raise UnreadableImageError(unreadable_reason(error)) from error
    return state.st_ctime_ns, state.st_mtime_ns, state.st_size


def _reduced(size: tuple[int, int], pixels: np.ndarray, side: int) -> ReducedImage:
    return ReducedImage(size, resize(pixels, reduced_shape(pixels.shape[:2], side)))
