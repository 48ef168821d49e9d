"""Images' own masks on disk: one PNG each, named by its content, in ``labels`` beside the labels.

So are lessons (:mod:`deepff.app.lessons`).

A file never changes once it is there: an edit names another one, and `undo` the one before.
"""

import os
import re
import time
from collections.abc import Collection
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from PIL import Image

from deepff.errors import InputError
from deepff.runtime.files import atomic_path

FOLDER = "labels"
MASK, LESSON = ".png", ".safetensors"
MAX_CLASSES = 255
_NAME = re.compile(r"[0-9a-f]{32}(\.[a-z]+)")
_AGE = 3600  # seconds, before a file that nothing names is taken for forgotten


def is_name(name: object, suffix: str = MASK) -> bool:
    """Whether it can be a file of a mask, or of a lesson, and leads nowhere else."""
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    return found is not None and found[1] == suffix


def write_mask(values: np.ndarray, folder: Path) -> str:
    """Write a label map (H, W), uint8, into the result's folder.

    Returns
    -------
    str
        The file's name.
    """
    shape = np.array(values.shape, np.int64).tobytes()
    name = f"{sha256(shape + np.ascontiguousarray(values).tobytes()).hexdigest()[:32]}{MASK}"
    path = folder / FOLDER / name
    if path.exists():
        os.utime(path)
    else:
        with atomic_path(path) as temporary:
            Image.fromarray(values).save(temporary, "PNG", compress_level=1)
    return name


def is_there(name: str, folder: Path) -> bool:
    """Whether the file of a mask is in the result's folder."""
    return (folder / FOLDER / name).is_file()


def read_mask(name: str, folder: Path) -> np.ndarray:
    """A label map (H, W), uint8, not to be written to.

    Raises
    ------
    InputError
        The file is gone or damaged.
    """
    return _read(folder / FOLDER / name)


@lru_cache(4)
def _read(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as image:
            values = np.asarray(image.convert("L"))
    except (OSError, SyntaxError) as error:
        raise InputError(
            f"the mask {path} cannot be read ({error}); restore it, or take the new one"
        ) from error
    values.flags.writeable = False
    return values


def forget_others(named: Collection[str], folder: Path) -> None:
    """Remove the files that nothing names any more, the young ones apart."""
    for path in (folder / FOLDER).glob("*"):
        ours = is_name(path.name) or is_name(path.name, LESSON)
        if path.name not in named and ours:
            try:
                if time.time() - path.stat().st_mtime > _AGE:
                    path.unlink()
            except FileNotFoundError:
                pass
