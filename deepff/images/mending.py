"""Bytes of images that Pillow refuses for what is not in the picture."""

import io
import random
import re

import numpy as np
from PIL import Image

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
