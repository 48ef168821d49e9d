"""The layers of a network: which there are, what they hold, and running up to one of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deepff.errors import InputError
from deepff.features.forward import LayoutError, StopForwardError, run_network
from deepff.options import SIZE

if TYPE_CHECKING:
    from deepff.features.backbone import Backbone

_POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d)


@dataclass(frozen=True)
class Layer:
    """A module whose output is one map (batch, channels, height, width), as a probe found it.

    Attributes
    ----------
    path : str
        The module's path in the network, as ``nn.Module.get_submodule`` takes it.
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
    """

    path: str
    name: str
    channels: int
    stride: int
    grid: tuple[int, int]
    minimum: float
    calls: int

    @property
    def non_negative(self) -> bool:
        """Whether nothing below zero was seen, as NMF needs."""
        return self.minimum >= 0


@dataclass(frozen=True)
class LayerMap:
    """What one forward pass at one size showed of a network's modules: probe once, ask often.

    Attributes
    ----------
    backbone : Backbone
    size : int
        Side of the probe in pixels.
    by_path : dict of str to Layer
        The layers in the order in which the network last calls them, a module before the one
        around it.
    not_maps : dict of str to str
        What the other modules do instead, as the rest of a sentence.
    pooled : set of str
        Paths of the layers whose map is a pooling module's output.
    failure : InputError or None
        Why the pass did not come to its end. What comes before that can be had, such as what is
        before a head that is made for one size, but only by name.
    """

    backbone: Backbone
    size: int
    by_path: dict[str, Layer]
    not_maps: dict[str, str]
    pooled: set[str]
    failure: InputError | None = None

    @property
    def layers(self) -> list[Layer]:
        """As :func:`list_layers` gives them."""
        if self.failure is not None:
            raise self.failure
        return list(self.by_path.values())

    def resolve(self, layer: str | None = None) -> Layer:
        """As :func:`resolve_layer` finds it."""
        wanted = self.backbone.default_layer if layer is None else layer
        for found in self.by_path.values():
            if wanted in (found.name, found.path):
                return self._filled(found)
        if self.failure is not None:
            before = _such_as(_worth_naming(list(self.by_path.values()))[-3:])
            raise InputError(f"{self.failure}, or name a layer before{before}")
        if wanted is None:
            return self._filled(self._last_non_negative())
        if wanted in dict(self.backbone.network.named_modules(remove_duplicate=False)):
            fault = self.not_maps.get(wanted, "has no part in the forward pass")
            raise InputError(
                f"layer {wanted!r} of {self.backbone.name} {fault}; choose another"
                f"{_such_as(_worth_naming(self.layers)[-3:])}"
            )
        raise InputError(
            f"{self.backbone.name} has no layer {wanted!r}; choose one that it has"
            f"{_such_as(_similar(wanted, self.layers))}"
        )

    def nearby_non_negative(self, layer: Layer, n: int = 3) -> list[str]:
        """Names of the layers nearest to this one, in running order, that do not go negative.

        Single cells, as squeeze-and-excitation gates give, are left out, and of modules within each
        other that give the same map only the outermost is named.

        Parameters
        ----------
        layer : Layer
            One of the map's.
        n : int
            How many names at most.
        """
        position = {path: index for index, path in enumerate(self.by_path)}
        suitable = [other for other in _worth_naming(self.layers) if other.non_negative]
        suitable.sort(key=lambda other: abs(position[other.path] - position[layer.path]))
        return [other.name for other in suitable[:n]]

    def _filled(self, layer: Layer) -> Layer:
        """The layer, unless it needs weights that the file did not have, which are NaN."""
        backbone = self.backbone
        if backbone.missing and math.isnan(layer.minimum):
            raise InputError(
                f"layer {layer.name} of {backbone.name} needs {backbone.missing[0]!r}, which the "
                f"file {backbone.weights} does not have for it; choose a layer before"
            )
        return layer

    def _last_non_negative(self) -> Layer:
        for layer in reversed(self.layers):
            if layer.non_negative and layer.grid != (1, 1) and layer.path not in self.pooled:
                return layer
        raise InputError(
            f"every layer of {self.backbone.name} goes negative or is a single cell at "
            f"{self.size}×{self.size} pixels, so there is no default; name the layer"
            f"{_such_as(_worth_naming(self.layers)[-3:])}"
        )


def map_layers(backbone: Backbone, size: int = SIZE) -> LayerMap:
    """Run a network once on fixed noise, ``size`` × ``size`` pixels, and note what modules give.

    Raises
    ------
    InputError
        The network cannot run at that size.
    """
    if size < 1:
        raise InputError(f"size must be a positive number of pixels, not {size}")
    layer_map = _probe(backbone, size)
    if layer_map.failure is not None and not layer_map.by_path:
        raise layer_map.failure
    return layer_map


def list_layers(backbone: Backbone, size: int = SIZE) -> list[Layer]:
    """Every module whose output is one map (batch, channels, height, width).

    The network runs once on fixed noise of ``size`` × ``size`` pixels. A channels-last map
    (batch, height, width, channels), as inside a Swin transformer, is not listed: its rows would
    be taken for channels.

    Parameters
    ----------
    backbone : Backbone
    size : int
        Side of the probe in pixels.

    Returns
    -------
    list of Layer
        In the order in which the network last calls them, a module before the one around it.

    Raises
    ------
    InputError
        The network cannot run at that size.
    """
    return map_layers(backbone, size).layers


def resolve_layer(backbone: Backbone, layer: str | None = None, size: int = SIZE) -> Layer:
    """Find a layer by the paper's name, by its module path, or the network's default.

    Parameters
    ----------
    backbone : Backbone
    layer : str, optional
        The paper's name for VGG (``conv5_4``, read after its ReLU) or a module path. By default
        ``backbone.default_layer``; where that is None, the last map without a value below
        zero that is neither pooled nor a single cell.
    size : int
        Side of the probe in pixels.

    Raises
    ------
    InputError
        There is no such layer, it does not give a map, or the network cannot run at that size.
    """
    return map_layers(backbone, size).resolve(layer)


def forward_to_layers(backbone: Backbone, layers: Sequence[Layer], batch: Tensor) -> list[Tensor]:
    """Run the network up to the last of the layers' last calls and no further.

    Parameters
    ----------
    backbone : Backbone
    layers : sequence of Layer
        As `resolve_layer` gives them; each once.
    batch : Tensor
        (b, channels, height, width), normalised, on the network's device.

    Returns
    -------
    list of Tensor
        For each layer (b, channels, h, w), without gradient.

    Raises
    ------
    InputError
        The network cannot run on images of this shape.
    """
    try:
        return _forward_to_layers(backbone, layers, batch)
    except LayoutError:
        return _forward_to_layers(backbone, layers, batch.contiguous())


def _forward_to_layers(backbone: Backbone, layers: Sequence[Layer], batch: Tensor) -> list[Tensor]:
    calls: Counter[str] = Counter()
    outputs: dict[str, Tensor] = {}

    def keep_last_call(layer: Layer, module: nn.Module, inputs: Any, output: Tensor) -> None:
        calls[layer.path] += 1
        if calls[layer.path] != layer.calls:
            return
        is_last = len(outputs) + 1 == len(layers)
        # What runs after this may overwrite the output in place; after the last nothing does.
        outputs[layer.path] = output if is_last else output.clone()
        if is_last:
            raise StopForwardError

    handles = [
        backbone.network.get_submodule(layer.path).register_forward_hook(
            partial(keep_last_call, layer)
        )
        for layer in layers
    ]
    try:
        run_network(backbone, batch)
    except StopForwardError:
        return [outputs[layer.path] for layer in layers]
    finally:
        for handle in handles:
            handle.remove()
    missing = next(layer for layer in layers if layer.path not in outputs)
    raise InputError(
        f"layer {missing.name!r} of {backbone.name} ran {calls[missing.path]} times on these "
        f"images but {missing.calls} times on the probe; choose a layer that always runs as often"
    )


def paper_names(network: nn.Module) -> dict[str, str]:
    """The paper's names for the layers of a VGG network, by module path.

    ``conv5_4`` is the fourth convolution between the fourth and fifth pooling, read after its
    ReLU (Simonyan & Zisserman 2015, Table 1, number the convolutions likewise).

    Returns
    -------
    dict of str to str
        Module path of the ReLU to name; empty for any network but VGG.
    """
    features = getattr(network, "features", None)
    is_vgg = any(base.__name__ == "VGG" for base in type(network).__mro__)
    if not is_vgg or not isinstance(features, nn.Sequential):
        return {}
    names = {}
    block, convolution = 1, 0
    for index, module in features.named_children():
        if isinstance(module, nn.Conv2d):
            convolution += 1
        elif isinstance(module, nn.ReLU):
            names[f"features.{index}"] = f"conv{block}_{convolution}"
        elif isinstance(module, nn.MaxPool2d):
            block, convolution = block + 1, 0
    return names


def _probe(backbone: Backbone, size: int) -> LayerMap:
    names = paper_names(backbone.network)
    layers: dict[str, Layer] = {}
    not_maps: dict[str, str] = {}
    pooled: set[str] = set()
    calls: Counter[str] = Counter()
    # Containers return their last child's tensor itself, which tells whose map theirs is.
    previous: Layer | None = None
    previous_output: Any = None

    def record(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal previous, previous_output
        calls[path] += 1
        layers.pop(path, None)
        not_maps.pop(path, None)
        pooled.discard(path)
        same_output = output is previous_output
        previous, before, previous_output = None, previous, output
        fault = _fault(output)
        if fault:
            not_maps[path] = fault
            return
        height, width = output.shape[2:]
        layer = Layer(
            path=path,
            name=names.get(path, path),
            channels=output.shape[1],
            stride=_stride(size, height),
            grid=(height, width),
            # Read here and now: an in-place ReLU that follows would overwrite the output.
            minimum=output.min().item(),
            calls=calls[path],
        )
        previous = layer
        same_map = same_output and before is not None and before.minimum == layer.minimum
        if same_map and isinstance(module, nn.Identity):
            not_maps[path] = "passes on the map before it unchanged"
            return
        layers[path] = layer
        if isinstance(module, _POOLING) or (same_map and before and before.path in pooled):
            pooled.add(path)

    failure = None
    with _hooks(backbone.network, record):
        try:
            run_network(backbone, _noise(backbone, size))
        except InputError as error:
            failure = error
    return LayerMap(backbone, size, layers, not_maps, pooled, failure)


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


def _noise(backbone: Backbone, size: int) -> Tensor:
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


def _fault(output: Any) -> str | None:
    """Why a module's output for the probe is not one map; None where it is."""
    if not isinstance(output, Tensor):
        return f"gives a {type(output).__name__}, not a map (batch, channels, height, width)"
    shape = tuple(output.shape)
    # The probe is one square image: a map is square in its last two axes, or, with the channels
    # last, in its second and third.
    if output.ndim == 4 and shape[1] == shape[2] != shape[3]:
        return f"gives shape {shape}, a map with the channels last instead of second"
    square = output.ndim == 4 and shape[0] == 1 and shape[2] == shape[3]
    if not square or not output.is_floating_point() or not output.numel():
        return f"gives shape {shape}, not a map (batch, channels, height, width)"
    if shape[2] > 1 and torch.allclose(output.sum(-1), torch.ones_like(output[..., 0]), atol=1e-3):
        return f"gives shape {shape}, attention weights between tokens rather than a map"
    return None


def _stride(size: int, cells: int) -> int:
    # Padding makes `cells` one more or less than size / stride when size is no multiple of
    # the stride, so a power of two that explains the grid goes before the plain ratio.
    power = 2 ** round(math.log2(size / cells))
    explains = cells > 1 and size / (cells + 1) <= power < size / (cells - 1)
    return power if explains and power >= 1 else max(1, round(size / cells))


def _worth_naming(layers: list[Layer]) -> list[Layer]:
    """Without single cells; of modules within each other with the same map, the outermost."""
    by_path = {layer.path: layer for layer in layers}

    def is_repeated(layer: Layer) -> bool:
        steps = layer.path.split(".")
        outer = [by_path.get(".".join(steps[:n])) for n in range(1, len(steps))]
        key = (layer.channels, layer.grid, layer.minimum)
        return any(o is not None and (o.channels, o.grid, o.minimum) == key for o in outer)

    return [layer for layer in layers if layer.grid != (1, 1) and not is_repeated(layer)]


def _similar(wanted: str, layers: list[Layer], n: int = 5) -> list[Layer]:
    by_name = {layer.name: layer for layer in layers}
    prefix = wanted.rpartition(".")[0] or wanted.rstrip("0123456789_")
    alike = get_close_matches(wanted, by_name, n=n)
    related = [name for name in by_name if prefix and name.startswith(prefix)]
    similar = [by_name[name] for name in dict.fromkeys(alike + related)]
    return similar[:n] or _worth_naming(layers)[-n:]


def _such_as(layers: list[Layer]) -> str:
    return f", such as {', '.join(layer.name for layer in layers)}" if layers else ""
