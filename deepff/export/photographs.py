"""Photographs beside their annotations: which subset each is in, and copies or links of them."""

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from deepff.errors import InputError
from deepff.options import SUBSETS, Photographs

if TYPE_CHECKING:
    from deepff.export.instances import AnnotatedImage


def subsets(names: Sequence[str], split: Sequence[float], seed: int = 0) -> dict[str, str]:
    """Draw the subset of every image: "train", "val" or "test".

    The shares are rounded so that they add up, but a subset that has a share has an image where
    there are enough.

    Parameters
    ----------
    names : sequence of str
        The images' names; their order does not matter.
    split : sequence of 3 float
        The subsets' shares, in any unit.
    seed : int
    """
    drawn = sorted(names)
    random.Random(seed).shuffle(drawn)
    n = len(drawn)
    wanted = [n * share / sum(split) for share in split]
    counts = [round(share) for share in wanted]
    for i, share in enumerate(split[1:], 1):
        if share > 0 and counts[i] == 0 and n > sum(other > 0 for other in split[:i]):
            counts[i] = 1
    while sum(counts[1:]) >= max(n, 1):  # one to train on at the least
        counts[counts.index(max(counts[1:]), 1)] -= 1
    counts[0] = n - sum(counts[1:])
    order = [subset for subset, count in zip(SUBSETS, counts, strict=True) for _ in range(count)]
    return dict(zip(drawn, order, strict=True))


def photograph_suffix(image: "AnnotatedImage") -> str:
    """The suffix of a photograph that is copied or linked; what is no file becomes a PNG."""
    is_file = image.source is None or isinstance(image.source, Path)
    return os.path.splitext(image.name)[1] if is_file else ".png"


def place_photograph(image: "AnnotatedImage", place: str, folder: Path, images: str) -> None:
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
        Image.fromarray(source.read()).save(target)
    elif images == Photographs.COPY:
        shutil.copyfile(source, target)
    else:
        try:
            os.symlink(source.absolute(), target)
        except OSError as error:
            raise InputError(
                f"no links can be made in {folder.parent} ({error.strerror}): use --images copy"
            ) from error
