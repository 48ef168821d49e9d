"""Measuring where a layer's cells look.

Padding decides, and training can undo it: the cells of a ResNet look half a cell to the upper left
of the pixels that they cover, those of EfficientNet-Lite0 would look as far to the lower right, had
not training with mirrored images brought them back. So the weights at hand are measured, over
photographs that are always the same, and the result is one of the weights alone.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from deepff.errors import InputError, first_line
from deepff.images.samples import photographs
from deepff.layers.layer import SHARE, Centers, Layer
from deepff.layers.layer_map import forward_to_layers
from deepff.layers.layouts import declared
from deepff.networks.backbone import Backbone, normalized
from deepff.runtime.distributed import from_first_rank, rank
from deepff.runtime.files import atomic_path

# Of scikit-image; the more telling ones first.
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
# From so many on, what is not a tenth of a cell and a standard error beside the centre is left.
_SCREENED = 3
_SIDE, _LEAST_CELLS = 224, 7
# Where a cell further looks less than this share of a cell further, cells look at so much that the
# image is too small.
_LEAST_SLOPE = 0.6

# Another one for each change of what is measured: files of before are not read again.
_FORMAT = 1

_measured: dict[str, Centers | None] = {}


def with_centers(
    backbone: Backbone, layers: Sequence[Layer], cache: str | Path | None = None
) -> list[Layer]:
    """The layers with what is measured of where their cells look.

    The gradient of cells in the middle of the map with respect to the whole input has a centre,
    that of its energy. The image's border cuts off the tails, which pulls it to the image's centre;
    so what is sought is which cell, in fractions, looks at the image's centre. That is interpolated
    between two blocks of cells, over ten photographs and the same turned by half, which cancels
    what is in the photographs; the jackknife over them gives the standard error. From the third
    photograph on, what is not elsewhere by a tenth of a cell and a standard error is left.

    Parameters
    ----------
    backbone : Backbone
    layers : sequence of Layer
    cache : path, optional
        A folder that keeps what was measured. By default, of networks by name with trained
        weights, it is beside the weights that torch downloads (:func:`torch.hub.get_dir`).

    Returns
    -------
    list of Layer
        With ``centers``: None where windows do not overlap, so that cells look at the pixels that
        they cover, and where there is no gradient. Over several ranks the first one's are all's.
    """
    return [
        replace(layer, centers=_shared(_centers_of(backbone, layer, cache))) for layer in layers
    ]


def _centers_of(backbone: Backbone, layer: Layer, cache: str | Path | None) -> Centers | None:
    if rank() > 0:
        return None
    key = _key(backbone, layer)
    if key not in _measured:
        folder = _kept_in(backbone, cache)
        file = None if folder is None else folder / f"{key}.json"
        kept = None if file is None else _read(file)
        _measured[key] = measure(backbone, layer) if kept is None else kept[0]
        if file is not None and kept is None:
            _write(file, _measured[key])
    return _measured[key]


def measure(backbone: Backbone, layer: Layer) -> Centers | None:
    """What :func:`place` says of one layer, measured now."""
    cells = max(_LEAST_CELLS, _SIDE // layer.stride)
    side = layer.input_size or layer.stride * cells
    try:
        if not _overlaps(backbone, layer, side):
            return None
        if layer.input_size is not None:
            return _measured_at(backbone, layer, side, 0)
        found = _measured_at(backbone, layer, side, _LEAST_SLOPE)
        return found or _measured_at(backbone, layer, layer.stride * (12 * cells // 7), 0)
    except InputError:  # one's own network may take no images of this size, or have no gradient
        return None


def _measured_at(backbone: Backbone, layer: Layer, side: int, least_slope: float) -> Centers | None:
    """The places on images of one size; None where these are too small, or have one cell."""
    cells = _grid(backbone, layer, (side, side))[0]
    is_halved = layer.stride & (layer.stride - 1) == 0 and cells * layer.stride == side
    spacing, centred = (
        (layer.stride, layer.stride / 2) if is_halved else _spacing(backbone, layer, side)
    )
    pair = _beside_the_middle(cells)
    if pair[0] < 0:
        return None
    centres: list[np.ndarray] = []
    for batch in _batches(backbone, side):
        centres.append(_centres(backbone, layer, batch, pair, seed=len(centres)))
        if len(centres) < _SCREENED:
            continue
        # Of 1 where a cell further is a cell further.
        slope = np.subtract(*np.mean(centres, 0)[::-1]) / (spacing * (pair[1] - pair[0]))
        if not slope.min() > least_slope:
            return None
        offset, error = _offsets(np.array(centres), pair, side, spacing)
        if (np.abs(offset - centred) - error < SHARE * spacing).all():
            break
    (down, across), errors = (v.tolist() for v in _offsets(np.array(centres), pair, side, spacing))
    return Centers((down, across), (errors[0], errors[1]), float(spacing), centred)


class _Windows(TorchDispatchMode):
    """Notes whether a convolution or pooling looks at more, or at other pixels, than it covers."""

    def __init__(self) -> None:
        super().__init__()
        self.overlap = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if name == "convolution":
            _, weight, _, stride, padding, dilation, transposed, *_ = args
            reach = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
            self._note(reach, stride, padding, transposed)
        elif name in ("max_pool2d", "max_pool2d_with_indices", "avg_pool2d"):
            kernel = _pair(args[1])
            stride = _pair(args[2]) if len(args) > 2 and args[2] else kernel
            self._note(kernel, stride, _pair(args[3] if len(args) > 3 else 0), False)
        return function(*args, **(kwargs or {}))

    def _note(
        self,
        reach: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        transposed: bool,
    ) -> None:
        centred = all(
            2 * p == k - 1 if s == 1 else k == s and p == 0
            for k, s, p in zip(reach, stride, padding, strict=True)
        )
        self.overlap = self.overlap or transposed or not centred


def _pair(value: Any) -> Sequence[int]:
    return (value, value) if isinstance(value, int) else value if len(value) == 2 else value * 2


def _overlaps(backbone: Backbone, layer: Layer, side: int) -> bool:
    windows = _Windows()
    with windows:
        _grid(backbone, layer, (side, side))
    return windows.overlap


def _grid(backbone: Backbone, layer: Layer, shape: tuple[int, int]) -> tuple[int, int]:
    blank = torch.zeros(1, backbone.channels, *shape, device=backbone.device, dtype=backbone.dtype)
    (values,) = forward_to_layers(backbone, [layer], blank)
    return values.shape[2], values.shape[3]


def _spacing(backbone: Backbone, layer: Layer, side: int) -> tuple[int, float]:
    """How many pixels more one cell more takes, and the first of cells that lie evenly."""

    def cells(width: int) -> int:
        return _grid(backbone, layer, (side, width))[1]

    now = cells(side)
    first, second = (
        bisect_left(range(side + 3 * layer.stride), now + more, lo=side, key=cells)
        for more in (1, 2)
    )
    return second - first, (first - now * (second - first)) / 2


def _batches(backbone: Backbone, side: int) -> Iterator[Tensor]:
    """Each photograph, and the same turned by half."""
    for file in photographs(_PHOTOGRAPHS).values():
        with Image.open(file) as photo:
            square = ImageOps.fit(photo.convert("RGB"), (side, side), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1)
        yield normalized(backbone, torch.stack([pixels, pixels.flip(1, 2)]))


def _centres(
    backbone: Backbone, layer: Layer, batch: Tensor, pair: tuple[int, int], seed: int
) -> np.ndarray:
    """Where two blocks of cells look: (2 blocks, down and across), the mean of the batch.

    A block is about half as wide as the map, around one of the pair of cells in both directions.
    """
    pixels = batch.detach().requires_grad_()
    # A copy, as a network may change its input in place.
    (values,) = forward_to_layers(backbone, [layer], pixels.clone())
    generator = torch.Generator().manual_seed(seed)
    # Without signs of their own, channels that are normalised would sum to a constant.
    signs = torch.randint(0, 2, (values.shape[1], 1, 1), generator=generator) * 2 - 1
    half = min(values.shape[2] // 4, pair[0])
    found = []
    for middle in pair:
        block = slice(middle - half, middle + half + 1)
        total = (values[:, :, block, block] * signs.to(values)).sum()
        gradient = _gradient(total, pixels, is_last=middle == pair[1])
        energy = gradient.double().square().sum(1).cpu()
        place = torch.arange(len(energy[0])).double() + 0.5
        found.append(
            torch.stack([energy.sum(axis) @ place for axis in (2, 1)]) / energy.sum((1, 2))
        )
    return torch.stack(found).mean(2).numpy()


def _beside_the_middle(n: int) -> tuple[int, int]:
    """Two of n cells as far from the first as from the last, with a cell or two between them.

    So the image's centre is between where they look even when that is displaced by half a cell.
    """
    first = (n - 3) // 2
    return first, n - 1 - first


def _gradient(total: Tensor, pixels: Tensor, is_last: bool) -> Tensor:
    try:
        return torch.autograd.grad(total, pixels, retain_graph=not is_last)[0]
    except RuntimeError as error:
        raise InputError(f"the network has no gradient: {first_line(error)}") from error


def _offsets(
    centres: np.ndarray, pair: tuple[int, int], side: int, spacing: float
) -> tuple[np.ndarray, np.ndarray]:
    """The offsets down and across, and their errors by jackknife, from `_centres` (n, 2, 2)."""

    def offset(means: np.ndarray) -> np.ndarray:
        share = (side / 2 - means[0]) / (means[1] - means[0])
        return side / 2 - spacing * (pair[0] + share * (pair[1] - pair[0]))

    n = len(centres)
    without_one = np.array([offset(np.delete(centres, i, 0).mean(0)) for i in range(n)])
    variance = (n - 1) / n * ((without_one - without_one.mean(0)) ** 2).sum(0)
    return offset(centres.mean(0)), np.sqrt(variance)


def _kept_in(backbone: Backbone, cache: str | Path | None) -> Path | None:
    """The folder of what is measured; None where nobody asked to keep it, and it may not last.

    How one's own module computes can change while its name, structure and weights stay, and random
    weights are seldom the same again.
    """
    if cache is not None:
        return Path(cache) / "places"
    if backbone.structure or backbone.weights == "random":
        return None
    return Path(torch.hub.get_dir()) / "places"


def _key(backbone: Backbone, layer: Layer) -> str:
    described = (
        _FORMAT,
        # On these the last bits depend.
        [version(package) for package in ("torch", "pillow", "scikit-image")],
        torch.get_num_threads(),
        torch.backends.cpu.get_cpu_capability(),
        backbone.name,
        backbone.structure,
        backbone.weights_digest,
        declared(backbone.tokens),
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


def _read(file: Path) -> tuple[Centers | None] | None:
    """What a file holds, which may be that there is nothing to move; None where it is none."""
    try:
        fields = json.loads(file.read_text())
        return (None if fields is None else Centers.from_dict(fields),)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _write(file: Path, centers: Centers | None) -> None:
    # To measure again the next time is no fault; a full cache says so.
    with suppress(OSError, InputError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary:
            temporary.write_text(json.dumps(None if centers is None else asdict(centers)))


def _shared(centers: Centers | None) -> Centers | None:
    """The first rank's."""
    numbers = [np.nan] * 6
    if centers is not None:
        numbers = [*centers.offset, *centers.offset_error, centers.spacing, centers.centred]
    down, across, *errors, spacing, centred = from_first_rank(
        torch.tensor(numbers, dtype=torch.float64)
    ).tolist()
    if np.isnan(spacing):
        return None
    return Centers((down, across), (errors[0], errors[1]), spacing, centred)
