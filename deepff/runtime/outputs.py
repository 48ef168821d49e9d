"""Output folders: deepff replaces only the files that it wrote.

A folder's ``.deepff-files`` lists what deepff wrote there, each file with its SHA-256: a file that
is not listed, or has changed since, is a user's work. A folder below with a list of its own, which
is not a part of a result, is another output: it is left alone.
"""

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any
from uuid import uuid4

from deepff.errors import InputError, warn_user
from deepff.runtime.files import atomic_path, written_in

RECORD = ".deepff-files"
OBJECT = "object"  # the part of a result that is a result, too, with the same parts
MANIFEST = "manifest.json"  # only results have one
CLASS_FOLDERS = "classes.json"  # next to folders of classes: each label, and its folder

Digests = dict[str, list[str]]  # by a file's POSIX path in the folder


@dataclass(frozen=True)
class Rules:
    """Which files that an output folder already holds may be replaced or removed."""

    overwrite: bool | None = False  # replace users' files, too; None if no option offers that
    remove_stale: bool = False  # remove what deepff wrote there before and does not write again
    inputs: Collection[Path | None] = ()  # photographs, which are never replaced
    # Files and folders of a result: lists in them count as the folder's, and if the folder has no
    # list, as copies without hidden files, they count as written by deepff.
    parts: Collection[str] = ()


_DEFAULT_RULES = Rules()
NO_OVERWRITE_OPTION = Rules(overwrite=None)


@contextmanager
def output_folder(
    path: str | Path, rules: Rules = _DEFAULT_RULES, seal: str | None = None
) -> Iterator[Path]:
    """Yield a temporary folder, whose files move to ``path`` if the block succeeds. An existing
    folder keeps its files until then, and after that those of other names, except as `rules` say.
    ``seal``, the file that says that the folder is whole, is moved last."""
    path = Path(path)
    _check_folder(path)
    # Inside an existing folder, which may be a disk: moves must not cross disks.
    within = path if path.is_dir() else path.parent
    temporary = within / f".{uuid4().hex}"
    new = [above for above in (within, *within.parents) if not above.exists()]
    try:
        with written_in(within):
            temporary.mkdir(parents=True)
        yield temporary
        written = {name: [_digest(temporary / name)] for name in files_below(temporary)}
        if within == path:
            _move_into(path, temporary, written, rules, seal)
        else:
            _write_record(temporary, written)
            temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):  # a folder that is not empty stays
            for above in new:
                above.rmdir()


@contextmanager
def own_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path for one of deepff's files, which is replaced and listed as before."""
    with atomic_path(path) as temporary:
        yield temporary
    record = path.parent / RECORD
    if record.exists():
        _write_record(path.parent, {**_read_record(record), path.name: [_digest(path)]})


def check_unchanged(path: Path) -> None:
    """Raise InputError if one of deepff's files has changed since deepff wrote it."""
    digests = _read_record(path.parent / RECORD).get(path.name)
    if digests is not None and path.exists() and _digest(path) not in digests:
        raise InputError(
            f"{path} was changed since deepff wrote it: move it away, or replace it with "
            "--overwrite"
        )


def check_outputs(folder: str | Path, names: Iterable[str], rules: Rules) -> None:
    """Raise InputError if files, POSIX paths, may not be written: over a photograph of the set;
    nor, unless `rules` say so, over what deepff did not write or was changed since."""
    folder = Path(folder)
    _check_folder(folder)
    if not folder.is_dir():
        return
    inputs = {identity for path in rules.inputs if path for identity in _identities(path)}
    listed = own_files(folder, rules.parts)
    foreign = []
    for name in names:
        path = folder / name
        for above in list(path.relative_to(folder).parents)[:-1]:
            if os.path.lexists(folder / above) and not (folder / above).is_dir():
                raise InputError(f"{folder / above} is a file, but must be a folder; move it")
        if not os.path.lexists(path):
            continue
        if path.is_dir() and not path.is_symlink():
            raise InputError(f"{path} is a folder, but must be a file; move it")
        if not inputs.isdisjoint(_identities(path)[:1]):
            raise InputError(
                f"{path} is a photograph of the set, which is never overwritten; write to another "
                "folder"
            )
        if name not in listed or _digest(path) not in listed[name]:
            foreign.append(path)
    if foreign and not rules.overwrite:
        more = f" (and so are {len(foreign) - 1} more files)" if len(foreign) > 1 else ""
        ways = "write to another folder or move it away"
        if rules.overwrite is not None:
            ways = "write to another folder, move it away, or replace it with --overwrite"
        raise InputError(
            f"{foreign[0]} is not deepff's, or was changed since deepff wrote it{more}: {ways}"
        )


def read_manifest(folder: str | Path) -> dict[str, Any] | None:
    """The manifest of the result that a folder holds, finished or not; None without a result."""
    try:
        manifest = json.loads(Path(folder, MANIFEST).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return manifest if isinstance(manifest, dict) and "deepff" in manifest else None


def listed_files(folder: str | Path) -> list[str]:
    """The POSIX paths in a folder's list of what deepff wrote; empty if there is no list."""
    return list(_read_record(Path(folder) / RECORD))


def own_files(folder: str | Path, parts: Collection[str] = ()) -> Digests:
    """The files that deepff wrote in a folder and its parts, with their digests."""
    folder = Path(folder)
    files: Digests = {}
    lists, others = _lists(folder, parts)
    for record in lists:
        below = record.parent.relative_to(folder)
        for name, digests in _read_record(record).items():
            files.setdefault((below / name).as_posix(), []).extend(digests)
    if parts and not (folder / RECORD).exists():
        for name in files_below(folder):
            if name.partition("/")[0] in parts:
                files.setdefault(name, [_digest(folder / name)])
    # The lists of earlier versions hold other outputs' files, too.
    return {name: files[name] for name in files if others.isdisjoint((folder / name).parents)}


def _lists(folder: Path, parts: Collection[str]) -> tuple[list[Path], set[Path]]:
    """The lists of a folder and its parts, and the folders below that hold other outputs."""

    def is_other(path: Path) -> bool:
        below = path.relative_to(folder).parts
        if below in ((), (OBJECT,)):
            return bool(below) and OBJECT not in parts
        return below[below[0] == OBJECT] not in parts or (path / MANIFEST).exists()

    lists = list(folder.rglob(RECORD))
    others = {record.parent for record in lists if is_other(record.parent)}
    return [record for record in lists if others.isdisjoint(record.parents)], others


def changed_files(folder: str | Path, parts: Collection[str] = ()) -> list[str]:
    """Files in a folder that have changed since deepff wrote them, as POSIX paths in it."""
    folder = Path(folder)
    return [
        name
        for name, digests in own_files(folder, parts).items()
        if (folder / name).is_file() and _digest(folder / name) not in digests
    ]


def _check_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; name a folder")


def _move_into(folder: Path, new: Path, written: Digests, rules: Rules, seal: str | None) -> None:
    check_outputs(folder, written, rules)
    before = own_files(folder, rules.parts)
    # Until all files are moved, old and new ones are both listed: the process may be killed.
    both = {name: before.get(name, []) + written.get(name, []) for name in before | written}
    _write_record(folder, both)
    if seal is not None:
        (folder / seal).unlink(missing_ok=True)
    for name in sorted(written, key=lambda name: name == seal):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (new / name).replace(path)
    kept: list[Path] = []
    if rules.remove_stale:
        stale = {folder / name: before[name] for name in before if name not in written}
        kept = _remove_stale(folder, stale, _lists(folder, rules.parts)[0])
    _write_record(folder, written if rules.remove_stale else before | written)
    if kept:
        more = f", and {len(kept) - 1} more files" if len(kept) > 1 else ""
        note = "changed since deepff wrote it, so it is kept, but it is not part of the new output"
        warn_user(f"{kept[0]}{more}: {note}")


def _remove_stale(folder: Path, stale: dict[Path, list[str]], lists: list[Path]) -> list[Path]:
    """Remove the lists, unchanged files and empty folders; the changed files stay."""
    there = [path for path in stale if os.path.lexists(path) and not path.is_dir()]
    kept = [path for path in there if _digest(path) not in stale[path]]
    for path in [*(path for path in there if path not in kept), *lists]:
        path.unlink()
        above = path.parent
        while above != folder and not any(above.iterdir()):
            above.rmdir()
            above = above.parent
    return kept


def files_below(folder: Path) -> list[str]:
    """The POSIX paths of the files and links below a folder."""
    files = []
    for path, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(path, name))]
        below = Path(path).relative_to(folder)
        files += [(below / name).as_posix() for name in [*names, *links] if name != RECORD]
    return sorted(files)


def _digest(path: Path) -> str:
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _identities(path: Path) -> list[tuple[int, int]]:
    """Device and inode of a file, first of the link if it is one, then of its target."""
    try:
        return [(state.st_dev, state.st_ino) for state in (path.lstat(), path.stat())]
    except OSError:
        return []


def _read_record(path: Path) -> Digests:
    try:
        files = json.loads(path.read_text("utf-8"))["files"]
        return {str(name): [str(digest) for digest in files[name]] for name in files}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_record(folder: Path, files: Digests) -> None:
    with atomic_path(folder / RECORD) as temporary:
        content = json.dumps({"written by": "deepff", "files": files}, indent=1)
        temporary.write_text(content, "utf-8")
