"""Photographs beside their annotations: copies or links of them."""

import os
import shutil
from pathlib import Path

from PIL import Image

from deepff.errors import InputError
from deepff.export.instances import AnnotatedImage
from deepff.options import Photographs


def photograph_suffix(image: AnnotatedImage) -> str:
    """The suffix of a photograph that is copied or linked; what is no file becomes a PNG."""
    is_file = image.source is None or isinstance(image.source, Path)
    return os.path.splitext(image.name)[1] if is_file else ".png"


def photograph_name(image: AnnotatedImage) -> str:
    """An image's name with the suffix of its photograph, copied or not."""
    suffix = photograph_suffix(image)
    return image.name if image.name.endswith(suffix) else image.name + suffix


def place_photograph(image: AnnotatedImage, place: str, folder: Path, images: str) -> None:
    """Put a copy of an image's photograph, or a link to it, where a format's readers look for it.

    Parameters
    ----------
    image : AnnotatedImage
        What is no file is written as PNG.
    place : str
        A POSIX path in the folder. Where it is the photograph's own, nothing is done.
    folder : Path
    images : Photographs

    Raises
    ------
    InputError
        The photograph is gone, or no links can be made.
    """
    if images == Photographs.NONE or place == image.place:
        return
    target, source = folder / place, image.source
    target.parent.mkdir(parents=True, exist_ok=True)
    if source is None or (isinstance(source, Path) and not source.is_file()):
        raise InputError(
            f"the photograph {image.name} is not at {source} any more: put it back, or export "
            "without photographs (--images none)"
        )
    if not isinstance(source, Path):
        Image.fromarray(source.read()).save(target, "PNG")
    elif images == Photographs.COPY:
        shutil.copyfile(source, target)
    else:
        try:
            os.symlink(source.absolute(), target)
        except OSError as error:
            raise InputError(
                f"no links can be made in {folder.parent} ({error.strerror}): use --images copy"
            ) from error
