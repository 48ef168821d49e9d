"""Masks and label maps as PNG."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from deepff.errors import InputError
from deepff.regions.find import Regions
from deepff.report.colors import factor_colors
from deepff.runtime.files import atomic_path


def write_masks(regions: Regions, names: Sequence[str], folder: Path, file: str) -> None:
    """Write each region's mask as ``<folder>/<region's name>/<file>.png``, one bit a pixel."""
    for name, mask in zip(names, regions.masks.cpu().numpy(), strict=True):
        _save(Image.fromarray(mask), folder / folder_name(name) / f"{file}.png")


def write_label_map(regions: Regions, folder: Path, file: str) -> None:
    """Write the label map as ``<folder>/<file>.png``: pixel values, coloured by a palette.

    Value 0 is the background, black; region j is j + 1, in the colour of factor j.

    Raises
    ------
    InputError
        If there are more regions than 8 bits tell apart.
    """
    if len(regions.masks) > 255:
        raise InputError(
            f"a label map holds up to 255 regions, not {len(regions.masks)}; name parts to merge "
            "factors, or use a smaller k"
        )
    image = Image.fromarray(regions.labels.cpu().numpy().astype(np.uint8), "P")
    colors = factor_colors(len(regions.masks))
    image.putpalette(bytes(3) + colors.tobytes())
    _save(image, folder / f"{file}.png")


def write_label_names(names: Sequence[str], folder: Path) -> None:
    """Write ``labels.txt``: line n is the name of value n, the first the background."""
    with atomic_path(folder / "labels.txt") as path:
        path.write_text("".join(f"{name}\n" for name in ("background", *names)), "utf-8")


def folder_name(name: str) -> str:
    """A region's name as that of one folder, escaped as in a URL: "a/b" is ``a%2Fb``."""
    return re.sub(r'[/\\:*?"<>|%\x00-\x1f]|^\.', lambda found: f"%{ord(found[0]):02X}", name)


def _save(image: Image.Image, path: Path) -> None:
    with atomic_path(path) as temporary:
        image.save(temporary)
