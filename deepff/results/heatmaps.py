"""Coefficients back to maps: one heat map per factor and image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Literal, overload

import torch
from torch import Tensor

from deepff.activations.activations import ImageRecord
from deepff.errors import InputError
from deepff.layers.layer import Extent
from deepff.results.sampling import Band, bands, covering, sampled


class HeatMaps(Sequence[Tensor]):
    """The heat maps of one factorization, image by image, upsampled when they are asked for.

    Parameters
    ----------
    coefficients : Tensor, shape (rows, k)
        H. Rows are ordered image by image, row-major, so rows = Σ hᵢ·wᵢ.
    grids : sequence of (h, w)
        The layer's grid for each image, in cells.
    image_sizes : sequence of (H, W)
        Each image's size, in pixels.
    scale : Tensor, shape (k,), optional
        What counts as full strength. By default the largest |value| of each factor over the set,
        and 1 for a factor that is zero everywhere. Bilinear values never exceed it.
    extents : sequence of Extent or None, optional
        What part of its image each grid covers; None is the whole image.

    Examples
    --------
    >>> import torch
    >>> from deepff import HeatMaps
    >>> H = torch.eye(6)[:, :1]  # one factor, on the first of two rows of three cells
    >>> maps = HeatMaps(H, grids=[(2, 3)], image_sizes=[(40, 60)])
    >>> maps.grid(0)
    tensor([[[1., 0., 0.],
             [0., 0., 0.]]])
    >>> maps[0].shape
    torch.Size([1, 40, 60])
    """

    def __init__(
        self,
        coefficients: Tensor,
        grids: Sequence[tuple[int, int]],
        image_sizes: Sequence[tuple[int, int]],
        scale: Tensor | None = None,
        extents: Sequence[Extent | None] | None = None,
    ) -> None:
        offsets = [0, *accumulate(height * width for height, width in grids)]
        n_extents = len(grids) if extents is None else len(extents)
        if not len(grids) == len(image_sizes) == n_extents or offsets[-1] != len(coefficients):
            raise InputError(
                f"{len(coefficients)} rows of coefficients do not fit {len(grids)} grids with "
                f"{offsets[-1]} cells and {len(image_sizes)} image sizes"
            )
        self.coefficients = coefficients
        self.grids = list(grids)
        self.image_sizes = list(image_sizes)
        self.extents: list[Extent | None] = list(extents or [None] * len(self.grids))
        self._row_slices = [slice(first, last) for first, last in pairwise(offsets)]
        self.scale = _nowhere_zero(
            coefficients.abs().amax(0) if scale is None else scale.to(coefficients)
        )
        self.signed = len(coefficients) > 0 and bool(coefficients.amin() < 0)

    def __repr__(self) -> str:
        n_rows, k = self.coefficients.shape
        return f"<HeatMaps of {len(self)} images, {k} factors, {n_rows} cells>"

    def _repr_html_(self) -> str:
        from deepff.images.painting import maps_html

        shown = range(min(len(self), 8))
        return maps_html([self.normalized(index) for index in shown])

    @classmethod
    def of_images(
        cls, coefficients: Tensor, images: Sequence[ImageRecord], scale: Tensor | None = None
    ) -> HeatMaps:
        """The heat maps of H, (rows, k), over the images that its rows are ordered by."""
        grids, sizes = [image.grid for image in images], [image.size for image in images]
        return cls(coefficients, grids, sizes, scale, [image.extent for image in images])

    def replace(
        self,
        *,
        coefficients: Tensor | None = None,
        image_sizes: Sequence[tuple[int, int]] | None = None,
        scale: Tensor | None = None,
    ) -> HeatMaps:
        """A copy on the same grids: what is not given stays, the extents and the scale too."""
        return HeatMaps(
            self.coefficients if coefficients is None else coefficients,
            self.grids,
            self.image_sizes if image_sizes is None else image_sizes,
            self.scale if scale is None else scale,
            self.extents,
        )

    def extended(self, others: HeatMaps) -> HeatMaps:
        """These and then the maps of other images, all at the scale of the others."""
        return HeatMaps(
            torch.cat([self.coefficients, others.coefficients.to(self.coefficients)]),
            [*self.grids, *others.grids],
            [*self.image_sizes, *others.image_sizes],
            others.scale,
            [*self.extents, *others.extents],
        )

    def alone(self, index: int) -> HeatMaps:
        """The maps of image ``index`` as those of a set of one, at the scale of this set."""
        return HeatMaps(
            self.coefficients[self._row_slices[index]],
            [self.grids[index]],
            [self.image_sizes[index]],
            self.scale,
            [self.extents[index]],
        )

    def factor(self, index: int) -> HeatMaps:
        """The maps of one factor."""
        one = slice(index, index + 1)
        return self.replace(coefficients=self.coefficients[:, one], scale=self.scale[one])

    @property
    def n_factors(self) -> int:
        """The number of factors, k."""
        return self.coefficients.shape[1]

    def __len__(self) -> int:
        return len(self.grids)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        """The maps of image ``index`` at its size: float32 (k, H, W)."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.upsampled(index, self.image_sizes[index])

    def rows(self, images: slice) -> Tensor:
        """The coefficients of consecutive images: (rows, k)."""
        slices = self._row_slices[images]
        first, last = (slices[0].start, slices[-1].stop) if slices else (0, 0)
        return self.coefficients[first:last]

    def grid(self, index: int) -> Tensor:
        """The maps of image ``index`` on the layer's grid: (k, h, w)."""
        rows = self.coefficients[self._row_slices[index]]
        return rows.T.reshape(self.n_factors, *self.grids[index])

    def upsampled(self, index: int, shape: tuple[int, int], onto: Extent | None = None) -> Tensor:
        """The maps of image ``index``, or of a part of it, at ``shape`` pixels, (k, *shape):
        bilinear between receptive-field centers, those of the pixels that the cells cover unless
        `extents` say otherwise."""
        return sampled(self.grid(index), shape, self.extents[index], onto)

    def covering(self, index: int) -> Tensor:
        """The maps of image ``index`` on a grid that covers the image: the layer's grid if it does,
        else a finer one."""
        return covering(self.grid(index), self.extents[index])

    def bands(self, index: int) -> Iterator[Band]:
        """The maps of image ``index`` at its size, some rows at a time."""
        return bands(self.grid(index), self.image_sizes[index], self.extents[index])

    def normalized(
        self,
        index: int,
        shape: tuple[int, int] | None = None,
        per: Literal["set", "image"] = "set",
        onto: Extent | None = None,
    ) -> Tensor:
        """The maps of image ``index``, (k, *shape), scaled to [0, 1], or [-1, 1] if signed.
        ``shape`` is by default that of :meth:`covering`. Each factor is divided by its largest
        |value| over the "set", which keeps images comparable, or over this "image", which shows
        weak responses. ``onto`` is the part of the image that ``shape`` covers, by default all."""
        if per == "set":
            scale = self.scale
        elif per == "image":
            scale = _nowhere_zero(self.grid(index).abs().amax((1, 2)))
        else:
            raise InputError(f'per must be "set" or "image", not {per!r}')
        maps = self.covering(index) if shape is None else self.upsampled(index, shape, onto)
        return (maps / scale[:, None, None]).clamp(-1, 1)


def _nowhere_zero(largest: Tensor) -> Tensor:
    return torch.where(largest > 0, largest, torch.ones_like(largest))
