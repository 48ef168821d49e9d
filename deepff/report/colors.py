"""One colour per factor, the same in every picture."""

from colorsys import hls_to_rgb

import numpy as np

# Colours of Okabe & Ito (2008) and of Paul Tol's schemes (2021), in an order chosen so that every
# prefix stays far apart in CIE Lab for normal, protanope and deuteranope viewers alike.
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
    """Colours for ``k`` factors.

    Factor j has colour j whatever ``k`` is. The first twelve are safe for colour-blind viewers;
    from there on, hues a golden angle apart at three lightnesses, which never repeat but can come
    close to one another.

    Parameters
    ----------
    k : int
        Number of factors, at least 0.

    Returns
    -------
    ndarray, uint8, shape (k, 3)
        RGB.
    """
    colors = [((code >> 16) & 255, (code >> 8) & 255, code & 255) for code in _PALETTE[:k]]
    for j in range(len(_PALETTE), k):
        red, green, blue = hls_to_rgb(j * _GOLDEN_RATIO % 1, (0.35, 0.6, 0.8)[j % 3], 0.75)
        colors.append((round(255 * red), round(255 * green), round(255 * blue)))
    return np.array(colors, np.uint8).reshape(k, 3)
