"""Folders that commands write into, where nothing is lost that deepff did not write itself.

What deepff wrote in a folder is listed in its ``.deepff-files``, each file with its SHA-256: a file
that is not listed, or was changed since, is somebody's work.
"""

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from uuid import uuid4

from deepff.errors import InputError
from deepff.runtime.files import atomic_path, written_in

RECORD = ".deepff-files"

Digests = dict[str, list[str]]  # by a file's POSIX path in the folder


@dataclass(frozen=True)
class Rules:
    """What an output folder may do to files that it already holds.

    Attributes
    ----------
    overwrite : bool or None
        Replace files that deepff did not write; None where nobody can ask for that.
    anew : bool
        Remove what deepff wrote there before and does not write again.
    inputs : collection of Path
        Photographs, which are never replaced; None for those that are no files.
    adopted : collection of str
        Files and folders in it that count as written by deepff where it has no list: those of a
        result that an earlier version saved.
    """

    overwrite: bool | None = False
    anew: bool = False
    inputs: Collection[Path | None] = ()
    adopted: Collection[str] = ()


KEEP_ALL = Rules()
REPLACE_OWN = Rules(overwrite=None)


@contextmanager
def output_folder(
    path: str | Path, rules: Rules = KEEP_ALL, seal: str | None = None
) -> Iterator[Path]:
    """Yield a temporary folder, whose files take their places in ``path`` if the block succeeds.

    A folder that was not there appears as a whole. In one that was, what it held stays until the
    block is through; files of other names stay after that, too, but for what `rules` say.

    Parameters
    ----------
    path : path
    rules : Rules
    seal : str, optional
        The file that says that the folder is whole: of those that take their places the old one
        goes first, and the new one comes last.

    Raises
    ------
    InputError
        The path is a file, nothing can be written there, or a file would be lost: see
        :func:`check_outputs`.
    """
    path = Path(path)
    _check_folder(path)
    # Inside a folder that is there, which may be a disk of its own: moves are within one disk.
    within = path if path.is_dir() else path.parent
    temporary = within / f".{uuid4().hex}"
    with written_in(within):
        within.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    try:
        yield temporary
        written = {name: [_digest(temporary / name)] for name in _files(temporary)}
        if within == path:
            _take_places(temporary, path, written, rules, seal)
        else:
            _write_record(temporary, written)
            temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def own_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path for one of deepff's own files, written anew and listed as before."""
    with atomic_path(path) as temporary:
        yield temporary
    record = path.parent / RECORD
    if record.exists():
        _write_record(path.parent, {**_read_record(record), path.name: [_digest(path)]})


def check_unchanged(path: Path) -> None:
    """Refuse to write one of deepff's own files anew where it was changed.

    Raises
    ------
    InputError
        It was changed since deepff wrote it.
    """
    digests = _read_record(path.parent / RECORD).get(path.name)
    if digests is not None and path.exists() and _digest(path) not in digests:
        raise InputError(
            f"{path} was changed since deepff wrote it: move it away, or replace it with "
            "--overwrite"
        )


def check_outputs(folder: str | Path, names: Iterable[str], rules: Rules) -> None:
    """Refuse to write files, before anything is written.

    Parameters
    ----------
    folder : path
    names : iterable of str
        POSIX paths in the folder.
    rules : Rules

    Raises
    ------
    InputError
        A file of that name is a photograph of the set; or deepff did not write it, or it was
        changed since, and `rules` don't say that it may be replaced.
    """
    folder = Path(folder)
    _check_folder(folder)
    if not folder.is_dir():
        return
    inputs = {identity for path in rules.inputs if path for identity in _identities(path)}
    listed = own_files(folder, rules.adopted)
    foreign = []
    for name in names:
        place = folder / name
        for above in list(place.relative_to(folder).parents)[:-1]:
            if os.path.lexists(folder / above) and not (folder / above).is_dir():
                raise InputError(f"{folder / above} is a file, where a folder is to be: move it")
        if not os.path.lexists(place):
            continue
        if place.is_dir() and not place.is_symlink():
            raise InputError(f"{place} is a folder, where a file is to be: move it away")
        if not inputs.isdisjoint(_identities(place)[:1]):
            raise InputError(
                f"{place} is a photograph of the set, which is never overwritten; write to another "
                "folder"
            )
        if name not in listed or _digest(place) not in listed[name]:
            foreign.append(place)
    if foreign and not rules.overwrite:
        more = f" (and so are {len(foreign) - 1} more files)" if len(foreign) > 1 else ""
        ways = "write to another folder or move it away"
        if rules.overwrite is not None:
            ways = "write to another folder, move it away, or replace it with --overwrite"
        raise InputError(
            f"{foreign[0]} is not deepff's, or was changed since deepff wrote it{more}: {ways}"
        )


def listed_files(folder: str | Path) -> list[str]:
    """The POSIX paths that a folder's own list says deepff wrote; none where there is no list."""
    record = Path(folder) / RECORD
    return list(_read_record(record)) if record.is_file() else []


def own_files(folder: str | Path, adopted: Collection[str] = ()) -> Digests:
    """What deepff wrote in a folder and those below it, with the digests that it had then.

    Parameters
    ----------
    folder : path
    adopted : collection of str
        See :class:`Rules`.
    """
    folder = Path(folder)
    found: Digests = {}
    for record in folder.rglob(RECORD):
        below = record.parent.relative_to(folder)
        for name, digests in _read_record(record).items():
            found.setdefault((below / name).as_posix(), []).extend(digests)
    if adopted and not (folder / RECORD).exists():
        tops = [folder / name for name in adopted]
        names = [path.name for path in tops if path.is_file()]
        names += [f"{path.name}/{name}" for path in tops if path.is_dir() for name in _files(path)]
        for name in names:
            found.setdefault(name, [_digest(folder / name)])
    return found


def changed_files(folder: str | Path) -> list[str]:
    """Files that deepff wrote in a folder and that were changed since, as POSIX paths in it."""
    folder = Path(folder)
    return [
        name
        for name, digests in own_files(folder).items()
        if (folder / name).is_file() and _digest(folder / name) not in digests
    ]


def _check_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; name a folder")


def _take_places(new: Path, folder: Path, written: Digests, rules: Rules, seal: str | None) -> None:
    check_outputs(folder, written, rules)
    before = own_files(folder, rules.adopted)
    stale = [name for name in before if rules.anew and name not in written]
    # Until all is moved, what was and what will be are both deepff's: it may be killed on the way.
    _write_record(folder, _merged(before, written))
    if seal is not None:
        (folder / seal).unlink(missing_ok=True)
    for name in sorted(written, key=lambda name: name == seal):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (new / name).replace(place)
    for name in stale:
        _remove_own(folder, name, before)
    if rules.anew:
        for record in list(folder.rglob(RECORD)):
            record.unlink()
            _remove_empty_folders(record.parent, folder)
        _write_record(folder, written)
    else:
        _write_record(folder, {**_read_record(folder / RECORD), **written})


def _remove_own(folder: Path, name: str, listed: Mapping[str, list[str]]) -> None:
    place = folder / name
    if os.path.lexists(place) and not place.is_dir() and _digest(place) in listed[name]:
        place.unlink()
        _remove_empty_folders(place.parent, folder)


def _remove_empty_folders(folder: Path, top: Path) -> None:
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _merged(first: Digests, second: Digests) -> Digests:
    return {name: [*first.get(name, []), *second.get(name, [])] for name in {**first, **second}}


def _files(folder: Path) -> list[str]:
    """The POSIX paths of the files and links below a folder."""
    found = []
    for path, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(path, name))]
        below = Path(path).relative_to(folder)
        found += [(below / name).as_posix() for name in [*names, *links] if name != RECORD]
    return sorted(found)


def _digest(path: Path) -> str:
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _identities(path: Path) -> list[tuple[int, int]]:
    """Device and number of a file, first as a link if it is one, then of what it leads to."""
    try:
        return [(found.st_dev, found.st_ino) for found in (path.lstat(), path.stat())]
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
