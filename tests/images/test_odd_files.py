"""Images that people have and that Pillow alone refuses, or reads as something else."""

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from made_images import encoded, png
from PIL import Image, PngImagePlugin

from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import read_pixels
from deepff.images.reading import image_size, read_picture

HEIGHT, WIDTH = 48, 64


def gradient() -> np.ndarray:
    """Red rises to the right, green falls, blue rises downwards: (48, 64, 3) in [0, 1]."""
    x, y = np.linspace(0, 1, WIDTH), np.linspace(0, 1, HEIGHT)
    red, blue = np.tile(x, (HEIGHT, 1)), np.tile(y[:, None], (1, WIDTH))
    return np.stack([red, 1 - red, blue], -1)


def deep(largest: int = 65535) -> np.ndarray:
    return np.rint(gradient() * largest).astype(np.uint16)


EIGHT = np.rint(gradient() * 255).astype(np.uint8)


def error(path: Path, expected: np.ndarray = EIGHT, **options: bool) -> int:
    """The largest difference of a pixel from what it should be."""
    image = read_pixels(path, **options)
    assert image.shape == expected.shape and image_size(path) == expected.shape[:2]
    return int(np.abs(image.astype(int) - expected).max())


# --- PNG


def png_text(kind: str, size: int) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    if kind == "iTXt":
        info.add_itxt("workflow", "é" * (size // 2), zip=True)
    else:
        info.add_text("workflow", "x" * size, zip=kind == "zTXt")
    return info


@pytest.mark.parametrize(
    ("kind", "megabytes"), [("zTXt", 3), ("iTXt", 3), ("tEXt", 3), ("tEXt", 70)]
)
@pytest.mark.parametrize("position", ["before", "after"])
def test_png_with_a_workflow_in_it(
    tmp_path: Path, kind: str, megabytes: int, position: str
) -> None:
    data = encoded("PNG", Image.fromarray(EIGHT), pnginfo=png_text(kind, megabytes * 10**6))
    if position == "after":  # the pixels
        start = data.index(kind.encode()) - 4
        length = 12 + int.from_bytes(data[start : start + 4])
        text, end = data[start : start + length], data[-12:]
        data = data[:start] + data[start + length : -12] + text + end
    path = tmp_path / "a.png"
    path.write_bytes(data)
    assert error(path) == 0
    if position == "before":
        path.write_bytes(data[:-200])
        with pytest.raises(UnreadableImageError):
            read_pixels(path)


def test_png_with_a_large_profile_keeps_orientation_and_transparency(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 3
    rgba = np.dstack([EIGHT, np.full((HEIGHT, WIDTH), 255, np.uint8)])
    rgba[:, : WIDTH // 2, 3] = 0
    path = tmp_path / "a.png"
    Image.fromarray(rgba).save(path, icc_profile=bytes(3_000_000), exif=exif)
    expected = EIGHT.copy()
    expected[:, : WIDTH // 2] = 255
    assert error(path, expected[::-1, ::-1]) == 0


def test_a_bomb_in_the_text_of_a_png_costs_no_memory(tmp_path: Path) -> None:
    """100 MB of zeros in 100 kB: the chunk is left out."""
    chunk = b"zTXta\0\0" + zlib.compress(bytes(10**8))
    whole = encoded("PNG", Image.fromarray(EIGHT))
    text = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    path = tmp_path / "a.png"
    path.write_bytes(whole[:33] + text + whole[33:])
    assert error(path) == 0


# --- JPEG


def jpegs() -> dict[str, tuple[bytes, np.ndarray]]:
    small = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    photo = Image.fromarray(small).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    kinds = {
        "baseline": (photo, {}),
        "progressive": (photo, {"progressive": True}),
        "gray": (photo.convert("L"), {}),
        "cmyk": (photo.convert("CMYK"), {}),
        "best": (photo, {"quality": 100, "subsampling": 0}),
        "restarts": (photo, {"restart_marker_rows": 1}),
        "flat": (Image.new("RGB", (WIDTH, HEIGHT), "white"), {}),
    }
    files = {kind: encoded("JPEG", image, **options) for kind, (image, options) in kinds.items()}
    return {
        kind: (data, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
        for kind, data in files.items()
    }


JPEGS = jpegs()


@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_that_lacks_only_its_end_is_whole(tmp_path: Path, kind: str) -> None:
    data, whole = JPEGS[kind]
    path = tmp_path / "a.jpg"
    for cut in (1, 2):
        path.write_bytes(data[:-cut])
        assert error(path, whole) == 0


@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_that_lacks_more_is_refused_or_right_to_the_bit(tmp_path: Path, kind: str) -> None:
    """The last byte may hold nothing but padding."""
    data, whole = JPEGS[kind]
    path = tmp_path / "a.jpg"
    refused = 0
    for cut in [*range(3, 30), len(data) // 4, len(data) // 2]:
        path.write_bytes(data[:-cut])
        try:
            assert error(path, whole) == 0
        except UnreadableImageError:
            refused += 1
    assert refused >= 27


def test_a_progressive_jpeg_without_its_last_scan_is_refused(tmp_path: Path) -> None:
    data, _ = JPEGS["progressive"]
    path = tmp_path / "a.jpg"
    scans = [i for i in range(len(data)) if data[i : i + 2] == b"\xff\xda"]
    assert len(scans) > 5
    tables = data.rindex(b"\xff\xc4", 0, scans[-1])
    for end in (scans[-1], tables):
        path.write_bytes(data[:end])
        with pytest.raises(UnreadableImageError, match="truncated"):
            read_pixels(path)


def damaged_jpegs() -> dict[str, tuple[bytes, str]]:
    """Large enough that its bytes are as even as a photograph's."""
    small = np.random.default_rng(1).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    photo = Image.fromarray(small).resize((320, 240), Image.Resampling.BICUBIC)
    files = {}
    kinds = {
        "baseline": {},
        "progressive": {"progressive": True},
        "small tables": {"optimize": True},
    }
    for kind, options in kinds.items():
        data = encoded("JPEG", photo, **options)
        files[f"{kind}, line ends"] = (data.replace(b"\n", b"\r\n"), "text mode")
        middle = len(data) // 2
        hole = data[:middle] + bytes(1024) + data[middle + 1024 :]
        for n in range(1, 9):
            written = data[: n * len(data) // 9]
            file = written + bytes(len(data) - len(written))
            files[f"{kind}, {n}/9 and zeros"] = (file, "truncated|damaged")
        if kind != "progressive":  # whose missing scans are only detail
            files[f"{kind}, hole of zeros"] = (hole, "damaged")
            files[f"{kind}, half with an end"] = (data[:middle] + data[-2:], "damaged")
    noise = np.random.default_rng(2).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    data = encoded("JPEG", Image.fromarray(noise), quality=100, subsampling=0)
    assert data.count(b"\r\n") > 16
    files["line ends shorter"] = (data.replace(b"\r\n", b"\n"), "damaged")
    return files


DAMAGED_JPEGS = damaged_jpegs()


@pytest.mark.parametrize("kind", DAMAGED_JPEGS)
@pytest.mark.parametrize("side", [None, 64])
def test_a_jpeg_that_decodes_to_something_else_is_refused(
    tmp_path: Path, kind: str, side: int | None
) -> None:
    data, reason = DAMAGED_JPEGS[kind]
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    with pytest.raises(UnreadableImageError, match=reason):
        read_pixels(path, side)


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "GIF", "PNG", "JPEG2000", "AVIF"])
def test_a_transfer_in_text_mode_is_told_or_leaves_no_image(tmp_path: Path, format: str) -> None:
    data = encoded(format, Image.fromarray(EIGHT).resize((320, 240)))
    path = tmp_path / "a"
    path.write_bytes(data.replace(b"\n", b"\r\n"))
    with pytest.raises(UnreadableImageError):
        read_pixels(path)


def white_below() -> np.ndarray:
    pixels = np.full((240, 320, 3), 255, np.uint8)
    pixels[20:70, 30:90] = np.random.default_rng(0).integers(0, 256, (50, 60, 3))
    return pixels


@pytest.mark.parametrize("image", [white_below(), np.zeros((900, 900, 3), np.uint8)])
@pytest.mark.parametrize(
    "options", [{}, {"optimize": True}, {"progressive": True}, {"quality": 100, "subsampling": 0}]
)
@pytest.mark.parametrize("after", [b"", bytes(5000), b"\r\n" * 99], ids=["", "zeros", "lines"])
def test_a_whole_jpeg_is_not_called_damaged(
    tmp_path: Path, image: np.ndarray, options: dict, after: bytes
) -> None:
    """A flat last row, zeros among its data and whatever comes after its end are no damage."""
    data = encoded("JPEG", Image.fromarray(image), **options)
    path = tmp_path / "a.jpg"
    path.write_bytes(data + after)
    assert error(path, np.asarray(Image.open(io.BytesIO(data)))) == 0
    path.write_bytes(data + data + after)  # several in one file: the first is shown
    assert error(path, np.asarray(Image.open(io.BytesIO(data)))) == 0
    if not image.any():  # the black scan ends with zeros of its own
        return
    path.write_bytes(data[:-2] + bytes(5000) + data[-2:])  # as some cameras fill up blocks
    assert error(path, np.asarray(Image.open(io.BytesIO(data)))) == 0


@pytest.mark.parametrize("end", [b"\xff\xd9", b""])
def test_a_jpeg_of_hundreds_of_scans_is_refused_before_it_is_decoded(
    tmp_path: Path, end: bytes
) -> None:
    data = encoded("JPEG", Image.fromarray(EIGHT), progressive=True)
    last = data.rindex(b"\xff\xda")
    path = tmp_path / "a.jpg"
    path.write_bytes(data[:-2] + data[last:-2] * 400 + end)
    with pytest.raises(UnreadableImageError, match="more than 32 scans"):
        read_pixels(path)


# --- TIFF and BMP


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("planes", ["separate", "contig"])
@pytest.mark.parametrize("depth", [8, 16])
def test_tiff_of_colors_in_planes_or_pixels(
    tmp_path: Path, depth: int, planes: str, compression: str | None, byteorder: str
) -> None:
    pixels = deep() if depth == 16 else EIGHT
    data = pixels.transpose(2, 0, 1) if planes == "separate" else pixels
    path = tmp_path / "a.tif"
    options = {"photometric": "rgb", "planarconfig": planes, "rowsperstrip": 16}
    tifffile.imwrite(path, data, compression=compression, byteorder=byteorder, **options)
    assert error(path) <= (1 if depth == 16 else 0)


def test_tiff_of_planes_with_alpha_is_right_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    planes = np.dstack([deep(), np.full((HEIGHT, WIDTH), 65535, np.uint16)]).transpose(2, 0, 1)
    tifffile.imwrite(
        path, planes, photometric="rgb", planarconfig="separate", extrasamples=["unassalpha"]
    )
    assert error(path) <= 1


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.float64, np.complex64])
@pytest.mark.parametrize("colors", [1, 3])
def test_tiff_of_values_without_black_and_white_is_refused(
    tmp_path: Path, kind: type, colors: int
) -> None:
    path = tmp_path / "a.tif"
    pixels = (gradient()[..., 0] if colors == 1 else gradient()) * 100 - 50
    photometric = "minisblack" if colors == 1 else "rgb"
    tifffile.imwrite(path, pixels.astype(kind), photometric=photometric)
    with pytest.raises(UnreadableImageError):
        read_pixels(path)


@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8"])
@pytest.mark.parametrize("white", [1, 255])
def test_tiff_of_floating_point_colors(tmp_path: Path, kind: str, white: int) -> None:
    path = tmp_path / "a.tif"
    pixels = (gradient() * white).astype(kind)
    tifffile.imwrite(path, pixels, photometric="rgb", byteorder=kind[0])
    assert error(path) <= 1
    planes = np.moveaxis(pixels, 2, 0)
    tifffile.imwrite(path, planes, photometric="rgb", planarconfig="separate", compression="zlib")
    assert error(path) <= 1
    turned = [(274, 3, 1, 6, True)]  # rows are stored as columns, from the right
    tifffile.imwrite(path, np.rot90(pixels), photometric="rgb", extratags=turned)
    assert error(path) <= 1
    clear = np.dstack([pixels, np.zeros((HEIGHT, WIDTH))]).astype(kind)
    tifffile.imwrite(path, clear, photometric="rgb", extrasamples=["unassalpha"])
    assert error(path, np.full_like(EIGHT, 255)) == 0


@pytest.mark.parametrize(
    ("pixels", "reason"),
    [
        ((gradient() * 2**31).astype(np.uint32), "a TIFF of uint32 in 3 channels, which is not"),
        ((gradient() * 999).astype(np.int16), "a TIFF of int16 in 3 channels, which is not read"),
        ((gradient() * 4).astype(np.float32), "floating-point values outside 0 to 1 and 0 to 255"),
        (gradient() * 300, "floating-point values outside 0 to 1 and 0 to 255"),
    ],
)
def test_tiff_of_colors_of_unknown_white_says_what_it_is(
    tmp_path: Path, pixels: np.ndarray, reason: str
) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, pixels, photometric="rgb")
    for read in (image_size, read_pixels):
        with pytest.raises(UnreadableImageError) as caught:
            read(path)
        assert str(caught.value).startswith(reason)


def bmp(alpha: np.ndarray, header: int) -> bytes:
    """A BMP of 32 bits whose header (40, 108 or 124 bytes) says where alpha is, or does not."""
    pixels = np.dstack([EIGHT[..., ::-1], alpha])[::-1].tobytes()
    compression = 3 if header > 40 else 0
    head = struct.pack(
        "<IiiHHIIiiII", header, WIDTH, HEIGHT, 1, 32, compression, len(pixels), 0, 0, 0, 0
    )
    if header > 40:
        head += struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000) + bytes(header - 56)
    start = 14 + len(head)
    return struct.pack("<2sIHHI", b"BM", start + len(pixels), 0, 0, start) + head + pixels


@pytest.mark.parametrize("header", [40, 108, 124])
def test_bmp_whose_alpha_nobody_wrote(tmp_path: Path, header: int) -> None:
    path = tmp_path / "a.bmp"
    for value in (0, 255):
        path.write_bytes(bmp(np.full((HEIGHT, WIDTH), value, np.uint8), header))
        assert error(path) == 0
    if header > 40:  # one that somebody wrote
        alpha = np.zeros((HEIGHT, WIDTH), np.uint8)
        alpha[: HEIGHT // 2] = 255
        path.write_bytes(bmp(alpha, header))
        expected = EIGHT.copy()
        expected[HEIGHT // 2 :] = 255
        assert error(path, expected) == 0


# --- 10, 12 and 14 bits in files of 16


def write_deep(path: Path, kind: str, largest: int) -> np.ndarray:
    """Write an image of 16 bits; return the expected one if `largest` is white."""
    colors = deep(largest)
    if kind == "png of colors":
        path.write_bytes(png(16, 2, [row.astype(">u2").tobytes() for row in colors]))
    elif kind.startswith("tiff of colors"):
        compression = "zlib" if "packed" in kind else None
        order = ">" if "big" in kind else "<"
        tifffile.imwrite(path, colors, photometric="rgb", compression=compression, byteorder=order)
    elif kind == "tiff of planes":
        planes = colors.transpose(2, 0, 1)
        tifffile.imwrite(path, planes, photometric="rgb", planarconfig="separate")
    else:
        Image.fromarray(colors[..., 0]).save(path, kind.split()[0])
        return np.dstack([EIGHT[..., 0]] * 3)
    return EIGHT


DEEP_KINDS = [
    "png gray",
    "tiff gray",
    "ppm gray",
    "png of colors",
    "tiff of colors",
    "tiff of colors, packed",
    "tiff of colors, big end first",
    "tiff of planes",
]


@pytest.mark.parametrize("bits", [9, 10, 12, 14])
@pytest.mark.parametrize("kind", DEEP_KINDS)
def test_few_bits_in_a_file_of_16_are_nearly_black_until_stretched(
    tmp_path: Path, kind: str, bits: int
) -> None:
    path = tmp_path / "a.png"
    largest = 2**bits - 1
    expected = write_deep(path, kind, largest)
    picture = read_picture(path)
    assert picture.is_nearly_black and (picture.largest, picture.white) == (largest, 65535)
    assert picture.pixels.max() <= 2 ** (bits - 8)
    assert error(path, expected, stretch=True) <= 1


@pytest.mark.parametrize("kind", DEEP_KINDS)
def test_what_uses_its_range_is_not_called_black_and_stretches_to_itself(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "a.png"
    expected = write_deep(path, kind, 65535)
    assert not read_picture(path).is_nearly_black
    assert error(path, expected) <= 1
    assert error(path, expected, stretch=True) <= 1


def test_a_dark_image_of_8_bits_and_a_black_one_are_as_they_are(tmp_path: Path) -> None:
    dark = EIGHT // 16
    Image.fromarray(dark).save(tmp_path / "a.png")
    Image.fromarray(np.zeros((HEIGHT, WIDTH), np.uint16)).save(tmp_path / "b.png")
    for stretch in (False, True):
        picture = read_picture(tmp_path / "a.png", stretch=stretch)
        assert not picture.is_nearly_black and np.array_equal(picture.pixels, dark)
        picture = read_picture(tmp_path / "b.png", stretch=stretch)
        assert not picture.is_nearly_black and picture.pixels.max() == 0


# --- HEIC, AVIF, and what is not read


@pytest.mark.parametrize(("format", "suffix"), [("HEIF", "heic"), ("AVIF", "avif")])
def test_heic_and_avif(tmp_path: Path, format: str, suffix: str) -> None:
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    if format not in Image.SAVE:
        pytest.skip("this Pillow is built without AVIF")
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(EIGHT).save(path, format, quality=95)
    assert error(path) <= 16
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(EIGHT).save(path, format, quality=95, exif=exif)
    with Image.open(path) as image:
        turned = image.getexif().get(274, 1) == 6
    assert error(path, np.rot90(EIGHT, -1) if turned else EIGHT) <= 16
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UnreadableImageError, match=r"damaged or unsupported|truncated"):
        read_pixels(path)


def test_without_its_extra_a_heic_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # makes the import fail
    path = tmp_path / "a.heic"
    path.write_bytes(b"\0\0\0\x1cftypheic\0\0\0\0mif1heic" + bytes(99))
    with pytest.raises(UnreadableImageError, match=r"HEIC, which needs pip install 'deepff\[heif"):
        image_size(path)


RAW = {
    "dng with a thumbnail": {
        "subfiletype": 1,
        "subifds": 1,
        "extratags": [(50706, 1, 4, (1, 4, 0, 0), True)],
    },
    "dng of a telephone": {"extratags": [(50706, 1, 4, (1, 4, 0, 0), True)]},
    "nef": {"subfiletype": 1, "subifds": 1},
    "nef whose thumbnail is not marked": {"subifds": 1},
}


@pytest.mark.parametrize("case", RAW)
def test_a_raw_file_is_called_raw_and_not_read_as_its_thumbnail(tmp_path: Path, case: str) -> None:
    path = tmp_path / "a.nef"
    with tifffile.TiffWriter(path) as writer:
        options = RAW[case]
        small = np.zeros((12, 16, 3), np.uint8)
        writer.write(small, photometric="rgb", metadata=None, **options)
        if "subifds" in options:
            writer.write(np.zeros((48, 64), np.uint16), photometric="cfa", metadata=None)
    for read in (image_size, read_pixels):
        with pytest.raises(UnreadableImageError, match="a camera's raw file; develop it"):
            read(path)


def test_a_pyramid_with_smaller_images_inside_its_page_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as writer:
        writer.write(EIGHT, photometric="rgb", metadata=None, subifds=1)
        writer.write(EIGHT[::2, ::2], photometric="rgb", metadata=None, subfiletype=1)
    assert error(path) == 0


SIGNED_SO = {
    "cr2": (b"II*\0\x10\0\0\0CR\x02\0", "a camera's raw file"),
    "cr3": (b"\0\0\0\x18ftypcrx \0\0\0\x01", "a camera's raw file"),
    "raf": (b"FUJIFILMCCD-RAW 0201", "a camera's raw file"),
    "rw2": (b"IIU\0\x18\0\0\0", "a camera's raw file"),
    "orf": (b"IIRO\x08\0\0\0", "a camera's raw file"),
    "png, line ends longer": (b"\x89PNG\r\r\n\x1a\r\n", "damaged by a transfer in text mode"),
    "png, line ends shorter": (b"\x89PNG\n\x1a\n\0", "damaged by a transfer in text mode"),
    "mp4": (b"\0\0\0\x20ftypisom\0\0\x02\0", "a video; its frames are read where"),
    "mov": (b"\0\0\0\x14ftypqt  \0\0\0\0", "a video; its frames are read where"),
    "webm": (b"\x1aE\xdf\xa3\x9fB\x86\x81", "a video; its frames are read where"),
    "psd": (b"8BPS\0\x01", "not an image in a format that is read"),
    "pdf": (b"%PDF-1.7\n", "not an image in a format that is read"),
}


@pytest.mark.parametrize("case", SIGNED_SO)
def test_what_is_not_read_is_called_what_it_is(tmp_path: Path, case: str) -> None:
    data, reason = SIGNED_SO[case]
    path = tmp_path / "a.jpg"
    path.write_bytes(data + bytes(99))
    for read in (image_size, read_pixels):
        with pytest.raises(UnreadableImageError) as caught:
            read(path)
        assert str(caught.value).startswith(reason)


def test_a_png_whose_text_alone_is_damaged_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(EIGHT).save(path, pnginfo=png_text("tEXt", 50))
    data = bytearray(path.read_bytes())
    data[data.index(b"tEXt") + 20] ^= 1  # its checksum is wrong now
    path.write_bytes(data)
    assert error(path) == 0
    data[data.index(b"IDAT") + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(UnreadableImageError):
        read_pixels(path)


@pytest.mark.parametrize("size", [b"P5", b"P6"])
@pytest.mark.parametrize("largest", [1, 255, 1023, 4095, 65535])
def test_a_ppm_that_says_its_largest_value_uses_its_range(
    tmp_path: Path, size: bytes, largest: int
) -> None:
    pixels = np.rint(gradient() * largest)
    pixels = pixels[..., 0] if size == b"P5" else pixels
    path = tmp_path / "a.ppm"
    header = size + f" {WIDTH} {HEIGHT} {largest}\n".encode()
    path.write_bytes(header + pixels.astype(">u2" if largest > 255 else "u1").tobytes())
    expected = np.rint(np.rint(gradient() * largest) * 255 / largest).astype(np.uint8)
    assert error(path, expected if size == b"P6" else np.dstack([expected[..., 0]] * 3)) <= 1
    assert not read_picture(path).is_nearly_black


def test_tiff_of_planes_of_16_bits_in_tiles(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    planes = deep().transpose(2, 0, 1)
    tifffile.imwrite(path, planes, photometric="rgb", planarconfig="separate", tile=(16, 16))
    assert error(path) <= 1


@pytest.mark.parametrize("n", [1, 2])
def test_a_tiff_that_starts_with_its_thumbnail_is_read_at_full_size(tmp_path: Path, n: int) -> None:
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as writer:
        for step in (8, 4)[:n]:
            small = EIGHT[::step, ::step]
            writer.write(small, photometric="rgb", subfiletype=1, metadata=None)
        writer.write(EIGHT, photometric="rgb", metadata=None)
        writer.write(255 - EIGHT, photometric="rgb", metadata=None)
    assert error(path) == 0
    tifffile.imwrite(path, EIGHT, photometric="rgb", subfiletype=1, metadata=None)
    assert error(path) == 0  # there is nothing larger


def test_a_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 9\n")
    with pytest.raises(UnreadableImageError, match=r"a Git LFS pointer .* run git lfs pull"):
        image_size(path)


def test_jpeg_2000_of_few_bits_is_nearly_black_until_stretched(tmp_path: Path) -> None:
    path = tmp_path / "a.jp2"
    Image.fromarray(deep(4095)[..., 0]).save(path)
    assert read_picture(path).is_nearly_black and read_picture(path).largest == 4095
    assert error(path, np.dstack([EIGHT[..., 0]] * 3), stretch=True) <= 1


NAMES = [
    "café.png".encode(),
    b"caf\xe9.png",
    "日本.png".encode("shift_jis"),
    "日本.png".encode("euc_jp"),
    b"a\nb.png",
    b"-k.png",
    b"a#b?c%20d.png",
    b"a\\b.png",
    "\u202egnp.exe.png".encode(),
    b"x" * 250 + b".png",
]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_of_any_encoding_are_read_and_written(tmp_path: Path, encoding: str) -> None:
    data = encoded("PNG", Image.fromarray(EIGHT))
    folder, out = tmp_path / "photos", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    for name in NAMES:
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(data)
    code = (
        "import json, sys; from pathlib import Path\n"
        "from deepff.images.image_files import find_images, output_names\n"
        "from deepff.images.image_set import read_pixels\n"
        "assert sys.getfilesystemencoding() == sys.argv[3], sys.getfilesystemencoding()\n"
        "images = find_images(sys.argv[1])\n"
        "for image, name in zip(images, output_names([i.name for i in images])):\n"
        "    shape = json.dumps(read_pixels(image.path).shape)\n"
        "    Path(sys.argv[2], name + '.json').write_text(shape)\n"
    )
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment["LC_ALL"] = "C.UTF-8" if encoding == "utf-8" else "C"
    command = [sys.executable, "-c", code, str(folder), str(out), encoding]
    subprocess.run(command, check=True, env=environment)
    written = [path.read_text() for path in out.iterdir()]
    assert written == [f"[{HEIGHT}, {WIDTH}, 3]"] * len(NAMES)
