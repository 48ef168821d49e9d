"""Writes that leave either a whole file or folder, or none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from deepff.errors import InputError


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, which takes its place if the block succeeds."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid4().hex}{path.suffix}")
    temporary.touch()
    # A library that makes the file anew may give it to its owner alone.
    mode = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder, whose files take their places in ``path`` if the block succeeds.

    A folder that was not there appears as a whole; in one that was, files of other names stay.

    Raises
    ------
    InputError
        The path is a file.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; name a folder")
    # Inside a folder that is there, which may be a disk of its own: moves are within one disk.
    within = path if path.is_dir() else path.parent
    within.mkdir(parents=True, exist_ok=True)
    temporary = within / f".{uuid4().hex}"
    temporary.mkdir()
    try:
        yield temporary
        if within != path:
            temporary.replace(path)
            return
        for file in temporary.rglob("*"):
            if file.is_file():
                place = path / file.relative_to(temporary)
                place.parent.mkdir(parents=True, exist_ok=True)
                file.replace(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
