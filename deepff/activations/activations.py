"""A, the activations of one layer for an image set."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepff.activations.feature_source import FeatureSource
from deepff.errors import InputError
from deepff.images.image_files import ImageFile
from deepff.images.image_set import Origin, SetImage, as_it_was, read_pixels
from deepff.layers.layer import Extent


@dataclass(frozen=True)
class ImageRecord:
    """An image of the set."""

    name: str  # in the set, a POSIX path
    origin: Origin
    size: tuple[int, int]  # (H, W) in pixels, upright
    grid: tuple[int, int]  # (h, w) of the layer on it, in cells
    digest: str | None = None  # SHA-256 of the file, known when activations are cached
    stretch: bool = False  # as for :func:`deepff.images.reading.read_picture`
    extent: Extent | None = None  # what the grid covers; None for the whole image

    @property
    def path(self) -> Path | None:
        """The file that it was read from; None for other origins."""
        return self.origin if isinstance(self.origin, Path) else None

    @property
    def item(self) -> SetImage:
        """The image as :func:`deepff.discover` takes it; raises InputError if it is gone."""
        if self.origin is None:
            raise InputError(
                f"the image {self.name} did not come from a file, so it cannot be read again; load "
                "the result with images=..."
            )
        if isinstance(self.origin, PathLike):
            return ImageFile(self.origin, self.name, self.digest)
        return replace(self.origin, name=self.name)

    def read(self, min_longest_side: int | None = None) -> np.ndarray:
        """The image's pixels: :func:`deepff.images.image_set.read_pixels`."""
        return read_pixels(self.unchanged_origin(), min_longest_side, self.stretch)

    def unchanged_origin(self) -> Origin:
        """The origin; raises UnreadableImageError if it is another file by now."""
        return as_it_was(self.origin, self.digest)

    @property
    def n_cells(self) -> int:
        """The number of rows that the image has in A."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True, repr=False)
class Activations:
    """A, the activations of one layer for an image set; its rows are image by image, row-major."""

    images: list[ImageRecord]
    # (rows of the block, c) each, float32: one in memory, or parts of a memory-mapped file.
    blocks: list[Tensor]
    source: FeatureSource | None = None  # what gave them, where that is known

    def __repr__(self) -> str:
        n_rows = sum(map(len, self.blocks))
        return f"<Activations of {len(self.images)} images, {n_rows} × {self.channels}>"

    @property
    def channels(self) -> int:
        """c."""
        return self.blocks[0].shape[1]

    @property
    def rows(self) -> Tensor:
        """The whole of A as one tensor, (rows, c); a copy if there are several blocks."""
        return self.blocks[0] if len(self.blocks) == 1 else torch.cat(self.blocks)

    def restricted(self, is_kept: Sequence[bool]) -> "Activations":
        """A of some of the images, without copying."""
        every = zip(self.images, self.image_rows, is_kept, strict=True)
        kept = [(image, rows) for image, rows, is_kept_image in every if is_kept_image]
        blocks = [rows for _, rows in kept] or [self.blocks[0][:0]]
        return replace(self, images=[image for image, _ in kept], blocks=blocks)

    @cached_property
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


def sources_of(activations: Sequence[Activations]) -> tuple[FeatureSource, ...]:
    """The sources of activations that a network gave."""
    return tuple(layer.source for layer in activations if layer.source is not None)
