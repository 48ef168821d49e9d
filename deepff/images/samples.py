"""The sample set: photographs that scikit-image carries in its package, in several framings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageEnhance, ImageOps

from deepff.errors import InputError
from deepff.images.items import ImageItem

WHOLE = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Framing:
    """How a photograph is shown.

    Attributes
    ----------
    file : str
        In scikit-image's data.
    box : (left, top, right, bottom)
        What is kept of it, as shares of its sides, after it is turned.
    turned : float
        Degrees counter-clockwise.
    mirrored : bool
    brightness : float
        1 leaves it as it is.
    """

    file: str
    box: tuple[float, float, float, float] = WHOLE
    turned: float = 0
    mirrored: bool = False
    brightness: float = 1

    def apply(self, photo: Image.Image) -> Image.Image:
        """The photograph in this framing."""
        if self.turned:
            photo = photo.rotate(self.turned, Image.Resampling.BICUBIC)
        left, top, right, bottom = self.box
        width, height = photo.size
        photo = photo.crop(
            (
                round(left * width),
                round(top * height),
                round(right * width),
                round(bottom * height),
            )
        )
        if self.mirrored:
            photo = ImageOps.mirror(photo)
        return ImageEnhance.Brightness(photo).enhance(self.brightness)


_CAT, _ASTRONAUT, _COFFEE = "chelsea.png", "astronaut.png", "coffee.png"
_LEFT, _RIGHT = "motorcycle_left.png", "motorcycle_right.png"

# Names are kept in results, which find their images again by them.
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
"""Each image of the set by its name: its pieces, side by side."""

_FILES = tuple(dict.fromkeys(piece.file for pieces in FRAMINGS.values() for piece in pieces))


def sample_images() -> list[ImageItem]:
    """The sample set, made when it is read.

    Raises
    ------
    InputError
        scikit-image or one of the photographs is not there.
    """
    photographs()
    return [item for name in FRAMINGS if (item := sample_image(name)) is not None]


def sample_image(name: str) -> ImageItem | None:
    """The image of the sample set that has this name; None where none has."""
    names = list(FRAMINGS)
    return ImageItem(_SampleSet(), names.index(name), name) if name in FRAMINGS else None


def photographs(names: Iterable[str] = _FILES) -> dict[str, Path]:
    """Photographs that scikit-image carries, by file name; by default those of the sample set.

    Raises
    ------
    InputError
        As :func:`sample_images`.
    """
    spec = find_spec("skimage")  # importing it would take a second
    folders = spec.submodule_search_locations if spec else None
    found = {name: Path(folder, "data", name) for folder in folders or [] for name in names}
    if not found or not all(path.is_file() for path in found.values()):
        raise InputError("the sample images come with scikit-image: pip install scikit-image")
    return found


class _SampleSet:
    """The images of the set by their place."""

    def __len__(self) -> int:
        return len(FRAMINGS)

    def __getitem__(self, index: int) -> Image.Image:
        pieces = list(FRAMINGS.values())[index]
        files = photographs()
        return _side_by_side(
            [piece.apply(Image.open(files[piece.file]).convert("RGB")) for piece in pieces]
        )


def _side_by_side(pictures: Sequence[Image.Image]) -> Image.Image:
    """Pictures in a row, all as high as the lowest."""
    height = min(picture.height for picture in pictures)
    row = [
        picture.resize((round(picture.width * height / picture.height), height))
        for picture in pictures
    ]
    joined = Image.new("RGB", (sum(picture.width for picture in row), height))
    left = 0
    for picture in row:
        joined.paste(picture, (left, 0))
        left += picture.width
    return joined
