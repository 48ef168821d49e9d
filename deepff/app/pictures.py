"""What the app shows of a result: photographs with masks or heat maps, and which of them first."""

import os
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from deepff.app.labels import OBJECT, Labels, Settings
from deepff.app.lessons import taught
from deepff.app.masks import Finder, NamedMask, class_mask, factor_finder, kept_mask
from deepff.app.overview import Overview, overview, reduced
from deepff.errors import InputError
from deepff.export.instances import Instance
from deepff.images.decoding import UnreadableImageError
from deepff.images.painting import factor_colors, overlay
from deepff.pictures.figures import photo_shape
from deepff.pictures.region_pictures import region_picture
from deepff.result import Result
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run
from deepff.results.tree import color_slots

IN_VIEW = 5
SIDE = 384
MEND_SIDE = 1280
# The dense CRF takes half the time that it takes at its own size; the guided one works below this.
_CRF_SIDE = 192
_GREY = 128
_JPEG_QUALITY = 85
_ALPHA = 140


class Pictures:
    """Pictures of a result at `SIDE` pixels, with what is dear to make kept for the next one.

    Thresholds over the set are read off a histogram of reduced maps, so that a picture follows at
    once; they differ from an export's by about a thousandth of a factor's maximum.

    Parameters
    ----------
    result : Result
    folder : path, optional
        Of the result, where lessons are.

    Attributes
    ----------
    result : Result
    names : list of str
        Of its images.
    """

    def __init__(self, result: Result, folder: Path | None = None) -> None:
        self.result, self._folder = result, folder
        self.names = result.names
        self.photo = lru_cache(256)(self._photo)
        self._places = color_slots(result.factorizations)
        self._large = lru_cache(4)(partial(self._photo, side=MEND_SIDE))
        self.factor_labels = lru_cache(1024)(self._factor_labels)
        self.strengths = lru_cache(self._strengths)
        self._overview = lru_cache(4)(self._overview_of)
        self._reduced = lru_cache(self._reduced_run)
        self._finder = lru_cache(16)(self._factor_finder)

    def masks(self, labels: Labels, index: int) -> np.ndarray:
        """The photograph with its classes in their colours."""
        return region_picture(self.photo(index)[0], self.region_labels(labels, index))

    def heat_maps(self, labels: Labels, index: int) -> np.ndarray:
        """The photograph with the heat maps of all factors that are kept, in their colours."""
        colors = self.merged_colors(labels)
        dropped = labels.dropped(self.names[index])
        kept = [factor for factor in labels.parts if factor not in dropped]
        photo = self.photo(index)[0]
        maps = self._heatmaps(labels.settings.k).normalized(index, photo.shape[:2])
        return overlay(photo, maps[kept], colors[kept])

    def plain(self, labels: Labels, index: int) -> np.ndarray:
        """The photograph alone."""
        return self.photo(index)[0]

    def factor(self, k: int, factor: int, index: int) -> np.ndarray:
        """The photograph with the heat map of one factor in its own colour."""
        photo = self.photo(index)[0]
        maps = self._heatmaps(k).normalized(index, photo.shape[:2])
        return overlay(photo, maps[factor : factor + 1], self.colors(k)[factor : factor + 1])

    def instance(self, index: int, region: int, instance: Instance) -> np.ndarray:
        """The photograph with one annotation: its mask in the colour of the region, and its box."""
        mask = instance.full_mask(self.result.image_sizes[index])
        values = (mask * (region + 1)).astype(np.int32)
        return region_picture(self.photo(index)[0], values, [(region, instance.box)])

    def mask(self, labels: Labels, index: int) -> NamedMask:
        """What the image keeps, else what the settings make of it, at the picture's size.

        Nothing where the file of what it keeps is gone.
        """
        shape = self.photo(index)[0].shape[:2]
        try:
            kept = kept_mask(labels, self.names[index])
        except InputError:
            return NamedMask(np.zeros(shape, np.uint8), ())
        if kept is None:
            return self.made(labels, index)
        return replace(kept, values=_nearest(kept.values, shape))

    def made(self, labels: Labels, index: int) -> NamedMask:
        """What the settings make of an image."""
        name = self.names[index]
        settings, factors = labels.settings_of(name), tuple(labels.parts)
        # What a factor marks does not depend on the others that are kept, but a piece's name does.
        kept = factors if settings.masks == OBJECT else ()
        return class_mask(labels, name, self.factor_labels(settings, kept, index))

    def agreement(self, labels: Labels, index: int) -> float:
        """IoU of what the image keeps with what the settings make: 1 where both are empty."""
        held, made = self.mask(labels, index), self.made(labels, index)
        names = sorted({*held.names, *made.names})
        one, other = (m.renumbered([names.index(n) + 1 for n in m.names]) for m in (held, made))
        either = np.count_nonzero(one | other)
        return np.count_nonzero((one == other) & (one > 0)) / either if either else 1.0

    def region_labels(self, labels: Labels, index: int) -> np.ndarray:
        """One class per pixel: 0 is the background, j + 1 the class that has colour j."""
        mask = self.mask(labels, index)
        colors = self.color_numbers(labels)
        return mask.renumbered([colors[name] + 1 for name in mask.names])

    def colors(self, k: int) -> np.ndarray:
        """Each factor's colour, (k, 3), which it keeps over k."""
        return factor_colors(k)[self._places[k]]

    def color_numbers(self, labels: Labels) -> dict[str, int]:
        """The number of each class's colour: of its first factor, or beyond the factors'."""
        k = labels.settings.k
        first = {name: self._places[k][j] for j, name in reversed(labels.parts.items())}
        others = [name for name in labels.class_names_in(labels.images) if name not in first]
        return first | {name: k + i for i, name in enumerate(others)}

    def merged_colors(self, labels: Labels) -> np.ndarray:
        """The colour of each factor's region, (k, 3)."""
        colors = self.colors(labels.settings.k)
        for factor, representative in merged(labels).items():
            colors[factor] = colors[representative]
        return colors

    def classes_present(self, labels: Labels, index: int) -> list[str]:
        """The classes that some pixel of the image belongs to, those dropped in it included."""
        name = self.names[index]
        label = labels.image(name)
        if label.mask is not None:
            return list(dict.fromkeys(label.mask.names))
        everything = replace(labels, images={**labels.images, name: replace(label, dropped={})})
        mask = self.made(everything, index)
        return [mask.names[i - 1] for i in np.unique(mask.values).tolist() if i]

    def order(self, k: int) -> list[int]:
        """All images, first the `IN_VIEW` that cover the factors best, then the others in order."""
        strengths = self.strengths(k)
        best = covering(strengths, IN_VIEW)
        return best + [index for index in range(len(strengths)) if index not in best]

    def strongest(self, k: int, factor: int) -> list[int]:
        """Up to `IN_VIEW` images, those in which the factor has the largest mean."""
        values = self.strengths(k)[:, factor]
        order = np.argsort(-values, kind="stable")[:IN_VIEW]
        return [int(index) for index in order if values[index] > 0]

    def large(self, index: int) -> np.ndarray:
        """The photograph at `MEND_SIDE` pixels, grey where it cannot be read any more."""
        return self._large(index)[0]

    def overview(self, labels: Labels) -> Overview:
        """What is likely in all images."""
        return self._overview(labels.settings, tuple(labels.parts))

    def warm(self, labels: Labels, indices: Sequence[int]) -> None:
        """Make what pictures of these images, and filters, will take, before they are asked for."""
        for index in indices:
            self.mask(labels, index)
        self.overview(labels)

    def _heatmaps(self, k: int) -> HeatMaps:
        return self.result.factorizations[k].heatmaps

    def _strengths(self, k: int) -> np.ndarray:
        """Each factor's mean |value| in each image, (n, k)."""
        heatmaps = self._heatmaps(k)
        areas = np.array([height * width for height, width in heatmaps.grids])
        sums = np.add.reduceat(
            heatmaps.coefficients.abs().cpu().double().numpy(), np.cumsum(areas) - areas
        )
        return (sums / areas[:, None]).astype(np.float32)

    def _photo(self, index: int, side: int = SIDE) -> tuple[np.ndarray, str | None]:
        """The photograph, grey where it cannot be read any more, and why."""
        shape = photo_shape(self.result.image_sizes[index], side)
        try:
            image = self.result.images[index].read(min_longest_side=side)
        except UnreadableImageError as error:
            return np.full((*shape, 3), _GREY, np.uint8), str(error)
        return _resized(image, shape), None

    def _factor_labels(
        self, settings: Settings, factors: tuple[int, ...], index: int
    ) -> np.ndarray:
        """One factor per pixel of the picture: 0 is the background, factor j is j + 1."""
        # Without the photograph there is nothing to refine along.
        refined = self.photo(index)[1] is None
        return self._finder(settings, factors, refined)(index)

    def _factor_finder(self, settings: Settings, factors: tuple[int, ...], refined: bool) -> Finder:
        run = taught(self._reduced(settings.k), settings, self._folder)
        return factor_finder(run, settings, factors, _CRF_SIDE, refined)

    def _overview_of(self, settings: Settings, factors: tuple[int, ...]) -> Overview:
        return overview(taught(self.result, settings, self._folder), settings, factors)

    def _reduced_run(self, k: int) -> Run:
        return reduced(self.result, k, lambda index: self.photo(index)[0], SIDE)


def merged(labels: Labels) -> dict[int, int]:
    """For each kept factor the first one of its name, whose colour the class has."""
    first: dict[str, int] = {}
    return {factor: first.setdefault(name, factor) for factor, name in labels.parts.items()}


def covering(strengths: np.ndarray, count: int) -> list[int]:
    """The images that together show every factor best.

    Greedy: each next image adds most to Σ_j max_i s_ij / max s_j, where i runs over the images
    chosen so far.

    Parameters
    ----------
    strengths : ndarray, (n, k)
        How strong each factor is in each image, at least 0.
    count : int
        How many images, at most.

    Returns
    -------
    list of int
        Indices, the best first; of equal ones the first.
    """
    shares = strengths / np.maximum(strengths.max(0), np.finfo(np.float32).tiny)
    covered = np.zeros(shares.shape[1])
    chosen: list[int] = []
    while len(chosen) < min(count, len(shares)):
        gains = np.maximum(shares - covered, 0).sum(1)
        # When every factor is covered, the image that shows most of all of them.
        gains += 1e-6 * shares.sum(1)
        gains[chosen] = -1
        chosen.append(int(gains.argmax()))
        covered = np.maximum(covered, shares[chosen[-1]])
    return chosen


def _nearest(values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    small = Image.fromarray(values).resize(shape[::-1], Image.Resampling.NEAREST)
    return np.asarray(small)


def _resized(image: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    resized = Image.fromarray(image).resize(shape[::-1], Image.Resampling.BILINEAR)
    return np.array(resized)


def data_uris(draw: Callable[[int], np.ndarray], indices: Sequence[int]) -> list[str]:
    """Pictures as JPEG data for ``src``, drawn on several threads."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda index: _data_uri(draw(index)), indices))


def _data_uri(picture: np.ndarray) -> str:
    data = BytesIO()
    Image.fromarray(picture).save(data, "JPEG", quality=_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{b64encode(data.getvalue()).decode('ascii')}"


def mask_uri(values: np.ndarray, side: int) -> str:
    """A label map as PNG data, its classes in their colours and half transparent.

    Parameters
    ----------
    values : ndarray, (H, W), uint8
        0 is the background, j + 1 the class that has colour j.
    side : int
        The longer side of the picture in pixels, at the most.
    """
    height, width = values.shape
    small = _nearest(values, photo_shape((height, width), side))
    colors = factor_colors(max(1, int(small.max())))
    picture = Image.fromarray(small)
    picture.putpalette([0, 0, 0, *colors.ravel().tolist()])
    data = BytesIO()
    alpha = bytes([0] + [_ALPHA] * len(colors))
    picture.save(data, "PNG", transparency=alpha, compress_level=1)
    return f"data:image/png;base64,{b64encode(data.getvalue()).decode('ascii')}"
