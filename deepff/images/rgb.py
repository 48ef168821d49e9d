"""Pixels as a viewer shows them: transparency on white, more than 8 bits scaled to 8."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageFile

from deepff.images.decoding import UnreadableImageError

# TIFF's tags, and what they say.
BITS, PHOTOMETRIC, PLANES, SAMPLE_FORMAT = 258, 262, 284, 339
WHITE_IS_ZERO, SEPARATE, SIGNED = 0, 2, 2

SIXTEEN_BITS = 65535
DARK = 64  # of 256: what is below in all of a picture is darker than a photograph is


def to_rgb(image: Image.Image, stretch: bool = False) -> tuple[Image.Image, int | None, int]:
    """Decode an image that is open.

    Parameters
    ----------
    image : Image
    stretch : bool
        Of more than 8 bits, the largest value becomes white instead of the largest possible one.

    Returns
    -------
    rgb : Image
    largest : int or None
        The largest value, where there are more than 8 bits a channel.
    white : int
        The largest possible value.

    Raises
    ------
    UnreadableImageError
        Values that have no black and white: signed, or floating-point outside 0 to 1.
    """
    tags = getattr(image, "tag_v2", {})
    if SIGNED in tags.get(SAMPLE_FORMAT, ()):
        raise UnreadableImageError("signed or 32-bit values")
    if image.mode.startswith(("I", "F")):
        return _deep_grey(image, stretch)
    if isinstance(image, ImageFile.ImageFile):
        _take_planes_of_16_bits(image)
        is_plain = image.mode == "RGB" and "transparency" not in image.info
        if is_plain and ";16" in _raw_mode(image.tile):
            return _deep_colours(image, stretch)
    if image.format == "BMP" and image.mode == "RGBA":
        is_unwritten = image.getchannel("A").getextrema() == (0, 0)
        image = image.convert("RGB") if is_unwritten else image
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB"), None, 255


def _take_planes_of_16_bits(image: ImageFile.ImageFile) -> None:
    """Make Pillow read an uncompressed TIFF of separate planes, which it takes for 8 bits."""
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    if tags.get(PLANES) == SEPARATE and tags.get(BITS, (0,))[0] == 16:
        order = "L" if getattr(tags, "prefix", b"") == b"II" else "B"
        image.tile = [
            _unpacked_as(tile, f"{_raw_mode([tile])};16{order}") if tile[0] == "raw" else tile
            for tile in image.tile
        ]


def _deep_colours(image: ImageFile.ImageFile, stretch: bool) -> tuple[Image.Image, int | None, int]:
    """RGB of 16 bits, of which Pillow keeps the high byte; for a dark image the low one counts.

    Read a second time in the other byte order, the low byte is where the high one was.
    """
    stream, tiles = image.fp, list(image.tile)
    values = np.asarray(image).astype(np.uint16) << 8
    largest = int(values.max()) | 255
    # libtiff's decoder has its own way with separate planes.
    has_low = tiles[0][0] == "raw" or getattr(image, "tag_v2", {}).get(PLANES) != SEPARATE
    if has_low and stream is not None and (stretch or largest < DARK << 8):
        with Image.open(stream, formats=[str(image.format)]) as again:
            assert isinstance(again, ImageFile.ImageFile)
            again.tile = [_unpacked_as(tile, _other_order(_raw_mode([tile]))) for tile in tiles]
            values |= np.asarray(again)
        largest = int(values.max())
    shown = Image.fromarray(_scaled(values, largest)) if stretch else image
    return shown, largest, SIXTEEN_BITS


def _raw_mode(tiles: Sequence[Any]) -> str:
    """How Pillow will unpack the stored samples, as "RGB;16B"."""
    args = tiles[0].args if tiles else ""
    mode = args[0] if isinstance(args, tuple) and args else args
    return mode if isinstance(mode, str) else ""


def _unpacked_as(tile: Any, mode: str) -> Any:
    return tile._replace(args=(mode, *tile.args[1:]) if isinstance(tile.args, tuple) else mode)


def _other_order(mode: str) -> str:
    native = "L" if sys.byteorder == "little" else "B"
    order = native if mode[-1] == "N" else mode[-1]
    return mode[:-1] + ("B" if order == "L" else "L")


def _deep_grey(image: Image.Image, stretch: bool) -> tuple[Image.Image, int | None, int]:
    """Scale the pixels of a deep grey image, for which Pillow's convert would clip."""
    tags = getattr(image, "tag_v2", {})
    values = np.asarray(image)
    largest: int | None = None
    white = 4095 if tags.get(BITS) == (12,) else SIXTEEN_BITS
    if image.mode == "F":
        if not (values.min() >= 0 and values.max() <= 1):
            raise UnreadableImageError("floating-point values outside 0 to 1")
        grey = np.rint(values * 255).astype(np.uint8)
    elif image.mode == "I" and image.format == "TIFF":
        raise UnreadableImageError("signed or 32-bit values")
    else:
        largest = int(values.max())
        grey = _scaled(values, largest if stretch else white)
    if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:  # which Pillow undoes for 8 bits only
        grey = 255 - grey
    if "transparency" in image.info:
        grey[values == image.info["transparency"]] = 255
    return Image.fromarray(grey).convert("RGB"), largest, white


def _scaled(values: np.ndarray, white: int) -> np.ndarray:
    """To 8 bits, so that `white` becomes 255; all zero where white is."""
    white = max(1, white)
    return ((values.astype(np.uint32) * 255 + white // 2) // white).astype(np.uint8)
