"""Writing files whole or not at all, and reserving space for them on the disk."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, TextIO
from uuid import uuid4

from deepff.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def written_in(folder: Path) -> Iterator[None]:
    """Turn an OSError of the block into an InputError about the folder, not about a file in it."""
    try:
        yield
    except OSError as error:
        reason = str(error.strerror or error).lower()
        raise InputError(
            f"{_existing(folder)} cannot be written ({reason}); use a folder where you may write"
        ) from error


def check_writable(folder: Path) -> None:
    """Raise InputError if nothing can be written into a folder, which need not exist."""
    with written_in(folder), TemporaryFile(dir=_existing(folder)):
        pass


def _existing(folder: Path) -> Path:
    """The folder, or the first one above it that exists."""
    return next((above for above in (folder, *folder.parents) if above.is_dir()), folder)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``, which replaces it if the block succeeds."""
    path = Path(path)
    temporary = path.with_name(f".{uuid4().hex}{path.suffix}")
    with written_in(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    # A library that creates the file again may make it readable for its owner alone.
    mode = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_text(path: str | Path) -> Iterator[TextIO]:
    """Yield a file for UTF-8 text, which becomes ``path`` if the block succeeds."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        yield file


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with atomic_text(path) as file:
        file.write(text)


def save_tensors(
    tensors: "dict[str, Tensor]", path: str | Path, metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file, whole or not at all; InputError if that fails."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata)
        except SafetensorError as error:
            reason = str(error).rpartition("I/O error: ")[2].partition(" (os error")[0]
            raise InputError(
                f"{path} cannot be written ({reason.lower()}); make room, or name a folder on "
                f"another disk"
            ) from error


def reserve_space(file: IO[bytes], n_bytes: int) -> None:
    """Extend an open file to ``n_bytes``, with room for them on the disk; new bytes are zero.

    A file that is mapped into memory needs that room: on a full disk, writing to the map kills the
    process. Without room, InputError, and the file keeps its length.
    """
    before = os.fstat(file.fileno()).st_size
    if n_bytes <= before:
        return
    folder = os.path.dirname(os.path.abspath(file.name))
    try:
        _allocate(file.fileno(), folder, before, n_bytes)
    except OSError as error:
        os.ftruncate(file.fileno(), before)
        free = shutil.disk_usage(folder).free
        raise InputError(
            f"{_size(n_bytes - before)} are needed in {folder}, where {_size(free)} are free "
            f"({str(error.strerror).lower()}); make room, or use a folder on another disk"
        ) from error


def _allocate(descriptor: int, folder: str, before: int, n_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):  # not on macOS and Windows
        try:
            os.posix_fallocate(descriptor, before, n_bytes - before)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # the file system cannot
                raise
    if shutil.disk_usage(folder).free < n_bytes - before:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, n_bytes)


def _size(n_bytes: int) -> str:
    if n_bytes >= 10**9:
        return f"{n_bytes / 10**9:.1f} GB"
    return f"{n_bytes / 10**6:.1f} MB"
