"""The regions of every image of a result: masks and label maps, by factor or by named part."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.images.reading import UnreadableImageError
from deepff.options import RECIPE_OPTIONS, Refinement, RegionOptions, Threshold
from deepff.regions.dense_crf import DENSE_CRF_SIZE, dense_crf
from deepff.regions.guided_crf import (
    as_image_batch,
    at_working_size,
    guided_crf,
    refined_labels,
    refined_masks,
    unary_probabilities,
    without_holes,
)
from deepff.regions.part_names import check_parts, factor_names, part_map
from deepff.regions.parts import part_probabilities, refined_parts
from deepff.regions.thresholds import label_map, masks, thresholds
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run

T = TypeVar("T")


@dataclass(frozen=True)
class Regions:
    """The regions of one image.

    Attributes
    ----------
    masks : Tensor, (r, H, W), bool
        One mask a region; unrefined, those of different factors may overlap.
    labels : Tensor, (H, W), integer
        One region per pixel: 0 is the background, region j is j + 1.
    names : tuple of str
        The regions' names.
    """

    masks: Tensor
    labels: Tensor
    names: tuple[str, ...] = ()


def region_names(result: Run, k: int | None, options: RegionOptions) -> list[str]:
    """The regions' names in the order of their masks: the parts', or the factors' own.

    See :func:`deepff.regions.part_names.factor_names` for the latter, and :func:`find_regions`.
    """
    n_factors = result.factorization(k).heatmaps.n_factors
    if options.parts is None:
        return factor_names(n_factors)
    check_parts(options.parts, n_factors)
    return list(dict.fromkeys(options.parts[factor] for factor in sorted(options.parts)))


def find_regions(
    result: Run, k: int | None = None, options: RegionOptions | None = None
) -> Iterator[Regions]:
    """Find the regions of each image in turn, at its own size.

    Images are worked on in parallel, one a core, so that memory holds a few at a time; the maps are
    read once more for thresholds over the set.

    Parameters
    ----------
    result : Run
    k : int, optional
        Which factorization; by default the largest.
    options : RegionOptions, optional
        By default those of the result's recipe: the paper's are the 75th percentile over the set,
        unrefined. Of a bank that was applied, thresholds over the set are over the bank's own set.

    Yields
    ------
    Regions
        One for each image, in the set's order.

    Raises
    ------
    InputError
        An option is out of its range, or the CRF cannot read an image any more.
    """
    options = options or RECIPE_OPTIONS[result.recipe]
    heatmaps = result.factorization(k).heatmaps
    names = region_names(result, k, options)
    regions_of = (
        _factor_regions(result, heatmaps, options)
        if result.parts_of is None
        else _part_regions(result, heatmaps, options)
    )
    for found in _in_parallel(regions_of, len(heatmaps)):
        named = found if options.parts is None else _by_part(found, options.parts, names)
        yield replace(named, names=tuple(names))


def object_probabilities(result: Run, options: RegionOptions) -> Iterator[Tensor]:
    """How likely each pixel is the object, image by image: (1, H, W) in [0, 1].

    Parameters
    ----------
    result : Run
        With one factor, the object.
    options : RegionOptions
        Threshold and refinement; unrefined, the probability is 1/2 at the threshold.
    """
    heatmaps = result.factorization(1).heatmaps
    return _in_parallel(_probabilities(result, heatmaps, options), len(heatmaps))


def _factor_regions(
    result: Run, heatmaps: HeatMaps, options: RegionOptions
) -> Callable[[int], Regions]:
    if options.refine != Refinement.NONE:
        probabilities = _probabilities(result, heatmaps, options)

        def refined_regions(index: int) -> Regions:
            found = probabilities(index)
            return Regions(refined_masks(found), refined_labels(found))

        return refined_regions
    limits = _limits(result, heatmaps, options)

    def regions(index: int) -> Regions:
        maps = heatmaps[index]
        on = masks(maps, limits[index])
        return Regions(on, label_map(maps, on, heatmaps.scale))

    return regions


def _part_regions(
    result: Run, heatmaps: HeatMaps, options: RegionOptions
) -> Callable[[int], Regions]:
    """One part per pixel: the parts share what is object, and are refined together."""
    if options.refine == Refinement.GUIDED_CRF:
        raise InputError("parts of the object are refined by dense-crf, or by none")
    if result.object is None:
        raise InputError("the result of the object, in the folder object, is gone; run it again")
    whole = None
    if result.parts_of == "object":
        object_maps = result.object.factorization(1).heatmaps
        whole = _probabilities(result.object, object_maps, options)

    def regions(index: int) -> Regions:
        crf = options.refine == Refinement.DENSE_CRF
        if whole is not None:
            share = partial(refined_parts, _photo(result, index)) if crf else part_probabilities
            probabilities = share(whole(index), heatmaps.grid(index))
        else:
            probabilities = heatmaps[index]
            if crf:
                probabilities = dense_crf(_photo(result, index), probabilities)
        return Regions(refined_masks(probabilities), refined_labels(probabilities))

    return regions


def _limits(result: Run, heatmaps: HeatMaps, options: RegionOptions) -> Tensor:
    """Each factor's threshold for every image, (n, k)."""
    if result.applied is None or options.threshold == Threshold.OTSU_IMAGE:
        return thresholds(heatmaps, options.threshold, options.value)
    histogram = result.applied.histograms[heatmaps.n_factors]
    row = thresholds(histogram, options.threshold, options.value)
    return row.to(heatmaps.scale).expand(len(heatmaps), -1)


def _probabilities(
    result: Run, heatmaps: HeatMaps, options: RegionOptions
) -> Callable[[int], Tensor]:
    """The factors' probabilities in an image, (k, H, W): 1/2 at the threshold, then refined."""
    limits = _limits(result, heatmaps, options)

    def probabilities(index: int) -> Tensor:
        if options.refine == Refinement.NONE:
            return unary_probabilities(heatmaps[index], limits[index])
        return refined(
            _photo(result, index),
            heatmaps.normalized(index),
            limits[index] / heatmaps.scale,
            options.refine,
        )

    return probabilities


def _in_parallel(work: Callable[[int], T], n: int) -> Iterator[T]:
    """The outcomes for 0, …, n − 1 in order, worked out by a thread for each core, a few ahead."""
    n_threads = os.cpu_count() or 1
    # One thread an image is twice as fast as all of them on each operation of every image.
    pool = ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,))
    pending: deque[Future[T]] = deque()
    try:
        for index in range(n):
            pending.append(pool.submit(work, index))
            if len(pending) > n_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def refined(image: Tensor | np.ndarray, maps: Tensor, thresholds: Tensor, refine: str) -> Tensor:
    """The factors' probabilities along the edges of one image, or of a batch of one shape.

    Parameters
    ----------
    image : ndarray uint8 (H, W, 3), or Tensor float (..., 3, H, W) in [0, 1]
    maps : Tensor, (..., k, h, w)
        At any size, normalised to [0, 1] over the set.
    thresholds : Tensor, (..., k)
        In the same units.
    refine : "guided-crf" or "dense-crf"
        After the latter, holes are filled (:func:`deepff.regions.guided_crf.without_holes`).

    Returns
    -------
    Tensor, (..., k, H, W)

    Raises
    ------
    InputError
        There is no such refinement.
    """
    if refine == Refinement.GUIDED_CRF:
        return guided_crf(image, maps, thresholds)
    if refine == Refinement.DENSE_CRF:
        # Probabilities change faster than the maps that they come from: upsampling these first is
        # worth 0.009 IoU on iCoseg.
        _, smooth = at_working_size(as_image_batch(image, maps), maps, DENSE_CRF_SIZE)
        smooth = smooth if maps.ndim == 4 else smooth[0]
        unary = unary_probabilities(smooth, thresholds)
        return without_holes(dense_crf(image, unary, size=DENSE_CRF_SIZE))
    raise InputError(
        f"there is no refinement {refine!r} of one image; choose guided-crf or dense-crf"
    )


def _by_part(found: Regions, parts: Mapping[int, str], names: list[str]) -> Regions:
    merged = [
        found.masks[[factor for factor, name in parts.items() if name == wanted]].any(0)
        for wanted in names
    ]
    labels, _ = part_map(found.labels, parts)
    return Regions(torch.stack(merged), labels)


def _photo(result: Run, index: int) -> Tensor:
    """The image as (3, H, W) in [0, 1], for the CRF."""
    image = result.images[index]
    try:
        pixels = image.read()
    except UnreadableImageError as error:
        back = "" if image.path is None else f": put it back at {image.path}"
        raise InputError(
            f"the CRF needs the photograph {image.name}, which cannot be read any more "
            f"({error}){back}, or go without CRF"
        ) from error
    if pixels.shape[:2] != image.size:
        raise InputError(
            f"the CRF needs the photograph {image.name} as it was, {image.size} pixels, but it "
            f"now has {pixels.shape[:2]}" + ("" if image.path is None else f": {image.path}")
        )
    photo = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
    return photo.to(result.coefficients.device)
