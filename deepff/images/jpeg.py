"""The bytes of a JPEG: what decoders pass over in silence, and an end that only Pillow misses."""

import io
import random
import re
from collections.abc import Iterator

import numpy as np
from PIL import Image

JPEG_FORMATS = ("JPEG", "MPO")
MAX_SCANS = 32  # a progressive JPEG has 10 to 20, and each takes as long as decoding the whole

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
