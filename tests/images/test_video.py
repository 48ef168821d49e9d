"""Videos: their frames are images, named by time, as a player shows them."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from deepff.errors import InputError
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_files import find_images, video_frames
from deepff.images.image_set import read_pixels

av = pytest.importorskip("av")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))


def frame(number: int, height: int = 48, width: int = 64) -> np.ndarray:
    """Gray; brighter from frame to frame, with a bright corner at the top left."""
    pixels = np.full((height, width, 3), 40 + 5 * number, np.uint8)
    pixels[: height // 3, : width // 3] = 250
    return pixels


def write(path: Path, times: Iterable[int], aspect: int = 1, codec: str = "mpeg4") -> Path:
    """A video with a frame at each of the times, in 100ths of a second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options={"g": "6"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.bit_rate = 8_000_000
        stream.codec_context.time_base = Fraction(1, 100)
        stream.codec_context.sample_aspect_ratio = Fraction(aspect)
        for number, time in enumerate(times):
            shown = av.VideoFrame.from_ndarray(frame(number), "rgb24")
            shown.pts, shown.time_base = time, Fraction(1, 100)
            container.mux(stream.encode(shown))
        container.mux(stream.encode())
    return path


def numbers(images: list) -> list[int]:
    """The frames' numbers, told by their gray."""
    return [round((int(read_pixels(i.path)[40, 50].mean()) - 40) / 5) for i in images]


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [(".mp4", "mpeg4"), (".mp4", "libx264"), (".mkv", "libx264"), (".webm", "libvpx-vp9")],
)
def test_frames_are_named_by_time_and_read_in_any_order(
    tmp_path: Path, suffix: str, codec: str
) -> None:
    path = write(tmp_path / f"clip{suffix}", range(0, 160, 4), codec=codec)
    images = find_images(path)
    assert len(images) == 40
    assert [image.name for image in images[:3]] == [
        "clip 00:00.00",
        "clip 00:00.04",
        "clip 00:00.08",
    ]
    order = np.random.default_rng(0).permutation(40).tolist()
    assert numbers([images[i] for i in order]) == order


def test_every_so_many_frames_or_so_many_a_second(tmp_path: Path) -> None:
    # 25 frames in the first second, then 5 in the next: a variable frame rate.
    path = write(tmp_path / "clip.mp4", [*range(0, 100, 4), *range(100, 200, 20)])
    assert numbers(video_frames(path, every=10)) == [0, 10, 20]
    by_time = video_frames(path, fps=2)
    assert [image.name for image in by_time] == [
        f"clip 00:0{t}" for t in ("0.00", "0.52", "1.00", "1.60")
    ]
    assert numbers(by_time) == [0, 13, 25, 28]
    with pytest.raises(InputError, match="fps above 0"):
        video_frames(path, fps=0)


def test_frames_are_upright_with_square_pixels(tmp_path: Path) -> None:
    (first, *_) = find_images(write(tmp_path / "wide.mp4", [0, 4], aspect=2))
    assert read_pixels(first.path).shape == (48, 128, 3)
    path = write(tmp_path / "turned.mp4", [0, 4])
    data = path.read_bytes()
    at = data.index(b"tkhd") + 44  # the track's matrix: turn by 90 degrees, clockwise
    turned = b"".join(value.to_bytes(4, signed=True) for value in (0, 65536, 0, -65536, 0, 0))
    path.write_bytes(data[:at] + turned + data[at + len(turned) :])
    (first, *_) = find_images(path)
    pixels = read_pixels(first.path)
    assert pixels.shape == (64, 48, 3)
    assert pixels[:20, -14:].mean() > 230 > 60 > pixels[30:, :].mean()  # the corner, top right now


def test_a_damaged_frame_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mp4", range(0, 48, 4))
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    data[packets[6].pos : packets[6].pos + packets[6].size] = bytes(packets[6].size)
    path.write_bytes(data)
    images = find_images(path)
    assert numbers(images[:6]) == list(range(6))
    with pytest.raises(UnreadableImageError, match="damaged"):
        read_pixels(images[6].path)


def test_what_has_no_pictures_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
        container.mux(stream.encode())
    with pytest.raises(
        InputError, match=r"sound.mp4 cannot be read: it has sound, but no pictures"
    ):
        find_images(path)
    path.write_bytes(b"no video")
    with pytest.raises(InputError, match=r"sound.mp4 cannot be read: "):
        find_images(path)
