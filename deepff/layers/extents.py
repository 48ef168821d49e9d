"""Where the cells of a layer look, and what of an image their grid therefore lies on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# (top, bottom) and (left, right) of a grid, as shares of the image's height and width.
Extent = tuple[tuple[float, float], tuple[float, float]]

# By how many standard errors an offset must be more than what share of a cell beside the centred
# one before maps are moved.
_ERRORS = 3
SHARE = 0.1


@dataclass(frozen=True)
class Centers:
    """Where a layer's cells look: cell i at offset + i · spacing, in pixels of the network's input.

    Attributes
    ----------
    offset : (float, float)
        Down and across, as :func:`deepff.layers.centers.with_centers` measures it.
    offset_error : (float, float)
        Its standard errors.
    spacing : float
        The same down and across. It has no error: every cell has the same weights, so this is the
        network's geometry whatever these are.
    centred : float
        The offset, down and across, of cells that lie evenly on the input: spacing / 2 where each
        has pixels of its own, more where windows stay inside the input.
    """

    offset: tuple[float, float]
    offset_error: tuple[float, float]
    spacing: float
    centred: float

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Centers:
        """The inverse of :func:`dataclasses.asdict`, also after a round trip through JSON."""
        down, across = map(float, fields["offset"])
        error_down, error_across = map(float, fields["offset_error"])
        spacing, centred = float(fields["spacing"]), float(fields["centred"])
        return cls((down, across), (error_down, error_across), spacing, centred)

    @property
    def drawn_offset(self) -> tuple[float, float]:
        """The offset down and across by which maps are drawn.

        The measured one where that is clearly not the centred one: three standard errors more than
        a tenth of a cell beside it.
        """
        down, across = (
            value
            if abs(value - self.centred) - _ERRORS * error > SHARE * self.spacing
            else self.centred
            for value, error in zip(self.offset, self.offset_error, strict=True)
        )
        return down, across

    def extent(self, stride: int, shape: tuple[int, int], grid: tuple[int, int]) -> Extent | None:
        """What a grid lies on; None where that is the image, each cell on the pixels it covers.

        Parameters
        ----------
        stride : int
            The layer's.
        shape : (int, int)
            The height and width at which the image goes through the network, in pixels.
        grid : (h, w)
        """
        offset = self.drawn_offset
        if self.spacing == stride and offset == (stride / 2, stride / 2):
            return None
        vertical, horizontal = (
            ((first - self.spacing / 2) / side, (first + (cells - 0.5) * self.spacing) / side)
            for first, side, cells in zip(offset, shape, grid, strict=True)
        )
        return vertical, horizontal


def extent_from(ends: Any) -> Extent | None:
    """An extent as JSON holds it; None where it has none."""
    if ends is None:
        return None
    (top, bottom), (left, right) = ends
    return (top, bottom), (left, right)
