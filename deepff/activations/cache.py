"""Where activations are kept: in memory, or in a cache on disk that an interrupted run resumes."""

import hashlib
import json
import math
import os
import re
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepff.activations.activations import FeatureSource, ImageRecord
from deepff.errors import InputError
from deepff.runtime.files import reserve_space
from deepff.runtime.parallel import reading_threads

SCHEMA = """
CREATE TABLE IF NOT EXISTS images (
    digest TEXT PRIMARY KEY,
    first_row INTEGER NOT NULL,
    n_cells INTEGER NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    checksum INTEGER
)
"""
ENTRIES = "SELECT * FROM images"  # in the order of the columns; older caches have no checksum

SAMPLED_BYTES = 2**28  # read when a result is opened, to check that its cache is still whole


@dataclass(frozen=True)
class _Entry:
    """Where the rows of an image are; the CRC-32 of their bytes once they are written."""

    first_row: int
    n_cells: int
    is_done: int
    checksum: int | None = None

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.first_row + self.n_cells


class ActivationCache:
    """Rows of one source in a memory-mapped file, by the images' content, with checksums."""

    def __init__(self, folder: str | Path, source: FeatureSource) -> None:
        # What values depend on, without fields at their default, which older caches lack.
        values = asdict(replace(source, centers=None))
        used = {f.name: values[f.name] for f in fields(source) if values[f.name] != f.default}
        self._description = json.dumps(used, sort_keys=True)
        digest = hashlib.sha256(self._description.encode()).hexdigest()[:16]
        readable = re.sub(r"[^\w.]+", "_", f"{source.model}-{source.layer}-{source.size}")
        self.folder = Path(folder) / f"{readable}-{digest}"
        self._channels = source.channels
        self._row_bytes = 4 * source.channels
        self._data = self.folder / "activations.f32"
        self._entries: dict[str, _Entry] = {}
        self._held: set[str] = set()
        self._index: sqlite3.Connection | None = None

    def reserve(self, images: Sequence[ImageRecord]) -> None:
        """Reserve rows for each image that has none, in order, and check those written before.
        Raises InputError if the cache cannot be written, or the disk has no room for the rows."""
        with self._disk_errors():
            if self._index is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / "source.json").write_text(self._description)
                self._data.touch()
                self._index = _opened_index(self.folder / "index.sqlite")
            with self._index:
                self._index.execute("BEGIN IMMEDIATE")
                self._entries = _entries(self._index)
                self._held |= self._sound(images)
                self._lay_out(images, self._index)
                with open(self._data, "r+b") as file:
                    reserve_space(file, self._n_rows() * self._row_bytes)

    def _n_rows(self) -> int:
        return max((entry.end for entry in self._entries.values()), default=0)

    def _lay_out(self, images: Sequence[ImageRecord], index: sqlite3.Connection) -> None:
        next_row = self._n_rows()
        for image in images:
            entry = self._entries.get(_key(image))
            if entry is None or entry.n_cells != image.n_cells:
                entry = _Entry(next_row, image.n_cells, False)
                next_row += image.n_cells
            elif not entry.is_done or _key(image) in self._held:
                continue
            self._entries[_key(image)] = entry
            index.execute(
                "INSERT OR REPLACE INTO images (digest, first_row, n_cells) VALUES (?, ?, ?)",
                (_key(image), entry.first_row, entry.n_cells),
            )

    def find(self, images: Sequence[ImageRecord]) -> list[Tensor] | None:
        """The `blocks` of a cache that is only read; None if it does not hold all of them. It
        checks lengths, and the checksums of about 256 MiB of the rows, spread over the set."""
        index = self.folder / "index.sqlite"
        try:
            address = f"{index.resolve().as_uri()}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, timeout=60)) as connection:
                self._entries = _entries(connection)
            n_bytes = self._row_bytes * sum(image.n_cells for image in images)
            sampled = images[:: max(1, math.ceil(n_bytes / SAMPLED_BYTES))]
            whole = all(self._is_inside(image) for image in images)
            if not whole or len(self._sound(sampled)) < len({_key(image) for image in sampled}):
                return None
            return self.blocks(images)
        except (OSError, sqlite3.Error):
            return None

    def holds(self, image: ImageRecord) -> bool:
        """Whether the image's rows are written."""
        return _key(image) in self._held

    def write(self, images: Sequence[ImageRecord], rows: Tensor) -> None:
        """Write the rows of images, (images, cells, c), and mark them written."""
        checksums = {}
        with self._disk_errors():
            with open(self._data, "r+b") as file:
                for image, values in zip(images, rows.float().cpu().numpy(), strict=True):
                    data = np.ascontiguousarray(values).data.cast("B")
                    file.seek(self._entries[_key(image)].first_row * self._row_bytes)
                    file.write(data)
                    checksums[_key(image)] = zlib.crc32(data)
            assert self._index is not None
            with self._index:
                mark = "UPDATE images SET done = 1, checksum = ? WHERE digest = ?"
                self._index.executemany(mark, [(c, digest) for digest, c in checksums.items()])
        self._held.update(checksums)

    def blocks(self, images: Sequence[ImageRecord]) -> list[Tensor]:
        """The rows of images in their order, as few memory-mapped blocks as possible."""
        if not images:
            return [torch.empty(0, self._channels)]
        rows = torch.from_numpy(self._mapped())
        spans: list[list[int]] = []
        for image in images:
            first = self._entries[_key(image)].first_row
            if spans and spans[-1][1] == first:
                spans[-1][1] += image.n_cells
            else:
                spans.append([first, first + image.n_cells])
        return [rows[first:last] for first, last in spans]

    def _mapped(self) -> np.memmap:
        n_rows = os.path.getsize(self._data) // self._row_bytes
        # mode "c": copy-on-write, so that nothing done to the tensor reaches the file
        return np.memmap(self._data, np.float32, mode="c", shape=(n_rows, self._channels))

    def _is_inside(self, image: ImageRecord) -> bool:
        """Whether the rows are marked written and within the file's present length."""
        entry = self._entries.get(_key(image))
        if entry is None or not entry.is_done or entry.n_cells != image.n_cells:
            return False
        return entry.end * self._row_bytes <= os.path.getsize(self._data)

    def _sound(self, images: Sequence[ImageRecord]) -> set[str]:
        """The keys of the images whose rows are in the file as they were written."""
        keys = list({_key(image): None for image in images if self._is_inside(image)})
        if not keys:
            return set()
        mapped = self._mapped()

        def is_sound(key: str) -> bool:
            entry = self._entries[key]
            rows = mapped[entry.first_row : entry.end]
            return zlib.crc32(rows.data.cast("B")) == entry.checksum

        with reading_threads() as pool:
            return {k for k, sound in zip(keys, pool.map(is_sound, keys), strict=True) if sound}

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InputError(
                f"cannot write to the activation cache {self.folder} ({reason}); fix this and run "
                "again to resume, or choose another folder"
            ) from error


def _opened_index(path: Path) -> sqlite3.Connection:
    """The index, created if it is missing, and replaced if it is not a database any more."""
    index = sqlite3.connect(path, timeout=60)
    try:
        with index:
            index.execute(SCHEMA)
            if "checksum" not in {row[1] for row in index.execute("PRAGMA table_info(images)")}:
                index.execute("ALTER TABLE images ADD COLUMN checksum INTEGER")
            index.execute(f"{ENTRIES} LIMIT 1")
    except sqlite3.OperationalError:  # locked, read-only or full: nothing is wrong with it
        raise
    except sqlite3.DatabaseError:
        index.close()
        path.unlink()
        return _opened_index(path)
    return index


def _entries(index: sqlite3.Connection) -> dict[str, _Entry]:
    return {key: _Entry(*values) for key, *values in index.execute(ENTRIES)}


def _key(image: ImageRecord) -> str:
    """An image's key: its content, or in a temporary cache its name."""
    return image.digest or image.name


class InMemory:
    """Activations in one tensor, on the network's device."""

    def __init__(self, n_rows: int, channels: int, device: torch.device) -> None:
        self._held: set[str] = set()
        self._first_rows: dict[str, int] = {}
        self._n_reserved = 0
        try:
            self._rows = torch.empty(n_rows, channels, device=device)
        except RuntimeError as error:
            gigabytes = 4 * n_rows * channels / 1e9
            raise InputError(
                f"{gigabytes:.1f} GB of activations do not fit in the memory of {device}; keep "
                "them on disk with a cache folder"
            ) from error

    def reserve(self, images: Sequence[ImageRecord]) -> None:
        """Lay out the rows of images after those reserved before."""
        for image in images:
            self._first_rows[image.name] = self._n_reserved
            self._n_reserved += image.n_cells

    def holds(self, image: ImageRecord) -> bool:
        """Whether the image's rows are written."""
        return image.name in self._held

    def write(self, images: Sequence[ImageRecord], rows: Tensor) -> None:
        """Keep the rows of images, (images, cells, c)."""
        for image, values in zip(images, rows, strict=True):
            first = self._first_rows[image.name]
            self._rows[first : first + image.n_cells] = values
        self._held.update(image.name for image in images)

    def blocks(self, images: Sequence[ImageRecord]) -> list[Tensor]:
        """The rows of images in their order, moved together where skipped images left gaps."""
        n_rows = 0
        for image in images:
            first = self._first_rows[image.name]
            if first != n_rows:
                moved = self._rows[first : first + image.n_cells].clone()
                self._rows[n_rows : n_rows + image.n_cells] = moved
            n_rows += image.n_cells
        return [self._rows[:n_rows]]


Store = InMemory | ActivationCache
