"""One image opened, whatever its format; what is no image is called what it is.

Pillow alone decodes. torchvision's JPEG decoder gives the same pixels to the bit; it is a little
quicker on a small photograph, but Pillow's reduced-scale decoding is far quicker on a large one.
"""

import io
import logging
import os
import random
import re
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

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


# Text and colour profiles, of which Pillow takes no more than 1 MB: neither changes what is read.
_PNG_TEXT = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

_JPEG_END = b"\xff\xd9"
# Neither a stuffed byte nor a restart, which are within a scan's data.
_JPEG_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_SEQUENTIAL = (0xC0, 0xC1, 0xC9)
_FRAMES = (*_SEQUENTIAL, 0xC2, 0xCA)
_SCAN = 0xDA
# What a decoder is given for bits that are missing; where none is missing, it needs none of them.
_FILLINGS = (bytes(64), b"\xff" * 64, *(random.Random(i).randbytes(64) for i in range(8)))


def mended(data: bytes) -> bytes | None:
    """The bytes of an image without what makes Pillow refuse it; None where that is not known.

    PNG loses its text and colour profile. A JPEG that lacks only its end marker gets it: all of
    its scans must be there and decode to the same pixels whatever follows them.
    """
    if data.startswith(_PNG_SIGNATURE):
        return _without_text(data)
    return _with_end(data) if data.startswith(b"\xff\xd8") else None


def _without_text(data: bytes) -> bytes | None:
    kept = [data[:8]]
    at = 8
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4])
        if data[at + 4 : at + 8] not in _PNG_TEXT:
            kept.append(data[at:end])
        at = end
    without = b"".join(kept)
    return without if len(without) < len(data) else None


def _with_end(data: bytes) -> bytes | None:
    data = data.removesuffix(b"\xff")
    whole = data + _JPEG_END
    try:
        if not _has_all_scans(data):
            return None
        pixels = _pixels(whole)
        fillings = (filling.replace(b"\xff", b"\xff\0") for filling in _FILLINGS)
        same = all(np.array_equal(_pixels(data + f + _JPEG_END), pixels) for f in fillings)
    except (OSError, ValueError, LookupError):  # cut within a header
        return None
    return whole if same else None


def _pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
        return np.asarray(image)


def _has_all_scans(data: bytes) -> bool:
    """Whether every component's 64 coefficients are sent to their last bit (ITU-T T.81, B.2.3)."""
    bits: dict[int, list[int]] = {}  # by component, which bit of each coefficient was sent last
    sequential = False
    at = 2
    while (marker := _JPEG_MARKER.search(data, at)) is not None:
        kind, start = data[marker.start() + 1], marker.end()
        at = start + int.from_bytes(data[start : start + 2])
        segment = data[start + 2 : at]
        if kind in _FRAMES:
            sequential = kind in _SEQUENTIAL
            bits = {segment[6 + 3 * i]: [99] * 64 for i in range(segment[5])}
        elif kind == _SCAN:
            n = segment[0]
            first, last, approximation = segment[1 + 2 * n : 4 + 2 * n]
            if sequential:
                first, last, approximation = 0, 63, 0
            for component in segment[1 : 1 + 2 * n : 2]:
                bits[component][first : last + 1] = [approximation & 15] * (last + 1 - first)
    return bool(bits) and not any(map(any, bits.values()))
