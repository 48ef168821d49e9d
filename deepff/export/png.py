"""Masks and label maps as PNG; label maps over the frames of a video."""

import re
import zlib
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

from deepff.activations.activations import ImageRecord
from deepff.errors import InputError
from deepff.export.instances import AnnotatedImage
from deepff.images.image_files import file_key, shortened
from deepff.images.painting import factor_colors
from deepff.images.stored import frame_of
from deepff.options import ExportOptions
from deepff.regions.regions import Regions
from deepff.runtime.files import atomic_path, write_text


def write_png(
    images: Iterable[AnnotatedImage], names: Sequence[str], folder: Path, settings: ExportOptions
) -> None:
    """Write each image's label map as ``<folder>/<image>.png``, and ``labels.txt``."""
    for image in images:
        labels = image.painted([instance.region + 1 for instance in image.instances])
        write_label_map(labels, len(names), folder, image.file)
    write_label_names(names, folder)


def write_masks(regions: Regions, folders: Sequence[Path], file: str) -> None:
    """Write each region's mask as ``<file>.png`` in its own folder, one bit per pixel."""
    for folder, mask in zip(folders, regions.masks.cpu().numpy(), strict=True):
        _save(Image.fromarray(mask), folder / f"{file}.png")


def write_label_map(labels: np.ndarray, n_regions: int, folder: Path, file: str) -> None:
    """Write a label map (H, W) as ``<folder>/<file>.png``, colored by a palette as factors are."""
    if n_regions > 255:
        raise InputError(
            f"a label map holds up to 255 regions, not {n_regions}; name parts to merge factors, "
            "or use a smaller k"
        )
    write_indexed(labels, bytes(3) + factor_colors(n_regions).tobytes(), folder / f"{file}.png")


def write_indexed(values: np.ndarray, palette: bytes, path: Path) -> None:
    """Write values (H, W) below 256 as a PNG with a palette, RGB."""
    image = Image.fromarray(values.astype(np.uint8), "P")
    image.putpalette(palette)
    _save(image, path)


def write_video(frames: Sequence[ImageRecord], maps: Sequence[Path], path: Path) -> None:
    """Write frames at their times with their label maps, files of PNG, half transparent on them."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("h264")
        # The format wants even sides.
        height, width = (side // 2 * 2 for side in frames[0].size)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for frame, file in zip(frames, maps, strict=True):
            photo, labels = Image.fromarray(frame.read()), Image.open(file)
            shown = Image.blend(photo, labels.convert("RGB"), 0.5)
            shown.paste(photo, mask=Image.fromarray(np.asarray(labels) == 0))
            encoded = av.VideoFrame.from_image(shown.crop((0, 0, width, height)))
            encoded.pts = round(1000 * frame_of(frame.origin)[1])
            encoded.time_base = Fraction(1, 1000)
            container.mux(stream.encode(encoded))
        container.mux(stream.encode())


def write_label_names(names: Sequence[str], folder: Path) -> None:
    """Write ``labels.txt``: line n is the name of value n, the first the background."""
    write_text(folder / "labels.txt", "".join(f"{name}\n" for name in ("background", *names)))


def folder_names(names: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """A folder name per region, escaped as in a URL: different ones on every file system."""
    keys = set(map(file_key, taken))
    folders = []
    for name in names:
        folder = _UNSAFE.sub(lambda part: "".join(map(_escaped, part[0])), name) or "%"
        folder = shortened(folder)
        position = 0
        while file_key(folder) in keys:
            escaped = _escaped(folder[position])
            folder = folder[:position] + escaped + folder[position + 1 :]
            position += 3
        keys.add(file_key(folder))
        folders.append(folder)
    return folders


# Characters that some file system forbids, and Windows' names of devices.
_UNSAFE = re.compile(
    r'[/\\:*?"<>|%\x00-\x1f]|^\.|[. ]$|^(?:con|prn|aux|nul|com\d|lpt\d)(?=\.|$)', re.IGNORECASE
)


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _save(image: Image.Image, path: Path) -> None:
    with atomic_path(path) as temporary:
        # Runs of equal values are all that masks are made of: half the time, and no larger.
        image.save(temporary, compress_type=zlib.Z_RLE)
