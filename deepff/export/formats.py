"""The formats of labelling tools, by name."""

import pickle
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from zlib import compress, decompress

import numpy as np
from PIL import Image

from deepff.errors import InputError
from deepff.export.coco import write_coco
from deepff.export.cvat import write_cvat
from deepff.export.instances import (
    AnnotatedImage,
    LabelMaps,
    annotated_images,
    found_maps,
    plain_images,
)
from deepff.export.label_studio import write_label_studio
from deepff.export.labelme import write_labelme
from deepff.export.png import write_label_map, write_label_names
from deepff.export.voc import write_voc
from deepff.export.yolo import write_yolo
from deepff.images.image_set import ImageItem
from deepff.options import ExportFormat, ExportOptions, RegionOptions, chosen
from deepff.results.run import Run
from deepff.runtime.outputs import Rules, check_outputs, output_folder


def write_label_maps(
    images: Iterable[AnnotatedImage],
    names: Sequence[str],
    folder: Path,
    settings: ExportOptions,
) -> None:
    """Write the label map of each image as ``<folder>/<image>.png``, and ``labels.txt``.

    See :func:`deepff.export.png.write_label_map`.
    """
    for image in images:
        labels = image.painted([instance.region + 1 for instance in image.instances])
        write_label_map(labels, len(names), folder, image.file)
    write_label_names(names, folder)


Writer = Callable[[Iterable[AnnotatedImage], Sequence[str], Path, ExportOptions], None]

FORMATS: dict[str, Writer] = {
    ExportFormat.COCO: write_coco,
    ExportFormat.COCO_POLYGONS: partial(write_coco, polygons=True),
    ExportFormat.YOLO: write_yolo,
    ExportFormat.YOLO_SEG: partial(write_yolo, polygons=True),
    ExportFormat.VOC: write_voc,
    ExportFormat.LABELME: write_labelme,
    ExportFormat.LABEL_STUDIO: write_label_studio,
    ExportFormat.CVAT: write_cvat,
    ExportFormat.PNG: write_label_maps,
}

# What each instance is written as.
CONTENTS: dict[str, tuple[str, ...]] = {
    ExportFormat.COCO: ("masks", "boxes"),
    ExportFormat.COCO_POLYGONS: ("masks", "boxes"),
    ExportFormat.YOLO: ("boxes",),
    ExportFormat.YOLO_SEG: ("masks",),
    ExportFormat.VOC: ("masks", "boxes"),
    ExportFormat.LABELME: ("masks",),
    ExportFormat.LABEL_STUDIO: ("masks",),
    ExportFormat.CVAT: ("masks",),
    ExportFormat.PNG: ("masks",),
}


# They name the images line by line.
LISTED = frozenset({ExportFormat.YOLO, ExportFormat.YOLO_SEG, ExportFormat.VOC})


@dataclass(frozen=True)
class ExportSummary:
    """What an export wrote.

    Attributes
    ----------
    n_instances : int
    n_specks : int
        Instances that were left out for being too small.
    folders : list of Path
        Each format's folder.
    """

    n_instances: int
    n_specks: int
    folders: list[Path]


def export(
    result: Run,
    formats: str | Sequence[str],
    folder: str | Path,
    k: int | None = None,
    options: RegionOptions | None = None,
    settings: ExportOptions | None = None,
    progress: bool = False,
) -> ExportSummary:
    """Write the regions of every image in the formats of labelling tools.

    Parameters
    ----------
    result, formats, folder, settings, progress
        See :func:`export_maps`.
    k, options
        See :func:`deepff.regions.regions.find_regions`.

    Raises
    ------
    InputError
        As :func:`export_maps` and :func:`deepff.regions.regions.find_regions`.
    """
    settings = settings or ExportOptions()
    maps = found_maps(result, k, options, settings.memory)
    return export_maps(result, maps, formats, folder, settings, progress)


def export_maps(
    result: Run,
    maps: LabelMaps,
    formats: str | Sequence[str],
    folder: str | Path,
    settings: ExportOptions | None = None,
    progress: bool = False,
) -> ExportSummary:
    """Write what label maps mark in the formats of labelling tools.

    The maps are read once for all formats, and memory holds one image at a time. The files come
    into their folders when all are written, so that an export that is cut short leaves none, and
    what was there stays until then. Files of other names stay altogether.

    Parameters
    ----------
    result : Run
    maps : LabelMaps
    formats : str or sequence of str
        Keys of ``FORMATS``.
    folder : path
        Where to write; each of several formats into a folder of its own name in it.
    settings : ExportOptions, optional
    progress : bool
        Show progress on standard error.

    Raises
    ------
    InputError
        An unknown format, a name with a line break or another control character, an option out of
        its range, what the format cannot hold, a file in place of the folder, or files in it that
        would be lost (:func:`deepff.runtime.outputs.check_outputs`).
    """
    settings = settings or ExportOptions()
    folders, names = _folders(formats, Path(folder)), maps.names
    for name in names:
        if any(unicodedata.category(character) == "Cc" for character in name):
            raise InputError(f"the name {name!r} has a control character, which formats can't hold")
    for name in result.names:
        if not LISTED.isdisjoint(folders) and len(name.splitlines()) > 1:
            raise InputError(
                f"the name {name!r} has a line break, which the lists of images of VOC and YOLO "
                "can't hold: rename the file, or export to another format"
            )
    rules = Rules(settings.overwrite, settings.anew, result.paths)
    for format, place in folders.items():
        plain = [image.located(place) for image in plain_images(result, settings, maps.images)]
        check_outputs(place, planned_files(format, plain, names, settings), rules)

    n_instances = n_specks = 0
    with ExitStack() as stack:
        new = {
            format: stack.enter_context(output_folder(place, rules))
            for format, place in folders.items()
        }
        images = annotated_images(result, maps, settings, progress)

        def counted() -> Iterator[AnnotatedImage]:
            nonlocal n_instances, n_specks
            for image in images:
                n_instances += len(image.instances)
                n_specks += image.n_specks
                yield image

        several = len(folders) > 1
        replay = stack.enter_context(_kept(counted())) if several else counted
        for format, temporary in new.items():
            located = (image.located(folders[format]) for image in replay())
            FORMATS[format](located, names, temporary, settings)
    return ExportSummary(n_instances, n_specks, list(folders.values()))


def planned_files(
    format: str, images: Sequence[AnnotatedImage], names: Sequence[str], settings: ExportOptions
) -> list[str]:
    """The files that a format would write, by writing it for images of one pixel.

    Raises
    ------
    InputError
        What the format cannot hold.
    """
    with TemporaryDirectory() as folder:
        photo, out = Path(folder, "photo"), Path(folder, "out")
        Image.new("RGB", (1, 1)).save(photo, "PNG")
        item = ImageItem([np.zeros((1, 1, 3), np.uint8)], 0, "")
        tiny = []
        for image in images:
            origin = item if isinstance(image.origin, ImageItem) else photo
            photo_path = image.origin if isinstance(image.origin, Path) else None
            tiny.append(replace(image, size=(1, 1), origin=origin, photo_path=photo_path))
        FORMATS[format](tiny, names, out, settings)
        return [
            path.relative_to(out).as_posix()
            for path in out.rglob("*")
            if path.is_symlink() or path.is_file()
        ]


def _folders(formats: str | Sequence[str], folder: Path) -> dict[str, Path]:
    """Each format's folder."""
    named = [formats] if isinstance(formats, str) else formats
    known = list(dict.fromkeys(chosen(ExportFormat, format, "format") for format in named))
    if not known:
        raise InputError(f"name a format to export: {', '.join(FORMATS)}")
    return {format: folder / format if len(known) > 1 else folder for format in known}


@contextmanager
def _kept(images: Iterable[AnnotatedImage]) -> Iterator[Callable[[], Iterator[AnnotatedImage]]]:
    """Keep images on disk, to go through them several times."""
    with TemporaryFile() as file:
        kept = []
        for image in images:  # what a data set's images come from may not be written to a file
            data = compress(pickle.dumps(replace(image, origin=None)), 1)
            kept.append((file.write(data), image.origin))

        def replay() -> Iterator[AnnotatedImage]:
            file.seek(0)
            for length, origin in kept:
                yield replace(pickle.loads(decompress(file.read(length))), origin=origin)

        yield replay
