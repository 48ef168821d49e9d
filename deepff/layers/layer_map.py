"""The layers of a network: which there are, what they hold, and running up to one of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from deepff.errors import InputError
from deepff.layers.layouts import output_of
from deepff.layers.probe import SIGNS, Layer, by_sign, noise, probe
from deepff.networks.backbone import LayoutError, StopForwardError, input_size, run_network
from deepff.options import SIZE

if TYPE_CHECKING:
    from deepff.networks.backbone import Backbone

# Of timm's and DINO's attention, of transformers', and of others'. Keys of the last block are what
# is taken for dense features of a ViT (Amir et al. 2022, "Deep ViT Features as Dense Visual
# Descriptors").
_KEYS = (":keys", ".key", ".k_proj")


@dataclass(frozen=True)
class LayerMap:
    """What one forward pass at one size showed of a network's modules: probe once, ask often.

    Attributes
    ----------
    backbone : Backbone
    size : int
        Side of the probe in pixels: what was asked for, or the network's own where it takes no
        other.
    by_path : dict of str to Layer
        The layers in the order in which the network last calls them, a module before the one
        around it.
    not_maps : dict of str to str
        What the other modules do instead, as the rest of a sentence.
    pooled : set of str
        Paths of the layers whose map is a pooling module's output.
    has_windows : bool
        Whether attention is within windows, whose tokens are a map only where there is one window.
    failure : InputError or None
        Why the pass did not come to its end. What comes before that can be had, such as what is
        before a head that is made for one size, but only by name.
    """

    backbone: Backbone
    size: int
    by_path: dict[str, Layer]
    not_maps: dict[str, str]
    pooled: set[str]
    has_windows: bool = False
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
        if wanted is not None and wanted.endswith(f":{SIGNS}"):
            return by_sign(self.resolve(wanted.removesuffix(f":{SIGNS}")))
        for found in self.by_path.values():
            if wanted in (found.name, found.path):
                return self._filled(found)
        if self.failure is not None:
            before = _such_as(_worth_naming(list(self.by_path.values()))[-3:])
            raise InputError(f"{self.failure}, or name a layer before{before}")
        if wanted is None:
            return self._filled(self._default())
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

    def _default(self) -> Layer:
        """The last non-negative map; else the last attention's keys, or the last map."""
        suitable = [x for x in self.layers if x.grid != (1, 1) and x.path not in self.pooled]
        for layer in reversed(suitable):
            if layer.non_negative:
                return layer
        for layer in reversed(suitable):
            if layer.path.endswith(_KEYS) and not self.has_windows:
                return layer
        if suitable:
            return suitable[-1]
        raise InputError(
            f"every layer of {self.backbone.name} is pooled or a single cell at "
            f"{self.size}×{self.size} pixels, so there is no default; name the layer, or give a "
            "larger size"
        )


def map_layers(backbone: Backbone, size: int = SIZE) -> LayerMap:
    """Run a network once on fixed noise, ``size`` × ``size`` pixels, and note what modules give.

    A network that takes only images of the size it was made for is run at that, and so are its
    layers (``input_size``).

    Raises
    ------
    InputError
        The network cannot run at that size, and does not say at which it can.
    """
    if size < 1:
        raise InputError(f"size must be a positive number of pixels, not {size}")
    found = probe(backbone, size)
    own = input_size(backbone.network)
    if found.failure is not None and own is not None and own != size:
        at_own = probe(backbone, own)
        if at_own.failure is None:
            found, size = at_own, own
    if found.failure is not None and not found.layers:
        raise found.failure
    layers, not_maps = found.layers, found.not_maps
    all_first = all(layer.layout.kind == "channels first" for layer in layers.values())
    if found.failure is None and not all_first:
        grids = _oblong_grids(backbone, layers, size)
        for path, layer in list(layers.items()):
            if grids is None:
                layers[path] = replace(layer, input_size=size)
            elif grids.get(path) == layer.grid != (1, 1):  # such as tables of relative positions
                not_maps[path] = "gives as many values for images of any shape"
                del layers[path]
    return LayerMap(
        backbone,
        size,
        layers,
        not_maps,
        found.pooled,
        found.has_windows,
        found.failure,
    )


def _oblong_grids(
    backbone: Backbone, layers: dict[str, Layer], size: int
) -> dict[str, tuple[int, int]] | None:
    """The grids of layers on an image that is not square; None where the network takes none."""
    multiple = max(layer.stride for layer in layers.values() if layer.grid != (1, 1))
    if size <= multiple:
        return {}
    batch = noise(backbone, size)[..., :-multiple]
    grids: dict[str, tuple[int, int]] = {}

    def keep_grid(layer: Layer, module: nn.Module, inputs: Any, output: Any) -> None:
        own = output_of(module, inputs, output, layer.layout)
        values = layer.layout.to_map(own, (batch.shape[2], batch.shape[3]), layer.stride)
        if values is not None:
            grids[layer.path] = (values.shape[2], values.shape[3])

    try:
        with reading(backbone, list(layers.values()), keep_grid):
            run_network(backbone, batch)
    except (InputError, LayoutError):
        return None
    return grids


@contextmanager
def reading(backbone: Backbone, layers: Sequence[Layer], hook: Any) -> Iterator[None]:
    """Hooks that are given the layer first."""
    handles = [
        backbone.network.get_submodule(layer.module).register_forward_hook(partial(hook, layer))
        for layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def list_layers(backbone: Backbone, size: int = SIZE) -> list[Layer]:
    """Every module whose output is one map, (b, c, h, w), (b, h, w, c) or tokens (b, t, c).

    The network runs once on fixed noise of ``size`` × ``size`` pixels, or of its own size where it
    takes no other.

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

    Examples
    --------
    >>> import deepff
    >>> layers = deepff.list_layers(deepff.load_backbone("efficientnet_lite0"), size=224)
    >>> {layer.name: (layer.channels, layer.stride, layer.grid) for layer in layers}["bn2"]
    (1280, 32, (7, 7))
    """
    return map_layers(backbone, size).layers


def check_named_once(layers: Sequence[Layer]) -> None:
    """Raise InputError where two of the layers are one."""
    if len({layer.path for layer in layers}) < len(layers):
        raise InputError(f"{layers[0].name} or another layer is named twice; name each once")


def resolve_layer(backbone: Backbone, layer: str | None = None, size: int = SIZE) -> Layer:
    """Find a layer by the paper's name, by its module path, or the network's default.

    Parameters
    ----------
    backbone : Backbone
    layer : str, optional
        The paper's name for VGG (``conv5_4``, read after its ReLU) or a module path; with
        ``:signs`` after it, every channel's positive and negative part are channels of their own
        (:func:`deepff.layers.probe.by_sign`). By default ``backbone.default_layer``; where
        that is None, the last map without a value below zero that is neither pooled nor a
        single cell.
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
        For each layer (b, channels, h, w), with gradient where the batch requires it.

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
    outputs: dict[str, Tensor | None] = {}

    def keep_last_call(layer: Layer, module: nn.Module, inputs: Any, output: Any) -> None:
        calls[layer.path] += 1
        if calls[layer.path] != layer.calls:
            return
        is_last = len(outputs) + 1 == len(layers)
        output = output_of(module, inputs, output, layer.layout)
        values = layer.layout.to_map(output, (batch.shape[2], batch.shape[3]), layer.stride)
        # What runs after this may overwrite the output in place; after the last nothing does.
        outputs[layer.path] = values if is_last or values is None else values.clone()
        if is_last:
            raise StopForwardError

    try:
        with reading(backbone, layers, keep_last_call):
            run_network(backbone, batch)
    except StopForwardError:
        return [_checked(backbone, layer, outputs[layer.path], batch) for layer in layers]
    missing = next(layer for layer in layers if layer.path not in outputs)
    raise InputError(
        f"layer {missing.name!r} of {backbone.name} ran {calls[missing.path]} times on these "
        f"images but {missing.calls} times on the probe; choose a layer that always runs as often"
    )


def _checked(backbone: Backbone, layer: Layer, values: Tensor | None, batch: Tensor) -> Tensor:
    if values is None or len(values) != len(batch):
        height, width = batch.shape[2:]
        raise InputError(
            f"layer {layer.name} of {backbone.name} gives no map on images of {height}×{width} "
            f"pixels, as it did on {layer.grid[0] * layer.stride}×{layer.grid[1] * layer.stride}; "
            "choose another layer or size"
        )
    return values


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
