"""Writing files whole or not at all, and reserving space for them on the disk."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, TextIO
from uuid import uuid4

from deepff.errors import InputError, first_line

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


def read_json(path: str | Path, form: Any) -> Any:
    """What a JSON file holds; InputError where it cannot be read or has not the form: a type or
    value; a range of whole numbers; a tuple of forms, of which one fits; a list of forms, ``[form,
    ...]`` for any number; or a dict: forms by key, under ``...`` of all."""
    try:
        content = json.loads(Path(path).read_text("utf-8"))
        if _has_form(content, form):
            return content
        reason = "values are missing, or were not written by deepff"
    except (OSError, ValueError, RecursionError) as error:
        reason = first_line(error)
    raise InputError(f"{path} is damaged ({reason}); restore it, or run its command again")


def _has_form(value: Any, form: Any) -> bool:
    if isinstance(form, tuple):
        return any(_has_form(value, one) for one in form)
    if isinstance(form, dict):
        return isinstance(value, dict) and all(
            _has_form(each, one)
            for key, one in form.items()
            for each in (value.values() if key is ... else [value.get(key)])
        )
    if isinstance(form, list):
        forms = form[:1] * len(value) if isinstance(value, list) and form[-1] is ... else form
        return (
            isinstance(value, list)
            and len(value) == len(forms)
            and all(map(_has_form, value, forms))
        )
    if isinstance(form, range):
        return type(value) is int and value in form
    return type(value) is form if isinstance(form, type) else value == form


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
    """Extend an open file with zeros to ``n_bytes``, with room for them on the disk, or raise
    InputError: on a full disk, writing to a file that is mapped into memory kills the process."""
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
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"
