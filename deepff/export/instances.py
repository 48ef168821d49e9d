"""Instances of every image of a result: what the formats of labelling tools are written from.

They come from the label map, which holds one region per pixel, so that no two overlap: not from
the masks, which may share pixels, and which formats of one label a pixel cannot hold.
"""

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from deepff.images.image_files import output_names
from deepff.images.image_set import Origin
from deepff.options import RECIPE_OPTIONS, SUBSETS, ExportOptions, Instances, RegionOptions, chosen
from deepff.regions.components import Box, least_area
from deepff.regions.regions import find_regions, region_names
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
        :func:`deepff.images.image_files.output_names`).
    size : (H, W)
        In pixels, of the image as it is seen upright.
    instances : list of Instance
    origin : Path or ImageItem, optional
        The photograph.
    subset : "train", "val" or "test"
    place : str, optional
        The photograph's POSIX path in the folder that annotations are written to, if it is there.
    n_specks : int
        Instances that were left out for being too small.
    photo_path : Path, optional
        The photograph whose place `origin` takes where only the names of files are asked for.
    """

    name: str
    file: str
    size: tuple[int, int]
    instances: list[Instance]
    origin: Origin = None
    subset: str = "train"
    place: str | None = None
    n_specks: int = 0
    photo_path: Path | None = None

    def located(self, folder: Path) -> "AnnotatedImage":
        """The same with its photograph's place in the folder that annotations are written to."""
        place = _place(self.origin, folder) if isinstance(self.origin, Path) else None
        return replace(self, place=place)

    def painted(self, values: list[int]) -> np.ndarray:
        """An int32 image (H, W), 0 but for the pixels of instance i, which are ``values[i]``."""
        image = np.zeros(self.size, np.int32)
        for value, instance in zip(values, self.instances, strict=True):
            x_min, y_min, x_max, y_max = instance.box
            image[y_min:y_max, x_min:x_max][instance.mask] = value
        return image


@dataclass(frozen=True)
class LabelMaps:
    """One region per pixel, of images of a set.

    Attributes
    ----------
    names : list of str
        The regions' names.
    images : list of int
        The places of the images in the set, ascending.
    maps : iterator of (H, W) Tensor or ndarray, integer
        One for each of these images, in order: 0 is the background, region i is i + 1.
    """

    names: list[str]
    images: Sequence[int]
    maps: Iterator[Tensor | np.ndarray]


def found_maps(
    result: Run,
    k: int | None = None,
    options: RegionOptions | None = None,
    memory: int | None = None,
) -> LabelMaps:
    """The label maps of all images; see :func:`deepff.regions.regions.find_regions`."""
    options = options or RECIPE_OPTIONS[result.recipe]
    regions = find_regions(result, k, options, memory)
    maps = (found.labels for found in regions)
    return LabelMaps(region_names(result, k, options), range(len(result.images)), maps)


def plain_images(
    result: Run, settings: ExportOptions | None = None, images: Sequence[int] | None = None
) -> list[AnnotatedImage]:
    """Images of a set, by default all, without instances."""
    settings = settings or ExportOptions()
    files = output_names(result.names)
    indices = range(len(files)) if images is None else images
    chosen = [result.images[index] for index in indices]
    subset_of = subsets([image.name for image in chosen], settings.split, settings.seed)
    return [
        AnnotatedImage(
            image.name, files[index], image.size, [], image.origin, subset_of[image.name]
        )
        for index, image in zip(indices, chosen, strict=True)
    ]


def annotated_images(
    result: Run, maps: LabelMaps, settings: ExportOptions | None = None, progress: bool = False
) -> Iterator[AnnotatedImage]:
    """Yield images with their instances, in the set's order.

    Memory holds one image at a time.

    Parameters
    ----------
    result : Run
    maps : LabelMaps
    settings : ExportOptions, optional
    progress : bool
        Show progress on standard error.

    Raises
    ------
    InputError
        See :func:`deepff.regions.regions.find_regions` and :func:`find_instances`.
    """
    settings = settings or ExportOptions()
    images = plain_images(result, settings, maps.images)
    with track("export", len(images), enabled=progress) as advance:
        for image, labels in zip(images, maps.maps, strict=True):
            every = find_instances(labels, settings.instances, min_area=1)
            least = settings.min_area
            least = least_area(image.size) if least is None else least
            found = [instance for instance in every if instance.area >= least]
            yield replace(image, instances=found, n_specks=len(every) - len(found))
            advance(1)


def _place(path: Path, folder: Path) -> str | None:
    """A photograph's POSIX path in a folder, links on the way to both resolved."""
    inside = Path(os.path.realpath(path.parent), path.name)
    top = Path(os.path.realpath(folder))
    return inside.relative_to(top).as_posix() if inside.is_relative_to(top) else None


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


def subsets(names: Sequence[str], split: Sequence[float], seed: int = 0) -> dict[str, str]:
    """Draw the subset of every image: "train", "val" or "test".

    The shares are rounded so that they add up, but a subset that has a share has an image where
    there are enough.

    Parameters
    ----------
    names : sequence of str
        The images' names; their order does not matter.
    split : sequence of 3 float
        The subsets' shares, in any unit.
    seed : int
    """
    drawn = sorted(names)
    random.Random(seed).shuffle(drawn)
    n = len(drawn)
    wanted = [n * share / sum(split) for share in split]
    counts = [round(share) for share in wanted]
    for i, share in enumerate(split[1:], 1):
        if share > 0 and counts[i] == 0 and n > sum(other > 0 for other in split[:i]):
            counts[i] = 1
    while sum(counts[1:]) >= max(n, 1):  # one to train on at the least
        counts[counts.index(max(counts[1:]), 1)] -= 1
    counts[0] = n - sum(counts[1:])
    order = [subset for subset, count in zip(SUBSETS, counts, strict=True) for _ in range(count)]
    return dict(zip(drawn, order, strict=True))
