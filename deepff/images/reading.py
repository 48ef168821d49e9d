"""Images as a viewer shows them, sized for a network.

Pillow alone decodes. torchvision's JPEG decoder gives the same pixels to the bit; it is a little
quicker on a small photograph, but Pillow's reduced-scale decoding is far quicker on a large one.
"""

import hashlib
import logging
import os
import re
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from deepff.errors import InputError

MAX_PIXELS = 178_956_970  # where Pillow, too, stops believing that a file is a picture

# What a viewer opens. Pillow's full list would also run Ghostscript on PostScript files.
# An older Pillow lacks AVIF.
Image.init()
FORMATS = tuple(
    name
    for name in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "JPEG2000", "AVIF")
    if name in Image.OPEN
)

# EXIF orientation: what turns the stored pixels upright.
ORIENTATION_TAG = 274
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

SIDEWAYS = (5, 6, 7, 8)
SIGNATURES = [accept for accept in (Image.OPEN[name][1] for name in FORMATS) if accept]
PILLOW = re.compile(r"PIL\.")
NULL_HANDLER = logging.NullHandler()


@dataclass(frozen=True)
class SkippedFile:
    """A file of the set that was left out, and why in a few words ("truncated", "empty file")."""

    name: str
    reason: str


class UnreadableImageError(Exception):
    """An image cannot be read; ``str(error)`` is the reason in a few words."""


def image_size(path: str | Path) -> tuple[int, int]:
    """Height and width of an image as seen upright, in pixels, from the file's header alone.

    Raises
    ------
    UnreadableImageError
        The file cannot be opened, is no image, or has more than `MAX_PIXELS` pixels.
    """
    with _opened(path) as image:
        width, height = image.size
        return (width, height) if _orientation(image) in SIDEWAYS else (height, width)


def read_image(path: str | Path, min_longest_side: int | None = None) -> np.ndarray:
    """Read an image as a viewer shows it.

    Upright (EXIF), transparency on white, 16 bits scaled to 8 (65535 becomes 255), the first
    frame or page, CMYK without a colour profile. Floating-point values are taken to lie in [0, 1].
    Threads may call it at once: decoding releases the interpreter lock.

    Parameters
    ----------
    path : path
        JPEG, PNG, WebP, TIFF, BMP, GIF, PPM, JPEG 2000 or AVIF.
    min_longest_side : int, optional
        How many pixels of the longer side will be used. A JPEG may then be decoded at 1/2, 1/4 or
        1/8 of its scale, as long as that leaves at least twice as many.

    Returns
    -------
    ndarray, uint8, shape (height, width, 3)
        RGB.

    Raises
    ------
    UnreadableImageError
        See `image_size`; also a truncated or damaged file, which is never half-read.
    """
    with _opened(path) as image:
        orientation = _orientation(image)
        if min_longest_side:
            image.draft(None, _reduced_size(image.size, min_longest_side))
        rgb = to_rgb(image)
        if orientation in UPRIGHT:
            rgb = rgb.transpose(UPRIGHT[orientation])
        return np.array(rgb)


def _reduced_size(size: tuple[int, int], min_longest_side: int) -> tuple[int, int]:
    """Smallest size to decode at that cannot be told from the full one after resizing."""
    for scale in (8, 4, 2):
        # Pillow's `reducing_gap` asks for twice the pixels, too. A side that the scale does not
        # divide would be rounded up, which stretches the image by part of a pixel.
        enough = max(size) // scale >= 2 * min_longest_side
        if enough and size[0] % scale == size[1] % scale == 0:
            return size[0] // scale, size[1] // scale
    return size


@contextmanager
def _opened(path: str | Path) -> Iterator[Image.Image]:
    """Open an image without decoding it; any failure in here is an UnreadableImageError."""
    _silence_pillow()
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()  # find_images hands on folders that may not be listed
        if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
            raise UnreadableImageError("not a regular file")
        with open(path, "rb") as stream:
            prefix = stream.read(16)
            if not prefix:
                raise UnreadableImageError("empty file")
            if not any(accept(prefix) for accept in SIGNATURES):
                heic = prefix[4:8] == b"ftyp"
                raise UnreadableImageError("unsupported format" if heic else "not an image")
            stream.seek(0)
            with Image.open(stream, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise Image.DecompressionBombError
                yield image
    except UnreadableImageError:
        raise
    except Exception as error:  # on garbage, decoders raise nearly everything there is
        raise UnreadableImageError(unreadable_reason(error)) from error


def _silence_pillow() -> None:
    """Keep Pillow's warnings about odd files off the screen; a file is read or it is not.

    warnings.catch_warnings would also undo what other threads set meanwhile.
    """
    logging.getLogger("PIL").addHandler(NULL_HANDLER)
    if not any(f[:2] == ("ignore", None) and f[3] == PILLOW for f in warnings.filters[:1]):
        warnings.filterwarnings("ignore", module=PILLOW.pattern)


def unreadable_reason(error: Exception) -> str:
    """A few words for people on why a file or folder cannot be read."""
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {round(MAX_PIXELS / 1e6)} million pixels"
    if isinstance(error, MemoryError):
        return "too large for the memory"
    if isinstance(error, FileNotFoundError):
        return "file not found"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "truncated" if "truncated" in str(error).lower() else "damaged or unsupported"


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8, of the pixels that Pillow will return."""
    if image.format == "TIFF":  # Pillow turns these itself
        return 1
    try:
        # Not image.getexif(), which for a PNG decodes the whole image first.
        return int(Image.Image.getexif(image).get(ORIENTATION_TAG, 1))
    except Exception:  # EXIF data may be garbage in an image that is not
        return 1


def to_rgb(image: Image.Image) -> Image.Image:
    """An opened image as a viewer shows it, but for its orientation: mode RGB."""
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_to_8_bits(image)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")


def _to_8_bits(image: Image.Image) -> np.ndarray:
    """Scale the pixels of a deep grey image, for which Pillow's convert would clip."""
    is_tiff = image.format == "TIFF"
    tags = getattr(image, "tag_v2", {})
    bits, photometric = tags.get(258), tags.get(262)
    values = np.asarray(image)
    if image.mode == "F":
        if not (values.min() >= 0 and values.max() <= 1):
            raise UnreadableImageError("floating-point values outside 0 to 1")
        grey = np.rint(values * 255).astype(np.uint8)
    elif image.mode == "I" and is_tiff:
        raise UnreadableImageError("signed or 32-bit values")
    else:
        white = 4095 if bits == (12,) else 65535
        grey = ((values.astype(np.uint32) * 255 + white // 2) // white).astype(np.uint8)
    if photometric == 0:  # white is zero, which Pillow undoes for 8 bits only
        grey = 255 - grey
    if "transparency" in image.info:
        grey[values == image.info["transparency"]] = 255
    return grey


def resized_shape(height: int, width: int, size: int, stride: int) -> tuple[int, int]:
    """Shape at which an image goes through the network, in pixels.

    The longer side becomes `size`, then each side the nearest multiple of `stride` (half a cell up)
    that is not below one cell, so that the layer's grid covers the image exactly.

    Raises
    ------
    InputError
        `size` is not positive.
    """
    if size < 1:
        raise InputError(f"the size must be a positive number of pixels, not {size}")
    longest = max(height, width)

    def cells(side: int) -> int:
        return max(1, (2 * side * size + longest * stride) // (2 * longest * stride))

    return cells(height) * stride, cells(width) * stride


def resize(
    image: np.ndarray, shape: tuple[int, int], interpolation: str = "bilinear"
) -> torch.Tensor:
    """Resize an image with antialiasing.

    Parameters
    ----------
    image : ndarray, uint8, shape (height, width, 3)
    shape : (int, int)
        New height and width in pixels.
    interpolation : {"bilinear", "bicubic"}

    Returns
    -------
    Tensor, uint8, shape (3, *shape)
    """
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    mode = InterpolationMode(interpolation)
    channels_first = torch.from_numpy(image).permute(2, 0, 1)
    return functional.resize(channels_first, list(shape), interpolation=mode, antialias=True)


def content_digest(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
