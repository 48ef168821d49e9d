"""Masks that images keep, as files: one PNG each in ``labels``, next to ``labels.json``.

Lessons (:mod:`deepff.app.lessons`) are in the same folder. Each file is named by its content and
never changes: an edit names another file, and `undo` the one before.
"""

import os
import re
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from PIL import Image

from deepff.app.labels import KeptMask, Labels
from deepff.errors import InputError
from deepff.runtime.files import atomic_path

FOLDER = "labels"
MASK, LESSON = ".png", ".safetensors"
MAX_CLASSES = 255
_NAME = re.compile(r"[0-9a-f]{32}(\.[a-z]+)")
_MAX_AGE = 3600  # seconds that a file stays though nothing names it


@dataclass(frozen=True)
class NamedMask:
    """One class per pixel of an image."""

    values: np.ndarray  # (H, W) uint8: 0 is the background, i + 1 is names[i]
    names: tuple[str, ...]

    def renumbered(self, numbers: Sequence[int]) -> np.ndarray:
        """The values with class i as ``numbers[i]``."""
        table = np.zeros(256, np.uint8)
        table[1 : len(numbers) + 1] = numbers
        return table[self.values]

    @property
    def main_class(self) -> str | None:
        """The class that has most pixels; None where none has any."""
        counts = np.bincount(self.values.ravel(), minlength=len(self.names) + 1)[1:]
        return self.names[int(counts.argmax())] if counts.any() else None


def nearest(values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """A label map at another size, (H, W)."""
    return np.asarray(Image.fromarray(values).resize(shape[::-1], Image.Resampling.NEAREST))


def kept_mask(labels: Labels, image: str) -> NamedMask | None:
    """The mask that an image keeps, if it has one; InputError where its file is gone or damaged."""
    kept = labels.image(image).mask
    if kept is None:
        return None
    try:
        values = _read(labels.folder / FOLDER / kept.file)
    except Exception as error:  # on garbage, decoders raise almost anything
        raise InputError(
            f"the kept mask of {image} cannot be read ({error}); restore it, or use the new mask"
        ) from error
    mask = NamedMask(values, kept.names)
    names = tuple(dict.fromkeys(kept.names))  # two classes may have been given one name since
    if names == kept.names:
        return mask
    return NamedMask(mask.renumbered([names.index(name) + 1 for name in kept.names]), names)


def keep(labels: Labels, image: str, mask: NamedMask, mended: bool = False) -> KeptMask:
    """Write a mask that an image keeps from now on, with only the names that have pixels in it."""
    present = np.flatnonzero(np.bincount(mask.values.ravel(), minlength=256)[1:]).tolist()
    numbers = [present.index(i) + 1 if i in present else 0 for i in range(len(mask.names))]
    file = _write(mask.renumbered(numbers), labels.folder)
    names = tuple(mask.names[i] for i in present)
    return KeptMask(file, names, labels.settings.k, labels.recipe(image), mended)


def _write(values: np.ndarray, folder: Path) -> str:
    """Write a label map, (H, W) uint8, and return the file's name."""
    shape = np.array(values.shape, np.int64).tobytes()
    name = f"{sha256(shape + np.ascontiguousarray(values).tobytes()).hexdigest()[:32]}{MASK}"
    path = folder / FOLDER / name
    if _is_whole(path):
        os.utime(path)
    else:
        with atomic_path(path) as temporary:
            Image.fromarray(values).save(temporary, "PNG", compress_level=1)
    return name


@lru_cache(4)
def _read(path: Path) -> np.ndarray:
    """A label map, (H, W) uint8, read-only as it is shared."""
    with Image.open(path) as image:
        values = np.asarray(image.convert("L"))
    values.flags.writeable = False
    return values


def is_name(name: object, suffix: str = MASK) -> bool:
    """Whether `name` can be a mask's or a lesson's file, so that it leads to no other folder."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    return match is not None and match[1] == suffix


def has_file(name: str, folder: Path) -> bool:
    """Whether the file of a mask or lesson is in the result's folder."""
    return (folder / FOLDER / name).is_file()


def is_lost(labels: Labels, image: str) -> bool:
    """Whether the file of the mask that an image keeps is gone or damaged."""
    kept = labels.image(image).mask
    return kept is not None and not _is_whole(labels.folder / FOLDER / kept.file)


def _is_whole(path: Path) -> bool:
    try:
        with Image.open(path) as file:
            file.verify()
    except Exception:  # on garbage, decoders raise almost anything
        return False
    return True


def remove_unnamed(named: Collection[str], folder: Path) -> None:
    """Remove the masks and lessons that no label names any more, and what a killed program was
    writing, except recent ones."""
    for path in (folder / FOLDER).glob("*"):
        name = path.name.removeprefix(".")  # see atomic_path
        ours = is_name(name) or is_name(name, LESSON)
        if path.name not in named and ours:
            with suppress(FileNotFoundError):  # another process may remove it first
                if time.time() - path.stat().st_mtime > _MAX_AGE:
                    path.unlink()
