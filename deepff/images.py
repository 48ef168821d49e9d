"""Images: find them, read them as a viewer shows them, size them for a network.

Pillow alone decodes. torchvision's JPEG decoder gives the same pixels to the bit; it is a little
quicker on a small photograph, but Pillow's reduced-scale decoding is far quicker on a large one.
"""

import hashlib
import json
import logging
import os
import re
import stat
import unicodedata
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from deepff.errors import InputError

MAX_PIXELS = 178_956_970  # where Pillow, too, stops believing that a file is a picture

SAMPLES = (
    "motorcycle_left.png",
    "motorcycle_right.png",
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "rocket.jpg",
)

# What a viewer opens. Pillow's full list would also run Ghostscript on PostScript files.
# An older Pillow lacks AVIF.
Image.init()
FORMATS = tuple(
    name
    for name in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "JPEG2000", "AVIF")
    if name in Image.OPEN
)

# EXIF orientation: what turns the stored pixels upright.
ORIENTATION_TAG = 274
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)

SIGNATURES = [accept for accept in (Image.OPEN[name][1] for name in FORMATS) if accept]
PILLOW = re.compile(r"PIL\.")
DOT = re.compile(r"\.")
NULL_HANDLER = logging.NullHandler()
WILDCARD = re.compile(r"[*?\[]")
EVERYTHING = ("**",)


@dataclass(frozen=True)
class ImageFile:
    """One file of an image set.

    Attributes
    ----------
    path : Path
        Where the file is read from (absolute).
    name : str
        POSIX path relative to the set's root: unique in the set, valid Unicode.
    """

    path: Path
    name: str


@dataclass(frozen=True)
class SkippedFile:
    """A file of the set that was left out, and why in a few words ("truncated", "empty file")."""

    name: str
    reason: str


class UnreadableImageError(Exception):
    """An image cannot be read; ``str(error)`` is the reason in a few words."""


def find_images(sources: str | Path | Sequence[str | Path]) -> list[ImageFile]:
    """List the files that folders, files and globs stand for, in natural order (img2 before img10).

    No file is opened: what is not an image is for `image_size` to say. So is a dangling link or
    a subfolder that may not be listed, which is returned like a file so that it is reported.

    Parameters
    ----------
    sources : path, glob, or sequence of them
        A folder is searched with its subfolders. A glob yields files, ``**`` in it stands for any
        number of folders; a path that exists wins over its meaning as a glob. Below a folder or
        a glob's first wildcard, hidden files and folders are skipped, and so are folders
        that hold a deepff result. Links are followed; a file reached twice counts once, and
        under its own path rather than that of a link.

    Returns
    -------
    list of ImageFile
        Names are relative to the folder (a file's folder, the folder before a glob's first
        wildcard); for several sources to their common parent. So that every name is Unicode,
        a byte that cannot be decoded is shown as in a URL ("caf%E9.jpg").

    Raises
    ------
    InputError
        No source, a source that does not exist, a glob that matches nothing, an empty folder.
    """
    roots: list[str] = []
    found: list[_Found] = []
    result_folder = ""
    for source in [sources] if isinstance(sources, str | Path) else sources:
        text = os.fspath(source)
        root, pattern = _split_source(text)
        # A name must not hold "..", which can be taken out only after links are resolved.
        root = os.path.realpath(root) if ".." in Path(root).parts else os.path.abspath(root)
        roots.append(root)
        if pattern:
            files = list(_walk(root, pattern))
        else:
            path = os.path.join(root, os.path.basename(text))
            files = [_Found(path, os.path.realpath(path), os.path.islink(path))]
        if not files and _holds_result(root):
            result_folder = text
        elif not files:
            raise InputError(
                f"no images in the folder {text!r}: it holds no files that are not hidden"
                if pattern == EVERYTHING
                else f"no file matches {text!r}; '**' is needed to look into subfolders"
            )
        found += files
    if not roots:
        raise InputError("no images were named: give a folder, files or a glob")
    if not found:
        raise InputError(f"{result_folder!r} holds a deepff result: give the folder of the images")

    common = os.path.commonpath(roots)
    below = len(common.rstrip(os.sep)) + 1
    keyed = [(natural_key(file.path[below:].replace(os.sep, "/")), file) for file in found]
    first_of: dict[str, tuple[tuple, str]] = {}
    for key, file in sorted(keyed, key=lambda pair: (pair[1].linked, pair[0])):
        first_of.setdefault(file.real_path, (key, file.path))
    images: dict[str, ImageFile] = {}
    for (_, raw_name), path in sorted(first_of.values()):
        name = re.sub("[\ud800-\udfff]", lambda m: f"%{os.fsencode(m[0]).hex().upper()}", raw_name)
        while name in images:  # another file is really called what this one is shown as
            name += "~"
        images[name] = ImageFile(Path(path), name)
    return list(images.values())


def natural_key(name: str) -> tuple[list[list[str | int]], str]:
    """Sort key of a POSIX path: folder by folder, numbers by value, ignoring case; no ties."""
    *folders, file = name.split("/")
    parts = [*folders, *os.path.splitext(file)]
    # re.split alternates text and digits, so that like is always compared with like.
    tokens: list[list[str | int]] = [
        [int(token) if i % 2 else token for i, token in enumerate(re.split("([0-9]+)", part))]
        for part in map(str.casefold, parts)
    ]
    return tokens, name


@dataclass(frozen=True)
class _Found:
    path: str
    real_path: str
    linked: bool  # reached through a symbolic link below the source


def _split_source(source: str) -> tuple[str, tuple[str, ...]]:
    """Split a source into the folder to search and a glob relative to it; no glob for a file."""
    if os.path.isdir(source):
        return source, EVERYTHING
    if os.path.exists(source):
        return os.path.dirname(source), ()
    parts = Path(source).parts
    root = ""
    for i, part in enumerate(parts):
        if WILDCARD.search(part) and not os.path.lexists(os.path.join(root, part)):
            return root, parts[i:]
        root = os.path.join(root, part)
    raise InputError(f"cannot find {source!r}: give a folder, an image file or a glob")


def _walk(root: str, glob: tuple[str, ...]) -> Iterator[_Found]:
    """Yield the files below `root` that match `glob`.

    glob.glob goes round a loop of links 40 times, and pathlib's version yields hidden files.
    """
    pending = deque([(root, os.path.realpath(root), False, frozenset([glob]))])
    seen = set()
    while pending:
        folder, real_folder, linked_folder, globs = pending.popleft()
        if (real_folder, globs) in seen or _holds_result(folder):
            continue
        seen.add((real_folder, globs))
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            if folder == root:
                raise InputError(f"cannot list the folder {root!r}: {_reason(error)}") from error
            yield _Found(folder, real_folder, linked_folder)
            continue
        for entry in entries:
            left = _left_to_match(globs, entry.name)
            if entry.name.startswith(".") or not left:
                continue
            is_link = entry.is_symlink()
            real = (
                os.path.realpath(entry.path) if is_link else os.path.join(real_folder, entry.name)
            )
            linked = linked_folder or is_link
            if os.path.isdir(entry.path):
                # Links last: a folder that has a place of its own here is searched there.
                add = pending.append if is_link else pending.appendleft
                add((entry.path, real, linked, left))
            elif any(set(rest) <= {"**"} for rest in left) and (
                os.path.isfile(entry.path) or (is_link and not os.path.exists(entry.path))
            ):
                yield _Found(entry.path, real, linked)


def _left_to_match(globs: frozenset[tuple[str, ...]], name: str) -> frozenset[tuple[str, ...]]:
    """What is left of each glob once a file or folder `name` has taken its first part."""
    left = set()
    for glob in globs:
        while glob[:1] == ("**",):  # which may go on, or stand for nothing
            left.add(glob)
            glob = glob[1:]
        if glob and fnmatchcase(name, glob[0]):
            left.add(glob[1:])
    return frozenset(left)


def _holds_result(folder: str) -> bool:
    path = os.path.join(folder, "manifest.json")
    if not os.path.isfile(path):
        return False
    try:
        manifest = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and "deepff" in manifest


def sample_images() -> list[ImageFile]:
    """Six photographs that scikit-image carries in its package.

    Raises
    ------
    InputError
        scikit-image or one of the photographs is not there.
    """
    spec = find_spec("skimage")  # importing it would take a second
    folders = spec.submodule_search_locations if spec else None
    paths = [Path(folder, "data", name) for folder in folders or [] for name in SAMPLES]
    if not paths or not all(path.is_file() for path in paths):
        raise InputError("the sample images come with scikit-image: pip install scikit-image")
    return [ImageFile(path, path.name) for path in paths]


def image_size(path: str | Path) -> tuple[int, int]:
    """Height and width of an image as seen upright, in pixels, from the file's header alone.

    Raises
    ------
    UnreadableImageError
        The file cannot be opened, is no image, or has more than `MAX_PIXELS` pixels.
    """
    with _opened(path) as image:
        width, height = image.size
        return (width, height) if _orientation(image) in SIDEWAYS else (height, width)


def read_image(path: str | Path, min_longest_side: int | None = None) -> np.ndarray:
    """Read an image as a viewer shows it.

    Upright (EXIF), transparency on white, 16 bits scaled to 8 (65535 becomes 255), the first
    frame or page, CMYK without a colour profile. Floating-point values are taken to lie in [0, 1].
    Threads may call it at once: decoding releases the interpreter lock.

    Parameters
    ----------
    path : path
        JPEG, PNG, WebP, TIFF, BMP, GIF, PPM, JPEG 2000 or AVIF.
    min_longest_side : int, optional
        How many pixels of the longer side will be used. A JPEG may then be decoded at 1/2, 1/4 or
        1/8 of its scale, as long as that leaves at least twice as many.

    Returns
    -------
    ndarray, uint8, shape (height, width, 3)
        RGB.

    Raises
    ------
    UnreadableImageError
        See `image_size`; also a truncated or damaged file, which is never half-read.
    """
    with _opened(path) as image:
        orientation = _orientation(image)
        if min_longest_side:
            image.draft(None, _reduced_size(image.size, min_longest_side))
        rgb = _to_rgb(image)
        if orientation in UPRIGHT:
            rgb = rgb.transpose(UPRIGHT[orientation])
        return np.array(rgb)


def _reduced_size(size: tuple[int, int], min_longest_side: int) -> tuple[int, int]:
    """Smallest size to decode at that cannot be told from the full one after resizing."""
    for scale in (8, 4, 2):
        # Pillow's `reducing_gap` asks for twice the pixels, too. A side that the scale does not
        # divide would be rounded up, which stretches the image by part of a pixel.
        enough = max(size) // scale >= 2 * min_longest_side
        if enough and size[0] % scale == size[1] % scale == 0:
            return size[0] // scale, size[1] // scale
    return size


@contextmanager
def _opened(path: str | Path) -> Iterator[Image.Image]:
    """Open an image without decoding it; any failure in here is an UnreadableImageError."""
    _silence_pillow()
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()  # find_images hands on folders that may not be listed
        if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
            raise UnreadableImageError("not a regular file")
        with open(path, "rb") as stream:
            prefix = stream.read(16)
            if not prefix:
                raise UnreadableImageError("empty file")
            if not any(accept(prefix) for accept in SIGNATURES):
                heic = prefix[4:8] == b"ftyp"
                raise UnreadableImageError("unsupported format" if heic else "not an image")
            stream.seek(0)
            with Image.open(stream, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise Image.DecompressionBombError
                yield image
    except UnreadableImageError:
        raise
    except Exception as error:  # on garbage, decoders raise nearly everything there is
        raise UnreadableImageError(_reason(error)) from error


def _silence_pillow() -> None:
    """Keep Pillow's warnings about odd files off the screen; a file is read or it is not.

    warnings.catch_warnings would also undo what other threads set meanwhile.
    """
    logging.getLogger("PIL").addHandler(NULL_HANDLER)
    if not any(f[:2] == ("ignore", None) and f[3] == PILLOW for f in warnings.filters[:1]):
        warnings.filterwarnings("ignore", module=PILLOW.pattern)


def _reason(error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {round(MAX_PIXELS / 1e6)} million pixels"
    if isinstance(error, MemoryError):
        return "too large for the memory"
    if isinstance(error, FileNotFoundError):
        return "file not found"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "truncated" if "truncated" in str(error).lower() else "damaged or unsupported"


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8, of the pixels that Pillow will return."""
    if image.format == "TIFF":  # Pillow turns these itself
        return 1
    try:
        # Not image.getexif(), which for a PNG decodes the whole image first.
        return int(Image.Image.getexif(image).get(ORIENTATION_TAG, 1))
    except Exception:  # EXIF data may be garbage in an image that is not
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_to_8_bits(image)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")


def _to_8_bits(image: Image.Image) -> np.ndarray:
    """Scale the pixels of a deep grey image, for which Pillow's convert would clip."""
    is_tiff = image.format == "TIFF"
    tags = getattr(image, "tag_v2", {})
    bits, photometric = tags.get(258), tags.get(262)
    values = np.asarray(image)
    if image.mode == "F":
        if not (values.min() >= 0 and values.max() <= 1):
            raise UnreadableImageError("floating-point values outside 0 to 1")
        grey = np.rint(values * 255).astype(np.uint8)
    elif image.mode == "I" and is_tiff:
        raise UnreadableImageError("signed or 32-bit values")
    else:
        white = 4095 if bits == (12,) else 65535
        grey = ((values.astype(np.uint32) * 255 + white // 2) // white).astype(np.uint8)
    if photometric == 0:  # white is zero, which Pillow undoes for 8 bits only
        grey = 255 - grey
    if "transparency" in image.info:
        grey[values == image.info["transparency"]] = 255
    return grey


def resized_shape(height: int, width: int, size: int, stride: int) -> tuple[int, int]:
    """Shape at which an image goes through the network, in pixels.

    The longer side becomes `size`, then each side the nearest multiple of `stride` (half a cell up)
    that is not below one cell, so that the layer's grid covers the image exactly.

    Raises
    ------
    InputError
        `size` is not positive.
    """
    if size < 1:
        raise InputError(f"the size must be a positive number of pixels, not {size}")
    longest = max(height, width)

    def cells(side: int) -> int:
        return max(1, (2 * side * size + longest * stride) // (2 * longest * stride))

    return cells(height) * stride, cells(width) * stride


def resize(
    image: np.ndarray, shape: tuple[int, int], interpolation: str = "bilinear"
) -> torch.Tensor:
    """Resize an image with antialiasing.

    Parameters
    ----------
    image : ndarray, uint8, shape (height, width, 3)
    shape : (int, int)
        New height and width in pixels.
    interpolation : {"bilinear", "bicubic"}

    Returns
    -------
    Tensor, uint8, shape (3, *shape)
    """
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    mode = InterpolationMode(interpolation)
    channels_first = torch.from_numpy(image).permute(2, 0, 1)
    return functional.resize(channels_first, list(shape), interpolation=mode, antialias=True)


def output_names(names: Sequence[str]) -> list[str]:
    """Names for the output files of images: relative paths to which a suffix can be added.

    The image's own suffix is dropped, and kept where that would make two names alike ("a.jpg" and
    "a.png" stay, "b.jpg" becomes "b"). The names are unique even on a file system that ignores case
    or the composition of accents, stay inside the folder they are put in, and are not too long.
    """
    full = [_inner_path(name) for name in names]
    stems = [os.path.splitext(name)[0] for name in full]
    # "a" and a suffix must not be the folder "a.png" of another image.
    folders = {os.path.dirname(name) for name in full}
    taken = {_file_key(folder[: dot.start()]) for folder in folders for dot in DOT.finditer(folder)}

    chosen = [_shortened(stem) for stem in stems]
    clashing = set(range(len(chosen)))
    kept: set[int] = set()
    while clashing:
        counts = Counter(map(_file_key, chosen))
        clashing = {
            i for i, name in enumerate(chosen) if counts[_file_key(name)] > 1 and i not in kept
        }
        kept |= clashing
        for i in clashing:
            chosen[i] = _shortened(full[i])

    unique = []
    for name in chosen:
        candidate, number = name, 1
        while _file_key(candidate) in taken:
            number += 1
            candidate = f"{name}-{number}"
        taken.add(_file_key(candidate))
        unique.append(candidate)
    return unique


def _file_key(name: str) -> str:
    """What two names have in common that are one file on some file system."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _inner_path(name: str) -> str:
    parts = [part for part in name.replace("\0", "_").split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "image"


def _shortened(path: str) -> str:
    """Cut parts that, with a suffix, could exceed the 255 bytes a file system allows."""
    parts = []
    for part in path.split("/"):
        data = part.encode("utf-8", "surrogatepass")
        if len(data) > 200:
            part = f"{data[:180].decode(errors='ignore')}~{hashlib.sha256(data).hexdigest()[:8]}"
        parts.append(part)
    return "/".join(parts)


def content_digest(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
