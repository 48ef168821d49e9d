"""The sample set: photographs that scikit-image and scikit-learn install, in several framings."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from deepff.errors import InputError
from deepff.images.image_set import ImageItem

# Where packages keep photographs.
_FOLDERS = {"skimage": "data", "sklearn": "datasets/images"}

WHOLE = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Framing:
    """How a photograph is shown: turned, cropped, mirrored, lightened, in this order."""

    file: str  # installed with scikit-image or scikit-learn
    # The crop (left, top, right, bottom) as shares of the sides.
    box: tuple[float, float, float, float] = WHOLE
    turned: float = 0  # degrees counterclockwise
    mirrored: bool = False
    brightness: float = 1

    def apply(self, photo: Image.Image) -> Image.Image:
        """The photograph in this framing."""
        if self.turned:
            photo = photo.rotate(self.turned, Image.Resampling.BICUBIC)
        sides = (*photo.size, *photo.size)
        left, top, right, bottom = (round(a * b) for a, b in zip(self.box, sides, strict=True))
        photo = photo.crop((left, top, right, bottom))
        if self.mirrored:
            photo = ImageOps.mirror(photo)
        return ImageEnhance.Brightness(photo).enhance(self.brightness)


FLOWER, TEMPLE, ROCKET, CUP = "flower.jpg", "china.jpg", "rocket.jpg", "coffee.png"

# The set's images by name, each with its pieces side by side. Saved results read their images by
# these names.
FRAMINGS: dict[str, tuple[Framing, ...]] = {
    "flower": (Framing(FLOWER),),
    "flower, turned and darker": (
        Framing(FLOWER, (0.1, 0.08, 0.92, 0.95), turned=-8, mirrored=True, brightness=0.8),
    ),
    "temple": (Framing(TEMPLE, (0.0, 0.0, 0.85, 1.0)),),
    "temple, mirrored and darker": (
        Framing(TEMPLE, (0.05, 0.1, 0.75, 1.0), mirrored=True, brightness=0.85),
    ),
    "rocket": (Framing(ROCKET, (0.3, 0.15, 0.75, 0.95)),),
    "rocket, mirrored and lighter": (
        Framing(ROCKET, (0.34, 0.1, 0.74, 0.9), mirrored=True, brightness=1.2),
    ),
    "flower and cup": (
        Framing(FLOWER, (0.1, 0.0, 0.85, 1.0)),
        Framing(CUP, (0.1, 0.0, 0.8, 1.0)),
    ),
    "temple and cup": (
        Framing(TEMPLE, (0.0, 0.0, 0.8, 1.0)),
        Framing(CUP, (0.1, 0.0, 0.8, 1.0), mirrored=True),
    ),
}

_FILES = tuple(dict.fromkeys(piece.file for pieces in FRAMINGS.values() for piece in pieces))


def sample_images() -> list[ImageItem]:
    """The images of ``deepff discover --sample``, which come with scikit-image and scikit-learn.

    Examples
    --------
    >>> import deepff
    >>> images = deepff.sample_images()
    >>> images[1].name, images[1].read().shape
    ('flower, turned and darker', (372, 525, 3))
    """
    photographs()
    return [item for name in FRAMINGS if (item := sample_image(name)) is not None]


def sample_image(name: str) -> ImageItem | None:
    """The sample image with this name; None if there is none."""
    names = list(FRAMINGS)
    return ImageItem(_SampleSet(), names.index(name), name) if name in FRAMINGS else None


def photographs(names: Collection[str] = _FILES) -> dict[str, Path]:
    """The paths of installed photographs by file name; by default those of the sample set."""
    specs = {package: find_spec(package) for package in _FOLDERS}  # to import takes seconds
    folders = [
        Path(root, _FOLDERS[package])
        for package, spec in specs.items()
        for root in (spec and spec.submodule_search_locations) or []
    ]
    paths = {name: path for name in names for root in folders if (path := root / name).is_file()}
    if missing := [name for name in names if name not in paths]:
        raise InputError(
            f"{missing[0]} of scikit-image or scikit-learn is not installed. Use "
            "pip install --force-reinstall scikit-image scikit-learn"
        )
    return paths


class _SampleSet:
    """The images of the set by their index."""

    def __getitem__(self, index: int) -> Image.Image:
        pieces = list(FRAMINGS.values())[index]
        files = photographs()
        return _side_by_side(
            [piece.apply(Image.open(files[piece.file]).convert("RGB")) for piece in pieces]
        )


def _side_by_side(pictures: Sequence[Image.Image]) -> Image.Image:
    """Pictures in a row, all scaled to the lowest height."""
    height = min(picture.height for picture in pictures)
    widths = [round(picture.width * height / picture.height) for picture in pictures]
    row = [p.resize((width, height)) for p, width in zip(pictures, widths, strict=True)]
    return Image.fromarray(np.hstack([np.asarray(picture) for picture in row]))
