"""Activations on disk, keyed by image content, that an interrupted run resumes."""

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.features.activations import ImageRecord
from deepff.features.source import FeatureSource

SCHEMA = """
CREATE TABLE IF NOT EXISTS images (
    digest TEXT PRIMARY KEY,
    first_row INTEGER NOT NULL,
    n_cells INTEGER NOT NULL,
    done INTEGER NOT NULL DEFAULT 0
)
"""


class ActivationCache:
    """Rows of one network, layer and size in one memory-mapped file, each image's found by content.

    ``<folder>/<model>-<layer>-<size>-<digest of the source>/`` holds ``activations.f32``, rows of
    c float32 values without a header, ``index.sqlite``, which says where each image's rows are and
    whether they are written, and ``source.json``. An image's place is reserved before it is
    written and marked only afterwards, so a killed run loses the batch it was in and nothing else,
    and the resumed run lays the rows as an uninterrupted one would.

    Parameters
    ----------
    folder : path
        Where caches of all sources are kept; made if it is not there.
    source : FeatureSource
        What the activations are of.
    """

    def __init__(self, folder: str | Path, source: FeatureSource) -> None:
        description = json.dumps(asdict(source), sort_keys=True)
        digest = hashlib.sha256(description.encode()).hexdigest()[:16]
        readable = re.sub(r"[^\w.]+", "_", f"{source.model}-{source.layer}-{source.size}")
        self.folder = Path(folder) / f"{readable}-{digest}"
        self._channels = source.channels
        self._data = self.folder / "activations.f32"
        with self._disk_errors():
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "source.json").write_text(description)
            self._data.touch()
            self._index = sqlite3.connect(self.folder / "index.sqlite", timeout=60)
            with self._index:
                self._index.execute(SCHEMA)
            self._done = {
                row[0] for row in self._index.execute("SELECT digest FROM images WHERE done")
            }

    def reserve(self, images: Sequence[ImageRecord]) -> None:
        """Give each image that has none a place for its rows, in order."""
        with self._disk_errors(), self._index:
            self._index.execute("BEGIN IMMEDIATE")
            query = "SELECT COALESCE(MAX(first_row + n_cells), 0) FROM images"
            next_row = self._index.execute(query).fetchone()[0]
            for image in images:
                place = (_key(image), next_row, image.n_cells)
                insert = (
                    "INSERT OR IGNORE INTO images (digest, first_row, n_cells) VALUES (?, ?, ?)"
                )
                if self._index.execute(insert, place).rowcount:
                    next_row += image.n_cells
            self._first_rows = dict(self._index.execute("SELECT digest, first_row FROM images"))

    def holds(self, image: ImageRecord) -> bool:
        """Whether the image's rows are written."""
        return _key(image) in self._done

    def write(self, images: Sequence[ImageRecord], rows: Tensor) -> None:
        """Write the rows of images, (images, cells, c), and mark them written."""
        row_bytes = 4 * self._channels
        with self._disk_errors():
            with open(self._data, "r+b") as file:
                for image, values in zip(images, rows.float().cpu().numpy(), strict=True):
                    file.seek(self._first_rows[_key(image)] * row_bytes)
                    file.write(np.ascontiguousarray(values).data)
            digests = [_key(image) for image in images]
            with self._index:
                mark = "UPDATE images SET done = 1 WHERE digest = ?"
                self._index.executemany(mark, [(digest,) for digest in digests])
        self._done.update(digests)

    def blocks(self, images: Sequence[ImageRecord]) -> list[Tensor]:
        """The rows of images in their order, as few memory-mapped blocks as their places allow."""
        if not images:
            return [torch.empty(0, self._channels)]
        n_rows = self._data.stat().st_size // (4 * self._channels)
        # mode "c": copy-on-write, so that nothing done to the tensor reaches the file
        mapped = np.memmap(self._data, np.float32, mode="c", shape=(n_rows, self._channels))
        rows = torch.from_numpy(mapped)
        spans: list[list[int]] = []
        for image in images:
            first = self._first_rows[_key(image)]
            if spans and spans[-1][1] == first:
                spans[-1][1] += image.n_cells
            else:
                spans.append([first, first + image.n_cells])
        return [rows[first:last] for first, last in spans]

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InputError(
                f"the activation cache {self.folder} cannot be written ({reason}); what it holds "
                "is kept, so a rerun resumes once that is mended, or choose another folder"
            ) from error


def _key(image: ImageRecord) -> str:
    """What the image is found by: its content, or in a cache of one set alone its name."""
    return image.digest or image.name
