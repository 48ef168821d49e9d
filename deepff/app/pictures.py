"""What the app shows of a result: photographs with masks or heat maps, and which of them first."""

import os
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from deepff.app.kept_masks import NamedMask, kept_mask, nearest
from deepff.app.labels import Labels, Settings
from deepff.app.lessons import taught
from deepff.app.masks import Masks, Overview, Scores, overview, set_scores, sum_per_image
from deepff.errors import InputError
from deepff.export.instances import Instance
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import ImageItem
from deepff.images.painting import factor_colors, overlay
from deepff.layers.layer import WHOLE, Extent
from deepff.pictures.figures import photo_shape, region_picture
from deepff.regions.clicks import CLICK_SIDE, ClickScene, click_scene
from deepff.result import Result
from deepff.results.factorization import color_slots
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run

IN_VIEW = 5
SIDE = 384
MEND_SIDE = 1280
# The dense CRF takes half the time that it takes at its full size; the guided one works below this.
_CRF_SIDE = 192
_GRAY = 128
_JPEG_QUALITY = 85
_ALPHA = 140


class Pictures:
    """Pictures of a result at `SIDE` pixels, with what is slow to make cached. Their masks are of a
    run reduced to that size, whose thresholds over the set are read off a histogram: they differ
    from an export's by about a thousandth of a factor's maximum."""

    def __init__(self, result: Result) -> None:
        self.result, self.names = result, result.names
        self.photo = lru_cache(256)(self._photo)
        self.large = lru_cache(4)(partial(self._photo, side=MEND_SIDE))
        self._color_slots = color_slots(result.factorizations)
        self._strengths = lru_cache(self._strengths_of)
        self._overview = lru_cache(4)(self._overview_of)
        self._scores = lru_cache(partial(set_scores, result))
        self._scene = lru_cache(4)(self._scene_of)
        self._masks = Masks(_reduced(result, self), _CRF_SIDE, n_finders=16, n_images=1024)

    def __getitem__(self, index: int) -> np.ndarray:
        """The photograph, (h, w, 3) uint8."""
        return self.photo(index)[0]

    def masks(self, labels: Labels, index: int) -> np.ndarray:
        """The photograph with its classes in their colors."""
        return region_picture(self[index], self.region_labels(labels, index))

    def heat_maps(self, labels: Labels, index: int) -> np.ndarray:
        """The photograph with the heat maps of all factors that are kept, in their colors."""
        dropped = labels.dropped(self.names[index])
        kept = [factor for factor in labels.parts if factor not in dropped]
        return self._overlaid(index, labels.settings.k, kept, self.merged_colors(labels))

    def factor(self, k: int, factor: int, index: int) -> np.ndarray:
        """The photograph with the heat map of one factor."""
        return self._overlaid(index, k, [factor], self.colors(k))

    def _overlaid(
        self, index: int, k: int, factors: Sequence[int], colors: np.ndarray
    ) -> np.ndarray:
        photo = self[index]
        maps = self._heatmaps(k).normalized(index, photo.shape[:2])
        return overlay(photo, maps[factors], colors[factors])

    def instance(self, index: int, region: int, instance: Instance) -> np.ndarray:
        """The photograph with one annotation: its mask in the color of the region, and its box."""
        mask = instance.full_mask(self.result.image_sizes[index])
        values = (mask * (region + 1)).astype(np.int32)
        return region_picture(self[index], values, [(region, instance.box, instance.score)])

    def mask(self, labels: Labels, index: int) -> NamedMask:
        """What the image keeps, else what the settings make of it; empty where the file is gone."""
        shape = self[index].shape[:2]
        try:
            kept = kept_mask(labels, self.names[index])
        except InputError:
            return NamedMask(np.zeros(shape, np.uint8), ())
        if kept is None:
            return self.made(labels, index)
        return replace(kept, values=nearest(kept.values, shape))

    def made(self, labels: Labels, index: int) -> NamedMask:
        """What the settings make of an image; unrefined where the photograph cannot be read."""
        return self._masks.made(labels, self.names[index], refined=self.photo(index)[1] is None)

    def agreement(self, labels: Labels, index: int) -> float:
        """IoU of what the image keeps with what the settings make: 1 where both are empty."""
        return _agreement(self.mask(labels, index), self.made(labels, index))

    def changes(self, labels: Labels, other: Labels) -> np.ndarray:
        """IoU of what two settings make of each image, without its edges: (n,)."""
        made = (
            [self._masks.made(each, name, refined=False) for each in (labels, other)]
            for name in self.names
        )
        return np.array([_agreement(*pair) for pair in made])

    def region_labels(self, labels: Labels, index: int) -> np.ndarray:
        """One class per pixel: 0 is the background, j + 1 the class that has color j."""
        mask = self.mask(labels, index)
        colors = self.color_numbers(labels)
        return mask.renumbered([colors[name] + 1 for name in mask.names])

    def colors(self, k: int) -> np.ndarray:
        """Each factor's color, (k, 3), which it keeps over k."""
        return factor_colors(k)[self._color_slots[k]]

    def color_numbers(self, labels: Labels) -> dict[str, int]:
        """The number of each class's color: its first factor's, or one beyond the factors'."""
        k = labels.settings.k
        first = {name: self._color_slots[k][j] for j, name in reversed(labels.parts.items())}
        others = [name for name in labels.all_classes if name not in first]
        numbers = first | {name: k + i for i, name in enumerate(others)}
        return {name: numbers[name] for name in labels.all_classes}

    def merged_colors(self, labels: Labels) -> np.ndarray:
        """The color of each factor's class, (k, 3)."""
        colors = self.colors(labels.settings.k)
        for factor, representative in merged(labels).items():
            colors[factor] = colors[representative]
        return colors

    def classes_present(self, labels: Labels, index: int) -> list[str]:
        """The classes that some pixel of the image belongs to, or would if it were not dropped."""
        name = self.names[index]
        label = labels.image(name)
        if label.mask is not None:
            return list(dict.fromkeys(label.mask.names))
        everything = replace(labels, images={**labels.images, name: replace(label, dropped={})})
        mask = self.made(everything, index)
        return [mask.names[i - 1] for i in np.unique(mask.values).tolist() if i]

    def order(self, k: int) -> list[int]:
        """All images, first the `IN_VIEW` that cover the factors best, then the others in order."""
        strengths = self._strengths(k)
        best = covering(strengths, IN_VIEW)
        return best + [index for index in range(len(strengths)) if index not in best]

    def strongest(self, k: int, factor: int) -> list[int]:
        """Up to `IN_VIEW` images, those in which the factor has the largest mean."""
        values = self._strengths(k)[:, factor]
        order = np.argsort(-values, kind="stable")[:IN_VIEW]
        return [int(index) for index in order if values[index] > 0]

    def overview(self, labels: Labels) -> Overview:
        """What is likely in all images."""
        return self._overview(labels.settings, tuple(labels.made), labels.folder)

    def scores(self, settings: Settings) -> Scores | None:
        """The scores of all images, where what is marked has some."""
        return self._scores(settings.masks)

    def readable(self, index: int) -> np.ndarray:
        """The photograph as it is shown for mending; InputError where it cannot be read."""
        photo, unreadable = self.large(index)
        if unreadable is not None:
            raise InputError(f"a click needs the photograph, which cannot be read: {unreadable}")
        return photo

    def scene(self, labels: Labels, index: int, extent: Extent = WHOLE) -> ClickScene:
        """What clicks on a part of a photograph go by; InputError where it cannot be read."""
        return self._scene(index, labels.settings, labels.folder, extent)

    def warm(self, labels: Labels, indices: Sequence[int]) -> None:
        """Make what pictures of these images, and filters, will need, before they are asked for."""
        for index in indices:
            self.mask(labels, index)
        self.overview(labels)

    def _heatmaps(self, k: int) -> HeatMaps:
        return self.result.factorizations[k].heatmaps

    def _strengths_of(self, k: int) -> np.ndarray:
        """Each factor's mean |value| in each image, (n, k)."""
        heatmaps = self._heatmaps(k)
        areas = np.array([height * width for height, width in heatmaps.grids])
        sums = sum_per_image(heatmaps.coefficients.abs(), heatmaps)
        return (sums / areas[:, None]).astype(np.float32)

    def _overview_of(self, settings: Settings, kept: tuple[int, ...], folder: Path) -> Overview:
        seen = overview(*taught(self.result, settings, folder), kept)
        if not settings.taught and (scores := self._scores(settings.masks)) is not None:
            seen = replace(seen, present=seen.present & scores.are_likely)
        return seen

    def _scene_of(self, index: int, settings: Settings, folder: Path, extent: Extent) -> ClickScene:
        photo = self.readable(index)
        (top, bottom), (left, right) = extent
        height, width = photo.shape[:2]
        box = left * width, top * height, right * width, bottom * height
        shape = photo_shape((box[3] - box[1], box[2] - box[0]), CLICK_SIDE)
        small = Image.fromarray(photo).resize(shape[::-1], Image.Resampling.BILINEAR, box)
        factors = self._heatmaps(max(self.result.factorizations))
        spread = factors.normalized(index, shape).clamp_min(0).sqrt().var((1, 2)).sum().sqrt()
        maps = factors.normalized(index, shape, onto=extent).clamp_min(0).sqrt()
        run, _ = taught(self.result, settings, folder)
        whole, name = run.object or run, self.names[index]
        probabilities = whole.factorization().probabilities
        likely = np.full(shape, 0.5)
        if probabilities is not None and name in whole.names:
            of_image = probabilities.normalized(whole.names.index(name), shape, onto=extent)
            likely = of_image.amax(0).cpu().numpy()
        return click_scene(np.array(small), (maps / spread.clamp_min(1e-3)).cpu().numpy(), likely)

    def _photo(self, index: int, side: int = SIDE) -> tuple[np.ndarray, str | None]:
        """The photograph, gray where it cannot be read any more, and why."""
        shape = photo_shape(self.result.image_sizes[index], side)
        try:
            image = self.result.images[index].read(min_longest_side=side)
        except UnreadableImageError as error:
            return np.full((*shape, 3), _GRAY, np.uint8), str(error)
        resized = Image.fromarray(image).resize(shape[::-1], Image.Resampling.BILINEAR)
        return np.array(resized), None


def _reduced(run: Run, pictures: Pictures, index: dict[str, int] | None = None) -> Run:
    """A run whose images, and those of its object, are photographs of `SIDE` pixels. `index` has
    the photographs' numbers by name, as the object may lack images."""
    index = index or {name: number for number, name in enumerate(run.names)}
    sizes = [photo_shape(image.size, SIDE) for image in run.images]
    return replace(
        run,
        images=[
            replace(image, origin=ImageItem(pictures, index[image.name], image.name), size=size)
            for image, size in zip(run.images, sizes, strict=True)
        ],
        factorizations={
            k: replace(
                factorization,
                heatmaps=factorization.heatmaps.replace(image_sizes=sizes),
                probabilities=factorization.probabilities
                and factorization.probabilities.replace(image_sizes=sizes),
            )
            for k, factorization in run.factorizations.items()
        },
        object=None if run.object is None else _reduced(run.object, pictures, index),
        histograms=run.bank.histograms,
    )


def _agreement(one: NamedMask, other: NamedMask) -> float:
    names = sorted({*one.names, *other.names})
    a, b = (m.renumbered([names.index(n) + 1 for n in m.names]) for m in (one, other))
    union = np.count_nonzero(a | b)
    return np.count_nonzero((a == b) & (a > 0)) / union if union else 1.0


def merged(labels: Labels) -> dict[int, int]:
    """For each kept factor the first one of its name, whose color the class has."""
    first: dict[str, int] = {}
    return {factor: first.setdefault(name, factor) for factor, name in labels.parts.items()}


def covering(strengths: np.ndarray, count: int) -> list[int]:
    """Up to `count` images that together show every factor best, from strengths (n, k) ≥ 0. Greedy:
    each next image adds most to Σ_j max_i s_ij / max s_j, where i runs over the images chosen so
    far; of equal ones the first."""
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


def data_uris(draw: Callable[[int], np.ndarray], indices: Sequence[int]) -> list[str]:
    """Pictures as JPEG data for ``src``, drawn on several threads."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda index: picture_uri(draw(index)), indices))


def picture_uri(picture: np.ndarray) -> str:
    """A picture, (h, w, 3) uint8, as JPEG data."""
    return _data_uri(Image.fromarray(picture), "JPEG", quality=_JPEG_QUALITY)


def mask_uri(values: np.ndarray, side: int) -> str:
    """A label map (H, W) uint8 as PNG data of up to `side` pixels, half transparent."""
    height, width = values.shape
    small = nearest(values, photo_shape((height, width), side))
    colors = factor_colors(max(1, int(small.max())))
    picture = Image.fromarray(small)
    picture.putpalette([0, 0, 0, *colors.ravel().tolist()])
    alpha = bytes([0] + [_ALPHA] * len(colors))
    return _data_uri(picture, "PNG", transparency=alpha, compress_level=1)


def _data_uri(picture: Image.Image, format: str, **options: Any) -> str:
    data = BytesIO()
    picture.save(data, format, **options)
    return f"data:image/{format.lower()};base64,{b64encode(data.getvalue()).decode('ascii')}"
