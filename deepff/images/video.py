"""A video as an archive of its frames, which are named by their times."""

from bisect import bisect_right
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import av
import numpy as np
from fsspec.archive import AbstractArchiveFileSystem
from PIL import Image

from deepff.images.decoding import UnreadableImageError

_RECENT_BYTES = 2**28  # of decoded frames: threads may ask for them out of order


class VideoFileSystem(AbstractArchiveFileSystem):
    """The frames of a video's first picture track as PNG, upright and with square pixels, as a
    player shows them. Files are named "01:02.04", for one minute and 2.04 seconds."""

    protocol = "video"
    root_marker = ""
    cachable = False

    def __init__(self, fo: Any, **options: Any) -> None:
        super().__init__(**options)
        self.fo = fo
        self._container = av.open(fo)
        if not self._container.streams.video:
            raise UnreadableImageError("it has sound, but no pictures")
        self._stream = self._container.streams.video[0]
        packets = [
            (packet.pts, packet.is_keyframe)
            for packet in self._container.demux(self._stream)
            if packet.pts is not None and not packet.is_discard
        ]
        times = sorted({pts for pts, _ in packets})
        if not times:
            raise UnreadableImageError("it has no pictures")
        self._keys = sorted({pts for pts, is_key in packets if is_key}) or times[:1]
        names = _names([float((pts - times[0]) * self._stream.time_base) for pts in times])
        width, height = self._stream.width, self._stream.height
        facts = {"type": "file", "size": 3 * width * height, "compress_size": 3 * width * height}
        each = zip(names, times, strict=True)
        self.dir_cache = {name: {"name": name, "pts": pts, **facts} for name, pts in each}
        self._n_recent = max(2, _RECENT_BYTES // facts["size"])
        self._recent: dict[int, av.VideoFrame] = {}
        self._last: int | None = None  # the frame that was decoded last
        self._frames: Iterator[av.VideoFrame] = iter(())

    def _get_dirs(self) -> None:
        pass

    def _open(self, path: str, mode: str = "rb", **_: Any) -> BytesIO:
        frame = self._frame(self.dir_cache[path]["pts"])
        if frame.is_corrupt:
            raise UnreadableImageError("damaged")
        aspect = self._stream.sample_aspect_ratio or 1
        shown = frame.reformat(round(frame.width * aspect), frame.height, "rgb24")
        file = BytesIO()
        pixels = np.rot90(shown.to_ndarray(), frame.rotation // 90)
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        file.seek(0)
        return file

    def _frame(self, pts: int) -> av.VideoFrame:
        """The frame of that time: decoded from the last one on, or from a key frame before it."""
        key = self._keys[max(0, bisect_right(self._keys, pts) - 1)]
        if pts not in self._recent and (self._last is None or not key <= self._last < pts):
            self._container.seek(key, stream=self._stream)
            self._frames = self._decoded()
        while pts not in self._recent:
            frame = next(self._frames, None)
            if frame is None or frame.pts is None:
                raise UnreadableImageError("damaged")
            self._last = frame.pts
            self._recent[frame.pts] = frame
            while len(self._recent) > self._n_recent:
                del self._recent[next(iter(self._recent))]
            if frame.pts > pts:
                raise UnreadableImageError("damaged")
        return self._recent[pts]

    def _decoded(self) -> Iterator[av.VideoFrame]:
        for packet in self._container.demux(self._stream):
            try:
                yield from packet.decode()
            except av.FFmpegError:  # which leaves the frame out
                continue


def _names(seconds: list[float]) -> list[str]:
    """Times as "01:02.04", with more digits where two are equal."""
    for unit, digits in ((10**2, 2), (10**6, 6)):
        parts = [divmod(round(each * unit), 60 * unit) for each in seconds]
        names = [f"{m:02d}:{rest // unit:02d}.{rest % unit:0{digits}d}" for m, rest in parts]
        if len(set(names)) == len(names):
            break
    return names
