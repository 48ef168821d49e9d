"""Files that cannot be read: each is refused with a reason, and nothing else happens."""

import contextlib
import math
import os
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_images import encoded, header_only_png, photograph, save
from PIL import Image

from deepff.errors import InputError
from deepff.images.decoding import MAX_PIXELS, UnreadableImageError
from deepff.images.image_files import find_images
from deepff.images.image_set import read_pixels
from deepff.images.reading import image_size


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
    "text": (b"not a picture at all, just words", "not an image in a format that is read"),
    "one byte": (b"\xff", "not an image in a format that is read"),
    "zeros": (bytes(5000), "not an image in a format that is read"),
    "a page": (
        b"<!DOCTYPE html><html><body>404</body></html>",
        "not an image in a format that is read",
    ),
    "postscript": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "not an image in a format that is read",
    ),
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
    for position, value in changes:
        data[int(position**3 * len(data))] = value  # most of them in the header
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
