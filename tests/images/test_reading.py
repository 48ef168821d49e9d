"""Reading images as a viewer shows them, at full and reduced scale, and resizing them."""

import struct
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_images import (
    BLACK,
    BLUE,
    GREEN,
    RED,
    WHITE,
    YELLOW,
    corners,
    photograph,
    png,
    quadrants,
    save,
)
from PIL import Image

from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import origin_digest, read_pixels
from deepff.images.reading import image_size, resize, resized_shape


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
def test_every_kind_of_file_shows_its_colors_where_they_belong(
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
def test_16_bit_gray_is_scaled_not_clipped(
    tmp_path: Path, value: int, shown: int, suffix: str
) -> None:
    pixels = np.full((16, 16), value, np.uint16)
    pixels[0] = 65535 - value
    path = save(Image.fromarray(pixels), tmp_path / f"a.{suffix}")
    image = read_pixels(path)
    assert (image[1:] == shown).all()
    assert (image[0] == 255 - shown).all()


@pytest.mark.parametrize(
    ("color_type", "pixel", "shown"),
    [
        (2, (65535, 32768, 0), (255, 128, 0)),  # RGB
        (6, (65535, 32768, 0, 65535), (255, 128, 0)),  # RGBA, opaque
        (6, (65535, 32768, 0, 0), WHITE),  # RGBA, transparent
        (4, (32768, 65535), (128, 128, 128)),  # gray and alpha
        (4, (32768, 0), WHITE),
    ],
)
def test_16_bit_png_of_every_color_type(
    tmp_path: Path, color_type: int, pixel: tuple[int, ...], shown: tuple[int, int, int]
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(16, color_type, [struct.pack(f">{len(pixel)}H", *pixel) * 4] * 4))
    assert (read_pixels(path) == shown).all()


def test_one_gray_value_marked_transparent_is_white(tmp_path: Path) -> None:
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
    assert read_pixels(save(la, tmp_path / "la.png"))[0, :, 0].tolist() == [0, 255, 255]

    palette = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    expected = [[255, 0, 0], [255, 255, 255], [0, 0, 255]]
    for name in ("p.png", "p.gif"):
        path = save(palette, tmp_path / name, transparency=1)
        assert read_pixels(path)[0].tolist() == expected
    path = save(palette, tmp_path / "table.png", transparency=bytes([255, 0, 255]))
    assert read_pixels(path)[0].tolist() == expected


@pytest.mark.parametrize("suffix", ["png", "tif", "bmp", "gif"])
def test_gray_palette_and_one_bit(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    save(Image.fromarray(np.array([[0, 100, 255]], np.uint8)), path)
    assert read_pixels(path)[0].tolist() == [[0] * 3, [100] * 3, [255] * 3]
    save(Image.fromarray(np.array([[True, False, True]])), path)
    assert read_pixels(path)[0].tolist() == [[255] * 3, [0] * 3, [255] * 3]
    palette = Image.fromarray(np.array([[1, 0]], np.uint8), "P")
    palette.putpalette([10, 20, 30, 40, 50, 60])
    assert read_pixels(save(palette, path))[0].tolist() == [[40, 50, 60], [10, 20, 30]]


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


def test_a_files_digest(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")  # the example of FIPS 180-2
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert origin_digest(tmp_path / "a") == digest
