"""Images that are no files on this machine's disk: in archives and on servers.

fsspec lists and reads them. What comes from a server, a compressed tar or a video is copied to a
cache folder; what else is in an archive is read from there.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from io import BufferedReader
from pathlib import Path, PurePosixPath
from random import Random
from threading import Lock
from time import time
from typing import Any

import fsspec
import torch
from fsspec.core import url_to_fs

from deepff.errors import InputError, first_line
from deepff.images.decoding import MAX_PIXELS, UnreadableImageError, unreadable_reason
from deepff.runtime.files import atomic_path

CACHED_BYTES = 10 * 2**30  # of copies, or half of what the disk has left for them
_MAX_BYTES = 8 * MAX_PIXELS  # an image of 16 bits that is not compressed
_OPEN = 4  # archives; the list of 10,000 files takes 11 MB
_MOST_COMPRESSED = 200  # times: photographs hardly get smaller, bombs 1,000 times

ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_ARCHIVE = re.compile(
    r"\.(?:(?P<zip>zip)|(?P<tar>tar|tgz|tar\.(?:gz|bz2|xz))"
    r"|(?P<video>mp4|m4v|mov|avi|mkv|webm|mpe?g|wmv))$",
    re.IGNORECASE,
)
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
_HIDDEN = re.compile(r"(^|/)\.(?!\.(/|$))")
_FRAME = re.compile(r"video://(\d+):([\d.]+)::(.+)")
_SECRETS = re.compile(
    r"(?<=://)[^/@\s]+@"
    r"|(?<=[?&])[^=&\s]*(?:sig|token|secret|password|key|credential)[^=&\s]*=[^&\s'\"]*&?",
    re.IGNORECASE,
)
_COMPRESSIONS = {b"\x1f\x8b\x08": "gzip", b"BZh": "bz2", b"\xfd7z": "xz"}  # by the first bytes
_WITH_EXTRA = re.compile(r"\b(s3|gc?s|hf|http|video)[a-z0-9]*://", re.IGNORECASE)
fsspec.register_implementation("video", "deepff.images.video.VideoFileSystem", errtxt="PyAV")

_reading = Lock()  # an archive has one position
_room = 0  # bytes that may be copied until the cache is looked at again


@dataclass(frozen=True)
class StoredFile:
    """A file in an archive or on a server. ``os.fspath`` gives a copy of it, which is made when it
    is not there. UnreadableImageError where anything fails."""

    address: str  # as fsspec writes it: "s3://bucket/a.jpg", "zip://a.jpg::/home/me/photos.zip"
    version: str = ""  # on the server; by default the present one

    def __str__(self) -> str:
        return public(self.address)

    def __fspath__(self) -> str:
        with self._explained():
            copy = cache_folder() / sha256(os.fsencode(f"{self.address} {self.state}")).hexdigest()
            if not copy.exists():
                system, path, archive = _opened(self.address)
                with atomic_path(copy) as temporary:
                    if archive is None:
                        system.get_file(path, str(temporary))
                    else:
                        temporary.write_bytes(_member(system, path, archive.st_size))
                _make_room(copy)
            return str(copy)

    @property
    def state(self) -> str:
        """What differs once the file, or its archive, has changed."""
        with self._explained():
            archive = _opened(self.address)[2]
            return _version(archive) or self.version or _present_version(self.address)

    @property
    def is_remote(self) -> bool:
        """Whether it, or its archive, is on a server."""
        return bool(ADDRESS.match(self.address.rpartition("::")[2]))

    def read_bytes(self) -> bytes:
        """Its bytes."""
        with self._explained():
            system, path, archive = _opened(self.address)
            # In a video or a compressed tar, a file takes longer because of those before it.
            if archive and system.protocol != "video" and type(system.fo) is BufferedReader:
                return _member(system, path, archive.st_size)
            return Path(self).read_bytes()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (InputError, UnreadableImageError):
            raise
        except Exception as error:  # file systems raise almost anything
            if isinstance(error, ImportError):
                raise _needs_package(self.address, error) from error
            if isinstance(error, FileNotFoundError):
                reason = "file not found"
            elif "::" not in self.address:
                reason = f"it cannot be fetched: {public(first_line(error))}"
            else:
                reason = "encrypted" if "encrypted" in str(error) else unreadable_reason(error)
            raise UnreadableImageError(reason) from error


def public(text: str) -> str:
    """The text without the passwords, signatures and tokens of addresses in it."""
    return _SECRETS.sub("", text)


def archive_kind(path: str) -> str | None:
    """ "zip", "tar" or "video" for a path that ends so: a video is an archive of its frames."""
    match = None if "::" in path else _ARCHIVE.search(path)
    return None if match is None else match.lastgroup


def frame_of(origin: object) -> tuple[str, float]:
    """The address of the video that an image is of, "" if none, and the time in seconds."""
    match = _FRAME.match(str(origin)) if isinstance(origin, StoredFile) else None
    return (match[3], 60 * int(match[1]) + float(match[2])) if match else ("", 0)


def without_suffix(path: str) -> str:
    """The path without what ends an archive's."""
    return _ARCHIVE.sub("", path)


def is_stored(path: str) -> bool:
    """Whether a path is an address, or that of an archive."""
    return bool(ADDRESS.match(path)) or (archive_kind(path) is not None and os.path.isfile(path))


def in_braces(path: str) -> list[str]:
    """The paths that "shards-{000..099}.tar" or "{cats,dogs}.zip" stand for in a shell."""
    match = None if os.path.lexists(path) else _BRACES.search(path)
    if match is None:
        return [path]
    first, last, words = match.groups()
    numbers = range(int(first or 0), int(last or 0) + 1)
    each = words.split(",") if words else [f"{number:0{len(first)}d}" for number in numbers]
    before, after = path[: match.start()], path[match.end() :]
    return [whole for word in each for whole in in_braces(f"{before}{word}{after}")]


def find_stored(address: str) -> dict[str, StoredFile]:
    """The files of an archive or of an address, which may be a folder or a glob, without hidden
    ones; by name below the folder that was searched."""
    shown = public(address)
    if (kind := archive_kind(address)) and "*" not in address:
        here = address if ADDRESS.match(address) else os.path.abspath(address)
        address = f"{kind}://::{here}"
    member, chained, archive = address.partition("::")
    protocol = member.partition("://")[0].lower()
    try:
        system, path, state = _opened(address)
        system.invalidate_cache()
        root = re.split(r"\*" if protocol.startswith("http") else r"[*?[]", path)[0]
        if root != path:
            found = system.glob(path, detail=True)
        elif (info := system.info(path))["type"] == "directory":
            root = f"{path}/"
            # An archive would look through all its files for each of its folders.
            found = system.dir_cache if state and not path else system.find(path, detail=True)
        else:
            found = {path: info}
        root = root.rpartition("/")[0]
    except InputError:
        raise
    except ImportError as error:
        raise _needs_package(address, error) from error
    except FileNotFoundError as error:
        raise InputError(f"cannot find {shown!r}: give a folder, file or glob") from error
    except Exception as error:
        raise InputError(f"{shown} cannot be read: {public(first_line(error))}") from error
    # As it was written, with the name of the server.
    before = member.removesuffix(path) if member.endswith(path) else f"{protocol}://"
    above = f"{PurePosixPath(archive).stem} " if protocol == "video" else ""
    files = {}
    for key, info in found.items():
        plain = re.split("[?#]", key)[0] if protocol.startswith("http") else key
        name = above + PurePosixPath(plain[len(root) :].strip("/")).as_posix()
        if info["type"] == "file" and not _HIDDEN.search(name):
            version = "" if state else repr(sorted(info.items()))
            files[name] = StoredFile(f"{before}{key}{chained}{archive}", version)
    if not files:
        raise InputError(f"no images in {shown!r}: it has no files that are not hidden")
    return files


def _needs_package(address: str, error: ImportError) -> InputError:
    match = _WITH_EXTRA.search(address)
    extra = match and match[1].lower().replace("gcs", "gs")
    how = f"use pip install 'deepff[{extra}]'" if extra else first_line(error)
    shown = public(address.removeprefix("zip://::").removeprefix("tar://::"))
    return InputError(f"{shown} needs a package that is not installed; {how}")


def _opened(address: str) -> tuple[Any, str, os.stat_result | None]:
    """The file system of an address, the path in it, and the state of the archive, if any."""
    member, _, archive = address.partition("::")
    if not archive:
        return *url_to_fs(address), None
    path = os.fspath(StoredFile(archive)) if ADDRESS.match(archive) else archive
    state = os.stat(path)
    protocol, _, inside = member.partition("://")
    return _opened_archive(protocol, path, _version(state)), inside, state


def _version(state: os.stat_result | None) -> str:
    return "" if state is None else f"{state.st_mtime_ns} {state.st_size}"


@lru_cache(_OPEN)
def _opened_archive(protocol: str, path: str, version: str) -> Any:
    file = open(path, "rb")  # noqa: SIM115, as the archive keeps it open
    start = file.read(3)
    file.seek(0)
    options = {"compression": _COMPRESSIONS.get(start)} if protocol == "tar" else {}
    return fsspec.filesystem(protocol, fo=file, **options)


def _member(system: Any, path: str, archive_size: int) -> bytes:
    info = system.info(path)
    if ".." in path.split("/"):
        raise UnreadableImageError("its name leads out of the archive")
    most = _MOST_COMPRESSED * max(1, info.get("compress_size", archive_size))
    if info["size"] > min(most, _MAX_BYTES):
        raise UnreadableImageError(f"{info['size'] / 1e6:,.0f} MB once it is unpacked")
    with _reading:
        if system.protocol == "tar" and path in (members := _tar_members(system)):
            return system.tar.extractfile(members[path]).read()
        return system.cat_file(path)


@lru_cache(_OPEN)
def _tar_members(system: Any) -> dict[str, Any]:
    """The members by name, which tarfile would look for one by one."""
    return {member.name: member for member in system.tar.getmembers()}


@lru_cache(2**16)
def _present_version(address: str) -> str:
    system, path = url_to_fs(address)
    return repr(sorted(system.info(path).items()))


def cache_folder() -> Path:
    """The folder of copies."""
    return Path(torch.hub.get_dir(), "images")


def _make_room(new: Path) -> None:
    """Remove copies at random while there are too many bytes of them: in repeated passes over a set
    those used longest ago are needed next. Those of the last minute may be in use."""
    global _room
    _room -= new.stat().st_size
    if _room > 0:
        return
    files = []
    for path in new.parent.iterdir():
        with suppress(OSError):  # another process removes some, too
            files.append((path, path.stat()))
    total = sum(state.st_size for _, state in files)
    most = min(CACHED_BYTES, (total + shutil.disk_usage(new).free) // 2)
    Random(total).shuffle(files)
    for path, state in files:
        if total > most * 3 // 4 and path != new and state.st_mtime < time() - 60:
            with suppress(OSError):
                path.unlink()
                total -= state.st_size
    _room = max(most - total, most // 16)
