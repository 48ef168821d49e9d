"""The sample set: photographs from the scikit-image package, in several framings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from deepff.errors import InputError
from deepff.images.image_set import ImageItem

WHOLE = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Framing:
    """How a photograph is shown: turned, cropped, mirrored, lightened, in this order."""

    file: str  # in scikit-image's data
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


_CAT, _ASTRONAUT, _COFFEE = "chelsea.png", "astronaut.png", "coffee.png"
_LEFT, _RIGHT = "motorcycle_left.png", "motorcycle_right.png"

# The set's images by name, each with its pieces side by side. Saved results read their images by
# these names.
FRAMINGS: dict[str, tuple[Framing, ...]] = {
    "cat": (Framing(_CAT),),
    "cat, mirrored and darker": (
        Framing(_CAT, (0.15, 0.0, 0.95, 1.0), mirrored=True, brightness=0.7),
    ),
    "astronaut": (Framing(_ASTRONAUT),),
    "astronaut, turned and darker": (
        Framing(_ASTRONAUT, (0.1, 0.1, 0.9, 0.9), turned=-8, mirrored=True, brightness=0.8),
    ),
    "motorcycle": (Framing(_LEFT),),
    "motorcycle, mirrored and lighter": (
        Framing(_RIGHT, (0.1, 0.1, 1.0, 1.0), mirrored=True, brightness=1.3),
    ),
    "cat beside coffee": (
        Framing(_CAT, (0.1, 0.0, 0.9, 1.0), brightness=1.15),
        Framing(_COFFEE, (0.1, 0.0, 0.8, 1.0)),
    ),
    "motorcycle beside coffee": (
        Framing(_LEFT, (0.1, 0.0, 1.0, 1.0)),
        Framing(_COFFEE, (0.1, 0.0, 0.8, 1.0), mirrored=True),
    ),
}

_FILES = tuple(dict.fromkeys(piece.file for pieces in FRAMINGS.values() for piece in pieces))


def sample_images() -> list[ImageItem]:
    """The sample set; the images are made when they are read."""
    photographs()
    return [item for name in FRAMINGS if (item := sample_image(name)) is not None]


def sample_image(name: str) -> ImageItem | None:
    """The sample image with this name; None if there is none."""
    names = list(FRAMINGS)
    return ImageItem(_SampleSet(), names.index(name), name) if name in FRAMINGS else None


def photographs(names: Iterable[str] = _FILES) -> dict[str, Path]:
    """The paths of scikit-image's photographs by file name; by default those of the sample set."""
    spec = find_spec("skimage")  # importing it would take a second
    folders = spec.submodule_search_locations if spec else None
    paths = {name: Path(folder, "data", name) for folder in folders or [] for name in names}
    if not paths or not all(path.is_file() for path in paths.values()):
        raise InputError("the sample images come with scikit-image: pip install scikit-image")
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
