"""What a network's modules give for one image."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deepff.errors import InputError
from deepff.layers.extents import Centers
from deepff.layers.layouts import (
    CHANNELS_FIRST,
    QKV,
    Layout,
    declared_prefix,
    is_of_windows,
    layouts_of,
    output_of,
    patch_of,
    stride_of,
    tensor_of,
)
from deepff.networks.backbone import paper_names, run_network

if TYPE_CHECKING:
    from deepff.networks.backbone import Backbone

SIGNS = "signs"  # after a colon, in the names of layers by sign
_POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d)


@dataclass(frozen=True)
class Layer:
    """A module whose output is one map, as a probe found it.

    Attributes
    ----------
    path : str
        The module's path in the network, as ``nn.Module.get_submodule`` takes it; of queries,
        keys and values that one module gives, with which after a colon
        (``blocks.11.attn.qkv:keys``); with ``:signs`` of :func:`by_sign`.
    name : str
        The paper's name where there is one (``conv5_4``), else the path.
    channels : int
    stride : int
        Pixels of the input to one cell of the map, along each side.
    grid : tuple of int
        (height, width) of the map for the probe's square input.
    minimum : float
        Smallest value over the probe.
    calls : int
        How often one forward pass calls the module; the other fields are about the last call.
    layout : Layout
        How the module's output holds the map.
    input_size : int or None
        The side of the square images that the network takes, where it takes no others.
    centers : Centers or None
        Its cells' receptive-field centers, once they are measured; None where each cell's is the
        center of the pixels that it covers.
    """

    path: str
    name: str
    channels: int
    stride: int
    grid: tuple[int, int]
    minimum: float
    calls: int
    layout: Layout = CHANNELS_FIRST
    input_size: int | None = None
    centers: Centers | None = None

    @property
    def module(self) -> str:
        """The path of the module alone."""
        return self.path.partition(":")[0]

    @property
    def non_negative(self) -> bool:
        """Whether nothing below zero was seen, as NMF needs."""
        return self.minimum >= 0


def by_sign(layer: Layer) -> Layer:
    """The layer with every channel's positive and negative part as channels of their own.

    Its map, (b, 2c, h, w), has the positive parts first, and is nowhere negative.
    """
    return replace(
        layer,
        path=f"{layer.path}:{SIGNS}",
        name=f"{layer.name}:{SIGNS}",
        channels=2 * layer.channels,
        minimum=min(layer.minimum, 0.0) * 0,  # NaN stays NaN
        layout=replace(layer.layout, by_sign=True),
    )


@dataclass(frozen=True)
class Probe:
    """What one forward pass showed; the fields are those of `LayerMap`."""

    layers: dict[str, Layer]
    not_maps: dict[str, str]
    pooled: set[str]
    has_windows: bool
    failure: InputError | None


def probe(backbone: Backbone, size: int) -> Probe:
    """Run a network once on fixed noise, ``size`` × ``size`` pixels, and note what modules give."""
    prefix = declared_prefix(backbone.network)
    patch = patch_of(backbone.network)
    names = paper_names(backbone.network)
    layers: dict[str, Layer] = {}
    not_maps: dict[str, str] = {}
    pooled: set[str] = set()
    calls: Counter[str] = Counter()
    # Containers return their last child's tensor itself, which tells whose map theirs is.
    previous: Layer | None = None
    previous_output: Any = None
    has_windows = False

    def record(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal previous, previous_output, has_windows
        calls[path] += 1
        for old in (path, *(f"{path}:{part}" for part in QKV)):
            layers.pop(old, None)
        not_maps.pop(path, None)
        pooled.discard(path)
        has_windows = has_windows or is_of_windows(output)
        same_output = output is previous_output
        previous, before, previous_output = None, previous, output
        found = layouts_of(module, path, inputs, output, prefix, backbone.tokens)
        if isinstance(found, str):
            not_maps[path] = found
            return
        for layout in found:
            place = path if layout.part is None else f"{path}:{layout.part}"
            own = output_of(module, inputs, output, layout)
            layer = _layer(place, names.get(path, place), calls[path], layout, own, size, patch)
            if layer is None:
                not_maps[path] = "gives nothing that becomes a map"
                return
            layers[place] = layer
        if path not in layers:
            not_maps[path] = f"gives {', '.join(QKV)} in one: name one of them, as in {place}"
            return
        previous = layer = layers[path]
        same_map = same_output and before is not None and before.minimum == layer.minimum
        if same_map and isinstance(module, nn.Identity):
            not_maps[path] = "passes on the map before it unchanged"
            del layers[path]
            return
        if isinstance(module, _POOLING) or (same_map and before and before.path in pooled):
            pooled.add(path)

    failure = None
    with _hooks(backbone.network, record):
        try:
            run_network(backbone, noise(backbone, size))
        except InputError as error:
            failure = error
    return Probe(layers, not_maps, pooled, has_windows, failure)


def _layer(
    path: str,
    name: str,
    calls: int,
    layout: Layout,
    output: Any,
    size: int,
    patch: int | None,
) -> Layer | None:
    # The image is square, so the number of cells says what the stride is.
    values, cells = tensor_of(output), size
    if layout.kind == "tokens" and values is not None:
        cells = math.isqrt(values.shape[1] - layout.prefix)
    found = layout.to_map(output, (size, size), stride_of(size, cells, patch))
    if found is None:
        return None
    height, width = found.shape[2:]
    return Layer(
        path=path,
        name=name,
        channels=found.shape[1],
        stride=stride_of(size, height, patch),
        grid=(height, width),
        # Read here and now: an in-place ReLU that follows would overwrite the output.
        minimum=found.min().item(),
        calls=calls,
        layout=layout,
    )


@contextmanager
def _hooks(network: nn.Module, record: Any) -> Iterator[None]:
    handles = [
        module.register_forward_hook(partial(record, path))
        for path, module in network.named_modules(remove_duplicate=False)
        if path
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def noise(backbone: Backbone, size: int) -> Tensor:
    """Noise of equal energy in every octave, as in photographs, with mean 0 and variance 1."""
    generator = torch.Generator().manual_seed(0)
    channels = backbone.channels
    noise = torch.zeros(1, channels, size, size)
    for octave in range(max(1, int(math.log2(size)))):
        cells = math.ceil(size / 2**octave)
        coarse = torch.randn(1, channels, cells, cells, generator=generator)
        noise += nn.functional.interpolate(coarse, (size, size), mode="bilinear")
    noise = (noise - noise.mean()) / noise.std().clamp_min(1e-6)
    return noise.to(backbone.device, backbone.dtype)
