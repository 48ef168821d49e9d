"""Instances of every image of a result: what the formats of labelling tools are written from.

They come from the label map, which holds one region per pixel, so that no two overlap: not from
the masks, which may share pixels, and which formats of one label a pixel cannot hold.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepff.export.subsets import subsets
from deepff.images.files import output_names
from deepff.images.sources import Source
from deepff.options import RECIPE_OPTIONS, ExportOptions, Instances, RegionOptions, chosen
from deepff.regions.components import Box, least_area
from deepff.regions.find import find_regions
from deepff.regions.part_names import part_map
from deepff.results.run import Run
from deepff.runtime.progress import track

_EIGHT_CONNECTED = np.ones((3, 3), dtype=bool)


@dataclass(frozen=True)
class Instance:
    """One annotation of an image.

    Attributes
    ----------
    region : int
        The index of its name among the regions' names.
    box : (x_min, y_min, x_max, y_max)
        In pixel edges, maxima exclusive, see :mod:`deepff.regions.components`.
    mask : ndarray, (y_max − y_min, x_max − x_min), bool
        Its pixels inside the box.
    """

    region: int
    box: Box
    mask: np.ndarray

    @property
    def area(self) -> int:
        """Number of pixels."""
        return int(np.count_nonzero(self.mask))

    def full_mask(self, size: tuple[int, int]) -> np.ndarray:
        """The mask in an image of ``size`` (H, W)."""
        full = np.zeros(size, bool)
        x_min, y_min, x_max, y_max = self.box
        full[y_min:y_max, x_min:x_max] = self.mask
        return full


@dataclass(frozen=True)
class AnnotatedImage:
    """An image and its instances.

    Attributes
    ----------
    name : str
        The image's POSIX path relative to the set's root.
    file : str
        The relative path of a file about this image, without suffix, unique in the set (see
        :func:`deepff.images.files.output_names`).
    size : (H, W)
        In pixels, of the image as it is seen upright.
    instances : list of Instance
    source : Path or ImageItem, optional
        The photograph.
    subset : "train", "val" or "test"
    place : str, optional
        The photograph's POSIX path in the folder that annotations are written to, if it is there.
    n_specks : int
        Instances that were left out for being too small.
    """

    name: str
    file: str
    size: tuple[int, int]
    instances: list[Instance]
    source: Source = None
    subset: str = "train"
    place: str | None = None
    n_specks: int = 0

    def located(self, folder: Path) -> "AnnotatedImage":
        """The same with its photograph's place in the folder that annotations are written to."""
        place = _place(self.source, folder) if isinstance(self.source, Path) else None
        return replace(self, place=place)

    def painted(self, values: list[int]) -> np.ndarray:
        """An int32 image (H, W), 0 but for the pixels of instance i, which are ``values[i]``."""
        image = np.zeros(self.size, np.int32)
        for value, instance in zip(values, self.instances, strict=True):
            x_min, y_min, x_max, y_max = instance.box
            image[y_min:y_max, x_min:x_max][instance.mask] = value
        return image


@dataclass(frozen=True)
class ImageEdits:
    """What a person decided image by image.

    Attributes
    ----------
    skipped : collection of str
        The names of images to leave out.
    dropped : mapping of str to collection of int
        By an image's name, the factors that count as background in it.
    """

    skipped: Collection[str] = frozenset()
    dropped: Mapping[str, Collection[int]] = field(default_factory=dict)


def plain_images(
    result: Run,
    settings: ExportOptions | None = None,
    edits: ImageEdits | None = None,
) -> list[AnnotatedImage]:
    """Every image that is not skipped, without instances."""
    settings, edits = settings or ExportOptions(), edits or ImageEdits()
    files = dict(zip(result.names, output_names(result.names), strict=True))
    names = [name for name in result.names if name not in edits.skipped]
    subset_of = subsets(names, settings.split, settings.seed)
    return [
        AnnotatedImage(
            image.name,
            files[image.name],
            image.size,
            [],
            image.source,
            subset_of[image.name],
        )
        for image in result.images
        if image.name in subset_of
    ]


def annotated_images(
    result: Run,
    k: int | None = None,
    options: RegionOptions | None = None,
    settings: ExportOptions | None = None,
    edits: ImageEdits | None = None,
    progress: bool = False,
) -> Iterator[AnnotatedImage]:
    """Yield every image that is not skipped with its instances, in the set's order.

    Memory holds one image at a time.

    Parameters
    ----------
    result, k, options
        See :func:`deepff.regions.find.find_regions`.
    settings : ExportOptions, optional
    edits : ImageEdits, optional
    progress : bool
        Show progress on standard error.

    Raises
    ------
    InputError
        See :func:`deepff.regions.find.find_regions` and :func:`find_instances`.
    """
    options, settings = options or RECIPE_OPTIONS[result.recipe], settings or ExportOptions()
    edits = edits or ImageEdits()
    images = {image.name: image for image in plain_images(result, settings, edits)}
    # By factor, as a factor that is dropped cannot be told from others of its name in their part.
    by_factor = find_regions(result, k, replace(options, parts=None), settings.memory)
    with track("export", len(result.names), enabled=progress) as advance:
        for name, regions in zip(result.names, by_factor, strict=True):
            if name in images:
                dropped = edits.dropped.get(name, ())
                labels = region_labels(regions.labels, options.parts, dropped)
                every = find_instances(labels, settings.instances, min_area=1)
                least = settings.min_area
                least = least_area(images[name].size) if least is None else least
                found = [instance for instance in every if instance.area >= least]
                n_specks = len(every) - len(found)
                yield replace(images[name], instances=found, n_specks=n_specks)
            advance(1)


def _place(path: Path, folder: Path) -> str | None:
    """A photograph's POSIX path in a folder, links on the way to both resolved."""
    inside = Path(os.path.realpath(path.parent), path.name)
    top = Path(os.path.realpath(folder))
    return inside.relative_to(top).as_posix() if inside.is_relative_to(top) else None


def region_labels(
    labels: Tensor, parts: Mapping[int, str] | None, dropped: Collection[int] = ()
) -> Tensor:
    """Turn a label map of factors into one of regions.

    Parameters
    ----------
    labels : Tensor, (H, W), integer
        0 is the background, factor j is j + 1.
    parts : mapping of int to str, optional
        See :class:`deepff.regions.find.RegionOptions`. Without it each factor is a region.
    dropped : collection of int
        Factors that count as background.

    Returns
    -------
    Tensor, (H, W)
        0 is the background, region i is i + 1, see :func:`deepff.regions.find.region_names`.
    """
    if dropped:
        values = torch.tensor([factor + 1 for factor in dropped], device=labels.device)
        labels = labels.masked_fill(torch.isin(labels.long(), values), 0)
    return labels if parts is None else part_map(labels, parts)[0]


def find_instances(
    labels: Tensor | np.ndarray, instances: str = Instances.COMPONENTS, min_area: int | None = None
) -> list[Instance]:
    """The instances of a label map.

    Parameters
    ----------
    labels : (H, W) integer
        0 is the background, region j is j + 1.
    instances : {"components", "parts"}
        One instance for each 8-connected component of a region, or one for all of a region.
    min_area : int, optional
        Instances of fewer pixels are left out; by default of fewer than
        :func:`deepff.regions.components.least_area`.

    Returns
    -------
    list of Instance
        By region, of one region the largest first, equal ones in the order of their first pixel.

    Raises
    ------
    InputError
        `instances` is neither of the two.
    """
    from scipy import ndimage

    chosen(Instances, instances, "kind of instance")
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else labels
    least = least_area(array.shape) if min_area is None else min_area
    found = []
    for region, window in enumerate(ndimage.find_objects(array)):
        if window is None:
            continue
        numbers = array[window] == region + 1
        if instances == Instances.COMPONENTS:
            numbers, _ = ndimage.label(numbers, structure=_EIGHT_CONNECTED)
        of_region = []
        for number, (rows, columns) in enumerate(ndimage.find_objects(numbers.astype(np.int32)), 1):
            y, x = window[0].start, window[1].start
            box = (columns.start + x, rows.start + y, columns.stop + x, rows.stop + y)
            of_region.append(Instance(region, box, numbers[rows, columns] == number))
        of_region = [instance for instance in of_region if instance.area >= least]
        found += sorted(of_region, key=lambda instance: -instance.area)
    return found


def run_lengths(mask: np.ndarray) -> list[int]:
    """Lengths of the runs of a mask, row by row: False, True, False, …; the first may be 0."""
    values = mask.ravel()
    ends = [*(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), values.size]
    lengths = np.diff(ends, prepend=0).tolist()
    return [0, *lengths] if values[0] else lengths
