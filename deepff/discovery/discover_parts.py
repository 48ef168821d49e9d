"""Parts inside the object, from a folder of images: the object first, then its parts."""

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from deepff.activations.activations import Activations
from deepff.discovery.activation_set import ActivationSet, Findings, result_of
from deepff.discovery.arguments import (
    FactorCounts,
    RunOptions,
    RunSettings,
    check_activations,
    check_factor_counts,
    factor_counts_of,
    shown_call,
)
from deepff.discovery.choose_k import Selection, select_k
from deepff.discovery.contrast import contrast_layers, object_findings, weighable
from deepff.discovery.object_parts import (
    PartSpace,
    factorize_filled,
    factorize_inside,
    fills_frame,
    part_layer,
)
from deepff.discovery.teaching import Cells, classify_object, classify_parts
from deepff.errors import InputError
from deepff.factorization import KMeans
from deepff.images.image_set import Images
from deepff.layers.layer_map import LayerChoice, map_layers
from deepff.layers.pixel_layers import pixel_layers
from deepff.options import N_PARTS, SIZE, Method, Recipe, Refinement, RegionOptions, Threshold
from deepff.regions.regions import find_regions
from deepff.result import Result
from deepff.results.factorization import Factorization
from deepff.results.sampling import cell_means
from deepff.runtime import distributed
from deepff.runtime.progress import Stopwatch, track

# Which cells are clustered: on Car Parts (every other image, k = 2, 4) the classifier's object
# gives a factor quality that is 0.01 lower.
_CELLS = RegionOptions(Threshold.OTSU_IMAGE, refine=Refinement.DENSE_CRF)


def discover_parts(
    images: Images,
    n_components: FactorCounts = N_PARTS,
    *,
    layer: LayerChoice | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Find the object of a set of images with the recipe contrast, and then the object's parts.

    If the object does not stand out from the border of the images, it is assumed to fill the frame.
    The parts are then found on all cells, with one more cluster for the background.

    Parameters
    ----------
    images : path, glob, sequence of these, or images
        As for :func:`deepff.discover`.
    n_components : int, iterable of int, or "auto"
        The number of parts; several give one factorization each. "auto" takes the largest up to 6
        on which two halves of the images agree (:func:`deepff.discovery.choose_k.select_k`).
    layer : str or torch.nn.Module, optional
        Layer that separates the parts, by sign if it is signed. By default
        :func:`deepff.discovery.object_parts.part_layer`.
    **options
        ``model``, ``size``, ``random_state``, ``batch_size``, ``cache``, ``memory``, ``device``,
        ``amp``, ``stretch``, ``normalized`` and ``progress``, as for :func:`deepff.discover`.

    Returns
    -------
    Result
        With ``object``, the result for the object, and ``parts_of``. Its regions have one part
        per pixel, refined together.

    Raises
    ------
    InputError
        As :func:`deepff.discover`; or the object has too few cells for so many parts.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> images = [data.chelsea(), data.chelsea()[:, ::-1].copy()]
    >>> parts = deepff.discover_parts(images, 2)
    >>> [regions.masks.shape for regions in parts.regions()]
    [torch.Size([2, 300, 451]), torch.Size([2, 300, 451])]
    """
    arguments = {"images": images, "n_components": n_components, "layer": layer, **options}
    command = shown_call(discover_parts, arguments)
    factor_counts = factor_counts_of(n_components)
    if distributed.n_ranks() > 1:
        raise InputError("parts inside the object need a single process; run it without others")
    settings = RunSettings(**options).checked()
    watch = Stopwatch()
    files, backbone = settings.opened(images)
    settings = settings.with_size(backbone, files)
    layer_map = map_layers(backbone, settings.size or SIZE)
    object_layers, cell_layers = contrast_layers(layer_map), pixel_layers(layer_map)
    layer_of_parts = weighable([layer_map.resolve(layer) if layer else part_layer(layer_map)])[0]
    check_factor_counts(factor_counts, [layer_of_parts])
    check_activations(layer_map, [layer_of_parts, *object_layers], by_nmf=False)
    watch.lap("loading the network")
    every_layer = [layer_of_parts, *object_layers, *cell_layers]
    activation_set = ActivationSet.extracted(files, backbone, every_layer, settings, watch)

    facts = {"command": command, "recipe": Recipe.CONTRAST, "seconds": watch.seconds}
    of_object = object_findings(activation_set, object_layers)
    cells = Cells.of(activation_set.of(cell_layers), settings.progress)
    object_factorization = classify_object(of_object.factorizations[1], cells)
    of_object = replace(of_object, factorizations={1: object_factorization})
    whole = result_of(of_object, settings, **facts)

    (activations,) = activation_set.of([layer_of_parts])
    object_cells = None
    if not fills_frame(of_object.separation or 0.0, whole.sources[-1].by_sign):
        object_cells = _object_cells(whole, activations, settings.progress)
    agreements = None
    if factor_counts == "auto":
        k, agreements = _choose_k(activations, object_cells, settings)
        factor_counts = [k]
    parts = {}
    with track("parts", len(factor_counts), unit="runs", enabled=settings.progress) as advance:
        for k in factor_counts:
            parts[k], _ = _clustered(activations, object_cells, k, settings.random_state)
            advance(1)
    watch.lap("object and parts")
    parts = classify_parts(parts, None if object_cells is None else object_factorization, cells)
    watch.lap("classifier")
    findings = Findings(
        activation_set,
        [layer_of_parts],
        parts,
        Method.KMEANS,
        agreements=agreements,
        separation=of_object.separation,
    )
    parts_of = "frame" if object_cells is None else "object"
    return result_of(findings, settings, object=whole, parts_of=parts_of, **facts)


def _object_cells(whole: Result, activations: Activations, progress: bool) -> Tensor:
    """The share of each cell of ``activations`` that is object, (rows,)."""
    shares = []
    with track("object", len(activations.images), enabled=progress) as advance:
        regions_of_images = find_regions(whole, 1, _CELLS)
        for image, regions in zip(activations.images, regions_of_images, strict=True):
            shares.append(cell_means(regions.masks.float(), image.grid, image.extent).flatten())
            advance(1)
    return torch.cat(shares)


def _choose_k(
    activations: Activations, object_cells: Tensor | None, settings: RunSettings
) -> Selection:
    """How many parts, by the rows that are clustered."""
    _, space = _clustered(activations, object_cells, 1, 0)
    n_cells = [image.n_cells for image in activations.images]
    return select_k(
        activations,
        cells=None if object_cells is None else (object_cells >= 0.5).split(n_cells),
        transform=space.rows,
        estimator=lambda k: KMeans(k, random_state=settings.random_state),
        random_state=settings.random_state,
        progress=settings.progress,
    )


def _clustered(
    activations: Activations, object_cells: Tensor | None, k: int, random_state: int
) -> tuple[Factorization, PartSpace]:
    if object_cells is None:
        return factorize_filled(activations, k, random_state)
    return factorize_inside(activations, object_cells, k, random_state)
