"""A layer of a network, and where on the image its cells are drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deepff.layers.layouts import CHANNELS_FIRST, Layout

SIGNS = "signs"  # after a colon, in the names of layers by sign

# (top, bottom) and (left, right) of a grid, as shares of the image's height and width.
Extent = tuple[tuple[float, float], tuple[float, float]]
WHOLE: Extent = ((0.0, 1.0), (0.0, 1.0))

# Maps move only where an offset is this share of a cell off center, beyond so many standard errors.
SHARE = 0.1
_ERRORS = 3


@dataclass(frozen=True)
class Centers:
    """Receptive-field centers: that of cell i is offset + i · spacing, in pixels of the input.
    Pairs are (down, across); spacing and centred are the same in both directions."""

    offset: tuple[float, float]
    offset_error: tuple[float, float]  # standard errors
    spacing: float  # exact: the network's geometry, whatever its weights are
    # The offset of cells that cover the input evenly: spacing / 2 where windows do not overlap,
    # more where they stay inside the input.
    centred: float

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Centers":
        """The inverse of :func:`dataclasses.asdict`, also after a round trip through JSON."""
        down, across = map(float, fields["offset"])
        error_down, error_across = map(float, fields["offset_error"])
        spacing, centred = float(fields["spacing"]), float(fields["centred"])
        return cls((down, across), (error_down, error_across), spacing, centred)

    @property
    def drawn_offset(self) -> tuple[float, float]:
        """The offset by which maps are drawn: the measured one where it is clearly off center."""
        down, across = (
            value
            if abs(value - self.centred) - _ERRORS * error > SHARE * self.spacing
            else self.centred
            for value, error in zip(self.offset, self.offset_error, strict=True)
        )
        return down, across

    def extent(self, shape: tuple[int, int], grid: tuple[int, int]) -> Extent | None:
        """The part of an image that a grid (h, w) covers; None where it is the whole image.
        ``shape`` is the height and width at which the image goes through the network, in pixels."""
        vertical, horizontal = (
            ((first - self.spacing / 2) / side, (first + (cells - 0.5) * self.spacing) / side)
            for first, side, cells in zip(self.drawn_offset, shape, grid, strict=True)
        )
        return None if (vertical, horizontal) == WHOLE else (vertical, horizontal)


def extent_from(ends: Any) -> Extent | None:
    """An extent from JSON; None where it has none."""
    if ends is None:
        return None
    (top, bottom), (left, right) = ends
    return (top, bottom), (left, right)


@dataclass(frozen=True)
class Layer:
    """A module whose output is one map, as a forward pass on a square image showed it."""

    # The module's path; with the part after a colon where one module gives several
    # (`blocks.11.attn.qkv:keys`), and with `:signs` from `by_sign`.
    path: str
    name: str  # the paper's name where there is one (`conv5_4`), else the path
    channels: int
    stride: int  # pixels of the input per cell, along each side
    grid: tuple[int, int]  # height and width of the map
    minimum: float  # smallest value
    calls: int  # per forward pass; the other fields are about the last call
    layout: Layout = CHANNELS_FIRST
    # The side of the square images that the network takes, where it takes no others.
    input_size: int | None = None
    # None where they are not measured, or each cell's is the center of the pixels that it covers.
    centers: Centers | None = None
    is_default: bool = False  # as `list_layers` marks it

    @property
    def module(self) -> str:
        """The path of the module alone."""
        return self.path.partition(":")[0]

    def grid_on(self, shape: tuple[int, int]) -> tuple[int, int] | None:
        """The grid on images of ``shape`` pixels; None where only a forward pass tells it."""
        spacing = self.centers.spacing if self.centers else self.stride
        first = self.centers.centred if self.centers else self.stride / 2
        # Padding may add a cell on sides that are no multiples.
        if first == spacing / 2 and any(side % spacing for side in shape):
            return None
        height, width = (max(0, int((side - 2 * first) // spacing) + 1) for side in shape)
        return height, width

    @property
    def non_negative(self) -> bool:
        """Whether no value below zero was seen, as NMF needs."""
        return self.minimum >= 0


def by_sign(layer: Layer) -> Layer:
    """The layer with every channel's positive part, and then every negative part, as channels."""
    return replace(
        layer,
        path=f"{layer.path}:{SIGNS}",
        name=f"{layer.name}:{SIGNS}",
        channels=2 * layer.channels,
        minimum=min(layer.minimum, 0.0) * 0,  # NaN stays NaN
        layout=replace(layer.layout, by_sign=True),
    )
