"""Ground truth in one form, whatever data set it comes from.

A data set, or one class or group of it, is a `GroundTruthSet`: part names and images. An image's
ground truth is boxes, and one label map at the image's own size, read from disk whenever it is
asked for, so that memory does not grow with the set.

A label map is uint8 (H, W), or wider where parts overlap:

==============  =============================================================================
value           the pixel is
==============  =============================================================================
0               background
1 … p           part `part_names[value - 1]`; sets without parts have one, the object
p + 1 … p + q   another thing, `others[value - p - 1]`; most sets have none
254             on the object, but on none of the named parts (`UNNAMED`)
255             not to be judged, like the border of VOC's segmentations (`IGNORED`)
256 · a + b     on the parts a and b, of which b is the smaller one; likewise up to eight
==============  =============================================================================

Boxes are (x_min, y_min, x_max, y_max) in pixels from the image's top-left corner, along the edges
of the pixels: the box of the single pixel in row 0 and column 0 is (0, 0, 1, 1).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from deepff.errors import InputError
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_files import ImageFile
from deepff.images.reading import image_size

BACKGROUND = 0
UNNAMED = 254
IGNORED = 255

BACKGROUND_NAMES = ("background", "_background_")


@dataclass(frozen=True)
class AnnotatedBox:
    """One annotated object."""

    class_name: str
    coordinates: tuple[float, float, float, float]
    difficult: bool = False  # Pascal VOC's flags
    truncated: bool = False


@dataclass(frozen=True)
class GroundTruthImage:
    """An image and what is known of it."""

    image: ImageFile
    boxes: tuple[AnnotatedBox, ...] = ()  # all annotated objects, whatever their class
    # Reads the label map from disk; None where the data set has no segmentation of this image.
    read_labels: Callable[[], np.ndarray] | None = None

    def labels(self) -> np.ndarray:
        """The label map (H, W), which has the image's size."""
        if self.read_labels is None:
            raise InputError(f"{self.image.name} has no segmentation in this data set")
        labels = self.read_labels()
        height, width = image_size(self.image.path)
        if labels.shape != (height, width):
            raise InputError(
                f"the ground truth of {self.image.name} is {labels.shape[1]} × {labels.shape[0]} "
                f"pixels, but the image is {width} × {height}"
            )
        return labels

    def boxes_of(self, class_name: str) -> list[tuple[float, float, float, float]]:
        """Coordinates of the boxes of one class, difficult and truncated ones included."""
        return [box.coordinates for box in self.boxes if box.class_name == class_name]


@dataclass(frozen=True)
class GroundTruthSet:
    """A data set, or one class or group of it."""

    name: str  # the class's, the group's, or the folder's
    part_names: tuple[str, ...]  # part i has the label i + 1
    images: tuple[GroundTruthImage, ...]
    missing: tuple[str, ...] = ()  # names of images that are annotated, but not there
    # Things that are no part of the object, whose labels follow those of the parts.
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n_labels = len(self.part_names) + len(self.others)
        if n_labels >= UNNAMED:
            raise InputError(
                f"{self.name} names {n_labels} parts, but a label map holds at most {UNNAMED - 1}"
            )

    def __len__(self) -> int:
        return len(self.images)


def with_parts(labels: np.ndarray, masks: Mapping[int, np.ndarray]) -> np.ndarray:
    """The label map with parts, bool (H, W) by label, over it: each part keeps all its pixels."""
    parts = np.zeros_like(labels)
    for label, mask in sorted(masks.items(), key=lambda item: -np.count_nonzero(item[1])):
        largest = 256 * int(parts[mask].max(initial=0)) + label
        if largest >= 2**64:
            raise InputError("nine parts share a pixel, but a label map holds at most eight")
        parts = parts.astype(np.promote_types(parts.dtype, np.min_scalar_type(largest)))
        parts[mask] = parts[mask] << 8 | label
    return np.where(parts > 0, parts, labels)


def require_annotation(path: Path, image: ImageFile) -> bool:
    """Whether an image's annotation is there; InputError if not, unless it is no image."""
    if path.is_file():
        return True
    try:
        image_size(image.path)
    except UnreadableImageError:
        return False
    raise InputError(f"no ground truth for the image {image.name}: {path} is missing")


def read_label_image(path: Path) -> np.ndarray:
    """Pixel values of a label image or mask as stored, (H, W): a palette's indices, not colors."""
    try:
        with Image.open(path) as image:
            values = np.asarray(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as a label image: {error}") from error
    if values.ndim != 2:
        raise InputError(
            f"{path} has {values.shape[2]} channels; a label image has one, or a palette"
        )
    return values


def table_of_names(table: str) -> Any:
    """A table of ``names.yaml``, next to this file."""
    return yaml.safe_load(Path(__file__).with_name("names.yaml").read_text("utf-8"))[table]
