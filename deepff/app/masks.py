"""What the settings make of images: masks, and at a glance what is likely in all images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from deepff.app.kept_masks import NamedMask, kept_mask
from deepff.app.labels import OBJECT, Labels, Settings
from deepff.app.lessons import taught, with_probabilities
from deepff.options import (
    PART_REFINEMENTS,
    RECIPE_OPTIONS,
    Recipe,
    Refinement,
    RegionOptions,
    Threshold,
)
from deepff.regions.components import named_pieces
from deepff.regions.regions import image_scores, least_score, region_finder
from deepff.regions.thresholds import thresholds
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run

# A cell whose probability is further from 1/2 than this is decided.
_DECIDED = 0.25

Finder = Callable[[int], np.ndarray]
AnyRun = TypeVar("AnyRun", bound=Run)


class Masks:
    """Masks of a run's images: what they keep, or what the settings make. They have the sizes of
    the run's images: the photographs', or those of a reduced run
    (:class:`deepff.app.pictures.Pictures`), of which more are cached."""

    def __init__(
        self, run: Run, crf_size: int | None = None, n_finders: int = 1, n_images: int = 4
    ) -> None:
        # Thresholds over a set of thousands are read off the histograms that were saved with it.
        whole = run.object and as_one(run.object)
        self._run = replace(run, object=whole, histograms=run.bank.histograms)
        self._crf_size = crf_size
        self._index = {name: index for index, name in enumerate(run.names)}
        self._finder = lru_cache(n_finders)(self._finder_of)
        # Each mend of an image, and its undo, begins with what the settings make of it.
        self._factors = lru_cache(n_images)(self._factors_of)

    def current(self, labels: Labels, image: str) -> NamedMask:
        """What an image keeps, else what the settings make of it."""
        return kept_mask(labels, image) or self.made(labels, image)

    def made(self, labels: Labels, image: str, refined: bool = True) -> NamedMask:
        """What the settings make of an image; unrefined it needs no photograph."""
        settings = labels.settings_of(image)
        # What a factor marks does not depend on the others that are kept, but a piece's name does.
        kept = tuple(labels.parts) if settings.masks == OBJECT and not settings.taught else ()
        factors = self._factors(image, settings, kept, labels.folder, refined)
        names, dropped = labels.class_names, labels.dropped(image)
        table = np.zeros(256, np.uint8)
        for factor, name in labels.made.items():
            if settings.taught or factor not in dropped:
                table[factor + 1] = names.index(name) + 1
        return NamedMask(table[factors], tuple(names))

    def _factors_of(self, image: str, *finder: Any) -> np.ndarray:
        return self._finder(*finder)(self._index[image])

    def _finder_of(
        self, settings: Settings, kept: tuple[int, ...], folder: Path, refined: bool
    ) -> Finder:
        """Gives one factor per pixel of image `index`, (H, W): 0 is none, factor j is j + 1."""
        run, settings = taught(self._run, settings, folder)
        if settings.masks != OBJECT or run.object is None:
            options = settings.region_options
            if not refined:
                options = replace(options, refine=Refinement.NONE)
            find = region_finder(run, settings.k, options, self._crf_size)
            return lambda index: find(index).labels.cpu().numpy()
        whole = _at_cut(run.object, settings.cut)
        contrast = RECIPE_OPTIONS[Recipe.CONTRAST]
        options = contrast if refined else RegionOptions(Threshold.OTSU_IMAGE)
        factor = whole.factorization(1)
        if not refined and factor.probabilities is not None:
            options = RegionOptions(Threshold.MAX_FRACTION, 0.5)
            factors = {1: replace(factor, heatmaps=factor.probabilities)}
            whole = replace(whole, factorizations=factors, histograms=None, applied=None)
        find_object = region_finder(whole, 1, options, self._crf_size)
        # The object lacks images that could not be read when it was looked for.
        object_index = {name: index for index, name in enumerate(whole.names)}
        heatmaps = run.factorization(settings.k).heatmaps

        def pieces(index: int) -> np.ndarray:
            number = object_index.get(run.names[index])
            if number is None:
                return np.zeros(run.images[index].size, np.uint8)
            mask = find_object(number).masks[0].cpu().numpy()
            return named_pieces(mask, heatmaps.normalized(index), kept)

        return pieces


def as_one(whole: AnyRun) -> AnyRun:
    """The objects of all kinds as one, which is what the app marks; classes tell kinds apart."""
    factors = whole.factorization()
    if len(whole.of_kinds) == 1:
        return whole

    def strongest(maps: HeatMaps) -> HeatMaps:
        coefficients = (maps.coefficients / maps.scale).amax(1, keepdim=True)
        return maps.factor(0).replace(coefficients=coefficients, scale=torch.ones(1))

    one = replace(
        factors.alone(0),
        heatmaps=strongest(factors.heatmaps),
        probabilities=factors.probabilities and strongest(factors.probabilities),
        scores=factors.scores and strongest(factors.scores),
    )
    return replace(whole.of_kinds[0], factorizations={1: one}, histograms=None)


def _at_cut(whole: Run, cut: float) -> Run:
    """The object with probabilities of 1/2 where they were `cut`."""
    maps = whole.factorization(1).probabilities
    if cut == 0.5 or maps is None:
        return whole
    return with_probabilities(whole, _shifted(maps.coefficients, cut))


def _shifted(likely: Tensor, cut: float) -> Tensor:
    """Probabilities p whose odds are those of p to `cut`: p(1 − c) : (1 − p)c."""
    odds = likely * (1 - cut)
    return odds / (odds + (1 - likely) * cut)


def refinements(run: Run, k: int) -> list[Refinement]:
    """The refinements that masks of k factors can have: those whose needs the run meets."""
    # DFF-CRF's masks need every photograph of the set before the first one can be shown.
    lacking = {Refinement.DFF_CRF}
    if run.factorization(k).probabilities is None:
        lacking.add(Refinement.CLASSIFIER)
    if run.parts_of is not None:  # parts are refined together
        lacking |= {*Refinement} - {*PART_REFINEMENTS}
    return [refinement for refinement in Refinement if refinement not in lacking]


def is_gone(run: Run, index: int) -> bool:
    """Whether there is no file of the photograph any more, though a picture may be kept."""
    origin = run.images[index].origin
    return origin is None or (isinstance(origin, Path) and not origin.is_file())


@dataclass(frozen=True)
class Overview:
    """What is likely in all images, for filters and sorting. It is read off the maps' cells and
    does not follow the edges of photographs as masks do, so that thousands of images take a
    second."""

    # (n,) Of the cells that may be marked, the share that is undecided; 1 where none may be.
    doubt: np.ndarray
    present: np.ndarray  # (n, k) bool: whether some cell is the factor's


@dataclass(frozen=True)
class Scores:
    """How likely each image shows what is marked, in [0, 1]."""

    best: np.ndarray  # (n,)
    are_likely: np.ndarray  # (n, k) bool, or (n, 1) for the object: whether that is likely enough


def set_scores(run: Run, masks: str) -> Scores | None:
    """The scores of a set's images, by the object or the factors; None where these have none."""
    whole = run.object if masks == OBJECT and run.object is not None else run
    factorization = whole.factorization()
    if factorization.scores is None:
        return None
    of_whole = dict(zip(whole.names, image_scores(whole).cpu().numpy(), strict=True))
    nothing = np.zeros(factorization.scores.n_factors, np.float32)
    scores = np.stack([of_whole.get(name, nothing) for name in run.names])
    least = least_score(whole, factorization, RegionOptions())
    return Scores(scores.max(1), (scores >= least) & (scores > 0))


def overview(run: Run, settings: Settings, kept: Sequence[int]) -> Overview:
    """What settings make of a set, roughly, with these factors kept."""
    factorization = run.factorization(settings.k)
    if settings.masks == OBJECT and run.object is not None:
        return _object_overview(run, run.object, factorization.heatmaps, settings, kept)
    if settings.refine == Refinement.CLASSIFIER and factorization.probabilities is not None:
        maps = factorization.probabilities
        likely = maps.coefficients
    else:
        maps = factorization.heatmaps
        likely = _likely(run, factorization, settings)
    present = np.zeros((len(maps), settings.k), bool)
    if not kept:
        return Overview(np.ones(len(maps)), present)
    highest, owner = likely[:, list(kept)].max(1)
    for position, factor in enumerate(kept):
        cells = (owner == position) & (highest >= 0.5)
        present[:, factor] = sum_per_image(cells, maps) > 0
    return Overview(_doubt(highest, maps), present)


def _object_overview(
    run: Run, whole: Run, heatmaps: HeatMaps, settings: Settings, kept: Sequence[int]
) -> Overview:
    factor = whole.factorization(1)
    if factor.probabilities is not None:
        maps = factor.probabilities
        likely = _shifted(maps.coefficients[:, 0], settings.cut)
    else:
        maps = factor.heatmaps
        likely = _likely(whole, factor, Settings(1, Threshold.OTSU))[:, 0]
    maps = maps.replace(coefficients=likely[:, None])
    indices = {name: index for index, name in enumerate(run.names)}
    doubt, present = np.ones(len(run.names)), np.zeros((len(run.names), settings.k), bool)
    object_indices = [indices[name] for name in whole.names]
    doubt[object_indices] = _doubt(likely, maps)
    for number, index in enumerate(object_indices):
        mask = (maps.covering(number)[0] >= 0.5).cpu().numpy()
        values = np.unique(named_pieces(mask, heatmaps.normalized(index), kept))
        present[index, values[values > 0].astype(int) - 1] = True
    return Overview(doubt, present)


def _likely(run: Run, factorization: Factorization, settings: Settings) -> Tensor:
    """How likely each cell is each factor, 1/2 at its threshold: (rows, k)."""
    maps, method = factorization.heatmaps, Threshold(settings.threshold)
    # Otsu over the set stands in for Otsu over each image.
    method = Threshold.OTSU if method == Threshold.OTSU_IMAGE else method
    value = settings.region_options.value
    limit = thresholds(run.bank.histograms[settings.k], method, value)[0].to(maps.scale)
    energy = maps.coefficients.clamp_min(0).square()
    likely = energy / (energy + limit.clamp_min(0).square()).clamp_min(torch.finfo().tiny)
    return likely.nan_to_num(0.0)


def _doubt(likely: Tensor, maps: HeatMaps) -> np.ndarray:
    maybe = sum_per_image(likely >= 0.5 - _DECIDED, maps)
    unclear = sum_per_image((likely - 0.5).abs() < _DECIDED, maps)
    return np.where(maybe > 0, unclear / np.maximum(maybe, 1), 1.0)


def sum_per_image(cells: Tensor, maps: HeatMaps) -> np.ndarray:
    """The sum over each image's cells, in double precision: (rows, ...) to (n, ...)."""
    areas = np.array([height * width for height, width in maps.grids])
    return np.add.reduceat(cells.cpu().double().numpy(), np.cumsum(areas) - areas)
