"""Opening an image of any format; a file that is no image is named for what it is.

Pillow alone decodes. torchvision's JPEG decoder gives the same pixels to the bit; it is a little
faster on a small photograph, but Pillow's reduced-scale decoding is far faster on a large one.
"""

import io
import logging
import os
import random
import re
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

T = TypeVar("T")

MAX_PIXELS = 178_956_970  # where Pillow, too, warns of a decompression bomb

# Pillow's full list would also run Ghostscript on PostScript files. An older Pillow lacks AVIF.
Image.init()
FORMATS = tuple(
    name
    for name in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "JPEG2000", "AVIF")
    if name in Image.OPEN
)
SIGNATURES = [accept for accept in (Image.OPEN[name][1] for name in FORMATS) if accept]
PILLOW = re.compile(r"PIL\.")
NULL_HANDLER = logging.NullHandler()

JPEG_FORMATS = ("JPEG", "MPO")
MAX_SCANS = 32  # a progressive JPEG has 10 to 20, and each takes as long as decoding the whole

# Compressed, without the checksums by which a PNG shows damage.
UNCHECKED = (*JPEG_FORMATS, "WEBP", "GIF", "JPEG2000", "AVIF", "HEIF")
TEXT_MODE = "damaged by a transfer in text mode; copy it again in binary mode"
_PLAIN_LINE_END = re.compile(rb"(?<!\r)\n")

# Pillow would open some raw files as their thumbnail, or as the sensor's mosaic.
RAW = "a camera's raw file; develop it to JPEG or TIFF first"
RAW_SIGNATURES = (b"FUJIFILMCCD-RAW", b"IIU\0", b"IIRO", b"IIRS", b"MMOR", b"FOVb", b"\0MRM")
DNG_VERSION, SUBFILE_TYPE, SUB_IFDS, PHOTOMETRIC = 50706, 254, 330, 262
ORIENTATION_TAG = 274  # EXIF's, and TIFF's
MOSAICS = (32803, 34892)  # values of PHOTOMETRIC: color filter array, linear raw

VIDEO = "a video; its frames are read where the file itself is named"
OTHER_SIGNATURES = {
    b"version https://": "a Git LFS pointer and not the file itself; run git lfs pull",
    b"\x89PNG": TEXT_MODE,  # in whose signature each line end is changed by one
    b"\x1aE\xdf\xa3": VIDEO,
}


class UnreadableImageError(Exception):
    """An image cannot be read; ``str(error)`` is the reason in a few words."""


def with_image(path: str | os.PathLike[str] | bytes, use: Callable[[Image.Image], T]) -> T:
    """What `use` returns for the open image in a file, or in its bytes. If it fails, it is called
    again with repaired bytes where that may help. Every failure becomes an UnreadableImageError."""
    _silence_pillow()
    try:
        with _stream(path) as stream:
            formats = _formats(stream.read(16))
            try:
                return _opened(stream, formats, use)
            except (OSError, ValueError, SyntaxError) as error:
                stream.seek(0)
                data = stream.read()
                if isinstance(error, UnidentifiedImageError) and data[:2] in (b"II", b"MM"):
                    return use(_tiff_colors(io.BytesIO(data)))
                if (repaired := _repaired(data)) is None:
                    raise
                return _opened(io.BytesIO(repaired), formats, use)
    except UnreadableImageError:
        raise
    except Exception as error:  # on garbage, decoders raise almost anything
        raise UnreadableImageError(unreadable_reason(error)) from error


def _stream(path: str | os.PathLike[str] | bytes) -> IO[bytes]:
    if isinstance(path, bytes):
        return io.BytesIO(path)
    if not isinstance(path, str | Path):  # in an archive or on a server
        return io.BytesIO(path.read_bytes())  # type: ignore[attr-defined]
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        os.scandir(path).close()  # find_images returns folders that may not be listed
    if not stat.S_ISREG(mode):  # opening a pipe would never return
        raise UnreadableImageError("not a regular file")
    return open(path, "rb")


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
    """Pillow's formats to try on a file with these first bytes."""
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
    raise UnreadableImageError("not an image in a format that is read")


def _iso_media_formats(brand: bytes) -> tuple[str, ...]:
    if brand in (b"avif", b"avis"):
        raise UnreadableImageError("AVIF, which needs Pillow 11.3 or later")
    if brand[:2] not in (b"he", b"mi", b"ms"):
        raise UnreadableImageError(VIDEO)
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise UnreadableImageError("HEIC, which needs pip install 'deepff[heif]'") from None
    register_heif_opener()
    return ("HEIF",)


def _is_raw(image: Image.Image) -> bool:
    """Whether a TIFF is a camera's raw file: marked as one, or with a thumbnail first."""
    tags = getattr(image, "tag_v2", {})
    is_thumbnail = SUB_IFDS in tags and (_is_smaller_copy(image) or _has_larger_image(image))
    return DNG_VERSION in tags or tags.get(PHOTOMETRIC) in MOSAICS or is_thumbnail


def _has_larger_image(image: Image.Image) -> bool:
    """Whether a TIFF has a larger image inside its first page; a pyramid has smaller ones there."""
    import tifffile

    stream: Any = getattr(image, "fp")  # noqa: B009
    stream.seek(0)  # where tifffile takes the file to begin
    with tifffile.TiffFile(stream) as file:
        inside = file.pages.first.pages or ()
        return any(page.aspage().imagewidth > image.width for page in inside)


def _tiff_colors(stream: Any) -> Image.Image:
    """The first page of a TIFF of floating-point colors, none of which Pillow reads."""
    import tifffile

    logging.getLogger("tifffile").addHandler(NULL_HANDLER)
    with tifffile.TiffFile(stream) as file:
        page = file.pages.first
        if page.imagewidth * page.imagelength > MAX_PIXELS:
            raise Image.DecompressionBombError
        channels = page.samplesperpixel
        if page.dtype is None or page.dtype.kind != "f" or channels not in (1, 3, 4):
            raise UnreadableImageError(
                f"a TIFF of {page.dtype} in {channels} channels, which is not read; export it as "
                "PNG or JPEG of 8 or 16 bits"
            )
        values = page.asarray()
        turned = page.tags.valueof(ORIENTATION_TAG, 1)
    values = np.moveaxis(values, 0, -1) if page.axes == "SYX" else values
    largest = values.max()
    if not (values.min() >= 0 and (largest <= 1 or 16 < largest <= 255)):
        raise UnreadableImageError("floating-point values outside 0 to 1 and 0 to 255")
    image = Image.fromarray(np.rint(values * (255 if largest <= 1 else 1)).astype(np.uint8))
    image.getexif()[ORIENTATION_TAG] = turned
    return image


def _seek_full_page(image: Image.Image) -> None:
    """In a TIFF that starts with smaller copies of a page, go to the page."""
    if not _is_smaller_copy(image):
        return
    for page in range(1, getattr(image, "n_frames", 1)):
        image.seek(page)
        if not _is_smaller_copy(image):
            return
    image.seek(0)


def _is_smaller_copy(image: Image.Image) -> bool:
    return bool(int(getattr(image, "tag_v2", {}).get(SUBFILE_TYPE, 0)) & 1)


def checked_bytes(image: Image.Image) -> bytes:
    """The file of an open JPEG, and nothing for other formats. Raises UnreadableImageError where
    every 0A comes after a 0D, as text mode leaves it, or where decoding would take too long."""
    stream = getattr(image, "fp", None)
    if image.format not in UNCHECKED or stream is None:
        return b""
    position = stream.tell()
    stream.seek(0)
    data: bytes = stream.read()
    stream.seek(position)
    if _PLAIN_LINE_END.search(data) is None and data.count(b"\n") > 2:
        raise UnreadableImageError(TEXT_MODE)
    if image.format not in JPEG_FORMATS:
        return b""
    if has_too_many_scans(data):
        raise UnreadableImageError(f"a JPEG of more than {MAX_SCANS} scans; save it again")
    return data


def _silence_pillow() -> None:
    """Keep Pillow's warnings about odd files off the screen, in all threads."""
    logging.getLogger("PIL").addHandler(NULL_HANDLER)
    if not any(f[:2] == ("ignore", None) and f[3] == PILLOW for f in warnings.filters[:1]):
        warnings.filterwarnings("ignore", module=PILLOW.pattern)


def unreadable_reason(error: Exception) -> str:
    """Why a file or folder cannot be read, in a few words."""
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {round(MAX_PIXELS / 1e6)} million pixels"
    if isinstance(error, MemoryError):
        return "too large for the memory"
    if isinstance(error, FileNotFoundError):
        return "file not found"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "truncated" if "truncated" in str(error).lower() else "damaged or unsupported"


# Text and color profiles: Pillow refuses more than 1 MB, and neither changes the pixels.
_PNG_TEXT = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def _repaired(data: bytes) -> bytes | None:
    """The bytes of a PNG without text and profile, or a JPEG with its end; None for others."""
    if data.startswith(_PNG_SIGNATURE):
        return _without_text(data)
    return with_end(data) if data.startswith(b"\xff\xd8") else None


def _without_text(data: bytes) -> bytes | None:
    chunks = [data[:8]]
    start = 8
    while start < len(data):
        end = start + 12 + int.from_bytes(data[start : start + 4])
        if data[start + 4 : start + 8] not in _PNG_TEXT:
            chunks.append(data[start:end])
        start = end
    without = b"".join(chunks)
    return without if len(without) < len(data) else None


# The bytes of a JPEG: what decoders pass over in silence, and an end that only Pillow misses.
_END = b"\xff\xd9"
# Excludes stuffed bytes and restarts, which are within a scan's data.
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_SEQUENTIAL = (0xC0, 0xC1, 0xC9)
_FRAMES = (*_SEQUENTIAL, 0xC2, 0xCA)
_SCAN = 0xDA
# Bits after the end of a JPEG: a decoder that needs them gives other pixels for each of these.
_FILLINGS = [random.Random(i).randbytes(64).replace(b"\xff", b"\xff\0") for i in range(4)]
# Some cameras leave a few bytes over.
_SPARE_BYTES = 16
_HOLE = bytes(512)
_EXPECTED_LINE_ENDS = 16


def has_too_many_scans(data: bytes) -> bool:
    """Whether decoding would take many times as long as the image's size suggests."""
    if data.count(bytes((0xFF, _SCAN))) <= MAX_SCANS:
        return False
    return sum(kind == _SCAN for _, kind, _ in _segments(data)) > MAX_SCANS


def is_damaged(data: bytes, last_row: np.ndarray) -> bool:
    """Whether the last scan of a JPEG, decoded without an error, holds too little or too much data.
    Only what looks like it is decoded again: ``last_row`` has one color, there is a hole of zeros,
    or no 0D before any 0A, as after a transfer in text mode."""
    is_flat = bool((last_row == last_row[:, :1]).all())
    if not (is_flat or _HOLE in data or _lost_line_ends(data)):
        return False
    end = next((at for at, kind, _ in _segments(data) if kind == _END[1]), len(data))
    data = data[:end].rstrip(b"\xff")
    if is_flat and _lacks_data(data, small=True):
        return True
    if not (data.find(_HOLE, data.find(bytes((0xFF, _SCAN)))) >= 0 or _lost_line_ends(data)):
        return False
    # Zeros that are left over after all of the scan do no harm.
    return not (_is_exact(data) or _is_exact(_without_zeros(data)))


def _is_exact(data: bytes) -> bool:
    cut = data[:-_SPARE_BYTES] + _FILLINGS[0]
    return not _lacks_data(data) and _changes(data, cut)


def _lacks_data(data: bytes, small: bool = False) -> bool:
    return _changes(data, data + _FILLINGS[0], small)


def _without_zeros(data: bytes) -> bytes:
    """The data without many zeros at its end, but for three, which may belong to the scan."""
    n_written = len(data.rstrip(b"\0"))
    return data if len(data) - n_written <= _SPARE_BYTES else data[: n_written + 3]


def _changes(data: bytes, other: bytes, small: bool = False) -> bool:
    """Whether the second of two JPEGs without their end marker fails, or differs in a pixel."""
    pixels = _pixels(data + _END, small)
    try:
        return not np.array_equal(_pixels(other + _END, small), pixels)
    except OSError:
        return True


def _lost_line_ends(data: bytes) -> bool:
    expected = data.count(b"\r") * data.count(b"\n") / max(1, len(data))
    return b"\r\n" not in data and expected > _EXPECTED_LINE_ENDS


def with_end(data: bytes) -> bytes | None:
    """A JPEG that lacks only its end marker, with it; None if more is missing: all scans must be
    there, and decode to the same pixels whatever follows. Zeros at the end were not written yet."""
    data = _without_zeros(data.removesuffix(b"\xff"))
    whole = data + _END
    try:
        if not _has_all_scans(data):
            return None
        pixels = _pixels(whole)
        is_whole = all(np.array_equal(_pixels(data + f + _END), pixels) for f in _FILLINGS)
    except (OSError, ValueError, LookupError):  # cut within a header
        return None
    return whole if is_whole else None


def _pixels(data: bytes, small: bool = False) -> np.ndarray:
    with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
        if small:
            image.draft(None, (1, 1))
        return np.asarray(image)


def _segments(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Where each marker of the first image is, its kind, and the segment after it."""
    end = 2
    while (marker := _MARKER.search(data, end)) is not None:
        kind, start = data[marker.start() + 1], marker.end()
        end = start + int.from_bytes(data[start : start + 2])
        yield marker.start(), kind, data[start + 2 : end]
        if kind == _END[1]:
            return


def _has_all_scans(data: bytes) -> bool:
    """Whether every component's 64 coefficients are sent to their last bit (ITU-T T.81, B.2.3)."""
    bits: dict[int, list[int]] = {}  # by component, which bit of each coefficient was sent last
    sequential = False
    for _, kind, segment in _segments(data):
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
