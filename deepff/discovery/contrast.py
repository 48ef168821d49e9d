"""The recipe contrast: the object of an image set, without labels.

Everything here rests on one assumption: over the whole set, the background touches the border of
the images more than the object does. It fails where objects fill the frame or are cut by it, and
where there is no common object; :func:`separation_warning` says so.

Channels are weighted by how much more they fire inside the images than on their border
(:func:`border_contrast`). The best single factor of two layers (:func:`object_factor`), fused
(:func:`fuse`), is the object's map. Its masks then teach a pixel classifier
(:mod:`deepff.discovery.teaching`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepff.activations.activations import Activations
from deepff.discovery.activation_set import ActivationSet, Findings
from deepff.discovery.arguments import RunSettings
from deepff.discovery.kinds import find_kinds, joined
from deepff.discovery.presence import with_presence
from deepff.discovery.teaching import Cells, classify_object
from deepff.errors import InputError
from deepff.factorization.blocks import RowBlocks, check_non_negative
from deepff.images.image_set import SetImage
from deepff.layers.layer import WHOLE, Extent, Layer, by_sign
from deepff.layers.layer_map import LayerMap
from deepff.layers.pixel_layers import stride_layers
from deepff.networks.backbone import Backbone
from deepff.options import Method
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.sampling import sampled
from deepff.runtime import distributed
from deepff.runtime.distributed import all_reduce_sum, gather_rows, rows_before
from deepff.runtime.progress import Stopwatch

# Below this, the contrast of the coarser layer does not tell an object from its surroundings; of a
# layer by sign, where one of a channel's two parts always gains.
_MIN_SEPARATION, _MIN_BY_SIGN = 0.11, 0.155

_BORDER = 0.1  # of each side
_SILENT = 1e-3  # a mean activation below which a channel says nothing
_POWER = 2
_MAX_ITER, _TOL = 100, 1e-5


def discover_by_contrast(
    images: Sequence[SetImage],
    backbone: Backbone,
    layers: Sequence[Layer],
    cell_layers: Sequence[Layer],
    head: Layer,
    settings: RunSettings,
    watch: Stopwatch,
    by_border: bool = True,
    n_kinds: int | None = None,
) -> Findings:
    """The object of each kind, as one map fused from those of ``layers``. It teaches
    ``cell_layers``, if any. Features of ``head`` tell the kinds apart."""
    every_layer = [*layers, *cell_layers, head]
    activation_set = ActivationSet.extracted(images, backbone, every_layer, settings, watch)
    findings = object_findings(activation_set, layers, by_border)
    watch.lap("factorization")
    features = activation_set.activations[head.path]
    kinds = find_kinds(findings.factorizations[1].heatmaps, features, n_kinds)
    before, _ = rows_before(len(features.images))
    of_rank = kinds[before : before + len(features.images)]
    of_kinds = [findings]
    if len(numbers := kinds.unique()) > 1:
        subsets = [activation_set.restricted((of_rank == kind).tolist()) for kind in numbers]
        of_kinds = [object_findings(subset, layers, by_border) for subset in subsets]
    watch.lap("kinds")
    if cell_layers:
        for index, of_kind in enumerate(of_kinds):
            cells = Cells.of(of_kind.activation_set.of(cell_layers), settings.progress)
            whole = classify_object(of_kind.factorizations[1], cells)
            of_kinds[index] = replace(of_kind, factorizations={1: whole})
        watch.lap("classifier")
    findings = joined(of_kinds, kinds, activation_set)
    objects = {k: with_presence(whole, features) for k, whole in findings.factorizations.items()}
    watch.lap("scores")
    return replace(findings, factorizations=objects)


def object_findings(
    activation_set: ActivationSet, layers: Sequence[Layer], by_border: bool = True
) -> Findings:
    """The object by these layers alone, before its masks teach anything."""
    activations = activation_set.of(layers)
    if not by_border:
        ones = [torch.ones(A.channels, device=A.blocks[0].device) for A in activations]
        whole = fused_object(activations, ones)
        return Findings(activation_set, layers, {1: whole}, Method.NMF, is_object=True)
    contrasts = [border_contrast(A) for A in activations]
    weights = [contrast.weights for contrast in contrasts]
    strides = [layer.stride for layer in layers]
    return Findings(
        activation_set,
        layers,
        {1: fused_object(activations, weights)},
        Method.NMF,
        channel_weights=torch.cat(weights),
        separation=contrasts[strides.index(max(strides))].separation,
        is_object=True,
    )


def contrast_layers(layer_map: LayerMap) -> list[Layer]:
    """The two layers, finer and coarser, whose weighted maps are worth fusing: of the default
    layer's stride and of the next smaller one (``conv4_4`` and ``conv5_4`` of VGG-19)."""
    return weighable(stride_layers(layer_map)[-2:])


def weighable(layers: Sequence[Layer]) -> list[Layer]:
    """The layers, signed ones by sign: means of channels that go negative compare nothing."""
    return [layer if layer.non_negative else by_sign(layer) for layer in layers]


@dataclass(frozen=True)
class BorderContrast:
    """Mean activations of each channel over a set, (c,): inside the images, and on their border."""

    inside: Tensor
    border: Tensor

    @property
    def contrast(self) -> Tensor:
        """g = max(0, (μ_in − μ_border) / (μ_in + μ_border + 10⁻³)), (c,), in [0, 1)."""
        total = self.inside + self.border + _SILENT
        return ((self.inside - self.border) / total).clamp_min(0)

    @property
    def weights(self) -> Tensor:
        """g², (c,), with which the channels are multiplied: masks by g and by g³ are worse."""
        return self.contrast**_POWER

    @property
    def separation(self) -> float:
        """Mean of g over the channels, in [0, 1): how far they tell inside from border."""
        return float(self.contrast.mean())


def border_contrast(activations: Activations) -> BorderContrast:
    """How much more each channel fires inside the images of all ranks than on their border. Raises
    InputError where A goes negative, or every cell is border."""
    rows = RowBlocks(activations.blocks)
    cells = [border_cells(x.grid, x.extent).flatten() for x in activations.images]
    on_border = torch.cat(cells) if cells else torch.zeros(0, dtype=torch.bool)
    counts = all_reduce_sum(torch.stack([~on_border, on_border]).sum(1, keepdim=True))
    if counts[0] == 0:
        raise InputError(
            "the layer's grids are so small that every cell lies on the border; choose a larger "
            "image size or a layer of smaller stride"
        )
    sides = torch.stack([~on_border, on_border]).to(rows.device, torch.float32)
    sums = torch.zeros(2, rows.n_channels, dtype=torch.float64)
    for index, block in rows:
        check_non_negative(*(float(x) for x in block.aminmax()))
        sums += (sides[:, index] @ block).cpu()
    inside, border = (all_reduce_sum(sums) / counts).float().to(rows.device)
    return BorderContrast(inside, border)


def border_cells(grid: tuple[int, int], extent: Extent | None = None) -> Tensor:
    """Which cells of a grid over this part of an image are border, (h, w) bool: whose center is
    nearer to an edge than a tenth of the side, and at least one cell."""

    def near_an_end(cells: int, ends: tuple[float, float]) -> Tensor:
        share = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
        centers = ends[0] + share * (ends[1] - ends[0])
        near = torch.minimum(centers, 1 - centers) < _BORDER
        near[[0, -1]] = True
        return near

    rows, columns = map(near_an_end, grid, extent or WHOLE)
    return rows[:, None] | columns


def least_separation(by_sign: bool) -> float:
    """The separation from which a set's objects can be told from the border of its images. Measured
    by ``benchmarks/objects.py``: 0.13 to 0.34 on sets of whole objects, 0.03 to 0.08 where they
    fill the frame, 0.04 to 0.05 without any (by sign 0.15 to 0.27, 0.12 to 0.14, 0.10 to 0.12)."""
    return _MIN_BY_SIGN if by_sign else _MIN_SEPARATION


def separation_warning(separation: float, by_sign: bool = False) -> str | None:
    """One sentence if the set's objects cannot be told from the border of its images, else None."""
    least = least_separation(by_sign)
    if separation >= least:
        return None
    return (
        f"the contrast between the images' inside and their border is only {separation:.2f} (with "
        f"a visible object, above {least}): there may be no common object, or it fills the frame; "
        "do not trust the masks"
    )


@torch.no_grad()
def object_factor(activations: Activations, weights: Tensor) -> Factorization:
    """The best single factor of A·diag(weights), A nowhere negative, without a copy of A. By Perron
    and Frobenius it is the pair of leading singular vectors, computed by power iteration with one
    read of A each. W has length 1; over several ranks A and the maps are those of all."""
    rows = RowBlocks(activations.blocks)
    weights = weights.to(rows.device, torch.float32)
    component = _unit(weights)
    coefficients = torch.empty(rows.n_rows, device=rows.device)
    energies = torch.zeros(rows.n_channels, dtype=torch.float64)
    for n_iter in range(1, _MAX_ITER + 1):
        product = torch.zeros(rows.n_channels, dtype=torch.float64)
        for index, block in rows:
            coefficients[index] = block @ (weights * component)
            product += (coefficients[index] @ block).cpu()
            if n_iter == 1:
                energies += block.square().sum(0).cpu()
        update = _unit(weights * all_reduce_sum(product).to(rows.device, torch.float32))
        # Before the update, so that H belongs to W.
        if torch.linalg.vector_norm(update - component) < _TOL or n_iter == _MAX_ITER:
            break
        component = update
    total = float(all_reduce_sum(energies) @ weights.cpu().double().square())
    H = gather_rows(coefficients[:, None])
    explained = float(H.double().square().sum())
    relative_error = math.sqrt(max(0.0, 1 - explained / total)) if total > 0 else 0.0
    heatmaps = HeatMaps.of_images(H, distributed.gather(activations.images))
    return Factorization(component[None], heatmaps, relative_error, n_iter)


def fused_object(activations: Sequence[Activations], weights: Sequence[Tensor]) -> Factorization:
    """The object from several layers: :func:`object_factor` of each, fused by :func:`fuse`. Its
    maps are in [0, 1], on the finest grid. W has the layers' channels side by side."""
    factors = [object_factor(*pair) for pair in zip(activations, weights, strict=True)]
    components = torch.cat([f.components * f.heatmaps.scale for f in factors], dim=1)
    unit_maps = [
        maps.replace(coefficients=maps.coefficients / maps.scale, scale=torch.ones_like(maps.scale))
        for maps in (factor.heatmaps for factor in factors)
    ]
    relative_error = math.sqrt(sum(f.relative_error**2 for f in factors) / len(factors))
    return Factorization(
        components, fuse(unit_maps), relative_error, max(f.n_iter for f in factors)
    )


def fuse(maps: Sequence[HeatMaps]) -> HeatMaps:
    """One object map from those of several layers: their geometric mean, on the finest grid. What
    is off in one layer is off in the result."""
    finest = max(maps, key=lambda m: len(m.coefficients))
    fused = []
    for index, (grid, onto) in enumerate(zip(finest.grids, finest.extents, strict=True)):
        layers = torch.stack([sampled(m.grid(index), grid, m.extents[index], onto) for m in maps])
        fused.append((layers ** (1 / len(maps))).prod(0).flatten())
    coefficients = torch.cat(fused)[:, None]
    return finest.replace(coefficients=coefficients, scale=coefficients.amax(0))


def scaled_by(weights: Tensor | None) -> Callable[[slice | Tensor, Tensor], Tensor] | None:
    """What multiplies the channels of rows while they are read; None for no weights."""
    return None if weights is None else lambda _, rows: rows * weights.to(rows.device)


def _unit(vector: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vector)
    return vector / length if length > 0 else vector
