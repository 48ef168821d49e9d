"""Measuring the receptive-field centers of a layer's cells.

Padding decides, and training can undo it: cells of a ResNet respond half a cell to the upper left
of the pixels that they cover. Those of EfficientNet-Lite0 would respond as far to the lower right,
but training with mirrored images brought them back. So the weights at hand are measured, over a
fixed list of photographs.
"""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from deepff.errors import InputError, first_line
from deepff.images.samples import photographs
from deepff.layers.later import forward_to_layers, grids_on
from deepff.layers.layer import SHARE, Centers, Layer
from deepff.networks.backbone import Backbone, normalized
from deepff.runtime.distributed import gather, rank
from deepff.runtime.files import atomic_path

# From scikit-image, the most informative ones first.
_PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "motorcycle_left.png",
    "rocket.jpg",
    "camera.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "brick.png",
)
# From so many photographs on, a layer whose offset is not clearly off center is left.
_SCREENED = 3
_SIDE, _LEAST_CELLS = 224, 7
# Where the center moves by less than this share of a cell per cell, receptive fields are so large
# that the image is too small.
_LEAST_SLOPE = 0.6
# By how much channels' weights in the measured gradient differ, as a share.
_SPREAD = 0.01

# To be raised with each change of what is measured: files of earlier formats are not read.
_FORMAT = 3

_measured: dict[str, Centers | None] = {}


def with_centers(
    backbone: Backbone, layers: Sequence[Layer], cache: str | Path | None = None
) -> list[Layer]:
    """The layers with their measured centers, which over several ranks are those of the first: None
    where windows do not overlap, so that cells respond to the pixels that they cover, and where
    there is no gradient. They are kept in ``cache``, or with torch's downloads."""
    return [
        replace(layer, centers=gather([_centers_of(backbone, layer, cache)])[0]) for layer in layers
    ]


def _centers_of(backbone: Backbone, layer: Layer, cache: str | Path | None) -> Centers | None:
    if rank() > 0:
        return None
    if callable(backbone.tokens):
        return measure(backbone, layer)
    key = _key(backbone, layer)
    if key not in _measured:
        # The code of a user's module can change while its name, structure and weights stay the
        # same, and random weights seldom come again.
        lasts = cache is not None or not (backbone.structure or backbone.weights == "random")
        file = Path(torch.hub.get_dir() if cache is None else cache, "places", f"{key}.json")
        _measured[key] = (
            _read_or_measure(file, backbone, layer) if lasts else measure(backbone, layer)
        )
    return _measured[key]


def measure(backbone: Backbone, layer: Layer) -> Centers | None:
    """What :func:`with_centers` keeps for one layer, measured now."""
    cells = max(_LEAST_CELLS, _SIDE // layer.stride)
    side = layer.input_size or layer.stride * cells
    # Twice as wide: on one side only, cells may add up to the stride by chance.
    shape = side, layer.input_size or 2 * side
    try:
        (grid,) = grids_on(backbone, [layer], shape)
    except InputError:  # a user's network may take no images of this size
        return None
    if all(n * layer.stride == pixels for n, pixels in zip(grid, shape, strict=True)):
        spacing, centered = layer.stride, layer.stride / 2
        if not _windows_overlap(backbone.network):
            return None
        unmeasured = None
    else:
        spacing, centered = _spacing(backbone, layer, side)
        unmeasured = Centers((centered,) * 2, (0.0, 0.0), spacing, centered)
    measured = partial(_measured_at, backbone, layer, spacing, centered)
    try:
        if layer.input_size is not None:
            return measured(side, 0) or unmeasured
        larger = layer.stride * (12 * cells // 7)
        return measured(side, _LEAST_SLOPE) or measured(larger, 0) or unmeasured
    except InputError:  # no gradient
        return unmeasured


def _measured_at(
    backbone: Backbone, layer: Layer, spacing: int, centered: float, side: int, least_slope: float
) -> Centers | None:
    """The centers on images of one size; None where these are too small, or have one cell."""
    # The image's border cuts off the tails of the gradient, which pulls its center to the image's.
    # So this looks for the cell, in fractions, whose center is the image's: between two blocks of
    # cells, over photographs and the same turned by 180 degrees, which cancels their content.
    cells = grids_on(backbone, [layer], (side, side))[0][0]
    # Two cells as far from the first as from the last, with one or two between them: the image's
    # center is between theirs even where these are off by half a cell.
    first = (cells - 3) // 2
    pair = first, cells - 1 - first
    if first < 0:
        return None
    centers: list[np.ndarray] = []
    for batch in _batches(backbone, side):
        centers.append(_gradient_centers(backbone, layer, batch, pair, seed=len(centers)))
        if len(centers) < _SCREENED:
            continue
        # 1 where the center moves by a cell per cell.
        slope = np.subtract(*np.mean(centers, 0)[::-1]) / (spacing * (pair[1] - pair[0]))
        if not slope.min() > least_slope:
            return None
        offset, error = _offsets(np.array(centers), pair, side, spacing)
        if (np.abs(offset - centered) - error < SHARE * spacing).all():
            break
    (down, across), (error_down, error_across) = offset.tolist(), error.tolist()
    return Centers((down, across), (error_down, error_across), float(spacing), centered)


def _windows_overlap(network: nn.Module) -> bool:
    """Whether windows of convolutions or pooling are not centered on what they step over."""
    windows = (
        m for m in network.modules() if isinstance(m, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d)
    )
    return not all(map(_is_centered, windows))


def _is_centered(module: Any) -> bool:
    if isinstance(module.padding, str):  # "same" or "valid"
        return False
    names = ("kernel_size", "dilation", "stride", "padding")
    values = (getattr(module, name, 1) for name in names)
    pairs = zip(*((v, v) if isinstance(v, int) else v for v in values), strict=True)
    return all(
        2 * padding == dilation * (kernel - 1) if stride == 1 else kernel == stride and padding == 0
        for kernel, dilation, stride, padding in pairs
    )


def _spacing(backbone: Backbone, layer: Layer, side: int) -> tuple[int, float]:
    """Pixels per cell, and the offset of cells that cover the input evenly."""

    def cells(width: int) -> int:
        return grids_on(backbone, [layer], (side, width))[0][1]

    now = cells(side)
    first, second = (
        bisect_left(range(side + 3 * layer.stride), now + more, lo=side, key=cells)
        for more in (1, 2)
    )
    return second - first, (first - now * (second - first)) / 2


def _batches(backbone: Backbone, side: int) -> Iterator[Tensor]:
    """Each photograph, and the same turned by 180 degrees."""
    for file in photographs(_PHOTOGRAPHS).values():
        with Image.open(file) as photo:
            square = ImageOps.fit(photo.convert("RGB"), (side, side), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1)
        yield normalized(backbone, torch.stack([pixels, pixels.flip(1, 2)]))


def _gradient_centers(
    backbone: Backbone, layer: Layer, batch: Tensor, pair: tuple[int, int], seed: int
) -> np.ndarray:
    """The centers of energy of the gradients of two blocks of cells: (2 blocks, down and across). A
    block is about half as wide as the map, around one of the pair of cells in both directions."""
    pixels = batch.detach().requires_grad_()
    # A copy, as a network may change its input in place.
    (values,) = forward_to_layers(backbone, [layer], pixels.clone())
    generator = torch.Generator().manual_seed(seed)
    # Random signs: layer-normalized channels sum to a constant. Of slightly different sizes: those
    # of equal channels would cancel.
    shape = (values.shape[1], 1, 1)
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    weights = signs * (1 + _SPREAD * torch.rand(shape, generator=generator))
    half = min(values.shape[2] // 4, pair[0])
    centers = []
    for middle in pair:
        block = slice(middle - half, middle + half + 1)
        total = (values[:, :, block, block] * weights.to(values)).sum()
        try:
            gradient = torch.autograd.grad(total, pixels, retain_graph=middle == pair[0])[0]
        except RuntimeError as error:
            raise InputError(f"the network has no gradient: {first_line(error)}") from error
        energy = gradient.double().square().sum(1).cpu()
        position = torch.arange(len(energy[0])).double() + 0.5
        centers.append(
            torch.stack([energy.sum(axis) @ position for axis in (2, 1)]) / energy.sum((1, 2))
        )
    return torch.stack(centers).mean(2).numpy()


def _offsets(
    centers: np.ndarray, pair: tuple[int, int], side: int, spacing: float
) -> tuple[np.ndarray, np.ndarray]:
    """Offsets down and across, and the jackknife's errors, from (n photographs, 2 blocks, 2)."""

    def offset(means: np.ndarray) -> np.ndarray:
        share = (side / 2 - means[0]) / (means[1] - means[0])
        return side / 2 - spacing * (pair[0] + share * (pair[1] - pair[0]))

    n = len(centers)
    without_one = np.array([offset(np.delete(centers, i, 0).mean(0)) for i in range(n)])
    variance = (n - 1) / n * ((without_one - without_one.mean(0)) ** 2).sum(0)
    return offset(centers.mean(0)), np.sqrt(variance)


def _key(backbone: Backbone, layer: Layer) -> str:
    described = (
        _FORMAT,
        # The last bits depend on these.
        [version(package) for package in ("torch", "pillow", "scikit-image")],
        torch.get_num_threads(),
        torch.backends.cpu.get_cpu_capability(),
        backbone.name,
        backbone.structure,
        backbone.weights_digest,
        backbone.tokens,
        backbone.mean,
        backbone.std,
        str(backbone.dtype),
        backbone.device.type,
        layer.path,
        layer.calls,
        layer.stride,
        layer.input_size,
        layer.layout.identity,
    )
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


def _read_or_measure(file: Path, backbone: Backbone, layer: Layer) -> Centers | None:
    """The centers in a file, which is rewritten where it cannot be read."""
    try:
        fields = json.loads(file.read_text())
        return None if fields is None else Centers.from_dict(fields)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        centers = measure(backbone, layer)
    # If this fails, they are measured again next time.
    with suppress(OSError, InputError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary:
            temporary.write_text(json.dumps(None if centers is None else asdict(centers)))
    return centers
