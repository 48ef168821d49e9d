"""Regions written in the formats of labeling tools."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from zlib import compress, decompress

import numpy as np
from PIL import Image

from deepff.errors import InputError, warn_user
from deepff.export.instances import (
    AnnotatedImage,
    LabelMaps,
    annotated_images,
    found_maps,
    plain_images,
)
from deepff.images.image_set import ImageItem
from deepff.options import ExportFormat, ExportOptions, RegionOptions, chosen
from deepff.regions.part_names import check_name
from deepff.results.run import Run
from deepff.runtime.outputs import Rules, check_outputs, files_below, output_folder

_MANY_PIECES = 4  # of a region in an image, on average, that need a word

# Writes images, whose regions have these names, into a folder.
Writer = Callable[[Iterable[AnnotatedImage], Sequence[str], Path, ExportOptions], None]


FORMATS: dict[str, Writer] = {
    format: getattr(
        import_module(f"deepff.export.{format.file}"), f"write_{format.replace('-', '_')}"
    )
    for format in ExportFormat
}


@dataclass(frozen=True)
class ExportSummary:
    """What an export wrote."""

    n_instances: int
    n_regions: int  # that they are pieces of, image by image
    n_specks: int  # instances that were left out for being too small
    n_unlikely: int  # and for their score
    n_empty: int  # images without any instance
    folders: list[Path]  # one per format


def export(
    result: Run,
    formats: str | Sequence[str],
    folder: str | Path,
    k: int | None = None,
    options: RegionOptions | None = None,
    settings: ExportOptions | None = None,
    progress: bool = False,
) -> ExportSummary:
    """Write the regions of every image (:func:`deepff.regions.regions.find_regions`) in formats,
    each of several in a folder of its name. InputError for an unknown format, what it cannot hold,
    or files that would be lost (`check_outputs`)."""
    settings = settings or ExportOptions()
    maps = found_maps(result, k, options, settings.memory)
    summary = export_maps(result, maps, formats, folder, settings, progress)
    are_known = result.factorization(k).scores is not None  # as objects
    if not are_known and summary.n_instances > _MANY_PIECES * summary.n_regions:
        warn_user(
            f"the {summary.n_instances} instances are pieces of {summary.n_regions} regions, as "
            "each connected piece of a mask is an instance. If a region is one object, export it "
            'as one (instances="parts"), or leave out small pieces (min_area)'
        )
    return summary


def export_maps(
    result: Run,
    maps: LabelMaps,
    formats: str | Sequence[str],
    folder: str | Path,
    settings: ExportOptions | None = None,
    progress: bool = False,
) -> ExportSummary:
    """Write label maps in the formats of labeling tools; see `export`. The maps are read once for
    all formats, and memory holds one image at a time. Files replace earlier ones when all are
    written; files of other names stay."""
    settings = settings or ExportOptions()
    folders = _folders(formats, Path(folder))
    for name in maps.names:
        check_name(name)
    rules = Rules(settings.overwrite, settings.anew, result.paths)
    plain = plain_images(result, settings, maps.images)
    if settings.split or {"yolo", "voc"} & {format.file for format in folders}:
        _warn_of_copies(plain)
    for format, path in folders.items():
        located = [image.located(path) for image in plain]
        check_outputs(path, planned_files(format, located, maps.names, settings), rules)

    n_instances = n_regions = n_specks = n_empty = 0
    with ExitStack() as stack:
        enter = stack.enter_context
        temporary_folders = {x: enter(output_folder(path, rules)) for x, path in folders.items()}

        def counted() -> Iterator[AnnotatedImage]:
            nonlocal n_instances, n_regions, n_specks, n_empty
            for image in annotated_images(result, maps, settings, progress):
                n_instances += len(image.instances)
                n_regions += len({instance.region for instance in image.instances})
                n_specks += image.n_specks
                n_empty += not image.instances
                yield image

        replay = enter(_kept(counted())) if len(folders) > 1 else counted
        for format, temporary in temporary_folders.items():
            images = (image.located(folders[format]) for image in replay())
            FORMATS[format](images, maps.names, temporary, settings)
    n_unlikely = sum(maps.n_unlikely)
    return ExportSummary(
        n_instances, n_regions, n_specks, n_unlikely, n_empty, list(folders.values())
    )


def _warn_of_copies(images: Sequence[AnnotatedImage]) -> None:
    digests = [image.digest for image in images if image.digest is not None]
    if n_copies := len(digests) - len(set(digests)):
        warn_user(
            f"{n_copies} of the {len(images)} images are copies of others: a photograph and its "
            "copies are in the same subset of the split",
            above=2,
        )


def planned_files(
    format: str, images: Sequence[AnnotatedImage], names: Sequence[str], settings: ExportOptions
) -> list[str]:
    """The files that a format would write, from writing it for images of one pixel."""
    with TemporaryDirectory() as folder:
        photo, out = Path(folder, "photo"), Path(folder, "out")
        Image.new("RGB", (1, 1)).save(photo, "PNG")
        item = ImageItem([np.zeros((1, 1, 3), np.uint8)], 0, "")
        tiny = []
        for image in images:
            origin = item if isinstance(image.origin, ImageItem) else photo
            file = image.origin if isinstance(image.origin, PathLike) else None
            tiny.append(replace(image, size=(1, 1), origin=origin, photo_path=file, digest=None))
        FORMATS[format](tiny, names, out, settings)
        return files_below(out)


def _folders(formats: str | Sequence[str], folder: Path) -> dict[ExportFormat, Path]:
    """Each format's folder."""
    names = [formats] if isinstance(formats, str) else formats
    known = list(dict.fromkeys(chosen(ExportFormat, name, "format") for name in names))
    if not known:
        raise InputError(f"name a format to export: {', '.join(FORMATS)}")
    return {format: folder / format if len(known) > 1 else folder for format in known}


@contextmanager
def _kept(images: Iterable[AnnotatedImage]) -> Iterator[Callable[[], Iterator[AnnotatedImage]]]:
    """Keep images on disk, to go through them several times."""
    with TemporaryFile() as file:
        kept = []
        for image in images:  # the origin of a data set's image may not be pickled
            data = compress(pickle.dumps(replace(image, origin=None)), 1)
            kept.append((file.write(data), image.origin))

        def replay() -> Iterator[AnnotatedImage]:
            file.seek(0)
            for length, origin in kept:
                yield replace(pickle.loads(decompress(file.read(length))), origin=origin)

        yield replay
