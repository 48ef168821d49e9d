"""Images: finding, reading as a viewer shows them, sizes, names of output files."""

import contextlib
import io
import json
import math
import os
import socket
import struct
import subprocess
import sys
import unicodedata
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from deepff.errors import InputError
from deepff.images.decoding import MAX_PIXELS, UnreadableImageError
from deepff.images.image_files import find_images, natural_key, output_names
from deepff.images.image_set import origin_digest, read_pixels
from deepff.images.reading import image_size, resize, resized_shape

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
    """Colours in the middles of the quadrants, row-major, lossy compression rounded away."""
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


# --- reading what is fine


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.jpg", {"quality": 95}),
        ("a.jpg", {"quality": 95, "progressive": True}),
        ("a.png", {}),
        ("a.webp", {"quality": 95}),
        ("a.webp", {"lossless": True}),
        ("a.bmp", {}),
        ("a.tif", {}),
        ("a.tif", {"compression": "tiff_lzw"}),
        ("a.tif", {"compression": "jpeg", "quality": 95}),
        ("a.gif", {}),
        ("a.ppm", {}),
        ("a.jp2", {}),
        ("wrong suffix.txt", {"format": "PNG"}),
    ],
)
def test_every_kind_of_file_shows_its_colours_in_their_places(
    tmp_path: Path, name: str, options: dict[str, object]
) -> None:
    path = save(quadrants(), tmp_path / name, **options)
    image = read_pixels(path)
    assert image.dtype == np.uint8
    assert image.shape == (32, 64, 3)
    assert image_size(path) == (32, 64)
    assert corners(image) == [RED, GREEN, BLUE, YELLOW]


# What a viewer shows of the picture above for each EXIF orientation, by the EXIF standard's table:
# where the stored first row and first column are seen.
ORIENTED = {
    1: [RED, GREEN, BLUE, YELLOW],  # top, left
    2: [GREEN, RED, YELLOW, BLUE],  # top, right
    3: [YELLOW, BLUE, GREEN, RED],  # bottom, right
    4: [BLUE, YELLOW, RED, GREEN],  # bottom, left
    5: [RED, BLUE, GREEN, YELLOW],  # left, top
    6: [BLUE, RED, YELLOW, GREEN],  # right, top
    7: [YELLOW, GREEN, BLUE, RED],  # right, bottom
    8: [GREEN, YELLOW, RED, BLUE],  # left, bottom
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("min_longest_side", [None, 16])
def test_exif_orientation_is_applied(
    tmp_path: Path, orientation: int, suffix: str, min_longest_side: int | None
) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    path = save(quadrants(128, 256), tmp_path / f"a.{suffix}", exif=exif)
    image = read_pixels(path, min_longest_side)
    assert corners(image) == ORIENTED[orientation]
    assert image_size(path) == ((256, 128) if orientation >= 5 else (128, 256))
    assert (image.shape[0] > image.shape[1]) == (orientation >= 5)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_changes_nothing(
    tmp_path: Path, orientation: int
) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    path = save(quadrants(), tmp_path / "a.jpg", exif=exif, quality=95)
    assert image_size(path) == read_pixels(path).shape[:2] == (32, 64)
    assert corners(read_pixels(path)) == [RED, GREEN, BLUE, YELLOW]


def test_garbage_for_exif_does_not_make_an_image_unreadable(tmp_path: Path) -> None:
    for i, exif in enumerate([b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0"]):
        path = save(quadrants(), tmp_path / f"{i}.jpg", exif=exif, quality=95)
        assert image_size(path) == (32, 64)
        assert corners(read_pixels(path)) == [RED, GREEN, BLUE, YELLOW]


def test_cmyk_is_what_it_is_called(tmp_path: Path) -> None:
    inks = np.zeros((32, 64, 4), np.uint8)
    inks[:16, :32] = (0, 255, 255, 0)  # magenta and yellow: red
    inks[:16, 32:] = (255, 0, 255, 0)  # cyan and yellow: green
    inks[16:, :32] = (0, 0, 0, 255)  # black
    image = Image.fromarray(inks, "CMYK")
    expected = [RED, GREEN, BLACK, WHITE]
    jpeg = save(image, tmp_path / "adobe.jpg", quality=95)
    assert b"Adobe" in jpeg.read_bytes()  # this marker says that the inks are stored inverted
    assert corners(read_pixels(jpeg)) == expected
    assert corners(read_pixels(jpeg, 16)) == expected
    assert corners(read_pixels(save(image, tmp_path / "a.tif"))) == expected


@pytest.mark.parametrize(
    ("value", "shown"), [(0, 0), (128, 0), (129, 1), (257, 1), (32768, 128), (65535, 255)]
)
@pytest.mark.parametrize("suffix", ["png", "tif", "pgm", "jp2"])
def test_16_bit_grey_is_scaled_not_clipped(
    tmp_path: Path, value: int, shown: int, suffix: str
) -> None:
    pixels = np.full((16, 16), value, np.uint16)
    pixels[0] = 65535 - value
    path = save(Image.fromarray(pixels), tmp_path / f"a.{suffix}")
    image = read_pixels(path)
    assert (image[1:] == shown).all()
    assert (image[0] == 255 - shown).all()


def png(bit_depth: int, colour_type: int, rows: list[bytes], extra: bytes = b"") -> bytes:
    """A PNG file written by hand, of kinds that Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    samples = {0: 1, 2: 3, 4: 2, 6: 4}[colour_type]
    width = len(rows[0]) * 8 // (samples * bit_depth)
    header = struct.pack(">IIBBBBB", width, len(rows), bit_depth, colour_type, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    transparency = chunk(b"tRNS", extra) if extra else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + transparency
        + chunk(b"IDAT", body)
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("colour_type", "pixel", "shown"),
    [
        (2, (65535, 32768, 0), (255, 128, 0)),  # RGB
        (6, (65535, 32768, 0, 65535), (255, 128, 0)),  # RGBA, opaque
        (6, (65535, 32768, 0, 0), WHITE),  # RGBA, transparent
        (4, (32768, 65535), (128, 128, 128)),  # grey and alpha
        (4, (32768, 0), WHITE),
    ],
)
def test_16_bit_png_of_every_colour_type(
    tmp_path: Path, colour_type: int, pixel: tuple[int, ...], shown: tuple[int, int, int]
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(16, colour_type, [struct.pack(f">{len(pixel)}H", *pixel) * 4] * 4))
    assert (read_pixels(path) == shown).all()


def test_one_grey_value_marked_transparent_is_white(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    row = struct.pack(">3H", 0, 257, 65535)
    path.write_bytes(png(16, 0, [row, row], extra=struct.pack(">H", 257)))
    assert read_pixels(path)[0, :, 0].tolist() == [0, 255, 255]
    path.write_bytes(png(8, 0, [b"\x00\x01\x80"], extra=struct.pack(">H", 1)))
    assert read_pixels(path)[0, :, 0].tolist() == [0, 255, 128]
    path.write_bytes(png(8, 2, [b"\x00\x01\x80\x10\x10\x10"], extra=struct.pack(">3H", 0, 1, 128)))
    assert read_pixels(path)[0].tolist() == [[255, 255, 255], [16, 16, 16]]


def test_transparency_is_shown_on_white(tmp_path: Path) -> None:
    rgba = np.array([[(255, 0, 0, 255), (0, 0, 0, 0), (0, 0, 0, 51), (255, 0, 0, 128)]], np.uint8)
    expected = [[255, 0, 0], [255, 255, 255], [204, 204, 204], [255, 127, 127]]
    for suffix, options in (("png", {}), ("tif", {}), ("webp", {"lossless": True, "exact": True})):
        path = save(Image.fromarray(rgba), tmp_path / f"a.{suffix}", **options)
        assert np.abs(read_pixels(path)[0].astype(int) - expected).max() <= 1

    la = Image.fromarray(np.array([[(0, 255), (0, 0), (100, 0)]], np.uint8), "LA")
    shown = read_pixels(save(la, tmp_path / "la.png"))
    assert shown[0].tolist() == [[0] * 3, [255] * 3, [255] * 3]

    palette = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    expected = [[255, 0, 0], [255, 255, 255], [0, 0, 255]]
    for name in ("p.png", "p.gif"):
        path = save(palette, tmp_path / name, transparency=1)
        assert read_pixels(path)[0].tolist() == expected
    path = save(palette, tmp_path / "table.png", transparency=bytes([255, 0, 255]))
    assert read_pixels(path)[0].tolist() == expected


def test_grey_palette_and_one_bit(tmp_path: Path) -> None:
    grey = Image.fromarray(np.array([[0, 100, 255]], np.uint8))
    for suffix in ("png", "tif", "bmp", "gif"):
        shown = read_pixels(save(grey, tmp_path / f"grey.{suffix}"))
        assert shown[0].tolist() == [[0] * 3, [100] * 3, [255] * 3]
    bits = Image.fromarray(np.array([[True, False, True]]))
    for suffix in ("png", "tif", "bmp"):
        shown = read_pixels(save(bits, tmp_path / f"bits.{suffix}"))
        assert shown[0].tolist() == [[255] * 3, [0] * 3, [255] * 3]
    palette = Image.fromarray(np.array([[1, 0]], np.uint8), "P")
    palette.putpalette([10, 20, 30, 40, 50, 60])
    for suffix in ("png", "tif", "bmp", "gif"):
        shown = read_pixels(save(palette, tmp_path / f"palette.{suffix}"))
        assert shown[0].tolist() == [[40, 50, 60], [10, 20, 30]]


def test_deep_tiffs_that_viewers_treat_specially(tmp_path: Path) -> None:
    unit = Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32))
    assert read_pixels(save(unit, tmp_path / "f.tif"))[0, :, 0].tolist() == [0, 128, 255]
    values = Image.fromarray(np.array([[0, 32768, 65535]], np.uint16))
    white_is_zero = save(values, tmp_path / "w.tif", tiffinfo={262: 0})
    with Image.open(white_is_zero) as image:
        assert image.tag_v2[262] == 0
    assert read_pixels(white_is_zero)[0, :, 0].tolist() == [255, 127, 0]


def test_the_first_frame_or_page(tmp_path: Path) -> None:
    first, second = Image.new("RGB", (8, 6), RED), Image.new("RGB", (8, 6), BLUE)
    for suffix in ("gif", "tif", "webp", "png"):
        path = tmp_path / f"a.{suffix}"
        save(first, path, save_all=True, append_images=[second])
        assert image_size(path) == (6, 8)
        assert np.abs(read_pixels(path).astype(int) - RED).max() <= 3
    stereo = tmp_path / "a.jpg"
    save(first, stereo, format="MPO", save_all=True, append_images=[second])
    assert np.abs(read_pixels(stereo).astype(int) - RED).max() <= 3


# --- reading at reduced scale, and other decoders


@pytest.mark.parametrize(
    ("shape", "smallest", "decoded"),
    [
        ((1200, 1600), 100, (150, 200)),
        ((1600, 1200), 101, (400, 300)),
        ((1200, 1600), 300, (600, 800)),
        ((1200, 1600), 401, (1200, 1600)),
        ((1200, 1602), 100, (600, 801)),  # a quarter of 1602 is not a whole number
        ((99, 1600), 70, (99, 1600)),
        ((160, 1600), 70, (20, 200)),
    ],
)
def test_reduced_scale_keeps_twice_the_pixels_asked_for(
    tmp_path: Path, shape: tuple[int, int], smallest: int, decoded: tuple[int, int]
) -> None:
    path = save(photograph(*shape), tmp_path / "a.jpg", quality=90)
    full = read_pixels(path)
    reduced = read_pixels(path, smallest)
    assert full.shape[:2] == image_size(path) == shape
    assert reduced.shape[:2] == decoded
    target = resized_shape(*shape, size=smallest, stride=1)
    difference = resize(full, target).int() - resize(reduced, target).int()
    assert difference.abs().float().mean() < 1


def test_a_small_image_is_never_reduced(tmp_path: Path) -> None:
    path = save(photograph(), tmp_path / "a.jpg")
    assert np.array_equal(read_pixels(path), read_pixels(path, 100))


def test_real_photographs_agree_with_torchvisions_decoder(data_root: Path) -> None:
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    folder = data_root / "VOCdevkit" / "VOC2007" / "JPEGImages"
    differences = []
    for path in sorted(folder.glob("*.jpg"))[:40]:
        image = read_pixels(path)
        assert image_size(path) == image.shape[:2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            other = decode_jpeg(read_file(str(path)), mode=ImageReadMode.RGB)
        assert (torch.from_numpy(image).permute(2, 0, 1).int() - other).abs().max() <= 2
        reduced = read_pixels(path, 112)
        if reduced.shape != image.shape:
            difference = resize(image, (84, 112)).int() - resize(reduced, (84, 112)).int()
            differences.append(difference.abs().float().mean().item())
    assert len(differences) >= 5
    assert max(differences) < 4
    assert np.mean(differences) < 1


def test_threads_read_what_one_thread_reads(tmp_path: Path) -> None:
    paths = []
    for i in range(16):
        suffix = ("jpg", "png", "tif", "webp")[i % 4]
        paths.append(save(photograph(seed=i), tmp_path / f"{i}.{suffix}"))
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(paths[0].read_bytes()[:-200])

    def read(path: Path) -> np.ndarray | None:
        try:
            return read_pixels(path, 60)
        except UnreadableImageError:
            return None

    alone = [read(path) for path in [*paths, broken]]
    assert alone[-1] is None
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(read, [*paths, broken] * 6))
    for i, image in enumerate(together):
        assert np.array_equal(image, alone[i % len(alone)])


# --- files that cannot be read


def header_only_png(width: int, height: int) -> bytes:
    data = bytearray(png(8, 0, [b"\0"]))
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def encoded(suffix: str, image: Image.Image | None = None, **options: object) -> bytes:
    stream = io.BytesIO()
    (image or photograph()).save(stream, suffix, **options)
    return stream.getvalue()


def corrupt(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(b ^ 0x5A for b in data[middle : middle + 40]) + data[middle + 40 :]


RLE_BMP = (
    struct.pack("<2sIHHI", b"BM", 0, 0, 0, 54 + 1024)
    + struct.pack("<IiiHHIIiiII", 40, 16, 16, 1, 8, 1, 0, 0, 0, 256, 0)
    + bytes(1024)
    + b"\x10\x01\x00\x00" * 3  # 3 rows of 16
)

BAD_FILES = {
    "zero bytes": (b"", "empty file"),
    "text": (b"not a picture at all, just words", "not an image"),
    "one byte": (b"\xff", "not an image"),
    "zeros": (bytes(5000), "not an image"),
    "a page": (b"<!DOCTYPE html><html><body>404</body></html>", "not an image"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    "iPhone, cut": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "damaged or unsupported"),
    "jpeg signature": (b"\xff\xd8\xff\xe0", "damaged or unsupported"),
    "jpeg cut in the header": (encoded("JPEG")[:100], "truncated"),
    "jpeg cut in the middle": (encoded("JPEG")[:1500], "truncated"),
    "jpeg without its end": (encoded("JPEG")[:-20], "truncated"),
    "progressive jpeg cut": (encoded("JPEG", progressive=True)[:-200], "truncated"),
    "cmyk jpeg cut": (encoded("JPEG", photograph().convert("CMYK"))[:-200], "truncated"),
    "png signature": (b"\x89PNG\r\n\x1a\n" + bytes(20), "damaged or unsupported"),
    "png cut": (encoded("PNG")[:-2000], "truncated"),
    "png corrupted": (corrupt(encoded("PNG")), "damaged or unsupported"),
    "gif cut": (encoded("GIF")[:-500], "truncated"),
    "bmp cut": (encoded("BMP")[:-500], "truncated"),
    "rle bmp cut": (RLE_BMP, "damaged or unsupported"),
    "webp cut": (encoded("WEBP")[:-100], "damaged or unsupported"),
    "jpeg 2000 cut": (encoded("JPEG2000")[:-5000], "damaged or unsupported"),
    "tiff cut": (encoded("TIFF")[:-5000], "truncated"),
    "tiff that points nowhere": (b"II*\0\xff\xff\xff\x7f" + bytes(30), "damaged or unsupported"),
    "ppm cut": (encoded("PPM")[:-10], "truncated"),
    "no pixels": (header_only_png(0, 0), "damaged or unsupported"),
    "bomb": (header_only_png(30_000, 30_000), "more than 179 million pixels"),
    "huge bomb": (header_only_png(2**31 - 1, 2**31 - 1), "more than 179 million pixels"),
    "bmp bomb": (
        struct.pack("<2sIHHI", b"BM", 0, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 10**6, 10**6, 1, 24, 0, 0, 0, 0, 0, 0),
        "more than 179 million pixels",
    ),
    "float tiff of distances": (
        encoded("TIFF", Image.fromarray(np.full((4, 4), 17.5, np.float32))),
        "floating-point values outside 0 to 1",
    ),
    "float tiff with a hole": (
        encoded("TIFF", Image.fromarray(np.full((4, 4), math.nan, np.float32))),
        "floating-point values outside 0 to 1",
    ),
    "32-bit tiff": (
        encoded("TIFF", Image.fromarray(np.full((4, 4), -3, np.int32))),
        "signed or 32-bit values",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
@pytest.mark.parametrize("min_longest_side", [None, 8])
def test_a_bad_file_is_refused_with_a_reason(
    tmp_path: Path, case: str, min_longest_side: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    data, reason = BAD_FILES[case]
    path = tmp_path / "bad.jpg"
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnreadableImageError) as caught:
            read_pixels(path, min_longest_side)
    assert str(caught.value) == reason
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "case", ["zero bytes", "text", "jpeg signature", "no pixels", "bomb", "huge bomb", "bmp bomb"]
)
def test_the_header_is_enough_to_refuse(tmp_path: Path, case: str) -> None:
    data, reason = BAD_FILES[case]
    path = tmp_path / "bad.jpg"
    path.write_bytes(data)
    with pytest.raises(UnreadableImageError) as caught:
        image_size(path)
    assert str(caught.value) == reason


def test_large_images_up_to_the_limit_are_accepted_without_a_warning(tmp_path: Path) -> None:
    side = math.isqrt(MAX_PIXELS)
    path = tmp_path / "large.png"
    path.write_bytes(header_only_png(side, side))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert image_size(path) == (side, side)
        path.write_bytes(header_only_png(side + 1, side + 1))
        with pytest.raises(UnreadableImageError, match="179 million"):
            image_size(path)


def test_no_warning_reaches_the_screen(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(header_only_png(12_000, 12_000))
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\xff\xff\xff\0\xff\xff\xff\0"
    save(photograph(), tmp_path / "exif.jpg", exif=exif)
    code = (
        "import sys; from deepff.images.image_files import find_images\n"
        "from deepff.images.reading import image_size\n"
        "for image in find_images(sys.argv[1]): print(image_size(image.path))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert run.stdout == "(96, 128)\n(12000, 12000)\n"
    assert run.stderr == ""


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"]),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8
    ),
    length=st.floats(0, 1),
)
def test_no_damage_raises_anything_else(
    tmp_path: Path, kind: str, changes: list[tuple[float, int]], length: float
) -> None:
    data = bytearray(encoded(kind, photograph(12, 16)))
    for place, value in changes:
        data[int(place**3 * len(data))] = value  # most of them in the header
    path = tmp_path / "fuzz"
    path.write_bytes(data[: math.ceil(length * len(data))])
    for read in (image_size, read_pixels):
        with contextlib.suppress(UnreadableImageError):
            read(path)


def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(tmp_path)  # a socket's path may not be long
        try:
            server.bind("socket.jpg")
        finally:
            os.chdir(here)
        for path in (tmp_path / "pipe.jpg", tmp_path / "socket.jpg", Path("/dev/zero"), tmp_path):
            with pytest.raises(UnreadableImageError, match="not a regular file"):
                read_pixels(path)
        good = save(photograph(), tmp_path / "good.jpg")
        assert [image.path for image in find_images(tmp_path)] == [good]
    with pytest.raises(UnreadableImageError, match="file not found"):
        read_pixels(tmp_path / "missing.jpg")


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Root may read everything, so the test goes on as somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_permission_denied(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.owner() == tmp_path.owner() and folder.name.startswith(
            ("pytest", "test", "popen")
        ):
            folder.chmod(0o755)
    closed = save(photograph(), tmp_path / "closed.jpg")
    locked = tmp_path / "lost+found"
    locked.mkdir()
    closed.chmod(0)
    locked.chmod(0)
    request.getfixturevalue("unprivileged")
    with pytest.raises(UnreadableImageError, match="permission denied"):
        image_size(closed)
    # A folder that may not be listed is reported like a file that may not be read.
    assert [image.name for image in find_images(tmp_path)] == ["closed.jpg", "lost+found"]
    with pytest.raises(UnreadableImageError, match="permission denied"):
        image_size(locked)
    with pytest.raises(InputError, match="permission denied"):
        find_images(locked)


# --- finding


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def names(sources: object) -> list[str]:
    found = find_images(sources)
    assert all(image.path.is_absolute() for image in found)
    return [image.name for image in found]


def test_a_folder_is_searched_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "img10.jpg", "img2.jpg", "IMG3.jpg", "img1.jpg", "img.jpg", "img01.jpg")
    touch(tmp_path, "b/2.png", "b/10.png", "B2/1.png", "a 1/x.txt", "img10/y")
    assert names(tmp_path) == [
        "a 1/x.txt",
        "b/2.png",
        "b/10.png",
        "B2/1.png",
        "img.jpg",
        "img01.jpg",
        "img1.jpg",
        "img2.jpg",
        "IMG3.jpg",
        "img10.jpg",
        "img10/y",
    ]
    assert names(str(tmp_path)) == names([tmp_path]) == names(tmp_path)


@given(st.lists(st.text(alphabet="aB10 /.é²٣", min_size=1, max_size=8), unique=True))
@settings(deadline=None)
def test_natural_order_is_total_and_by_number(texts: list[str]) -> None:
    order = sorted(texts, key=natural_key)
    for other in (order[::-1], order[1::2] + order[::2]):
        assert sorted(other, key=natural_key) == order
    numbers = [f"img{len(text)}{i}.jpg" for i, text in enumerate(texts)]
    assert sorted(numbers, key=natural_key) == sorted(numbers, key=lambda name: int(name[3:-4]))


def test_hidden_files_and_results_are_skipped(tmp_path: Path) -> None:
    touch(tmp_path, ".DS_Store", ".hidden/a.jpg", "sub/.b.jpg", "sub/c.jpg", "plain/d.jpg")
    touch(tmp_path, "out/overlays/e.png", "broken/f.jpg", "list/g.jpg")
    (tmp_path / "out/manifest.json").write_text(json.dumps({"deepff": "0.1.0"}))
    (tmp_path / "plain/manifest.json").write_text(json.dumps({"name": "my web app"}))
    (tmp_path / "broken/manifest.json").write_text('{"deepff": ')
    (tmp_path / "list/manifest.json").write_text('["deepff"]')
    kept = ["broken/f.jpg", "list/g.jpg", "plain/d.jpg", "sub/c.jpg"]
    found = [name for name in names(tmp_path) if not name.endswith("manifest.json")]
    assert found == kept
    globbed = names(f"{tmp_path}/**/*.*g")
    assert globbed == kept
    # What is named outright is meant.
    assert names(tmp_path / ".hidden") == ["a.jpg"]
    assert names(tmp_path / "out/overlays/e.png") == ["e.png"]
    assert names([tmp_path / "sub", tmp_path / "out"]) == ["sub/c.jpg"]
    with pytest.raises(InputError, match="holds a deepff result"):
        find_images(tmp_path / "out")


def test_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "photos/1.jpg", "photos/2.png", "photos/a/3.jpg", "photos/a/b/4.jpg", "5.jpg")
    assert names("photos/*.jpg") == ["1.jpg"]
    assert names("photos/**/*.jpg") == ["1.jpg", "a/3.jpg", "a/b/4.jpg"]
    assert names("photos/**") == names("photos")
    assert names("photos/*/*.jpg") == ["a/3.jpg"]
    assert names("photos/**/b/*") == ["a/b/4.jpg"]
    assert names("**/a/**/*.jpg") == ["photos/a/3.jpg", "photos/a/b/4.jpg"]
    assert names("photos/[12].*") == ["1.jpg", "2.png"]
    assert names("photos/?.png") == ["2.png"]
    assert names(["*.jpg", "photos/*.png"]) == ["5.jpg", "photos/2.png"]
    assert names(Path("photos/*.jpg")) == ["1.jpg"]


def test_an_existing_path_wins_over_a_glob(tmp_path: Path) -> None:
    touch(
        tmp_path, "a[1].jpg", "a1.jpg", "what?.jpg", "whatx.jpg", "set[ab]/*.jpg", "set[ab]/b.jpg"
    )
    touch(tmp_path, "seta/c.jpg")
    assert names(tmp_path / "a[1].jpg") == ["a[1].jpg"]
    assert names(tmp_path / "what?.jpg") == ["what?.jpg"]
    assert names(tmp_path / "set[ab]") == ["*.jpg", "b.jpg"]
    assert names(tmp_path / "set[ab]/*.jpg") == ["*.jpg"]
    assert names(tmp_path / "set[ab]/?.jpg") == ["*.jpg", "b.jpg"]
    assert names(tmp_path / "a[1]*.jpg") == ["a1.jpg"]


def test_several_sources_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "cats/1.jpg", "cats/10.jpg", "dogs/1.jpg", "dogs/2.jpg")
    cats, dogs = tmp_path / "cats", tmp_path / "dogs"
    everything = ["cats/1.jpg", "cats/10.jpg", "dogs/1.jpg", "dogs/2.jpg"]
    assert names([cats, dogs]) == everything
    assert names([dogs, cats]) == everything[2:] + everything[:2]  # as given
    assert names([dogs / "2.jpg", dogs / "1.jpg"]) == ["2.jpg", "1.jpg"]
    assert names([cats / "1.jpg", dogs / "1.jpg"]) == ["cats/1.jpg", "dogs/1.jpg"]
    assert names([cats, cats / "1.jpg", cats, f"{cats}/*.jpg"]) == ["1.jpg", "10.jpg"]
    monkeypatch.chdir(cats)
    assert names([".", "../dogs"]) == everything
    assert names("../dogs/1.jpg") == ["1.jpg"]


def test_links_are_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "set/z/1.jpg", "elsewhere/2.jpg")
    root = tmp_path / "set"
    (root / "a.jpg").symlink_to(root / "z/1.jpg")
    (root / "a").symlink_to(root / "z")
    (root / "up").symlink_to(root)
    (root / "z/up").symlink_to(root)
    (root / "self").symlink_to(root / "self")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "gone.jpg").symlink_to(tmp_path / "gone.jpg")
    expected = ["gone.jpg", "linked/2.jpg", "self", "z/1.jpg"]
    assert names(root) == names(f"{root}/**") == names([root, root / "a.jpg"]) == expected
    for name in ("gone.jpg", "self"):
        with pytest.raises(UnreadableImageError, match=r"file not found|symbolic links"):
            image_size(root / name)


def test_two_folders_linked_into_each_other_many_times(tmp_path: Path) -> None:
    for i in range(8):
        touch(tmp_path, f"{i}/{i}.jpg")
        for j in range(8):
            (tmp_path / f"{i}/to{j}").symlink_to(tmp_path / f"{j}")
    assert names(tmp_path) == [f"{i}/{i}.jpg" for i in range(8)]
    assert names(f"{tmp_path}/**/*.jpg") == [f"{i}/{i}.jpg" for i in range(8)]


@pytest.mark.parametrize(
    "name",
    ["two words.jpg", 'it\'s "q".jpg', "Müller ☃.jpg", "<script>alert(1)<!--.jpg", "a\nb.jpg"],
)
def test_odd_names_survive(tmp_path: Path, name: str) -> None:
    path = save(photograph(), tmp_path / name)
    (image,) = find_images(tmp_path)
    assert (image.path, image.name) == (path, name)
    assert image_size(image.path) == (96, 128)
    assert output_names([image.name]) == [name.removesuffix(".jpg")]


def test_a_name_that_is_not_unicode_is_shown_in_hexadecimal(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    data = encoded("PNG")
    for name in (b"caf\xe9.png", b"caf%E9.png", b"\xff\xfe.png", b"\xc3\xa9.png"):
        try:
            Path(os.fsdecode(os.path.join(folder, name))).write_bytes(data)
        except OSError:
            pytest.skip("this file system takes Unicode names only")
    images = find_images(tmp_path)
    shown = [image.name for image in images]
    assert len(set(shown)) == 4
    assert {"caf%E9.png", "%FF%FE.png", "é.png"} <= set(shown)
    assert json.loads(json.dumps(shown, ensure_ascii=False).encode()) == shown
    assert all(image_size(image.path) == (96, 128) for image in images)


def test_nothing_to_find_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty/sub").mkdir(parents=True)
    touch(tmp_path, "full/a.jpg", "hidden/.a.jpg")
    for sources, message in [
        (tmp_path / "missing", "cannot find"),
        (tmp_path / "missing.jpg", "cannot find"),
        (tmp_path / "empty", "no images in the folder"),
        (tmp_path / "hidden", "no images in the folder"),
        (f"{tmp_path}/full/*.png", "no file matches"),
        (f"{tmp_path}/missing/*.png", "cannot list the folder"),
        ([tmp_path / "full", tmp_path / "missing"], "cannot find"),
        ([], "no images were named"),
        ("", "cannot find"),
    ]:
        with pytest.raises(InputError, match=message) as caught:
            find_images(sources)
        assert "\n" not in str(caught.value)


# --- sizes


@pytest.mark.parametrize(
    ("height", "width", "size", "stride", "expected"),
    [
        (375, 500, 448, 32, (352, 448)),  # 336 is 10.5 cells: up
        (500, 375, 448, 32, (448, 352)),
        (333, 500, 448, 32, (288, 448)),  # 298.4 is 9.3 cells
        (375, 500, 224, 16, (176, 224)),  # 168 is 10.5 cells
        (100, 100, 448, 32, (448, 448)),
        (1, 5000, 448, 32, (32, 448)),
        (5000, 1, 448, 16, (448, 16)),
        (375, 500, 100, 32, (64, 96)),
        (300, 400, 10, 32, (32, 32)),
        (1, 1, 7, 1, (7, 7)),
    ],
)
def test_resized_shape(
    height: int, width: int, size: int, stride: int, expected: tuple[int, int]
) -> None:
    assert resized_shape(height, width, size, stride) == expected


@given(*[st.integers(1, 20_000)] * 2, st.integers(1, 4000), st.integers(1, 64))
@settings(deadline=None)
def test_resized_shape_is_the_nearest_whole_number_of_cells(
    height: int, width: int, size: int, stride: int
) -> None:
    shape = resized_shape(height, width, size, stride)
    assert shape[::-1] == resized_shape(width, height, size, stride)
    for side, resized in zip((height, width), shape, strict=True):
        assert resized % stride == 0
        assert resized >= stride
        wanted = side * size / max(height, width)
        assert resized == stride or abs(resized - wanted) <= stride / 2 + 1e-6


def test_resized_shape_refuses_a_size_of_nothing() -> None:
    with pytest.raises(InputError, match="positive"):
        resized_shape(10, 10, 0, 32)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(20, 40), (30, 60), (45, 77), (200, 399)])
def test_resizing_does_not_shift(interpolation: str, shape: tuple[int, int]) -> None:
    y, x = np.mgrid[-1:1:60j, -1:1:120j]
    bump = np.round(255 * np.exp(-4 * (x**2 + y**2))).astype(np.uint8)
    resized = resize(np.stack([bump] * 3, axis=-1), shape, interpolation)
    assert resized.dtype == torch.uint8
    assert resized.shape == (3, *shape)
    assert (resized.int() - resized.flip(1, 2).int()).abs().max() <= 1
    weights = resized[0].double()
    rows = torch.arange(shape[0]).double()
    columns = torch.arange(shape[1]).double()
    centre = ((weights.sum(1) @ rows) / weights.sum(), (weights.sum(0) @ columns) / weights.sum())
    assert centre[0] == pytest.approx((shape[0] - 1) / 2, abs=0.02)
    assert centre[1] == pytest.approx((shape[1] - 1) / 2, abs=0.02)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resizing_averages_what_a_pixel_covers(interpolation: str) -> None:
    """Without antialiasing, one-pixel stripes at a quarter of the size stay black and white."""
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    resized = resize(stripes, (16, 16), interpolation).int()
    assert ((resized[:, :, 1:-1] - 128).abs() <= 3).all()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resizing_agrees_with_pillow(interpolation: str) -> None:
    image = photograph(90, 130)
    resample = Image.Resampling[interpolation.upper()]
    for shape in [(33, 47), (120, 200)]:
        other = np.asarray(image.resize(shape[::-1], resample)).astype(int)
        ours = resize(np.array(image), shape, interpolation).permute(1, 2, 0).numpy()
        assert np.abs(ours - other).max() <= 2


def test_an_image_as_read_can_be_resized_without_a_warning(tmp_path: Path) -> None:
    path = save(quadrants(), tmp_path / "a.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resized = resize(read_pixels(path), (8, 16))
    assert corners(resized.permute(1, 2, 0).numpy()) == [RED, GREEN, BLUE, YELLOW]


# --- names of output files


@pytest.mark.parametrize(
    ("given_names", "expected"),
    [
        (["a.jpg", "a.png", "b.jpg"], ["a.jpg", "a.png", "b"]),
        (["a.jpg", "a.png", "a.jpg.jpg"], ["a.jpg", "a.png", "a.jpg.jpg"]),
        (["x/1.jpg", "y/1.jpg"], ["x/1", "y/1"]),
        (["A.jpg", "a.png"], ["A.jpg", "a.png"]),
        (["A.jpg", "a.jpg"], ["A.jpg", "a.jpg-2"]),
        (["é.jpg", "e\u0301.png"], ["é.jpg", "e\u0301.png"]),
        (["photo 1.5 m.jpg", "noext", "v1.2/noext"], ["photo 1.5 m", "noext", "v1.2/noext"]),
        (["a.jpg", "a"], ["a.jpg", "a"]),
        (["a.jpg", "a.png/b.jpg"], ["a-2", "a.png/b"]),
        ([".jpg", "...jpg"], [".jpg", "...jpg"]),
        (["../a.jpg", "/etc/b.jpg", ".."], ["a", "etc/b", "image"]),
        ([], []),
    ],
)
def test_output_names(given_names: list[str], expected: list[str]) -> None:
    assert output_names(given_names) == expected


NAMES = st.one_of(
    st.lists(st.text(alphabet="aAbé./-2 ", min_size=1, max_size=9), unique=True, max_size=12),
    st.lists(st.from_regex(r"(a|A|b|a/b|\.\.)(\.jpg|\.png|-2|\.)*", fullmatch=True), unique=True),
    st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=8),
    st.lists(
        st.from_regex(r"[ax]{195,240}(\.jpg|\.png)?", fullmatch=True), unique=True, max_size=4
    ),
)


@given(NAMES)
@settings(deadline=None, max_examples=150)
def test_output_names_are_unique_and_stay_inside(given_names: list[str]) -> None:
    found = output_names(given_names)
    assert len(found) == len(given_names)
    keys = {unicodedata.normalize("NFC", name).casefold() for name in found}
    assert len(keys) == len(found)
    for name in found:
        path = PurePosixPath(name)
        assert not path.is_absolute()
        assert path.parts
        assert ".." not in path.parts
        assert str(path) == name
        assert "\0" not in name
        assert all(len(part.encode()) <= 230 for part in path.parts)


@given(NAMES)
@settings(deadline=None, max_examples=50)
def test_output_files_can_be_written_side_by_side(
    tmp_path_factory: pytest.TempPathFactory, given_names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("out")
    found = output_names(given_names)
    for i, name in enumerate(found):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x") as file:
            file.write(str(i))
    assert [(folder / f"{name}.png").read_text() for name in found] == [
        str(i) for i in range(len(found))
    ]


def test_a_files_digest(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")  # the example of FIPS 180-2
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert origin_digest(tmp_path / "a") == digest
