"""Masks and label maps as PNG."""

import re
import unicodedata
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from deepff.errors import InputError
from deepff.images.image_files import shortened
from deepff.images.painting import factor_colors
from deepff.regions.regions import Regions
from deepff.runtime.files import atomic_path


def write_masks(regions: Regions, folders: Sequence[Path], file: str) -> None:
    """Write each region's mask as ``<file>.png`` in its own folder, one bit a pixel."""
    for folder, mask in zip(folders, regions.masks.cpu().numpy(), strict=True):
        _save(Image.fromarray(mask), folder / f"{file}.png")


def write_label_map(labels: np.ndarray, n_regions: int, folder: Path, file: str) -> None:
    """Write a label map (H, W) as ``<folder>/<file>.png``: pixel values, coloured by a palette.

    Value 0 is the background, black; region j is j + 1, in the colour of factor j.

    Raises
    ------
    InputError
        If there are more regions than 8 bits tell apart.
    """
    if n_regions > 255:
        raise InputError(
            f"a label map holds up to 255 regions, not {n_regions}; name parts to merge factors, "
            "or use a smaller k"
        )
    image = Image.fromarray(labels.astype(np.uint8), "P")
    image.putpalette(bytes(3) + factor_colors(n_regions).tobytes())
    _save(image, folder / f"{file}.png")


def write_label_names(names: Sequence[str], folder: Path) -> None:
    """Write ``labels.txt``: line n is the name of value n, the first the background."""
    with atomic_path(folder / "labels.txt") as path:
        path.write_text("".join(f"{name}\n" for name in ("background", *names)), "utf-8")


def folder_names(names: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """Regions' names as those of one folder each, characters escaped as in a URL where they must.

    "a/b" is ``a%2Fb``. The folders stay apart on every file system, and from those that are taken.
    """
    keys = {name.casefold() for name in taken}
    found = []
    for name in names:
        folder = _UNSAFE.sub(lambda part: "".join(map(_escaped, part[0])), name) or "%"
        folder = shortened(folder)
        place = 0
        while unicodedata.normalize("NFC", folder).casefold() in keys:
            folder = folder[:place] + _escaped(folder[place]) + folder[place + 1 :]
            place += 3
        keys.add(unicodedata.normalize("NFC", folder).casefold())
        found.append(folder)
    return found


# What some file system does not allow, and Windows' names of devices.
_UNSAFE = re.compile(
    r'[/\\:*?"<>|%\x00-\x1f]|^\.|[. ]$|^(?:con|prn|aux|nul|com\d|lpt\d)(?=\.|$)', re.IGNORECASE
)


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _save(image: Image.Image, path: Path) -> None:
    with atomic_path(path) as temporary:
        # Runs of equal values are all that masks are made of: half the time, and no larger.
        image.save(temporary, compress_type=zlib.Z_RLE)
