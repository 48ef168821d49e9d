"""Finding the files of an image set, and naming them and their output files without clashes."""

import hashlib
import os
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os.path import splitext
from pathlib import Path

from deepff.errors import InputError
from deepff.images.decoding import unreadable_reason
from deepff.images.stored import (
    ADDRESS,
    StoredFile,
    archive_kind,
    find_stored,
    frame_of,
    in_braces,
    is_stored,
    without_suffix,
)
from deepff.runtime.outputs import listed_files, read_manifest
from deepff.runtime.parallel import reading_threads

DOT = re.compile(r"\.")
WILDCARD = re.compile(r"[*?\[]")
EVERYTHING = ("**",)
_NO_MATCH = "no file matches {!r}; use '**' to include subfolders"
_LABELS = (".json", ".txt", ".xml", ".cls")  # .cls in WebDataset's shards
# What programs stumble over in names: characters that end a line, part a path or cannot be in XML,
# ends that are stripped, and beginnings of comments and hidden files.
_UNFIT = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")
_UNFIT_END = re.compile(r"[\s.]+$")
_UNFIT_START = re.compile(r"^[#.]")


@dataclass(frozen=True)
class _Match:
    """A file that a path stands for."""

    path: str
    real_path: str
    linked: bool  # reached through a symbolic link below the folder that was searched


@dataclass(frozen=True)
class ImageFile:
    """One file of an image set."""

    path: Path | StoredFile  # absolute
    name: str  # POSIX path relative to the set's root: unique in the set, valid Unicode
    digest: str | None = None  # what it must have, where it is of a result

    @property
    def origin(self) -> Path | StoredFile:
        """What the pixels are read from."""
        return self.path


def find_images(paths: str | Path | Sequence[str | Path]) -> list[ImageFile]:
    """List the files that folders, files and globs stand for, without opening them. Hidden files,
    results of deepff, files that it wrote, and labels with a photograph's name (a.jpg, a.json) are
    skipped unless they are named. A file counts once; each path's files are in natural order. Names
    are relative to the folder, or to the paths' common parent."""
    roots: list[str] = []
    files_of_each: list[list[_Match]] = []
    result_folder = ""
    sources = separate_sources([paths] if isinstance(paths, str | Path) else paths)
    if any(map(is_stored, sources.values())):
        return _stored(sources)
    for text in sources.values():
        root, pattern = _split_path(text)
        # A name must not hold "..", which can be removed only after links are resolved.
        root = os.path.realpath(root) if ".." in Path(root).parts else os.path.abspath(root)
        roots.append(root)
        if pattern:
            files = list(_walk(root, pattern))
        else:
            file = os.path.join(root, os.path.basename(text))
            files = [_Match(file, os.path.realpath(file), os.path.islink(file))]
        if not files and read_manifest(root) is not None:
            result_folder = text
        elif not files:
            raise InputError(
                f"the folder {text!r} has no files that are not hidden; name the folder of the "
                "images"
                if pattern == EVERYTHING
                else _NO_MATCH.format(text)
            )
        files_of_each.append(files)
    if not roots:
        raise InputError("no images are given; name a folder, files or a glob")
    if not any(files_of_each):
        raise InputError(f"{result_folder!r} holds a deepff result: give the folder of the images")
    return _named(files_of_each, os.path.commonpath(roots))


def video_frames(
    images: str | Path | Sequence[str | Path], every: int = 1, fps: float | None = None
) -> list[ImageFile]:
    """List some frames of videos, for :func:`deepff.discover`, without decoding them.

    Parameters
    ----------
    images : path, glob, or sequence of these
        Videos; other images are all listed.
    every, fps
        Take the first of so many frames, or of each 1/fps seconds.

    Raises
    ------
    InputError
        A video cannot be read, or ``every`` or ``fps`` is not above 0.

    Examples
    --------
    >>> import av, deepff
    >>> with av.open("clip.mp4", "w") as video:
    ...     stream = video.add_stream("mpeg4", rate=10)
    ...     for frame in [av.VideoFrame(640, 480) for _ in range(20)] + [None]:
    ...         video.mux(stream.encode(frame))
    >>> [frame.name for frame in deepff.video_frames("clip.mp4", fps=2)]
    ['clip 00:00.00', 'clip 00:00.50', 'clip 00:01.00', 'clip 00:01.50']
    """
    if every < 1 or not (fps is None or fps > 0):
        raise InputError(f"give every = 1 or more, and fps above 0, not {every} and {fps}")
    kept, seen = [], Counter[str]()
    slots: dict[str, int] = {}
    for image in find_images(images):
        video, seconds = frame_of(image.path)
        slot = seen[video] // every if fps is None else int(seconds * fps + 1e-6)
        seen[video] += 1
        if not video or slots.get(video) != slot:
            slots[video] = slot
            kept.append(image)
    return kept


def separate_sources(paths: Sequence[str | Path]) -> dict[str, str]:
    """The paths, with what stands for several archives written out, each by a name of its own."""
    named: dict[str, str] = {}
    for text in (text for path in paths for text in in_braces(os.fspath(path))):
        sources = [text]
        if archive_kind(text) is not None and "*" in text:
            if ADDRESS.match(text):
                sources = [file.address for file in find_stored(text).values()]
            else:
                sources = [match.path for match in _walk(*_split_path(text))]
            if not sources:
                raise InputError(_NO_MATCH.format(text))
            sources.sort(key=natural_key)
        for source in sources:
            parts = [part for part in source.split("/") if part and "*" not in part]
            name = without_suffix(parts[-1]) if parts else "images"
            while name in named:
                name += "~"
            named[name] = source
    return named


def _stored(sources: Mapping[str, str]) -> list[ImageFile]:
    """The files of archives, addresses and other paths. Where there are several of these, names
    begin with that of the folder or archive."""
    with reading_threads(waiting=True) as pool:
        files_of_each = list(pool.map(_files_of, sources.values()))
    images: dict[str, ImageFile] = {}
    for (folder, source), files in zip(sources.items(), files_of_each, strict=True):
        kind = archive_kind(source)
        is_named = len(sources) > 1 and (len(files) > 1 or kind is not None) and kind != "video"
        for name in sorted(files, key=natural_key):
            unique = f"{folder}/{name}" if is_named else name
            while unique in images:
                unique += "~"
            images[unique] = ImageFile(files[name], unique)
    return list(images.values())


def _files_of(source: str) -> Mapping[str, Path | StoredFile]:
    if not is_stored(source):
        return {image.name: image.path for image in find_images(source)}
    files = find_stored(source)
    photographs = {splitext(name)[0] for name in files if not name.endswith(_LABELS)}
    is_label = {x: x.endswith(_LABELS) and splitext(x)[0] in photographs for x in files}
    return {name: file for name, file in files.items() if not is_label[name]}


def _named(files_of_each: list[list[_Match]], common: str) -> list[ImageFile]:
    """Each file once, in order, named by its path below the folder `common`."""
    below = len(common.rstrip(os.sep)) + 1
    keyed = [
        ((number, *natural_key(file.path[below:].replace(os.sep, "/"))), file)
        for number, files in enumerate(files_of_each)
        for file in files
    ]
    first_of: dict[str, tuple[tuple, str]] = {}
    for key, file in sorted(keyed, key=lambda pair: (pair[1].linked, pair[0])):
        first_of.setdefault(file.real_path, (key, file.path))
    images: dict[str, ImageFile] = {}
    for (_, _, raw_name), path in sorted(first_of.values()):
        # So that every name is Unicode: a byte that cannot be decoded as in a URL ("caf%E9.jpg").
        name = re.sub("[\ud800-\udfff]", lambda m: f"%{os.fsencode(m[0]).hex().upper()}", raw_name)
        while name in images:  # another file really has this name
            name += "~"
        images[name] = ImageFile(Path(path), name)
    return list(images.values())


def natural_key(name: str) -> tuple[list[list[str | int]], str]:
    """Sort key of a POSIX path: folder by folder, numbers by value, ignoring case; no ties."""
    *folders, file = name.split("/")
    parts = [*folders, *splitext(file)]
    # re.split alternates text and digits, so that like is always compared with like.
    tokens: list[list[str | int]] = [
        [int(token) if i % 2 else token for i, token in enumerate(re.split("([0-9]+)", part))]
        for part in map(str.casefold, parts)
    ]
    return tokens, name


def _split_path(path: str) -> tuple[str, tuple[str, ...]]:
    """Split a path into the folder to search and a glob relative to it; no glob for a file."""
    if os.path.isdir(path):
        return path, EVERYTHING
    if os.path.exists(path):
        return os.path.dirname(path), ()
    parts = Path(path).parts
    root = ""
    for i, part in enumerate(parts):
        if WILDCARD.search(part) and not os.path.lexists(os.path.join(root, part)):
            return root, parts[i:]
        root = os.path.join(root, part)
    raise InputError(f"cannot find {path!r}: give a folder, an image file or a glob")


def _walk(root: str, glob: tuple[str, ...]) -> Iterator[_Match]:
    """Yield the files below `root` that match `glob`, without loops of links and hidden ones."""
    root = os.path.abspath(root)  # "" is the working folder
    pending = deque([(root, os.path.realpath(root), False, frozenset([glob]))])
    seen = set()
    written: set[str] = set()
    while pending:
        folder, real_folder, linked_folder, globs = pending.popleft()
        if (real_folder, globs) in seen or read_manifest(folder) is not None:
            continue
        seen.add((real_folder, globs))
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            if folder == root:
                raise InputError(
                    f"cannot list the folder {root!r}: {unreadable_reason(error)}"
                ) from error
            yield _Match(folder, real_folder, linked_folder)
            continue
        # What deepff wrote there, such as masks next to the photographs, is no photograph.
        written |= {os.path.join(folder, *name.split("/")) for name in listed_files(folder)}
        photographs = {splitext(e.name)[0] for e in entries if not e.name.endswith(_LABELS)}
        for entry in entries:
            stem, suffix = splitext(entry.name)
            if suffix in _LABELS and stem in photographs:
                continue
            rests = _left_to_match(globs, entry.name)
            if entry.name.startswith(".") or not rests or entry.path in written:
                continue
            is_link = entry.is_symlink()
            real = (
                os.path.realpath(entry.path) if is_link else os.path.join(real_folder, entry.name)
            )
            linked = linked_folder or is_link
            if os.path.isdir(entry.path):
                # Links last: a folder that is also here without a link is searched there.
                add = pending.append if is_link else pending.appendleft
                add((entry.path, real, linked, rests))
            elif any(set(rest) <= {"**"} for rest in rests) and (
                os.path.isfile(entry.path) or (is_link and not os.path.exists(entry.path))
            ):
                yield _Match(entry.path, real, linked)


def _left_to_match(globs: frozenset[tuple[str, ...]], name: str) -> frozenset[tuple[str, ...]]:
    """The rest of each glob after a file or folder `name` has matched its first part."""
    rests = set()
    for glob in globs:
        while glob[:1] == ("**",):  # which may go on, or stand for nothing
            rests.add(glob)
            glob = glob[1:]
        if glob and fnmatchcase(name, glob[0]):
            rests.add(glob[1:])
    return frozenset(rests)


def output_names(names: Sequence[str]) -> list[str]:
    """Relative paths of images' output files, without suffix unless that makes two names equal, and
    numbered if they still are. They are short, and unique even where case and the composition of
    accents are ignored."""
    full = [_inner_path(name) for name in names]
    stems = [_UNFIT_END.sub("", splitext(name)[0]) for name in full]
    # "a" and a suffix must not be the folder "a.png" of another image.
    folders = {os.path.dirname(name) for name in full}
    taken = {file_key(folder[: dot.start()]) for folder in folders for dot in DOT.finditer(folder)}

    counts = Counter(map(file_key, stems))
    unique = []
    for whole, stem in zip(full, stems, strict=True):
        name = shortened(stem if counts[file_key(stem)] == 1 else whole)
        candidate, number = name, 1
        while file_key(candidate) in taken:
            number += 1
            candidate = f"{name}-{number}"
        taken.add(file_key(candidate))
        unique.append(candidate)
    return unique


def file_key(name: str) -> str:
    """Equal for two names that are one file on some file system."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _inner_path(name: str) -> str:
    parts = [_UNFIT_END.sub("", part.strip()) for part in _UNFIT.sub("_", name).split("/")]
    return "/".join(_UNFIT_START.sub("_", part) for part in parts if part) or "image"


def shortened(path: str) -> str:
    """Cut parts that, with a suffix, could exceed the 255 bytes a file system allows."""
    parts = []
    for part in path.split("/"):
        data = part.encode("utf-8", "surrogatepass")
        if len(data) > 200:
            part = f"{data[:180].decode(errors='ignore')}~{hashlib.sha256(data).hexdigest()[:8]}"
        parts.append(part)
    return "/".join(parts)
