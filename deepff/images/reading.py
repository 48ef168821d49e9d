"""Images as a viewer shows them, sized for a network."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile
from torch.nn import functional

from deepff.images.decoding import (
    ORIENTATION_TAG,
    PHOTOMETRIC,
    UnreadableImageError,
    checked_bytes,
    is_damaged,
    with_image,
)

TO_UPRIGHT = {  # how stored pixels of each orientation are turned
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)
# From the smallest to the largest mean of 8 × 8 pixels, of 256 values: JPEGs of noise with a
# standard deviation of 2 have 3.4, photographs darkened to a 25th 6.4 or more.
_NOISE = 4


@dataclass(frozen=True)
class SkippedFile:
    """A file of the set that was left out, and why in a few words ("truncated", "empty file")."""

    name: str
    reason: str


@dataclass(frozen=True)
class Picture:
    """An image as read, and how much of its range of values it uses."""

    pixels: np.ndarray  # RGB, uint8 (height, width, 3)
    largest: int | None  # the file's largest value, if it has more than 8 bits per channel
    white: int  # the largest possible value

    @property
    def is_nearly_black(self) -> bool:
        """Whether the file uses so little of its range that 10, 12 or 14 bits may be meant."""
        return self.largest is not None and 0 < self.largest <= DARK * (self.white + 1) // 256


def image_size(path: str | PathLike[str] | bytes) -> tuple[int, int]:
    """Height and width of an upright image in pixels, from the file's header alone."""
    return with_image(path, _upright_size)


def storage(path: str | PathLike[str]) -> tuple[str | None, bool]:
    """Pillow's name of a file's format, and whether a viewer turns its pixels to show them."""
    return with_image(path, lambda image: (image.format, _orientation(image) in TO_UPRIGHT))


def _upright_size(image: Image.Image) -> tuple[int, int]:
    width, height = image.size
    return (width, height) if _orientation(image) in SIDEWAYS else (height, width)


def read_picture(
    path: str | PathLike[str] | bytes, min_longest_side: int | None = None, stretch: bool = False
) -> Picture:
    """Read an image file as a viewer shows it (the first frame or page), and its range of values,
    in any thread. If only ``min_longest_side`` pixels will be used, a JPEG may be decoded at
    :func:`reading_size`. With ``stretch``, the largest value of a file with more than 8 bits per
    channel becomes 255."""

    def decode(image: Image.Image) -> Picture:
        orientation, jpeg = _orientation(image), checked_bytes(image)
        if min_longest_side:
            image.draft(None, reading_size(image.size, min_longest_side))
        rgb, largest, white = to_rgb(image, stretch)
        pixels = np.array(rgb)
        if jpeg and is_damaged(jpeg, pixels[-1:]):
            raise UnreadableImageError("damaged")
        if orientation in TO_UPRIGHT:
            pixels = np.array(rgb.transpose(TO_UPRIGHT[orientation]))
        return Picture(pixels, largest, white)

    return with_image(path, decode)


def reading_size(size: tuple[int, int], min_longest_side: int) -> tuple[int, int]:
    """Smallest size at which a decoded JPEG looks like the full one after resizing."""
    for scale in (8, 4, 2):
        # Twice the pixels, as Pillow's `reducing_gap` asks. A side that the scale does not divide
        # would be rounded up, which stretches the image by part of a pixel.
        enough = max(size) // scale >= 2 * min_longest_side
        if enough and size[0] % scale == size[1] % scale == 0:
            return size[0] // scale, size[1] // scale
    return size


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8, of the pixels that Pillow will return."""
    if image.format == "TIFF":  # Pillow turns these itself
        return 1
    try:
        # Not image.getexif(), which for a PNG decodes the whole image first.
        return int(Image.Image.getexif(image).get(ORIENTATION_TAG, 1))
    except Exception:  # EXIF data may be garbage in an image that is not
        return 1


def resized_shape(height: int, width: int, size: int, stride: int) -> tuple[int, int]:
    """Shape (height, width) in pixels at which an image goes through the network. The longer side
    becomes `size`, then each side the nearest multiple of `stride` (half a cell up) that is at
    least one cell, so that the layer's grid covers the image exactly."""
    longest = max(height, width)

    def cells(side: int) -> int:
        return max(1, (2 * side * size + longest * stride) // (2 * longest * stride))

    return cells(height) * stride, cells(width) * stride


def resize(
    image: np.ndarray, shape: tuple[int, int], interpolation: str = "bilinear"
) -> torch.Tensor:
    """An image, uint8 (H, W, 3), resized with antialiasing to a tensor, uint8 (3, *shape)."""
    if image.shape[:2] == shape:
        return torch.from_numpy(image).permute(2, 0, 1)
    # This is what torchvision's resize does, whose import takes longer than a hundred images.
    images = torch.from_numpy(image)[None].permute(0, 3, 1, 2)
    return functional.interpolate(images, shape, mode=interpolation, antialias=True)[0]


def is_blank(pixels: torch.Tensor) -> bool:
    """Whether an image, uint8 (3, h, w), has one color but for noise and compression."""

    def spread(channels: torch.Tensor) -> float:
        return float(np.ptp(channels.numpy(), (1, 2)).max())

    if spread(pixels[:, ::8, ::8]) > 8 * _NOISE:  # nearly every image: the means need more time
        return False
    side = max(1, min(64, *pixels.shape[1:]) // 8)
    return spread(functional.avg_pool2d(pixels.float(), side, ceil_mode=True)) <= _NOISE


# TIFF's tags, and their values.
BITS, PLANES, SAMPLE_FORMAT = 258, 284, 339
WHITE_IS_ZERO, SEPARATE, SIGNED = 0, 2, 2

SIXTEEN_BITS = 65535
DARK = 64  # of 256: a picture without a larger value is darker than photographs are


def to_rgb(image: Image.Image, stretch: bool = False) -> tuple[Image.Image, int | None, int]:
    """Decode an open image: in RGB, with its largest value if it is deep, that is has more than 8
    bits per channel, and the value of white. With `stretch` the largest value of a deep image
    becomes white. Signed values, and floats outside 0 to 1, have no black and white."""
    tags = getattr(image, "tag_v2", {})
    if SIGNED in tags.get(SAMPLE_FORMAT, ()):
        raise UnreadableImageError("signed or 32-bit values")
    if image.mode.startswith(("I", "F")):
        return _deep_gray(image, stretch)
    if isinstance(image, ImageFile.ImageFile):
        _take_planes_of_16_bits(image)
        is_plain = image.mode == "RGB" and "transparency" not in image.info
        if is_plain and ";16" in _raw_mode(image.tile):
            return _deep_colors(image, stretch)
    if image.format == "BMP" and image.mode == "RGBA":
        is_unwritten = image.getchannel("A").getextrema() == (0, 0)
        image = image.convert("RGB") if is_unwritten else image
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB"), None, 255


def _take_planes_of_16_bits(image: ImageFile.ImageFile) -> None:
    """Make Pillow read an uncompressed 16-bit TIFF of separate planes, which it reads as 8 bits."""
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    if tags.get(PLANES) == SEPARATE and tags.get(BITS, (0,))[0] == 16:
        order = "L" if getattr(tags, "prefix", b"") == b"II" else "B"
        image.tile = [
            _unpacked_as(tile, f"{_raw_mode([tile])};16{order}") if tile[0] == "raw" else tile
            for tile in image.tile
        ]


def _deep_colors(image: ImageFile.ImageFile, stretch: bool) -> tuple[Image.Image, int | None, int]:
    """RGB of 16 bits; of a dark image the low byte too, by reading in the other byte order."""
    stream, tiles = image.fp, list(image.tile)
    values = np.asarray(image).astype(np.uint16) << 8
    largest = int(values.max()) | 255
    # libtiff decodes separate planes in another way.
    has_low = tiles[0][0] == "raw" or getattr(image, "tag_v2", {}).get(PLANES) != SEPARATE
    if has_low and stream is not None and (stretch or largest < DARK << 8):
        with Image.open(stream, formats=[str(image.format)]) as swapped:
            assert isinstance(swapped, ImageFile.ImageFile)
            swapped.tile = [_unpacked_as(tile, _other_order(_raw_mode([tile]))) for tile in tiles]
            values |= np.asarray(swapped)
        largest = int(values.max())
    rgb = Image.fromarray(scaled(values, largest)) if stretch else image
    return rgb, largest, SIXTEEN_BITS


def _raw_mode(tiles: Sequence[Any]) -> str:
    """How Pillow will unpack the stored samples, such as "RGB;16B"."""
    args = tiles[0].args if tiles else ""
    mode = args[0] if isinstance(args, tuple) and args else args
    return mode if isinstance(mode, str) else ""


def _unpacked_as(tile: Any, mode: str) -> Any:
    return tile._replace(args=(mode, *tile.args[1:]) if isinstance(tile.args, tuple) else mode)


def _other_order(mode: str) -> str:
    native = "L" if sys.byteorder == "little" else "B"
    order = native if mode[-1] == "N" else mode[-1]
    return mode[:-1] + ("B" if order == "L" else "L")


def _deep_gray(image: Image.Image, stretch: bool) -> tuple[Image.Image, int | None, int]:
    """Scale the pixels of a deep gray image, which Pillow's convert would clip."""
    tags = getattr(image, "tag_v2", {})
    values = np.asarray(image)
    largest: int | None = None
    white = 4095 if tags.get(BITS) == (12,) else SIXTEEN_BITS
    if image.mode == "F":
        if not (values.min() >= 0 and values.max() <= 1):
            raise UnreadableImageError("floating-point values outside 0 to 1")
        gray = np.rint(values * 255).astype(np.uint8)
    elif image.mode == "I" and image.format == "TIFF":
        raise UnreadableImageError("signed or 32-bit values")
    else:
        largest = int(values.max())
        gray = scaled(values, largest if stretch else white)
    if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:  # Pillow inverts 8 bits only
        gray = 255 - gray
    if "transparency" in image.info:
        gray[values == image.info["transparency"]] = 255
    return Image.fromarray(gray).convert("RGB"), largest, white


def scaled(values: np.ndarray, white: int) -> np.ndarray:
    """Values in 8 bits, scaled so that `white` becomes 255."""
    white = max(1, white)
    return ((values.astype(np.uint32) * 255 + white // 2) // white).astype(np.uint8)
