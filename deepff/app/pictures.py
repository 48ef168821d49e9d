"""What the app shows of a result: photographs with masks or heat maps, and which of them first."""

import os
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from io import BytesIO

import numpy as np
import torch
from PIL import Image

from deepff.app.labels import Labels, Settings
from deepff.app.reduced import reduced
from deepff.export.instances import Instance
from deepff.images.reading import UnreadableImageError
from deepff.options import Refinement
from deepff.regions.find import Regions, region_finder
from deepff.report.colors import factor_colors
from deepff.report.figures import photo_shape
from deepff.report.overlays import overlay
from deepff.report.region_pictures import region_picture
from deepff.results.heatmaps import HeatMaps
from deepff.results.result import Result
from deepff.results.run import Run

IN_VIEW = 5
SIDE = 384
# The dense CRF takes half the time that it takes at its own size; the guided one works below this.
_CRF_SIDE = 192
_GREY = 128
_JPEG_QUALITY = 85


class Pictures:
    """Pictures of a result at `SIDE` pixels, with what is dear to make kept for the next one.

    Thresholds over the set are read off a histogram of reduced maps, so that a picture follows at
    once; they differ from an export's by about a thousandth of a factor's maximum.

    Parameters
    ----------
    result : Result
    """

    def __init__(self, result: Result) -> None:
        self.result = result
        self.photo = lru_cache(64)(self._photo)
        self.factor_labels = lru_cache(256)(self._factor_labels)
        self.strengths = lru_cache(self._strengths)
        self._reduced = lru_cache(self._reduced_run)
        self._finder = lru_cache(16)(self._region_finder)

    def masks(self, labels: Labels, index: int) -> np.ndarray:
        """The photograph with its regions in their colours."""
        shown = self.region_labels(labels, index)
        return region_picture(self.photo(index)[0], shown)

    def heat_maps(self, labels: Labels, index: int) -> np.ndarray:
        """The photograph with the heat maps of all factors that are kept, in their colours."""
        colors = merged_colors(labels)
        dropped = labels.dropped(self.result.names[index])
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
        return overlay(photo, maps[factor : factor + 1], factor_colors(k)[factor : factor + 1])

    def instance(self, index: int, region: int, instance: Instance) -> np.ndarray:
        """The photograph with one annotation: its mask in the colour of the region, and its box."""
        mask = instance.full_mask(self.result.image_sizes[index])
        values = (mask * (region + 1)).astype(np.int32)
        return region_picture(self.photo(index)[0], values, [(region, instance.box)])

    def region_labels(self, labels: Labels, index: int) -> np.ndarray:
        """One region per pixel: 0 is the background, j + 1 the region whose first factor is j."""
        first = merged(labels)
        dropped = labels.dropped(self.result.names[index])
        table = np.zeros(labels.settings.k + 1, np.int32)
        for factor, representative in first.items():
            if factor not in dropped:
                table[factor + 1] = representative + 1
        return table[self.factor_labels(labels.settings, index)]

    def factors_present(self, labels: Labels, index: int) -> list[int]:
        """The kept factors that some pixel of the image belongs to, dropped ones included."""
        present = np.unique(self.factor_labels(labels.settings, index)) - 1
        return [factor for factor in present.tolist() if factor in labels.parts]

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

    def _heatmaps(self, k: int) -> HeatMaps:
        return self.result.factorizations[k].heatmaps

    def _strengths(self, k: int) -> np.ndarray:
        """Each factor's mean |value| in each image, (n, k)."""
        heatmaps = self._heatmaps(k)
        means = [heatmaps.grid(i).abs().mean((1, 2)) for i in range(len(heatmaps))]
        return torch.stack(means).cpu().numpy()

    def _photo(self, index: int) -> tuple[np.ndarray, str | None]:
        """The photograph, grey where it cannot be read any more, and why."""
        shape = photo_shape(self.result.image_sizes[index], SIDE)
        try:
            image = self.result.images[index].read(min_longest_side=SIDE)
        except UnreadableImageError as error:
            return np.full((*shape, 3), _GREY, np.uint8), str(error)
        return _resized(image, shape), None

    def _factor_labels(self, settings: Settings, index: int) -> np.ndarray:
        """One factor per pixel of the picture: 0 is the background, factor j is j + 1."""
        if self.photo(index)[1] is not None:  # without it there is nothing to refine along
            settings = replace(settings, refine=Refinement.NONE)
        return self._finder(settings)(index).labels.cpu().numpy()

    def _region_finder(self, settings: Settings) -> Callable[[int], Regions]:
        run = self._reduced(settings.k)
        return region_finder(run, settings.k, settings.region_options, _CRF_SIDE)

    def _reduced_run(self, k: int) -> Run:
        return reduced(self.result, k, lambda index: self.photo(index)[0], SIDE)


def merged(labels: Labels) -> dict[int, int]:
    """For each kept factor the first one of its name, whose colour the region has."""
    first: dict[str, int] = {}
    return {factor: first.setdefault(name, factor) for factor, name in labels.parts.items()}


def merged_colors(labels: Labels) -> np.ndarray:
    """The colour of each factor's region, (k, 3)."""
    colors = factor_colors(labels.settings.k)
    for factor, representative in merged(labels).items():
        colors[factor] = colors[representative]
    return colors


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
