"""Regions and boxes drawn over their photo."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from deepff.images.painting import factor_colors
from deepff.regions.components import Box

OPACITY = 0.55
LINE_WIDTH = 3


def region_picture(
    photo: np.ndarray,
    labels: np.ndarray,
    boxes: Sequence[tuple[int, Box]] = (),
) -> np.ndarray:
    """A photo with each region in its colour, the regions' outlines, and boxes.

    Parameters
    ----------
    photo : ndarray, uint8, shape (h, w, 3)
        At any size.
    labels : ndarray, integer, shape (H, W)
        The label map at the image's own size: 0 is the background, region j is j + 1.
    boxes : sequence of (region, box)
        In pixel edges of the image's own size.

    Returns
    -------
    ndarray, uint8, shape (h, w, 3)
    """
    height, width = photo.shape[:2]
    values = labels if labels.dtype == np.uint8 else labels.astype(np.int32)
    nearest = Image.Resampling.NEAREST
    small = np.asarray(Image.fromarray(values).resize((width, height), nearest))
    n_regions = max([int(small.max()), *(region + 1 for region, _ in boxes)])
    colors = factor_colors(n_regions)
    palette = np.vstack([np.zeros((1, 3), np.uint8), colors])
    painted = photo.copy()
    on = small > 0
    opacity = np.float32(OPACITY)
    painted[on] = photo[on] * (1 - opacity) + palette[small[on]] * opacity + np.float32(0.5)
    painted[_outlines(small)] = 255
    picture = Image.fromarray(painted)
    draw = ImageDraw.Draw(picture)
    scale_y, scale_x = height / labels.shape[0], width / labels.shape[1]
    for region, (x_min, y_min, x_max, y_max) in boxes:
        edges = (
            round(x_min * scale_x),
            round(y_min * scale_y),
            max(round(x_max * scale_x) - 1, round(x_min * scale_x)),
            max(round(y_max * scale_y) - 1, round(y_min * scale_y)),
        )
        draw.rectangle(edges, outline=tuple(colors[region].tolist()), width=LINE_WIDTH)
    return np.asarray(picture)


def _outlines(labels: np.ndarray) -> np.ndarray:
    """Pixels of a region that have another label to the right or below."""
    outlines = np.zeros(labels.shape, bool)
    outlines[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    outlines[:-1] |= labels[:-1] != labels[1:]
    return outlines & (labels > 0)
