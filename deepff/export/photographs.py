"""Photographs beside their annotations: copies or links of them."""

import os
import shutil
from pathlib import Path

from PIL import Image

from deepff.errors import InputError
from deepff.export.instances import AnnotatedImage
from deepff.images.decoding import UnreadableImageError, with_image
from deepff.images.image_set import read_pixels
from deepff.options import Photographs


def photograph_suffix(image: AnnotatedImage) -> str:
    """The suffix of a photograph that is copied or linked; what is no file becomes a PNG."""
    is_file = image.origin is None or isinstance(image.origin, Path)
    return os.path.splitext(image.name)[1] if is_file else ".png"


def photograph_name(image: AnnotatedImage) -> str:
    """An image's name with the suffix of its photograph, copied or not."""
    suffix = photograph_suffix(image)
    return image.name if image.name.endswith(suffix) else image.name + suffix


def photograph_format(image: AnnotatedImage) -> str | None:
    """Pillow's name of what a photograph's file holds, whatever its suffix; None without one."""
    file = image.photo_path or image.origin
    if not isinstance(file, Path):
        return None
    try:
        return with_image(file, lambda opened: opened.format)
    except UnreadableImageError:
        return None


def place_photograph(
    image: AnnotatedImage, place: str, folder: Path, images: str, as_png: bool = False
) -> None:
    """Put a copy of an image's photograph, or a link to it, where a format's readers look for it.

    Parameters
    ----------
    image : AnnotatedImage
        What is no file is written as PNG.
    place : str
        A POSIX path in the folder. Where it is the photograph's own, nothing is done.
    folder : Path
    images : Photographs
    as_png : bool
        Write a file, too, as PNG: upright, in RGB.

    Raises
    ------
    InputError
        The photograph is gone or cannot be read any more, or no links can be made.
    """
    if images == Photographs.NONE or place == image.place:
        return
    target, origin = folder / place, image.origin
    target.parent.mkdir(parents=True, exist_ok=True)
    if origin is None or (isinstance(origin, Path) and not origin.is_file()):
        raise InputError(
            f"the photograph {image.name} is not at {origin} any more: put it back, or export "
            "without photographs (--images none)"
        )
    if as_png or not isinstance(origin, Path):
        try:
            pixels = read_pixels(origin)
        except UnreadableImageError as error:
            raise InputError(f"the photograph {image.name} cannot be read: {error}") from error
        Image.fromarray(pixels).save(target, "PNG")
    elif images == Photographs.COPY:
        shutil.copyfile(origin, target)
    else:
        try:
            os.symlink(origin.absolute(), target)
        except OSError as error:
            raise InputError(
                f"no links can be made in {folder.parent} ({error.strerror}): use --images copy"
            ) from error
