"""One image opened, whatever its format; what is no image is called what it is.

Pillow alone decodes. torchvision's JPEG decoder gives the same pixels to the bit; it is a little
quicker on a small photograph, but Pillow's reduced-scale decoding is far quicker on a large one.
"""

import io
import logging
import os
import re
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from deepff.images.mending import mended

T = TypeVar("T")

MAX_PIXELS = 178_956_970  # where Pillow, too, stops believing that a file is a picture

# What a viewer opens. Pillow's full list would also run Ghostscript on PostScript files.
# An older Pillow lacks AVIF.
Image.init()
FORMATS = tuple(
    name
    for name in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "JPEG2000", "AVIF")
    if name in Image.OPEN
)
SIGNATURES = [accept for accept in (Image.OPEN[name][1] for name in FORMATS) if accept]
PILLOW = re.compile(r"PIL\.")
NULL_HANDLER = logging.NullHandler()

# Pillow would open many a raw file as its thumbnail, or as the sensor's mosaic.
RAW = "a camera's raw file; export it as JPEG or TIFF"
RAW_SIGNATURES = (b"FUJIFILMCCD-RAW", b"IIU\0", b"IIRO", b"IIRS", b"MMOR", b"FOVb", b"\0MRM")
DNG_VERSION, SUBFILE_TYPE, SUB_IFDS, PHOTOMETRIC = 50706, 254, 330, 262
MOSAICS = (32803, 34892)  # values of PHOTOMETRIC: colour filter array, linear raw

_EXPORT = "which is not read; export it as PNG or JPEG"
OTHER_SIGNATURES = {
    b"version https://": "a Git LFS pointer and not the file itself; run git lfs pull",
    b"8BPS": f"a Photoshop file, {_EXPORT}",
    b"%PDF": f"a PDF, {_EXPORT}",
    b"\xff\x0a": f"a JPEG XL file, {_EXPORT}",
    b"\0\0\0\x0cJXL ": f"a JPEG XL file, {_EXPORT}",
    b"v/1\x01": f"an OpenEXR file, {_EXPORT}",
    b"#?RADIANCE": f"a Radiance HDR file, {_EXPORT}",
    b"\0\0\1\0": f"an icon, {_EXPORT}",
    b"\x1aE\xdf\xa3": f"a video, {_EXPORT}",
    b"SIMPLE  =": f"a FITS file, {_EXPORT}",
    b"<svg": f"an SVG drawing, {_EXPORT}",
}


class UnreadableImageError(Exception):
    """An image cannot be read; ``str(error)`` is the reason in a few words."""


def with_image(path: str | Path, use: Callable[[Image.Image], T]) -> T:
    """What `use` gives for an image that is open but not decoded.

    It is called again with the bytes mended where that may help. Any failure in here is an
    UnreadableImageError.
    """
    _silence_pillow()
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()  # find_images hands on folders that may not be listed
        if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
            raise UnreadableImageError("not a regular file")
        with open(path, "rb") as stream:
            formats = _formats(stream.read(16))
            try:
                return _opened(stream, formats, use)
            except (OSError, ValueError, SyntaxError):
                stream.seek(0)
                if (data := mended(stream.read())) is None:
                    raise
                return _opened(io.BytesIO(data), formats, use)
    except UnreadableImageError:
        raise
    except Exception as error:  # on garbage, decoders raise nearly everything there is
        raise UnreadableImageError(unreadable_reason(error)) from error


def _opened(stream: Any, formats: tuple[str, ...], use: Callable[[Image.Image], T]) -> T:
    stream.seek(0)
    with Image.open(stream, formats=formats) as image:
        if image.width * image.height > MAX_PIXELS:
            raise Image.DecompressionBombError
        if _is_raw(image):
            raise UnreadableImageError(RAW)
        _seek_full_page(image)
        return use(image)


def _formats(prefix: bytes) -> tuple[str, ...]:
    """Pillow's formats to try on a file that starts so; or why none will do."""
    if not prefix:
        raise UnreadableImageError("empty file")
    if prefix.startswith(RAW_SIGNATURES) or prefix[4:12] == b"ftypcrx " or prefix[8:10] == b"CR":
        raise UnreadableImageError(RAW)
    if any(accept(prefix) for accept in SIGNATURES):
        return FORMATS
    if prefix[4:8] == b"ftyp":
        return _iso_media_formats(prefix[8:12])
    for signature, kind in OTHER_SIGNATURES.items():
        if prefix.startswith(signature):
            raise UnreadableImageError(kind)
    raise UnreadableImageError("not an image")


def _iso_media_formats(brand: bytes) -> tuple[str, ...]:
    if brand in (b"avif", b"avis"):
        raise UnreadableImageError("AVIF, which needs Pillow 11.3 or later")
    if brand[:2] not in (b"he", b"mi", b"ms"):
        raise UnreadableImageError("a video, which is not read; export frames as PNG or JPEG")
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise UnreadableImageError("HEIC, which needs pip install 'deepff[heif]'") from None
    register_heif_opener()
    return ("HEIF",)


def _is_raw(image: Image.Image) -> bool:
    """Whether a TIFF is what a camera's raw file looks like: marked so, or a thumbnail first."""
    tags = getattr(image, "tag_v2", {})
    is_thumbnail = _is_smaller_copy(image) and SUB_IFDS in tags
    return DNG_VERSION in tags or tags.get(PHOTOMETRIC) in MOSAICS or is_thumbnail


def _seek_full_page(image: Image.Image) -> None:
    """Of a TIFF that starts with smaller copies of a page, go to the page."""
    if not _is_smaller_copy(image):
        return
    for page in range(1, getattr(image, "n_frames", 1)):
        image.seek(page)
        if not _is_smaller_copy(image):
            return
    image.seek(0)


def _is_smaller_copy(image: Image.Image) -> bool:
    return bool(int(getattr(image, "tag_v2", {}).get(SUBFILE_TYPE, 0)) & 1)


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
