"""Heat maps painted over a photo."""

import numpy as np
from PIL import Image
from torch import Tensor

from deepff.errors import InputError
from deepff.report.colors import factor_colors

# As the longer side of a panel is 256 pixels in the report, its stripes are 4 pixels wide.
_STRIPES_PER_SIDE = 64


def overlay(
    image: np.ndarray,
    maps: Tensor | np.ndarray,
    colors: np.ndarray | None = None,
    opacity: float = 0.8,
) -> np.ndarray:
    """Paint all factors together over a photo.

    A pixel's colour is the mean of the factors' colours weighted by their values there, blended
    over the photo with alpha = ``opacity`` · the largest value: where every map is 0 the photo
    stays as it is, and where a single map is 1 at opacity 1 its colour replaces it. Negative values
    are painted by their magnitude, on diagonal stripes only, so that they never pass for positive
    ones. For one factor alone, pass ``maps[j : j + 1]`` and ``colors[j : j + 1]``.

    Parameters
    ----------
    image : ndarray, uint8, shape (H, W, 3)
        RGB.
    maps : Tensor or ndarray, shape (k, H, W)
        Normalised heat maps in [0, 1], or in [-1, 1] where signed; values beyond are clipped.
    colors : ndarray, uint8, shape (k, 3), optional
        RGB of each factor; by default `factor_colors`.
    opacity : float
        Alpha of a value of 1, in [0, 1].

    Returns
    -------
    ndarray, uint8, shape (H, W, 3)

    Raises
    ------
    InputError
        Shapes that don't fit each other, an image that isn't uint8 RGB, or an opacity outside
        [0, 1].
    """
    values = maps.detach().cpu().numpy() if isinstance(maps, Tensor) else np.asarray(maps)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise InputError(
            f"the image must be uint8 of shape (H, W, 3), not {image.dtype} {image.shape}"
        )
    if values.ndim != 3 or values.shape[1:] != image.shape[:2]:
        raise InputError(
            f"maps of shape {values.shape} do not fit an image of {image.shape[:2]} pixels: "
            "they must be (k, H, W)"
        )
    if colors is None:
        colors = factor_colors(len(values))
    if colors.shape != (len(values), 3):
        raise InputError(f"{len(values)} maps need colors of shape ({len(values)}, 3)")
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity must be between 0 and 1, not {opacity}")

    values = _paintable(values.astype(np.float32, copy=False))
    photo = Image.fromarray(image)
    alpha = np.float32(255 * opacity) * values.max(0, initial=0)
    # Pillow blends interleaved pixels in 8 bits several times faster than numpy does.
    return np.asarray(Image.composite(_mean_color(values, colors), photo, _channel(alpha)))


def _mean_color(values: np.ndarray, colors: np.ndarray) -> Image.Image:
    """The mean of the colours weighted by ``values`` (k, H, W); anything where they are all 0."""
    if len(values) == 1:
        return Image.new("RGB", values.shape[:0:-1], tuple(colors[0].tolist()))
    weights = values / np.maximum(values.sum(0), np.finfo(np.float32).tiny)
    # Not a matrix product: a BLAS would start threads, which costs far more than it saves here.
    channels = np.einsum("kc,khw->chw", colors.astype(np.float32), weights)
    return Image.merge("RGB", [_channel(channel) for channel in channels])


def _channel(values: np.ndarray) -> Image.Image:
    """An 8-bit channel, rounded to the nearest."""
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
