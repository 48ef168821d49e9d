"""A, the activations of one layer for an image set."""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageRecord:
    """An image of the set.

    Attributes
    ----------
    name : str
        Its name in the set, a POSIX path.
    path : Path
        The file it was read from.
    size : (H, W)
        Its own size in pixels, upright.
    grid : (h, w)
        The layer's grid on it, in cells.
    digest : str or None
        SHA-256 of the file, known when activations are cached.
    """

    name: str
    path: Path
    size: tuple[int, int]
    grid: tuple[int, int]
    digest: str | None = None

    @property
    def n_cells(self) -> int:
        """The number of rows that the image has in A."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True, repr=False)
class Activations:
    """A, the activations of one layer for an image set.

    Attributes
    ----------
    images : list of ImageRecord
        The set in order; the rows of A are ordered image by image, row-major.
    blocks : list of Tensor, each (rows of the block, c)
        A cut into blocks of rows, float32: one tensor in memory, or parts of a memory-mapped file.
    """

    images: list[ImageRecord]
    blocks: list[Tensor]

    def __repr__(self) -> str:
        n_rows, channels = sum(map(len, self.blocks)), self.blocks[0].shape[1]
        return f"<Activations of {len(self.images)} images, {n_rows} × {channels}>"

    @property
    def rows(self) -> Tensor:
        """The whole of A as one tensor, (rows, c); copied where it lies in several blocks."""
        return self.blocks[0] if len(self.blocks) == 1 else torch.cat(self.blocks)

    @property
    def row_slices(self) -> list[slice]:
        """The rows of each image."""
        offsets = [0, *accumulate(image.n_cells for image in self.images)]
        return [slice(first, last) for first, last in pairwise(offsets)]

    @property
    def image_rows(self) -> list[Tensor]:
        """The rows of each image, (cells, c), without copying; blocks hold whole images."""
        images = iter(self.images)
        rows: list[Tensor] = []
        for block in self.blocks:
            first = 0
            while first < len(block):
                last = first + next(images).n_cells
                rows.append(block[first:last])
                first = last
        return rows
