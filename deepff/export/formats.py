"""The formats of labelling tools, by name."""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from deepff.errors import InputError
from deepff.export.coco import write_coco
from deepff.export.cvat import write_cvat
from deepff.export.instances import AnnotatedImage, ImageEdits, annotated_images
from deepff.export.label_studio import write_label_studio
from deepff.export.labelme import write_labelme
from deepff.export.png import write_label_map, write_label_names
from deepff.export.voc import write_voc
from deepff.export.yolo import write_yolo
from deepff.options import RECIPE_OPTIONS, ExportFormat, Instances, RegionOptions, chosen
from deepff.regions.find import Regions, region_names
from deepff.results.run import Run
from deepff.runtime.files import atomic_folder


def write_label_maps(images: Iterable[AnnotatedImage], names: Sequence[str], folder: Path) -> None:
    """Write the label map of each image as ``<folder>/<image>.png``, and ``labels.txt``.

    See :func:`deepff.export.png.write_label_map`.
    """
    for image in images:
        values = image.painted([instance.region + 1 for instance in image.instances])
        labels = torch.from_numpy(values)
        masks = labels == torch.arange(1, len(names) + 1)[:, None, None]
        write_label_map(Regions(masks, labels), folder, image.file)
    write_label_names(names, folder)


Writer = Callable[[Iterable[AnnotatedImage], Sequence[str], Path], None]

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


def export(
    result: Run,
    format: str,
    folder: str | Path,
    k: int | None = None,
    options: RegionOptions | None = None,
    instances: str = Instances.COMPONENTS,
    min_area: int | None = None,
    edits: ImageEdits | None = None,
    progress: bool = False,
) -> int:
    """Write the instances of every image in the format of a labelling tool.

    Memory holds one image at a time. The files come into the folder when all are written, so that
    an export that is cut short leaves none; files of other names that the folder holds stay.

    Parameters
    ----------
    result : Run
    format : str
        A key of ``FORMATS``.
    folder : path
        Where to write.
    k, options
        See :func:`deepff.regions.find.find_regions`.
    instances, min_area
        See :func:`deepff.export.instances.find_instances`.
    edits : ImageEdits, optional
        Images to leave out, and factors that are background in one image.
    progress : bool
        Show progress on standard error.

    Returns
    -------
    int
        The number of instances.

    Raises
    ------
    InputError
        An unknown format, a name with a line break or another control character, an option out of
        its range, what the format cannot hold, or a file in place of the folder.
    """
    chosen(ExportFormat, format, "format")
    options = options or RECIPE_OPTIONS[result.recipe]
    names = region_names(result, k, options)
    for name in names:
        if any(unicodedata.category(character) == "Cc" for character in name):
            raise InputError(f"the name {name!r} has a control character, which formats can't hold")
    images = annotated_images(result, k, options, instances, min_area, edits, progress)
    count = 0

    def counted() -> Iterator[AnnotatedImage]:
        nonlocal count
        for image in images:
            count += len(image.instances)
            yield image

    with atomic_folder(folder) as temporary:
        FORMATS[format](counted(), names, temporary)
    return count
