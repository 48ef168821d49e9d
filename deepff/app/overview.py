"""What is likely in all images at once, read off the maps' cells: for filters and for sorting.

Masks follow the edges of photographs and these do not, so that thousands of images take a second.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from deepff.activations.activations import ImageRecord
from deepff.app.labels import OBJECT, Settings
from deepff.images.image_set import ImageItem
from deepff.options import Refinement, Threshold
from deepff.pictures.figures import photo_shape
from deepff.regions.components import named_pieces
from deepff.regions.thresholds import thresholds
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run

# A cell whose probability is further from 1/2 than this is decided.
_DECIDED = 0.25


@dataclass(frozen=True)
class Overview:
    """All images of a set, in its order.

    Attributes
    ----------
    doubt : ndarray, (n,)
        The share of the cells, among those that may be marked, of which it is not clear whether
        they are: in [0, 1]; 1 where nothing may be.
    present : ndarray, (n, k), bool
        Whether some cell is the factor's.
    """

    doubt: np.ndarray
    present: np.ndarray


def overview(run: Run, settings: Settings, factors: Collection[int]) -> Overview:
    """What settings make of a set, roughly.

    Parameters
    ----------
    run : Run
    settings : Settings
    factors : collection of int
        Those that are kept.
    """
    found = run.factorization(settings.k)
    if settings.masks == OBJECT and run.object is not None:
        return _of_object(run, run.object, found.heatmaps, settings, factors)
    kept = sorted(factors)
    if settings.refine == Refinement.CLASSIFIER and found.probabilities is not None:
        maps = found.probabilities
        alone = maps.coefficients
    else:
        maps = found.heatmaps
        alone = _alone(run, found, settings)
    owner = alone[:, kept].argmax(1) if kept else None
    likely = alone[:, kept].amax(1) if kept else alone.new_zeros(len(alone))
    present = np.zeros((len(maps), settings.k), bool)
    for place, factor in enumerate(kept):
        assert owner is not None
        mine = (owner == place) & (likely >= 0.5)
        present[:, factor] = _per_image(mine, maps) > 0
    return Overview(_doubt(likely, maps), present)


def _alone(run: Run, found: Factorization, settings: Settings) -> Tensor:
    """How likely each cell is each factor, 1/2 at its threshold: (rows, k)."""
    maps, method = found.heatmaps, Threshold(settings.threshold)
    # Otsu over the set stands for that of each image.
    method = Threshold.OTSU if method == Threshold.OTSU_IMAGE else method
    value = settings.region_options.value
    limit = thresholds(run.bank.histograms[settings.k], method, value)[0].to(maps.scale)
    energy = maps.coefficients.clamp_min(0).square()
    alone = energy / (energy + limit.clamp_min(0).square()).clamp_min(torch.finfo().tiny)
    return alone.nan_to_num(0.0)


def _of_object(
    run: Run, whole: Run, heatmaps: HeatMaps, settings: Settings, factors: Collection[int]
) -> Overview:
    found = whole.factorization(1)
    if found.probabilities is not None:
        maps, cut = found.probabilities, settings.cut
        likely = maps.coefficients[:, 0]
        likely = likely * (1 - cut) / (likely * (1 - cut) + (1 - likely) * cut)
    else:
        maps = found.heatmaps
        likely = _alone(whole, found, Settings(1, Threshold.OTSU))[:, 0]
    places = {name: place for place, name in enumerate(whole.names)}
    order = [places.get(name) for name in run.names]
    doubts = _doubt(likely, maps)
    marked = HeatMaps((likely >= 0.5).float()[:, None], maps.grids, maps.image_sizes)
    present = np.zeros((len(order), settings.k), bool)
    for index, place in enumerate(order):
        if place is not None:
            mask = marked.grid(place)[0].cpu().numpy() > 0
            owners = np.unique(named_pieces(mask, heatmaps.normalized(index), factors))
            present[index, owners[owners > 0].astype(int) - 1] = True
    return Overview(np.array([1.0 if i is None else doubts[i] for i in order]), present)


def _doubt(likely: Tensor, maps: HeatMaps) -> np.ndarray:
    maybe = _per_image(likely >= 0.5 - _DECIDED, maps)
    unclear = _per_image((likely - 0.5).abs() < _DECIDED, maps)
    return np.where(maybe > 0, unclear / np.maximum(maybe, 1), 1.0)


def _per_image(cells: Tensor, maps: HeatMaps) -> np.ndarray:
    """How many of each image's cells are on: (rows,) bool to (n,)."""
    ends = np.cumsum([height * width for height, width in maps.grids])
    counts = np.concatenate([[0], np.cumsum(cells.cpu().numpy())])
    return counts[ends] - counts[np.concatenate([[0], ends[:-1]])]


def reduced(run: Run, k: int, photo: Callable[[int], np.ndarray], side: int) -> Run:
    """One factorization of a run, its images scaled to ``side`` pixels.

    Thresholds over the set are read off a histogram of reduced maps; they differ from an export's
    by about a thousandth of a factor's maximum.

    Parameters
    ----------
    run : Run
    k : int
        Which factorization.
    photo : callable
        Gives the photograph of an image, by its number, at that size.
    side : int
        In pixels.
    """
    photos = _Photos(photo, len(run.images))
    found = run.factorization(k)
    return replace(
        run,
        images=[
            _reduced_image(image, photos, index, side) for index, image in enumerate(run.images)
        ],
        factorizations={k: _reduced_factorization(found, side)},
        object=None if run.object is None else reduced(run.object, 1, photo, side),
        applied=replace(run, factorizations={k: found}).bank,
    )


@dataclass(frozen=True)
class _Photos:
    photo: Callable[[int], np.ndarray]
    n: int

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> np.ndarray:
        return self.photo(index)


def _reduced_image(image: ImageRecord, photos: _Photos, index: int, side: int) -> ImageRecord:
    item = ImageItem(photos, index, image.name)
    return replace(image, origin=item, size=photo_shape(image.size, side))


def _reduced_factorization(found: Factorization, side: int) -> Factorization:
    classified = found.probabilities
    return replace(
        found,
        heatmaps=_reduced_maps(found.heatmaps, side),
        probabilities=None if classified is None else _reduced_maps(classified, side),
    )


def _reduced_maps(maps: HeatMaps, side: int) -> HeatMaps:
    sizes = [photo_shape(size, side) for size in maps.image_sizes]
    return HeatMaps(maps.coefficients, maps.grids, sizes, maps.scale, maps.extents)
