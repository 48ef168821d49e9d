"""Pictures for notebooks: as HTML, and heat maps alone, without their photos."""

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from PIL import Image
from torch import Tensor

from deepff.report.colors import factor_colors
from deepff.report.overlays import overlay

_SIDE = 112  # pixels
_BLACK = 24


def image_html(image: Image.Image, alt: str, format: str = "JPEG") -> str:
    """An ``<img>`` that holds its own data, for notebooks: as "JPEG" or "PNG"."""
    data = BytesIO()
    image.save(data, format, quality=90)
    source = f"data:image/{format.lower()};base64,{b64encode(data.getvalue()).decode('ascii')}"
    return f'<img alt="{alt}" style="max-width: 100%" src="{source}">'


def maps_html(maps: Sequence[Tensor]) -> str:
    """A row an image, a column a factor, in the factors' colours: an ``<img>`` for notebooks.

    Parameters
    ----------
    maps : sequence of Tensor, each (k, h, w)
        Normalised, on the layer's grid; one at least.
    """
    colors = factor_colors(len(maps[0]))
    rows = []
    for image in maps:
        height, width = image.shape[1:]
        black = np.full((height, width, 3), _BLACK, np.uint8)
        scale = _SIDE / max(height, width)
        size = (max(1, round(scale * width)), max(1, round(scale * height)))
        cells = [
            Image.fromarray(overlay(black, image[j : j + 1], colors[j : j + 1], opacity=1)).resize(
                size, Image.Resampling.NEAREST
            )
            for j in range(len(image))
        ]
        row = Image.new("RGB", (len(cells) * (_SIDE + 4), size[1] + 4), "white")
        for column, cell in enumerate(cells):
            row.paste(cell, (column * (_SIDE + 4), 0))
        rows.append(row)
    canvas = Image.new("RGB", (rows[0].width, sum(row.height for row in rows)), "white")
    top = 0
    for row in rows:
        canvas.paste(row, (0, top))
        top += row.height
    return image_html(canvas, "Heat maps", "PNG")
