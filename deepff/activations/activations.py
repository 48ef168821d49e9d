"""A, the activations of one layer for an image set."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.images.image_files import ImageFile
from deepff.images.image_set import Origin, SetImage, read_pixels
from deepff.layers.layer import Extent
from deepff.options import Engine


@dataclass(frozen=True)
class ImageRecord:
    """An image of the set.

    Attributes
    ----------
    name : str
        Its name in the set, a POSIX path.
    origin : Path, ImageItem or None
        The file that it was read from, or the item of a sequence; None where that is gone.
    size : (H, W)
        Its own size in pixels, upright.
    grid : (h, w)
        The layer's grid on it, in cells.
    digest : str or None
        SHA-256 of the file, known when activations are cached.
    stretch : bool
        Whether its largest value is read as white, as for
        :func:`deepff.images.reading.read_picture`.
    extent : ((top, bottom), (left, right)) or None
        What the grid lies on, as shares of the image's sides; None where that is the image.
    """

    name: str
    origin: Origin
    size: tuple[int, int]
    grid: tuple[int, int]
    digest: str | None = None
    stretch: bool = False
    extent: Extent | None = None

    @property
    def path(self) -> Path | None:
        """The file that it was read from; None where it was no file."""
        return self.origin if isinstance(self.origin, Path) else None

    @property
    def item(self) -> SetImage:
        """The image as :func:`deepff.discover` takes it.

        Raises
        ------
        InputError
            It was no file, and is gone.
        """
        if self.origin is None:
            raise InputError(
                f"the image {self.name} was no file, so it cannot be read again: load the result "
                "with images=..."
            )
        if isinstance(self.origin, Path):
            return ImageFile(self.origin, self.name)
        return replace(self.origin, name=self.name)

    def read(self, min_longest_side: int | None = None) -> np.ndarray:
        """The image's pixels: :func:`deepff.images.image_set.read_pixels`."""
        return read_pixels(self.origin, min_longest_side, self.stretch)

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
    engine : str
        What ran the network, as a :class:`deepff.activations.feature_source.FeatureSource` has it.
    """

    images: list[ImageRecord]
    blocks: list[Tensor]
    engine: str = Engine.TORCH

    def __repr__(self) -> str:
        n_rows, channels = sum(map(len, self.blocks)), self.blocks[0].shape[1]
        return f"<Activations of {len(self.images)} images, {n_rows} × {channels}>"

    @property
    def channels(self) -> int:
        """c."""
        return self.blocks[0].shape[1]

    @property
    def rows(self) -> Tensor:
        """The whole of A as one tensor, (rows, c); copied where it lies in several blocks."""
        return self.blocks[0] if len(self.blocks) == 1 else torch.cat(self.blocks)

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
