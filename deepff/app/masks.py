"""The masks of images at their own sizes: what the settings make, or what an image keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from deepff.app.labels import OBJECT, Labels, OwnMask, Settings
from deepff.app.lessons import taught
from deepff.app.mask_files import MAX_CLASSES, read_mask, write_mask
from deepff.errors import InputError
from deepff.export.instances import LabelMaps
from deepff.options import (
    RECIPE_OPTIONS,
    Recipe,
    Refinement,
    RegionOptions,
    Threshold,
    Which,
    chosen,
)
from deepff.regions.components import named_pieces
from deepff.regions.regions import region_finder
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run
from deepff.runtime.parallel import in_parallel

# What finding the mask of an image takes: a photograph, components, and bands of maps.
_BYTES_A_PIXEL = 24

Finder = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class NamedMask:
    """One class per pixel of an image.

    Attributes
    ----------
    values : ndarray, (H, W), uint8
        0 is the background, class i is i + 1.
    names : tuple of str
        Of the classes.
    """

    values: np.ndarray
    names: tuple[str, ...]

    def renumbered(self, numbers: Sequence[int]) -> np.ndarray:
        """The values with class i as ``numbers[i]``."""
        table = np.zeros(256, np.uint8)
        table[1 : len(numbers) + 1] = numbers
        return table[self.values]


def factor_finder(
    run: Run,
    settings: Settings,
    factors: Collection[int],
    crf_size: int | None = None,
    refined: bool = True,
) -> Finder:
    """What finds one factor per pixel of an image, by its number: 0 is none, factor j is j + 1.

    Parameters
    ----------
    run : Run
    settings : Settings
    factors : collection of int
        Those that are kept.
    crf_size : int, optional
        See :func:`deepff.regions.regions.region_finder`.
    refined : bool
        False: without the photographs, which may be gone.
    """
    k = settings.k
    if settings.masks != OBJECT or run.object is None:
        options = settings.region_options
        if not refined:
            options = replace(options, refine=Refinement.NONE)
        find = region_finder(run, k, options, crf_size)
        return lambda index: find(index).labels.cpu().numpy()
    whole = _at_cut(run.object, settings.cut)
    options = RECIPE_OPTIONS[Recipe.CONTRAST]
    if not refined:
        options = RegionOptions(Threshold.OTSU_IMAGE)
    find_object = region_finder(whole, 1, options, crf_size)
    # The object may lack an image that could not be read then.
    places = {name: place for place, name in enumerate(whole.names)}
    heatmaps = run.factorization(k).heatmaps

    def pieces(index: int) -> np.ndarray:
        place = places.get(run.names[index])
        if place is None:
            return np.zeros(run.images[index].size, np.uint8)
        mask = find_object(place).masks[0].cpu().numpy()
        return named_pieces(mask, heatmaps.normalized(index), factors)

    return pieces


def refinements(run: Run, k: int) -> list[Refinement]:
    """Those that the masks of k factors can have, as the run has what they need."""
    lacking = set()
    if run.factorization(k).probabilities is None:
        lacking.add(Refinement.CLASSIFIER)
    if run.parts_of is not None:  # which are refined together
        lacking.add(Refinement.GUIDED_CRF)
    return [refinement for refinement in Refinement if refinement not in lacking]


def _at_cut(whole: Run, cut: float) -> Run:
    """The object, 1/2 likely where it was likely by `cut`: p(1 − c) : (1 − p)c."""
    found = whole.factorization(1)
    maps = found.probabilities
    if cut == 0.5 or maps is None:
        return whole
    likely = maps.coefficients * (1 - cut)
    moved = likely / (likely + (1 - maps.coefficients) * cut)
    classified = HeatMaps(moved, maps.grids, maps.image_sizes, maps.scale)
    return replace(whole, factorizations={1: replace(found, probabilities=classified)})


def class_mask(labels: Labels, image: str, factors: np.ndarray) -> NamedMask:
    """The classes of an image whose factors, from a :data:`Finder`, have these names."""
    names = labels.class_names
    dropped = labels.dropped(image)
    table = np.zeros(256, np.uint8)
    for factor, name in labels.parts.items():
        if factor not in dropped:
            table[factor + 1] = names.index(name) + 1
    return NamedMask(table[factors], tuple(names))


def main_class(mask: NamedMask) -> str | None:
    """The class that has most pixels; None where none has any."""
    counts = np.bincount(mask.values.ravel(), minlength=len(mask.names) + 1)[1:]
    return mask.names[int(counts.argmax())] if counts.any() else None


def kept_mask(labels: Labels, image: str) -> NamedMask | None:
    """The mask that an image keeps, if it has one.

    Raises
    ------
    InputError
        Its file is gone or damaged.
    """
    mask = labels.image(image).mask
    if mask is None or labels.folder is None:
        return None
    found = NamedMask(read_mask(mask.file, labels.folder), mask.names)
    names = tuple(dict.fromkeys(mask.names))  # of which two may have become one
    if names == mask.names:
        return found
    return NamedMask(found.renumbered([names.index(name) + 1 for name in mask.names]), names)


def keep(labels: Labels, image: str, mask: NamedMask, mended: bool = False) -> OwnMask:
    """Write a mask that an image keeps from now on, with the names that are in it alone."""
    assert labels.folder is not None
    held = np.flatnonzero(np.bincount(mask.values.ravel(), minlength=256)[1:]).tolist()
    if held and held[-1] >= MAX_CLASSES:
        raise InputError(f"a mask has up to {MAX_CLASSES} classes")
    numbers = [held.index(i) + 1 if i in held else 0 for i in range(len(mask.names))]
    file = write_mask(mask.renumbered(numbers), labels.folder)
    names = tuple(mask.names[i] for i in held)
    return OwnMask(file, names, labels.settings.k, labels.recipe(image), mended)


class Masks:
    """Masks of a result's images at their own sizes.

    Parameters
    ----------
    run : Run
    """

    def __init__(self, run: Run) -> None:
        # Thresholds over a set of thousands are read off the histograms that were saved with it.
        self._run = run if run.applied is not None else replace(run, applied=run.bank)
        self._index = {name: index for index, name in enumerate(run.names)}
        # Of another image's own level one is seldom asked for again.
        self._finder = lru_cache(1)(self._factor_finder)
        # Each mend of an image, and its undo, begins with what the settings make of it.
        self._found = lru_cache(4)(self._factors)

    def made(self, labels: Labels, image: str) -> NamedMask:
        """What the settings make of an image.

        Raises
        ------
        InputError
            A CRF needs its photograph, which is gone.
        """
        settings = labels.settings_of(image)
        kept = tuple(labels.parts) if settings.masks == OBJECT else ()
        return class_mask(labels, image, self._found(settings, kept, labels.folder, image))

    def _factors(
        self, settings: Settings, kept: tuple[int, ...], folder: Path | None, image: str
    ) -> np.ndarray:
        return self._finder(settings, kept, folder)(self._index[image])

    def _factor_finder(
        self, settings: Settings, kept: tuple[int, ...], folder: Path | None
    ) -> Finder:
        return factor_finder(taught(self._run, settings, folder), settings, kept)

    def current(self, labels: Labels, image: str) -> NamedMask:
        """What an image keeps, else what the settings make of it."""
        return kept_mask(labels, image) or self.made(labels, image)


def chosen_images(labels: Labels, names: Sequence[str], which: str | None = None) -> list[int]:
    """The places of the images that an export is of; see :class:`deepff.options.Which`.

    Raises
    ------
    InputError
        There are none.
    """
    if which is None:
        accepted = labels.count("accepted", names)
        which = Which.ACCEPTED if accepted else Which.NOT_SKIPPED
    wanted = {
        Which.ACCEPTED: ("accepted",),
        Which.NOT_SKIPPED: ("accepted", ""),
        Which.ALL: ("accepted", "", "skipped"),
    }[chosen(Which, which, "choice of images")]
    found = [index for index, name in enumerate(names) if labels.image(name).status in wanted]
    if not found:
        raise InputError(
            "no image is accepted yet, so nothing is left to export; accept some, or export all"
            if which == Which.ACCEPTED
            else "every image is skipped, so nothing is left to export; take one back, or export "
            "all"
        )
    return found


def labelled_maps(
    run: Run, labels: Labels, which: str | None = None, memory: int | None = None
) -> LabelMaps:
    """The label maps of the images that an export is of.

    Raises
    ------
    InputError
        There are none, or every factor is background and no image has a mask of its own.
    """
    images = chosen_images(labels, run.names, which)
    chosen_names = [run.names[index] for index in images]
    names = labels.class_names_in(chosen_names)
    if not names:
        raise InputError("every factor is background, so nothing is left to export; keep one")
    masks = Masks(run)
    costs = [_BYTES_A_PIXEL * math.prod(run.images[index].size) for index in images]

    def of(place: int) -> np.ndarray:
        mask = masks.current(labels, chosen_names[place])
        return mask.renumbered([names.index(name) + 1 for name in mask.names])

    def maps() -> Iterator[np.ndarray]:
        yield from in_parallel(of, costs, memory)

    return LabelMaps(names, images, maps())
