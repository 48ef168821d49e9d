"""Instances of every image of a result: the formats of labeling tools are written from them.

They come from the label map, which holds one region per pixel, so that no two overlap. The masks
may share pixels, and some formats have one label per pixel.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image
from torch import Tensor

from deepff.errors import InputError
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_files import output_names
from deepff.images.image_set import ImageItem, Origin, as_it_was, read_pixels
from deepff.images.reading import storage
from deepff.images.stored import StoredFile
from deepff.options import (
    RECIPE_OPTIONS,
    SPLIT,
    SUBSETS,
    ExportOptions,
    Instances,
    Photographs,
    RegionOptions,
)
from deepff.regions.components import Box, component_scores, connected_components, least_instance
from deepff.regions.regions import Regions, find_regions, region_names, region_scores
from deepff.results.run import Run
from deepff.runtime.progress import track

# The formats that programs read, by Pillow's names, and the suffixes by which all of them find such
# files. Photographs in any other format are written in the first one.
_SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "MPO": ".jpg"}
_SUFFIXES |= {"BMP": ".bmp", "TIFF": ".tif", "WEBP": ".webp"}
_JPEG_QUALITY = 95


@dataclass(frozen=True)
class Instance:
    """One annotation of an image."""

    region: int  # the index of its name among the regions' names
    box: Box  # in pixel edges, maxima exclusive
    mask: np.ndarray  # bool, its pixels inside the box
    score: float | None = None  # of objects: how likely it is one, in [0, 1]
    name: str = ""  # the region's

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
    """An image with its instances, and its photograph."""

    name: str  # the image's POSIX path relative to the set's root
    file: str  # the relative path of a file about this image, without suffix, unique in the set
    size: tuple[int, int]  # (H, W) in pixels, upright
    instances: list[Instance]
    origin: Origin = None  # the photograph
    subset: str = "train"  # or "val" or "test"
    inside: str | None = None  # the photograph's POSIX path in the annotations' folder, if there
    n_specks: int = 0  # instances that were left out for being too small
    # The photograph that `origin` stands in for, where only the names of files matter.
    photo_path: Path | StoredFile | None = None
    digest: str | None = None  # the photograph's when the result was made

    def located(self, folder: Path) -> "AnnotatedImage":
        """The same with its photograph's path in the folder that annotations are written to."""
        inside = None
        if isinstance(self.origin, Path):  # links on the way to both are resolved
            photo = Path(os.path.realpath(self.origin.parent), self.origin.name)
            top = os.path.realpath(folder)
            inside = photo.relative_to(top).as_posix() if photo.is_relative_to(top) else None
        return replace(self, inside=inside)

    def painted(self, values: list[int]) -> np.ndarray:
        """An int32 image (H, W), 0 except for the pixels of instance i, which are ``values[i]``."""
        image = np.zeros(self.size, np.int32)
        for value, instance in zip(values, self.instances, strict=True):
            x_min, y_min, x_max, y_max = instance.box
            image[y_min:y_max, x_min:x_max][instance.mask] = value
        return image

    def write_photo(
        self, folder: Path, below: str, images: str, suffixes: Mapping[str, str] = _SUFFIXES
    ) -> str:
        """Write a copy of the photograph, or a link to it, and return its POSIX path in `below`. It
        is written again where it is in none of the formats of `suffixes`, stored turned, or no
        file. With "none" the path is that of the user's own file."""
        if images == Photographs.NONE:
            return f"{self.file}.png" if isinstance(self.origin, ImageItem) else self.name
        try:
            as_it_was(self.origin, self.digest)
            format, turned = self._storage()
            suffix = suffixes.get(format or "", next(iter(suffixes.values())))
            if turned and suffix != ".jpg":
                suffix = ".png"
            path = PurePosixPath(below, f"{self.file}{suffix}")
            if path.as_posix() != self.inside:
                self._write_photo(folder, path, images, turned or format not in suffixes)
        except UnreadableImageError as error:
            is_file = isinstance(self.origin, os.PathLike)
            back = f"put it back at {self.origin}, or " if is_file else ""
            raise InputError(
                f"the photograph {self.name} can no longer be used ({error}); {back}export without "
                "photographs (--images none)"
            ) from error
        return f"{self.file}{suffix}"

    def _storage(self) -> tuple[str | None, bool]:
        """The format of the photograph's file, None without one, and whether it is turned."""
        file = self.photo_path or self.origin
        try:
            return storage(file) if isinstance(file, os.PathLike) else (None, False)
        except UnreadableImageError:
            return None, False

    def _write_photo(
        self, folder: Path, path: PurePosixPath, images: str, is_encoded: bool
    ) -> None:
        target, origin = folder / path, self.origin
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_encoded or not isinstance(origin, Path | StoredFile):
            pixels = Image.fromarray(read_pixels(origin))
            pixels.save(target, quality=_JPEG_QUALITY, subsampling=0)  # which PNG does not take
        elif images == Photographs.COPY or isinstance(origin, StoredFile):
            shutil.copyfile(origin, target)
        else:
            try:
                os.symlink(origin.absolute(), target)
            except OSError as error:
                raise InputError(
                    f"no links can be made in {folder.parent} ({error.strerror}): use --images copy"
                ) from error


@dataclass(frozen=True)
class LabelMaps:
    """Label maps (H, W) of some images of a set: 0 is the background, region i is i + 1."""

    names: list[str]  # the regions'
    images: Sequence[int]  # the images' indices in the set, ascending
    maps: Iterator[Tensor | np.ndarray]  # one per image
    # Of objects: an image's map of scores for each region, (r, h, w)
    scores: Callable[[int], Tensor] | None = None
    n_unlikely: list[int] = field(default_factory=list)  # of each map that was read: left out


def found_maps(
    result: Run,
    k: int | None = None,
    options: RegionOptions | None = None,
    memory: int | None = None,
) -> LabelMaps:
    """The label maps of all images; see :func:`deepff.regions.regions.find_regions`."""
    options = options or RECIPE_OPTIONS[result.recipe]
    names, factorization = region_names(result, k, options), result.factorization(k)
    n_unlikely: list[int] = []

    def maps() -> Iterator[Tensor]:
        for regions in find_regions(result, k, options, memory):
            n_unlikely.append(regions.n_unlikely)
            yield regions.labels

    scored = factorization.scores is not None
    scores = region_scores(factorization, options.parts, names) if scored else None
    return LabelMaps(names, range(len(result.images)), maps(), scores, n_unlikely)


def plain_images(
    result: Run, settings: ExportOptions, indices: Sequence[int]
) -> list[AnnotatedImage]:
    """Images of a set without instances."""
    files = output_names(result.names)
    images = [result.images[index] for index in indices]
    contents = {image.name: image.digest or image.name for image in images}
    subset_of = subsets(contents, settings.split or SPLIT, settings.seed)
    return [
        AnnotatedImage(x.name, files[i], x.size, [], x.origin, subset_of[x.name], digest=x.digest)
        for i, x in zip(indices, images, strict=True)
    ]


def annotated_images(
    result: Run, maps: LabelMaps, settings: ExportOptions | None = None, progress: bool = False
) -> Iterator[AnnotatedImage]:
    """Images with their instances, in the set's order; memory holds one at a time."""
    settings = settings or ExportOptions()
    images = plain_images(result, settings, maps.images)
    with track("export", len(images), enabled=progress) as advance:
        for index, image, labels in zip(maps.images, images, maps.maps, strict=True):
            scores = None if maps.scores is None else maps.scores(index)
            all_instances = find_instances(labels, settings.instances, 1, scores)
            least = settings.min_area
            least = least_instance(image.size, scores) if least is None else least
            instances = [instance for instance in all_instances if instance.area >= least]
            n_specks = len(all_instances) - len(instances)
            yield replace(image, instances=instances, n_specks=n_specks)
            advance(1)


def region_instances(regions: Regions, min_area: int | None = None) -> list[Instance]:
    """The instances of one image's regions, with their names."""
    instances = find_instances(regions.labels, Instances.COMPONENTS, min_area, regions.scores)
    return [replace(instance, name=regions.names[instance.region]) for instance in instances]


def find_instances(
    labels: Tensor | np.ndarray,
    instances: str = Instances.COMPONENTS,
    min_area: int | None = None,
    scores: Tensor | None = None,
) -> list[Instance]:
    """The instances of a label map (H, W) of at least `min_area` pixels, sorted by region, then by
    size, the largest first: one per 8-connected component of a region ("components"), or one per
    region ("parts"). ``scores`` are the regions' maps, (r, h, w)."""
    from scipy import ndimage

    array = labels.cpu().numpy() if isinstance(labels, Tensor) else labels
    least = least_instance(array.shape, scores) if min_area is None else min_area
    sorted_instances = []
    for region, window in enumerate(ndimage.find_objects(array)):
        if window is None:
            continue
        numbers = array[window] == region + 1
        n_components = 1
        if instances == Instances.COMPONENTS:
            numbers, n_components = connected_components(numbers)
        numbers = numbers.astype(np.int32, copy=False)
        of_components: list[float | None] = [None] * (n_components + 1)
        if scores is not None:
            whole = np.zeros(array.shape, np.int32)
            whole[window] = numbers
            exact = component_scores(whole, n_components, scores[region]).tolist()
            of_components = [round(score, 4) for score in exact]
        of_region = []
        for number, (rows, columns) in enumerate(ndimage.find_objects(numbers), 1):
            y, x = window[0].start, window[1].start
            box = (columns.start + x, rows.start + y, columns.stop + x, rows.stop + y)
            mask = numbers[rows, columns] == number
            of_region.append(Instance(region, box, mask, of_components[number]))
        of_region = [instance for instance in of_region if instance.area >= least]
        sorted_instances += sorted(of_region, key=lambda instance: -instance.area)
    return sorted_instances


def run_lengths(mask: np.ndarray) -> list[int]:
    """The lengths of a mask's runs, row by row: False, True, False, …; the first may be 0."""
    values = mask.ravel()
    ends = [*(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), values.size]
    lengths = np.diff(ends, prepend=0).tolist()
    return [0, *lengths] if values[0] else lengths


def subsets(contents: Mapping[str, str], split: Sequence[float], seed: int = 0) -> dict[str, str]:
    """Draw each image's subset by name, in whatever order they come. A subset with a share has an
    image where there are enough; images of equal ``contents`` (by name) are drawn as one."""
    first_names: dict[str, str] = {}
    for name in sorted(contents):
        first_names.setdefault(contents[name], name)
    drawn = list(first_names.values())
    random.Random(seed).shuffle(drawn)
    n = len(drawn)
    wanted = [n * share / sum(split) for share in split]
    counts = [round(share) for share in wanted]
    for i, share in enumerate(split[1:], 1):
        if share > 0 and counts[i] == 0 and n > sum(other > 0 for other in split[:i]):
            counts[i] = 1
    while sum(counts[1:]) >= max(n, 1):  # at least one to train on
        counts[counts.index(max(counts[1:]), 1)] -= 1
    counts[0] = n - sum(counts[1:])
    order = [subset for subset, count in zip(SUBSETS, counts, strict=True) for _ in range(count)]
    subset_of = dict(zip(drawn, order, strict=True))
    return {name: subset_of[first_names[content]] for name, content in contents.items()}
