"""Gaussian sums over the pixels of an image, by their distance and their colors' difference."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

_MOST_COLORS = 256  # of a palette by Pillow
_NODES_PER_SIGMA = 1.5
_LEAST_STEP = 4  # pixels
_MOST_NODES = 2**23  # that are filtered at once


class BilateralGrid:
    """Sums over pixels, weighted by exp(−|xᵢ − xⱼ|² / 2σₓ² − |cᵢ − cⱼ|² / 2σ_c²). A bilateral grid
    (Chen, Paris & Durand, SIGGRAPH 2007) whose colors are a palette of the image.
    ``position_sigma`` σₓ is in pixels, ``color_sigma`` σ_c in steps of 255."""

    # Means over pixels that are near and look the same are right to 0.03 on photographs, because of
    # the steps of the palette, about 4 of 255.

    def __init__(self, images: Tensor, position_sigma: float, color_sigma: float) -> None:
        device = images.device
        self._nodes = _nodes(images.shape[2], images.shape[3], position_sigma, device)
        palettes = [_palette(image) for image in images.permute(0, 2, 3, 1).cpu()]
        n_colors = max(len(palette.colors) for palette in palettes)
        self._color_kernels = torch.zeros(len(images), n_colors, n_colors, device=device)
        for kernel, palette in zip(self._color_kernels, palettes, strict=True):
            n = len(palette.colors)
            # In place of the pixels', the palette's colors blur as well: by their variance, twice.
            narrower = math.sqrt(max(color_sigma**2 - 2 * palette.variance, color_sigma**2 / 2))
            # Not torch.cdist, which rounds small distances away.
            colors = palette.colors
            distances = torch.linalg.vector_norm(colors[:, None] - colors, dim=2)
            kernel[:n, :n] = _gaussian(distances, narrower)
        self._n_nodes = len(images) * n_colors * self._nodes.n
        small = self._n_nodes <= torch.iinfo(torch.int32).max  # half the memory
        color = torch.stack([i * n_colors + p.of_pixels for i, p in enumerate(palettes)])
        color = color.to(device, torch.int32 if small else torch.int64)
        self._first = (color * self._nodes.n + self._nodes.first).flatten()

    @property
    def n_bytes(self) -> int:
        """What it takes in memory, without what all images of a shape share."""
        return self._color_kernels.nbytes + self._first.nbytes

    def filter(self, values: Tensor) -> Tensor:
        """The weighted sums of all pixels' values (B, labels, H, W) at each, up to a factor."""
        at_once = max(1, _MOST_NODES // self._n_nodes)
        return torch.cat([self._filter(some) for some in values.split(at_once, dim=1)], dim=1)

    def _filter(self, values: Tensor) -> Tensor:
        rows, columns = self._nodes.rows, self._nodes.columns
        n_images, n_colors, _ = self._color_kernels.shape
        by_label = values.transpose(0, 1)
        on_grid = values.new_zeros(len(by_label), self._n_nodes)
        first = self._first.long()  # 32 bits are slow here, on a CPU
        for offset, share in zip(self._nodes.offsets, self._nodes.shares, strict=True):
            on_grid[:, offset:].index_add_(1, first, (share * by_label).flatten(1))
        # Products of two matrices are faster than those of many small ones.
        along_rows = on_grid.view(-1, len(rows), len(columns)) @ columns
        along_both = (along_rows.mT.contiguous() @ rows).mT.reshape(
            -1, n_images, n_colors, self._nodes.n
        )
        blurred = (self._color_kernels @ along_both).view_as(on_grid)
        read = torch.zeros_like(by_label)
        for offset, share in zip(self._nodes.offsets, self._nodes.shares, strict=True):
            nodes = blurred[:, offset:].index_select(1, self._first)
            read.addcmul_(share, nodes.view_as(by_label))
        return read.transpose(0, 1)


class _Nodes(NamedTuple):
    """The grid's nodes of one color."""

    first: Tensor  # (H, W) int32: the upper left one of the four around each pixel
    offsets: tuple[int, ...]  # how far these four come after the first
    shares: Tensor  # (4, H, W): what each of them has of the pixel
    rows: Tensor  # (h, h), the Gaussian of the nodes' distances
    columns: Tensor  # (w, w)

    @property
    def n(self) -> int:
        return len(self.rows) * len(self.columns)


@lru_cache(maxsize=16)
def _nodes(height: int, width: int, sigma: float, device: torch.device) -> _Nodes:
    step = sigma / _NODES_PER_SIGMA
    # Sharing and reading between nodes blur too, by a variance of step² / 6 each on the average
    # over a step's pixels. Where these are few, each pixel is a node.
    narrower = math.sqrt(sigma**2 - step**2 / 3)
    if step < _LEAST_STEP:
        step, narrower = 1.0, sigma

    def along(side: int) -> tuple[Tensor, Tensor, Tensor]:
        n_nodes = math.ceil((side - 1) / step) + 2
        position = torch.arange(side, dtype=torch.float64) / step
        first = position.floor()
        nodes = torch.arange(n_nodes, dtype=torch.float64) * step
        beyond = position - first
        shares = torch.stack([1 - beyond, beyond])
        return first.int(), shares, _gaussian(nodes[:, None] - nodes, narrower)

    (row, row_shares, rows), (column, column_shares, columns) = along(height), along(width)
    shares = row_shares[:, None, :, None] * column_shares[:, None]
    return _Nodes(
        (row[:, None] * len(columns) + column).to(device),
        (0, 1, len(columns), len(columns) + 1),
        shares.flatten(0, 1).float().to(device),
        rows.float().to(device),
        columns.float().to(device),
    )


def _gaussian(distances: Tensor, sigma: float) -> Tensor:
    # Products of smaller values are denormal, which a CPU computes 30 times as slowly.
    return (distances / sigma).square().mul(-0.5).clamp_min(-30).exp()


class _Palette(NamedTuple):
    """Colors that stand for those of an image."""

    colors: Tensor  # (n, 3), in steps of 255
    of_pixels: Tensor  # (H, W) int32: each pixel's color
    variance: float  # of the pixels around their colors, the mean over red, green and blue


def _palette(image: Tensor) -> _Palette:
    """The palette of an image, uint8 (H, W, 3)."""
    reduced = Image.fromarray(image.numpy()).quantize(
        _MOST_COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
    )
    colors = torch.tensor(reduced.getpalette(), dtype=torch.float32).view(-1, 3)
    of_pixels = torch.from_numpy(np.asarray(reduced).astype(np.int32))
    # A sixteenth of the pixels is enough to know it.
    some = image[::4, ::4], of_pixels[::4, ::4].long()
    variance = float((some[0] - colors[some[1]]).square().mean())
    return _Palette(colors, of_pixels, variance)
