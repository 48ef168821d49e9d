"""Heat maps painted over a photo."""

from base64 import b64encode
from collections.abc import Sequence
from colorsys import hls_to_rgb
from io import BytesIO

import numpy as np
from PIL import Image
from scipy.ndimage import maximum_filter, minimum_filter
from torch import Tensor

from deepff.errors import InputError
from deepff.options import PictureStyle, chosen

# As the longer side of a panel is 256 pixels in the report, its stripes are 4 pixels wide.
_STRIPES_PER_SIDE = 64
# Below 1, so that weak values are seen; and the value that contours run along.
_GAMMA, CONTOUR = 0.7, 0.3


def overlay(
    image: np.ndarray,
    maps: Tensor | np.ndarray,
    colors: np.ndarray | None = None,
    opacity: float = 0.8,
    style: str = PictureStyle.STRONGEST,
) -> np.ndarray:
    """A photo, uint8 RGB (H, W, 3), with normalized heat maps (k, H, W) painted over it: the color,
    of ``colors`` (k, 3), of the strongest factor, with alpha = ``opacity`` · value^0.7; "mixed" the
    mean of the colors weighted by the values; "contours" lines around the strongest factors of 0.3
    or more. Negative values are painted on diagonal stripes only."""
    style = chosen(PictureStyle, style, "style")
    values = maps.detach().cpu().numpy() if isinstance(maps, Tensor) else np.asarray(maps)
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity must be between 0 and 1, not {opacity}")
    if colors is None:
        colors = factor_colors(len(values))
    if len(values) == 0:
        return image
    values = _paintable(values.astype(np.float32, copy=False))
    alpha, strongest = values.max(0), values.argmax(0)
    if style == PictureStyle.MIXED:
        paint = _mean_color(values, colors)
    else:
        paint = Image.fromarray(colors.astype(np.uint8)[strongest])
        labels = np.where(alpha >= CONTOUR, strongest + 1, 0)
        alpha = outlines(labels, 2) if style == PictureStyle.CONTOURS else alpha**_GAMMA
    # Pillow blends interleaved pixels in 8 bits several times faster than numpy does.
    mask = _channel(np.float32(255 * opacity) * alpha)
    return np.asarray(Image.composite(paint, Image.fromarray(image), mask))


def outlines(labels: np.ndarray, width: int = 1) -> np.ndarray:
    """Pixels of regions (labels above 0) that are so near to another label: bool (H, W)."""
    side = 2 * width + 1
    return (maximum_filter(labels, side) != minimum_filter(labels, side)) & (labels > 0)


def _mean_color(values: np.ndarray, colors: np.ndarray) -> Image.Image:
    """The mean of the colors weighted by ``values`` (k, H, W); any color where all are 0."""
    if len(values) == 1:
        return Image.new("RGB", values.shape[:0:-1], tuple(colors[0].tolist()))
    weights = values / np.maximum(values.sum(0), np.finfo(np.float32).tiny)
    # Not a matrix product: BLAS would start threads, which costs far more than it saves here.
    channels = np.einsum("kc,khw->chw", colors.astype(np.float32), weights)
    return Image.merge("RGB", [_channel(channel) for channel in channels])


def _channel(values: np.ndarray) -> Image.Image:
    """An 8-bit channel, with values rounded to the nearest."""
    return Image.fromarray((values + 0.5).astype(np.uint8))


def _paintable(values: np.ndarray) -> np.ndarray:
    """Magnitudes to paint, in [0, 1]: negative values on the stripes only."""
    positive = np.clip(values, 0, 1)
    if values.size == 0 or values.min() >= 0:
        return positive
    return np.where(stripes(*values.shape[1:]), np.minimum(np.abs(values), 1), positive)


def stripes(height: int, width: int) -> np.ndarray:
    """The diagonal stripes on which negative values are painted: bool (height, width)."""
    thickness = max(2, round(max(height, width) / _STRIPES_PER_SIDE))
    diagonal = np.arange(height)[:, None] + np.arange(width)
    return diagonal // thickness % 2 == 0


# Colors of Okabe & Ito (2008) and of Paul Tol's schemes (2021), in an order chosen so that every
# prefix stays far apart in CIE Lab for normal, protanope and deuteranope viewers.
_PALETTE = (
    0xD55E00,  # vermillion
    0x0072B2,  # blue
    0xF0E442,  # yellow
    0x44BB99,  # mint
    0x882255,  # wine
    0x66CCEE,  # cyan
    0x332288,  # indigo
    0xDDCC77,  # sand
    0xEE6677,  # rose
    0x117733,  # green
    0xE69F00,  # orange
    0x6699CC,  # steel blue
)
_GOLDEN_RATIO = (5**0.5 - 1) / 2


def factor_colors(k: int) -> np.ndarray:
    """RGB colors for ``k`` factors, uint8 (k, 3); color j does not depend on ``k``. The first
    twelve are safe for color-blind viewers, the others hues a golden angle apart at three
    lightnesses."""
    colors = [((code >> 16) & 255, (code >> 8) & 255, code & 255) for code in _PALETTE[:k]]
    for j in range(len(_PALETTE), k):
        red, green, blue = hls_to_rgb(j * _GOLDEN_RATIO % 1, (0.35, 0.6, 0.8)[j % 3], 0.75)
        colors.append((round(255 * red), round(255 * green), round(255 * blue)))
    return np.array(colors, np.uint8).reshape(k, 3)


def hex_colors(colors: np.ndarray) -> list[str]:
    """Colors, uint8 (k, 3), as HTML has them: "#d55e00"."""
    return [f"#{bytes(color).hex()}" for color in colors]


# The side of a heat map, the gap between two in pixels, and the value of black.
_SIDE, _GAP, _BLACK = 112, 4, 24


def image_html(image: Image.Image, alt: str, format: str = "JPEG") -> str:
    """An ``<img>`` that holds its data as "JPEG" or "PNG", for notebooks."""
    data = BytesIO()
    image.save(data, format, quality=90)
    source = f"data:image/{format.lower()};base64,{b64encode(data.getvalue()).decode('ascii')}"
    return f'<img alt="{alt}" style="max-width: 100%" src="{source}">'


def maps_html(maps: Sequence[Tensor]) -> str:
    """An ``<img>`` of normalized maps (k, h, w): one row per image, one column per factor."""
    colors = factor_colors(len(maps[0]))
    rows = []
    for image in maps:
        height, width = image.shape[1:]
        black = np.full((height, width, 3), _BLACK, np.uint8)
        scale = _SIDE / max(height, width)
        size = (max(1, round(scale * width)), max(1, round(scale * height)))
        margins = ((0, _GAP), (0, _SIDE + _GAP - size[0]), (0, 0))
        row = []
        for j in range(len(image)):
            painted = overlay(black, image[j : j + 1], colors[j : j + 1], opacity=1)
            cell = Image.fromarray(painted).resize(size, Image.Resampling.NEAREST)
            row.append(np.pad(np.asarray(cell), margins, constant_values=255))
        rows.append(np.hstack(row))
    return image_html(Image.fromarray(np.vstack(rows)), "Heat maps", "PNG")
