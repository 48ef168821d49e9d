"""The regions of every image of a result: masks and label maps, by factor or by named part."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.options import (
    MIN_SCORE,
    MIN_SCORE_OF_SET,
    PART_REFINEMENTS,
    RECIPE_OPTIONS,
    Refinement,
    RegionOptions,
    Threshold,
)
from deepff.regions.components import (
    component_scores,
    connected_components,
    least_instance,
    parted,
    things_in,
)
from deepff.regions.dense_crf import DENSE_CRF_SIZE, dense_crf
from deepff.regions.guided_crf import refined_maps
from deepff.regions.part_names import check_parts, factor_names, part_map, part_masks
from deepff.regions.pixel_classifier import refined_classes
from deepff.regions.probabilities import (
    Refiner,
    enclosed,
    part_probabilities,
    photo_of,
    unary_probabilities,
)
from deepff.regions.thresholds import label_map, largest_factor, masks, thresholds
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.histogram import Histogram
from deepff.results.run import Run
from deepff.results.sampling import BAND_BYTES, Band, bands
from deepff.runtime.parallel import in_parallel

T = TypeVar("T")

Bands = Callable[[], Iterator[Band]]

# Each refinement is the file in this folder that has its name. Two don't depend on one image alone:
# the classifier's probabilities come with the factorization, DFF-CRF's masks with the whole set.
REFINERS: dict[Refinement, Refiner] = {
    name: import_module(f"deepff.regions.{name.replace('-', '_')}").REFINER
    for name in Refinement
    if name not in (Refinement.NONE, Refinement.DFF_CRF, Refinement.CLASSIFIER)
}

# What work on an image takes at its peak: bytes per pixel in addition to the masks (labels; and for
# a CRF the photograph, or numbered components), and bands of maps.
_LABEL_BYTES = 2
_CRF_BYTES = 12
_N_BANDS = 5

_FEWEST_FOR_OUTLIERS = 10

_SURE_ODDS = 19.0
# Of a threshold at the maximum or beyond, nothing is above it.
_HIGHEST_LIMIT = 0.99


@dataclass(frozen=True)
class Regions:
    """The regions of one image."""

    masks: Tensor  # (r, H, W) bool; unrefined, those of different factors may overlap
    labels: Tensor  # (H, W), one region per pixel: 0 is the background, region j is j + 1
    names: tuple[str, ...] = ()
    scores: Tensor | None = None  # (r, h, w), of objects: that of each cell's piece, in [0, 1]
    n_unlikely: int = 0  # instances that were left out for their score


def region_names(result: Run, k: int | None, options: RegionOptions) -> list[str]:
    """The regions' names in the order of their masks: the parts', or the factors' default names.
    Kinds of objects are called what the network calls them, where it does and no two the same."""
    factorization = result.factorization(k)
    n_factors = factorization.heatmaps.n_factors
    if options.parts is None:
        names = factor_names(n_factors)
        if len(result.of_kinds) > 1 and factorization.classes is not None:
            called = factorization.classes.names
            pairs = zip(called, names, strict=True)
            names = [name if name and called.count(name) == 1 else plain for name, plain in pairs]
        return names
    check_parts(options.parts, n_factors)
    return list(dict.fromkeys(options.parts[factor] for factor in sorted(options.parts)))


def find_regions(
    result: Run,
    k: int | None = None,
    options: RegionOptions | None = None,
    memory: int | None = None,
) -> Iterator[Regions]:
    """Find the regions of each image in turn, at its own size.

    Images are worked on in parallel, one a core, as many as memory allows; the maps are read once
    more for thresholds over the set. Upsampled maps are held some rows at a time.

    Parameters
    ----------
    result : Run
    k : int, optional
        Which factorization; by default the largest.
    options : RegionOptions, optional
        By default those of the result's recipe: the paper's are the 75th percentile over the set,
        unrefined. Of a bank that was applied, thresholds over the set are over the bank's own set,
        but those of DFF-CRF over the images at hand.
    memory : int, optional
        The bytes that images in work may take together, though there is always one; by default half
        of what is free, and 1.5 GiB at most.

    Yields
    ------
    Regions
        One for each image, in the set's order.

    Raises
    ------
    InputError
        An option is out of its range, or the CRF cannot read an image any more.
    """
    yield from with_regions(lambda _, regions: regions, result, k, options, memory)


def with_regions(
    use: Callable[[int, Regions], T],
    result: Run,
    k: int | None = None,
    options: RegionOptions | None = None,
    memory: int | None = None,
    pixel_bytes: int = 0,
) -> Iterator[T]:
    """What ``use(index, regions)`` returns for each image, in the threads that find them. ``use``
    takes ``pixel_bytes`` of memory per pixel; the rest is as for :func:`find_regions`."""
    heatmaps = result.factorization(k).heatmaps
    options = available(options or RECIPE_OPTIONS[result.recipe], result.factorization(k))
    per_pixel = heatmaps.n_factors + pixel_bytes
    per_pixel += _LABEL_BYTES if options.refine == Refinement.NONE else _CRF_BYTES
    areas = [math.prod(size) for size in heatmaps.image_sizes]
    band_bytes = (_N_BANDS * min(4 * heatmaps.n_factors * area, BAND_BYTES) for area in areas)
    costs = [per_pixel * area + held for area, held in zip(areas, band_bytes, strict=True)]
    finder = region_finder(result, k, options)
    yield from in_parallel(lambda index: use(index, finder(index)), costs, memory)


def region_finder(
    result: Run, k: int | None, options: RegionOptions, crf_size: int | None = None
) -> Callable[[int], Regions]:
    """From an image's index to its regions, as :func:`find_regions`. Thresholds over the set are
    computed at once; ``crf_size`` limits the longer side at which refinements work."""
    factorization = result.factorization(k)
    options = available(options, factorization)
    names, parts = region_names(result, k, options), options.parts
    least = least_score(result, factorization, options)
    scored = factorization.scores is not None
    scores_of = region_scores(factorization, parts, names) if scored else None
    heatmaps = factorization.heatmaps
    if len(of_kinds := result.of_kinds) > 1:
        regions_of = _kind_regions(of_kinds, factorization, options, crf_size, least)
    elif result.parts_of is None:
        regions_of = _factor_regions(result, factorization, options, crf_size)
    else:
        regions_of = _part_regions(result, factorization, options, crf_size)

    def named_regions(index: int) -> Regions:
        regions = regions_of(index)
        if scores_of is not None:
            regions = _parted(regions, heatmaps, index)
        masks, labels = regions.masks, regions.labels
        if parts is not None:
            masks, labels = part_masks(masks, parts, names), part_map(labels, parts, names)
        scores = None if scores_of is None else scores_of(index)
        named = Regions(masks, labels, tuple(names), scores)
        return named if scores is None or least == 0 else likely(named, scores, least)

    return named_regions


def _parted(regions: Regions, heatmaps: HeatMaps, index: int) -> Regions:
    """The regions with lines between the things that touch in an object's map."""
    labels = regions.labels.clone()
    masks = []
    all_numbers = things_in(heatmaps, index, heatmaps.covering(index))
    for mask, numbers in zip(regions.masks, all_numbers, strict=True):
        masks.append(torch.from_numpy(parted(mask.cpu().numpy(), numbers)).to(mask.device))
        labels[mask & ~masks[-1]] = 0
    return replace(regions, masks=torch.stack(masks), labels=labels)


def region_scores(
    factorization: Factorization, parts: Mapping[int, str] | None, names: Sequence[str]
) -> Callable[[int], Tensor]:
    """A function from an image's index to the scores of the regions' pieces there, (r, h, w)."""
    scores = factorization.scores
    if scores is None:
        raise InputError("these factors have no scores; only objects from the recipe contrast do")

    def of_image(index: int) -> Tensor:
        maps = scores.covering(index)
        if parts is None:
            return maps
        factors = [[j for j, part in parts.items() if part == name] for name in names]
        return torch.stack([maps[of_region].amax(0) for of_region in factors])

    return of_image


def image_scores(result: Run) -> Tensor:
    """The score of each image's best piece, (n, k)."""
    factorization = result.factorization()
    scores_of = region_scores(factorization, None, ())
    return torch.stack([scores_of(i).amax((1, 2)) for i in range(len(result.images))])


def least_score(result: Run, factorization: Factorization, options: RegionOptions) -> float:
    """The score that an instance must have; 0 where instances have none."""
    if factorization.scores is None:
        if options.min_score:
            raise InputError(
                "these factors have no scores, so leave out the minimum score; only objects from "
                "the recipe contrast have scores, and not those (or banks) of older versions"
            )
        return 0.0
    if options.min_score is not None:
        return options.min_score
    if result.applied is not None:
        return MIN_SCORE
    # Among a few nothing is an outlier.
    known = factorization.known
    few = known is None or int(known.factors.bincount().min()) < _FEWEST_FOR_OUTLIERS
    return 0.0 if few else MIN_SCORE_OF_SET


def likely(regions: Regions, scores: Tensor, least: float) -> Regions:
    """The regions without their components of lower scores."""
    masks, labels, n_unlikely = regions.masks.clone(), regions.labels.clone(), 0
    height, width = labels.shape
    speck = least_instance((height, width), scores)
    for region, (mask, of_region) in enumerate(zip(regions.masks, scores, strict=True)):
        components, n = connected_components(mask.cpu().numpy())
        is_likely = component_scores(components, n, of_region) >= least
        if not is_likely[1:].all():
            areas = np.bincount(components.ravel(), minlength=n + 1)
            n_unlikely += int((~is_likely & (areas >= speck))[1:].sum())
            kept = torch.from_numpy(is_likely[components]).to(mask.device)
            masks[region] &= kept
            labels[(regions.labels == region + 1) & ~kept] = 0
    return replace(regions, masks=masks, labels=labels, n_unlikely=n_unlikely)


def available(options: RegionOptions, factorization: Factorization) -> RegionOptions:
    """The options, with the dense CRF instead of a classifier that the factors don't have."""
    if options.refine == Refinement.CLASSIFIER and factorization.probabilities is None:
        return replace(options, refine=Refinement.DENSE_CRF)
    return options


def check_classifier(refine: str | None, factorization: Factorization) -> None:
    """Raise InputError where the pixel classifier was asked for and there is none."""
    if refine == Refinement.CLASSIFIER and factorization.probabilities is None:
        raise InputError(
            "these factors have no pixel classifier; only the object from the recipe contrast and "
            "its parts have one; refine with dense-crf"
        )


def _factor_regions(
    result: Run, factors: Factorization, options: RegionOptions, crf_size: int | None
) -> Callable[[int], Regions]:
    heatmaps = factors.heatmaps
    if options.refine == Refinement.DFF_CRF:
        heatmaps = refined_maps(heatmaps, result.images, crf_size)
    elif options.refine != Refinement.NONE:
        return _refined_regions(result, factors, options, crf_size)
    limit_of = _limits(result, heatmaps, options)

    def regions(index: int) -> Regions:
        limit = limit_of(index)
        whole = _no_regions(heatmaps.n_factors, heatmaps.image_sizes[index], limit.device)
        for rows, maps in heatmaps.bands(index):
            whole.masks[:, rows] = masks(maps, limit)
            whole.labels[rows] = label_map(maps, whole.masks[:, rows], heatmaps.scale)
        return whole

    return regions


def _kind_regions(
    of_kinds: Sequence[Run],
    factors: Factorization,
    options: RegionOptions,
    crf_size: int | None,
    least: float,
) -> Callable[[int], Regions]:
    """Each kind's regions as if the set had no other; where they meet, of the higher score."""
    finders = [_factor_regions(run, run.factorization(), options, crf_size) for run in of_kinds]
    heatmaps = factors.heatmaps
    scored = factors.scores is not None
    scores_of = region_scores(factors, None, ()) if scored else heatmaps.normalized

    def regions(index: int) -> Regions:
        scores, size = scores_of(index), heatmaps.image_sizes[index]
        highest = scores.amax((1, 2))
        present = ((highest >= least) & (highest > 0)).nonzero()[:, 0].tolist()
        labels, best = np.zeros(size, np.int64), np.full(size, -1.0)
        for kind in present:
            mask = finders[kind](index).masks[0].cpu().numpy()
            components, n = connected_components(mask)
            of_pixels = component_scores(components, n, scores[kind])[components]
            claimed = mask & (of_pixels > best)
            labels[claimed], best[claimed] = kind + 1, of_pixels[claimed]
        whole = _no_regions(len(finders), size, heatmaps.coefficients.device)
        whole.labels.copy_(torch.from_numpy(labels))
        for kind, mask in enumerate(whole.masks):
            torch.eq(whole.labels, kind + 1, out=mask)
        return whole

    return regions


def _refined_regions(
    result: Run, factors: Factorization, options: RegionOptions, crf_size: int | None
) -> Callable[[int], Regions]:
    bands_of = _probabilities(result, factors, options, crf_size)
    # What somebody left out inside a class is none.
    is_classified = options.refine == Refinement.CLASSIFIER
    fills_holes = is_classified or REFINERS[Refinement(options.refine)].fills_holes
    holes = fills_holes and not _is_by_hand(factors)

    def regions(index: int) -> Regions:
        probabilities = bands_of(index)
        foreground = _foreground(probabilities, holes)
        return _disjoint(probabilities, foreground, factors.heatmaps.n_factors)

    return regions


def _part_regions(
    result: Run, factors: Factorization, options: RegionOptions, crf_size: int | None
) -> Callable[[int], Regions]:
    """One part per pixel: the parts share what is object, and are refined together."""
    if options.refine not in PART_REFINEMENTS:
        raise InputError("parts of the object are refined by classifier, dense-crf, or by none")
    if options.refine == Refinement.CLASSIFIER:
        return _refined_regions(result, factors, options, crf_size)
    if result.object is None and result.applied is None:
        raise InputError("the object's result, in the folder object, is missing; run it again")
    crf = options.refine == Refinement.DENSE_CRF
    heatmaps = factors.heatmaps
    object_bands = None
    if result.object is not None and result.parts_of == "object":
        whole = result.object.factorization(1)
        object_bands = _probabilities(result.object, whole, options, crf_size)

    def regions(index: int) -> Regions:
        maps, size = heatmaps.covering(index), heatmaps.image_sizes[index]
        if crf:
            photo = _photo(result, index, crf_size or DENSE_CRF_SIZE)
            maps = dense_crf(
                photo,
                heatmaps.upsampled(index, (photo.shape[1], photo.shape[2]))
                if object_bands is None
                else part_probabilities(torch.ones_like(photo[:1]), maps),
            )
        parts = partial(bands, maps, size)
        inside = parts if object_bands is None else object_bands(index)
        holes = crf and object_bands is not None
        return _disjoint(parts, _foreground(inside, holes), heatmaps.n_factors)

    return regions


def _limits(result: Run, heatmaps: HeatMaps, options: RegionOptions) -> Callable[[int], Tensor]:
    """Each factor's threshold in an image, (k,)."""
    if options.threshold == Threshold.OTSU_IMAGE:
        return lambda index: thresholds(heatmaps.alone(index), options.threshold)[0]
    over: HeatMaps | Histogram = heatmaps
    # A bank has no histograms of refined maps.
    histograms = result.histograms if result.applied is None else result.applied.histograms
    if histograms is not None and options.refine != Refinement.DFF_CRF:
        over = histograms[heatmaps.n_factors]
    row = thresholds(over, options.threshold, options.value)[0].to(heatmaps.scale)
    return lambda index: row


def _probabilities(
    result: Run, factors: Factorization, options: RegionOptions, crf_size: int | None
) -> Callable[[int], Bands]:
    """The factors' probabilities in an image in bands, (k, rows, W), 1/2 at the threshold."""
    heatmaps = factors.heatmaps
    if options.refine == Refinement.CLASSIFIER and factors.probabilities is not None:
        classes = factors.probabilities
        size = min(DENSE_CRF_SIZE, crf_size or DENSE_CRF_SIZE)

        def classified(index: int) -> Bands:
            maps, photo = classes.covering(index), _photo(result, index, size)
            refined = refined_classes(photo, maps, size, _is_by_hand(factors))
            return partial(bands, refined, classes.image_sizes[index])

        return classified
    limit_of = _limits(result, heatmaps, options)

    def unrefined(index: int) -> Iterator[Band]:
        limit = limit_of(index)
        for rows, maps in heatmaps.bands(index):
            yield rows, unary_probabilities(maps, limit)

    def probabilities(index: int) -> Bands:
        if options.refine == Refinement.NONE:
            return partial(unrefined, index)
        refiner = REFINERS[Refinement(options.refine)]
        size = min(refiner.size, crf_size or refiner.size)
        photo, limit = _photo(result, index, size), limit_of(index) / heatmaps.scale
        maps = heatmaps.normalized(index)
        if options.threshold == Threshold.MAX_FRACTION:
            maps = _surer(maps, limit)
        small = refiner.probabilities(photo, maps, limit, size)
        return partial(bands, small, heatmaps.image_sizes[index])

    return probabilities


def _surer(maps: Tensor, limits: Tensor) -> Tensor:
    """Maps in [0, 1] whose maximum is on, 19 to 1, in a CRF's unary, however high the limits are.
    Values below their limit stay as they are."""
    # A share of the maximum is far above what most of the object has. Where it is a half, the unary
    # would not be surer than 4 to 1 anywhere, and the CRF calls nearly all background.
    limits = limits.clamp(1 / _SURE_ODDS, _HIGHEST_LIMIT)[:, None, None]
    power = (math.log(_SURE_ODDS) / -limits.log() / 2).clamp_min(1)
    return torch.where(maps > limits, limits * (maps / limits).pow(power), maps)


def _is_by_hand(factors: Factorization) -> bool:
    return factors.classifier is not None and factors.classifier.by_hand


def _foreground(probabilities: Bands, holes: bool) -> Tensor:
    """Where the factors together are more likely than the background, (H, W), or enclosed by it."""
    foreground = torch.cat([band.sum(0) >= 0.5 for _, band in probabilities()])
    return foreground | enclosed(~foreground) if holes else foreground


def _disjoint(probabilities: Bands, foreground: Tensor, k: int) -> Regions:
    """The foreground's most likely factor; of equal ones the first."""
    if k == 1:
        return Regions(foreground[None], foreground.to(torch.uint8))
    regions = _no_regions(k, foreground.shape, foreground.device)
    values = torch.arange(1, k + 1, device=foreground.device)[:, None, None]
    for rows, band in probabilities():
        regions.labels[rows] = labels = largest_factor(band, foreground[rows])
        regions.masks[:, rows] = labels == values
    return regions


def _no_regions(k: int, size: Sequence[int], device: torch.device) -> Regions:
    """Regions that are still to be filled in."""
    labels = torch.uint8 if k <= 255 else torch.int32
    return Regions(
        torch.empty(k, *size, dtype=torch.bool, device=device),
        torch.empty(*size, dtype=labels, device=device),
    )


def _photo(result: Run, index: int, size: int) -> Tensor:
    return photo_of(result.images[index], size).to(result.coefficients.device)
