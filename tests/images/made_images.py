"""Small images and image files that tests make by hand."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

RED, GREEN, BLUE, YELLOW = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def quadrants(height: int = 32, width: int = 64) -> Image.Image:
    """Red | green above blue | yellow."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = RED
    pixels[: height // 2, width // 2 :] = GREEN
    pixels[height // 2 :, : width // 2] = BLUE
    pixels[height // 2 :, width // 2 :] = YELLOW
    return Image.fromarray(pixels)


def corners(image: np.ndarray) -> list[tuple[int, ...]]:
    """Colors in the middles of the quadrants, row-major, lossy compression rounded away."""
    height, width = image.shape[:2]
    middles = [(y, x) for y in (height // 4, -height // 4) for x in (width // 4, -width // 4)]
    return [tuple(255 * round(int(v) / 255) for v in image[y, x]) for y, x in middles]


def photograph(height: int = 96, width: int = 128, seed: int = 0) -> Image.Image:
    """Noise that is smooth enough for a JPEG and busy enough that every byte of a file counts."""
    small = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def save(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


def header_only_png(width: int, height: int) -> bytes:
    data = bytearray(png(8, 0, [b"\0"]))
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def encoded(suffix: str, image: Image.Image | None = None, **options: object) -> bytes:
    stream = io.BytesIO()
    (image or photograph()).save(stream, suffix, **options)
    return stream.getvalue()


def png(bit_depth: int, color_type: int, rows: list[bytes], extra: bytes = b"") -> bytes:
    """A PNG file written by hand, of kinds that Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    samples = {0: 1, 2: 3, 4: 2, 6: 4}[color_type]
    width = len(rows[0]) * 8 // (samples * bit_depth)
    header = struct.pack(">IIBBBBB", width, len(rows), bit_depth, color_type, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    transparency = chunk(b"tRNS", extra) if extra else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + transparency
        + chunk(b"IDAT", body)
        + chunk(b"IEND", b"")
    )
