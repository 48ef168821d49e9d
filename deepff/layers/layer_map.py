"""The layers of a network: which there are, and what they hold."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from deepff.errors import InputError
from deepff.layers.layer import SIGNS, Layer, by_sign
from deepff.layers.layouts import (
    QKV,
    Layout,
    declared_prefix,
    is_of_windows,
    layouts_of,
    output_of,
    patch_of,
    stride_of,
    tensor_of,
    with_tensor,
)
from deepff.networks.backbone import (
    HOOKED,
    Backbone,
    LayoutError,
    input_size,
    paper_names,
    run_network,
)
from deepff.options import SIZE

# Of timm's and DINO's attention, of transformers', and of others'. Keys of the last block are the
# usual dense features of a ViT (Amir et al. 2022, "Deep ViT Features as Dense Visual Descriptors").
_KEYS = (":keys", ".key", ".k_proj")
_POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d)
# The default is first looked for in so many layers from the last: these alone need a graph then.
_LATE = 32
# As a share of its largest value: a map that varies less is constant but for rounding.
_CONSTANT = 1e-5


LayerChoice = str | nn.Module | Layer


@dataclass
class LayerMap:
    """What one forward pass at one size showed of a network's modules: probe once, ask often."""

    backbone: Backbone
    size: int  # of the square probe in pixels: the network's own where it takes no other
    by_path: dict[str, Layer] = field(default_factory=dict)  # by last call, inner modules first
    # What the other modules do instead, as the rest of a sentence.
    not_maps: dict[str, str] = field(default_factory=dict)
    unsuitable: set[str] = field(default_factory=set)  # paths of what is pooled, constant, a gate
    # Whether attention is within windows, whose tokens are a map only where there is one window.
    has_windows: bool = False
    # Why the pass did not come to its end. Layers before that can be used, but only by name.
    failure: InputError | None = None

    @property
    def layers(self) -> list[Layer]:
        """As :func:`list_layers` gives them."""
        if self.failure is not None:
            raise self.failure
        return list(self.by_path.values())

    def resolve(self, layer: LayerChoice | None = None) -> Layer:
        """The layer of that name, path (also by sign, ``:signs``) or module, or the default."""
        wanted = self.backbone.default_layer if layer is None else layer
        if isinstance(wanted, nn.Module):
            modules = self.backbone.network.named_modules()
            path = next((path for path, module in modules if module is wanted), None)
            if path is None:
                kind, name = type(wanted).__name__, self.backbone.name
                raise InputError(f"the layer, a {kind}, is no module of {name}; give one that is")
            wanted = path
        if isinstance(wanted, Layer):
            wanted = wanted.path
        if not isinstance(wanted, str | None):
            raise InputError(f"layer is a {type(wanted).__name__}; pass its name or its module")
        if wanted is not None and wanted.endswith(f":{SIGNS}"):
            return by_sign(self.resolve(wanted.removesuffix(f":{SIGNS}")))
        for candidate in self.by_path.values():
            if wanted in (candidate.name, candidate.path):
                return self._filled(candidate)
        last_ones = _such_as(_worth_naming([*self.by_path.values()])[-3:])
        if self.failure is not None:
            raise InputError(f"{self.failure}, or name a layer before{last_ones}")
        if wanted is None:
            return self._filled(self._default())
        if wanted in dict(self.backbone.network.named_modules(remove_duplicate=False)):
            fault = self.not_maps.get(wanted, "is not used in the forward pass")
            raise InputError(
                f"layer {wanted!r} of {self.backbone.name} {fault}; choose another{last_ones}"
            )
        raise InputError(
            f"{self.backbone.name} has no layer {wanted!r}; choose one that it has"
            f"{_such_as(_similar(wanted, self.layers))}"
        )

    def nearby_non_negative(self, layer: Layer) -> list[str]:
        """Names of the up to 3 nearest layers worth naming that are nowhere negative."""
        position = {path: index for index, path in enumerate(self.by_path)}
        suitable = [other for other in _worth_naming(self.suitable) if other.non_negative]
        suitable.sort(key=lambda other: abs(position[other.path] - position[layer.path]))
        return [other.name for other in suitable[:3]]

    def _filled(self, layer: Layer) -> Layer:
        """The layer, unless it needs weights that the file did not have, which are NaN."""
        backbone = self.backbone
        if backbone.missing and math.isnan(layer.minimum):
            raise InputError(
                f"layer {layer.name} of {backbone.name} needs {backbone.missing[0]!r}, which the "
                f"file {backbone.weights} does not have for it; choose a layer before"
            )
        return layer

    @property
    def suitable(self) -> list[Layer]:
        """Layers of several cells that are not pooled, constant, or a gate."""
        return [x for x in self.layers if x.grid != (1, 1) and x.path not in self.unsuitable]

    def _default(self) -> Layer:
        """The deepest suitable map that the outputs depend on; for tokens, their last keys."""
        # Those that need weights that the file did not have are NaN.
        suitable = [x for x in self.suitable if not math.isnan(x.minimum)] or self.suitable
        layers = _read_on(self, suitable[-_LATE:]) or _read_on(self, suitable) or suitable
        if not layers:
            raise InputError(
                f"every layer of {self.backbone.name} is pooled, constant, a gate or a single cell "
                f"at {self.size}×{self.size} pixels, so there is no default; name a layer, or use "
                "a larger size"
            )
        deepest = layers[-1]
        keys = [x for x in layers if x.path.endswith(_KEYS) and x.grid == deepest.grid]
        are_tokens = deepest.layout.kind == "tokens" and not self.has_windows
        return keys[-1] if keys and are_tokens else deepest


def map_layers(backbone: Backbone, size: int = SIZE) -> LayerMap:
    """Run a network once on fixed noise, ``size`` × ``size`` pixels, and note what modules give. A
    network that takes only images of one size is run at that (its layers' ``input_size``)."""
    if size < 1:
        raise InputError(f"size must be a positive number of pixels, not {size}")
    layer_map = _probe(backbone, size)
    made_for = input_size(backbone.network)
    if layer_map.failure is not None and made_for is not None and made_for != size:
        at_its_size = _probe(backbone, made_for)
        if at_its_size.failure is None:
            layer_map = at_its_size
    if layer_map.failure is not None and not layer_map.by_path:
        raise layer_map.failure
    _drop_unrolled(layer_map)
    layers = layer_map.by_path
    all_first = all(layer.layout.kind == "channels first" for layer in layers.values())
    if layer_map.failure is None and not all_first:
        grids = _oblong_grids(layer_map)
        for path, layer in list(layers.items()):
            if grids is None:
                layers[path] = replace(layer, input_size=layer_map.size)
            elif grids.get(path) == layer.grid != (1, 1):  # such as tables of relative positions
                layer_map.not_maps[path] = "gives the same number of values for images of any shape"
                del layers[path]
    return layer_map


def list_layers(backbone: Backbone, size: int = SIZE) -> list[Layer]:
    """Every module whose output is one map, (b, c, h, w), (b, h, w, c) or tokens (b, t, c).

    The network runs once on fixed noise of ``size`` × ``size`` pixels, or of the only size that it
    accepts.

    Parameters
    ----------
    backbone : Backbone
    size : int
        Side of the probe in pixels.

    Returns
    -------
    list of Layer
        In the order of their last calls, a module before the one around it. One has
        ``is_default``.

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
    layer_map = map_layers(backbone, size)
    layers = layer_map.layers
    with suppress(InputError):  # there may be no default
        default = layer_map.resolve()
        layers[layers.index(default)] = replace(default, is_default=True)
    return layers


def check_named_once(layers: Sequence[Layer]) -> None:
    """Raise InputError where two of the layers are one."""
    if len({layer.path for layer in layers}) < len(layers):
        raise InputError(f"{layers[0].name} or another layer is named twice; name each once")


def _drop_unrolled(layer_map: LayerMap) -> None:
    """Drop the layers of Hiera whose tokens are in the order of its units, not of the image. They
    are all between the embedding and the last pooling, after which each unit has one token."""
    network, layers = layer_map.backbone.network, layer_map.by_path
    if not any(hasattr(m, "unroll") or hasattr(m, "unroll_schedule") for m in network.modules()):
        return
    coarsest = max(layer.stride for layer in layers.values() if layer.grid != (1, 1))
    for path, layer in list(layers.items()):
        if layer.stride < coarsest and "embed" not in path:
            layer_map.not_maps[path] = "gives tokens in the order of units, not of the image"
            del layers[path]


def _oblong_grids(layer_map: LayerMap) -> dict[str, tuple[int, int]] | None:
    """The grids of layers on an image that is not square; None where the network takes none."""
    layers, backbone = list(layer_map.by_path.values()), layer_map.backbone
    multiple = max(layer.stride for layer in layers if layer.grid != (1, 1))
    if layer_map.size <= multiple:
        return {}
    batch = noise(backbone, layer_map.size)[..., :-multiple]
    height, width = batch.shape[2:]
    grids: dict[str, tuple[int, int]] = {}

    def keep_grid(layer: Layer, module: nn.Module, inputs: Any, output: Any) -> None:
        output = output_of(module, inputs, output, layer.layout)
        maps = layer.layout.to_map(output, (height, width), layer.stride)
        if maps is not None:
            grids[layer.path] = (maps.shape[2], maps.shape[3])

    try:
        with reading(backbone, layers, keep_grid):
            run_network(backbone, batch)
    except (InputError, LayoutError):
        return None
    return grids


def _probe(backbone: Backbone, size: int) -> LayerMap:
    """What one forward pass on noise shows of the modules."""
    layer_map = LayerMap(backbone, size)
    recorder = _Recorder(layer_map)
    modules = dict(backbone.network.named_modules(remove_duplicate=False))
    scripted = [path for path, m in modules.items() if isinstance(m, torch.jit.ScriptModule)]
    layer_map.not_maps |= dict.fromkeys(scripted, "is TorchScript, which hides its outputs")
    with hooks(
        (module, partial(recorder.record, path)) for path, module in modules.items() if path
    ):
        try:
            run_network(backbone, noise(backbone, size))
        except InputError as error:
            layer_map.failure = error
    return layer_map


class _Recorder:
    """Fills a `LayerMap` by what modules give in a forward pass; the last call counts."""

    def __init__(self, layer_map: LayerMap) -> None:
        self._map = layer_map
        network = layer_map.backbone.network
        self._prefix = declared_prefix(network)
        self._patch = patch_of(network)
        self._names = paper_names(network)
        self._calls: Counter[str] = Counter()
        # Pooling and gates: whatever returns their tensor is as unsuitable, unlike a constant map
        # that a residual is added to in place.
        self._passing: set[str] = set()
        # Containers return their last child's tensor itself, which tells whose map theirs is.
        self._previous: Layer | None = None
        self._previous_output: Any = None

    def record(self, path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        """The hook of the module at that path."""
        layers, not_maps, unsuitable = self._map.by_path, self._map.not_maps, self._map.unsuitable
        self._calls[path] += 1
        for old in (path, *(f"{path}:{part}" for part in QKV)):
            layers.pop(old, None)
            unsuitable.discard(old)
        self._passing.discard(path)
        not_maps.pop(path, None)
        self._map.has_windows |= is_of_windows(output)
        before = self._previous if output is self._previous_output else None
        self._previous, self._previous_output = None, output
        tokens = self._map.backbone.tokens
        layouts = layouts_of(module, path, inputs, output, self._prefix, tokens)
        if isinstance(layouts, str):
            not_maps[path] = layouts
            return
        for layout in layouts:
            layer = self._layer(path, layout, output_of(module, inputs, output, layout))
            if layer is None:
                not_maps[path] = "gives no output that can become a map"
                return
            layers[layer.path] = layer
        if path not in layers:
            parts, example = ", ".join(QKV), f"{path}:{QKV[-1]}"
            not_maps[path] = f"gives {parts} together; name one of them, as in {example}"
            return
        self._previous = layers[path]
        if before is not None and before.minimum != self._previous.minimum:
            before = None  # changed in place since
        if before is not None and isinstance(module, nn.Identity):
            not_maps[path] = "passes on its input map unchanged"
            del layers[path]
        elif (
            _is_gate(module)
            or isinstance(module, _POOLING)
            or (before is not None and before.path in self._passing)
        ):
            self._passing.add(path)
            unsuitable.add(path)

    def _layer(self, module_path: str, layout: Layout, output: Any) -> Layer | None:
        path = module_path if layout.part is None else f"{module_path}:{layout.part}"
        # The image is square, so the number of cells says what the stride is.
        cells = size = self._map.size
        if layout.kind == "tokens" and (values := tensor_of(output)) is not None:
            cells = math.isqrt(values.shape[1] - layout.prefix)
        maps = layout.to_map(output, (size, size), stride_of(size, cells, self._patch))
        if maps is None:
            return None
        height, width = maps.shape[2:]
        if (maps.amax((2, 3)) - maps.amin((2, 3))).max() <= _CONSTANT * maps.abs().max():
            self._map.unsuitable.add(path)
        return Layer(
            path=path,
            name=self._names.get(module_path, path),
            channels=maps.shape[1],
            stride=stride_of(size, height, self._patch),
            grid=(height, width),
            # Read here and now: an in-place ReLU that follows would overwrite the output.
            minimum=maps.min().item(),
            calls=self._calls[module_path],
            layout=layout,
        )


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


@contextmanager
def hooks(of_modules: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Forward hooks, removed at the end; modules of TorchScript take none."""
    with HOOKED, ExitStack() as handles:
        for module, hook in of_modules:
            if not isinstance(module, torch.jit.ScriptModule):
                handles.callback(module.register_forward_hook(hook).remove)
        yield


def reading(
    backbone: Backbone, layers: Sequence[Layer], hook: Callable[..., Any]
) -> AbstractContextManager[None]:
    """Forward hooks on the layers' modules; the hook gets the layer first."""
    get = backbone.network.get_submodule
    return hooks((get(layer.module), partial(hook, layer)) for layer in layers)


def _is_gate(module: nn.Module) -> bool:
    return "sigmoid" in type(module).__name__.lower()  # PyTorch's, timm's, hard ones


def _read_on(layer_map: LayerMap, layers: Sequence[Layer]) -> list[Layer]:
    """Those of the layers that differ between two images and that the network's outputs depend on:
    by the gradient, or, where that is zero as with a head of zeros, by its graph."""
    backbone = layer_map.backbone
    image = noise(backbone, layer_map.size)
    shape = (layer_map.size, layer_map.size)
    gates = [x for x in layer_map.layers if _is_gate(backbone.network.get_submodule(x.module))]
    calls: Counter[str] = Counter()
    tensors: dict[str, Tensor] = {}  # by path

    def to_map(layer: Layer, values: Any) -> Tensor | None:
        return layer.layout.to_map(values, shape, layer.stride)

    def keep_last_call(layer: Layer, module: nn.Module, inputs: Any, output: Any) -> Any:
        if _is_gate(module):
            return output.detach()  # so that what only goes into it is not read, either
        calls[layer.path] += 1
        values = tensor_of(output)
        maps = to_map(layer, output_of(module, inputs, output, layer.layout))
        if calls[layer.path] < layer.calls or values is None or maps is None:
            return None
        if len(maps) != 2 or torch.equal(*maps):  # such as a table of relative positions
            return None
        torch.set_grad_enabled(True)  # until the pass ends: the layers before need no graph
        values = values if values.requires_grad else values.detach().requires_grad_()
        tensors[layer.path] = values
        return with_tensor(output, values.clone())  # what follows may overwrite it

    try:
        with reading(backbone, [*layers, *gates], keep_last_call):
            outputs = tree_leaves(run_network(backbone, torch.cat([image, image.flip(3)])))
        scores = [x for x in outputs if isinstance(x, Tensor) and x.requires_grad]
        scores = [x for x in scores if x.ndim == 2] or scores  # rather than the maps next to them
        if not scores:
            return []
        generator = torch.Generator().manual_seed(0)
        # Of random weights: normalized outputs sum to a constant.
        weights = [torch.randn(x.shape, generator=generator).to(x) for x in scores]
        found = torch.autograd.grad(scores, [*tensors.values()], weights, allow_unused=True)
    except (InputError, RuntimeError):  # a user's network can have no gradient
        return []
    gradients = {path: g for path, g in zip(tensors, found, strict=True) if g is not None}

    # Of tokens only those of the grid count; keys matter where the whole attention does.
    def is_read(layer: Layer) -> bool:
        gradient = gradients[layer.path]
        maps = None if layer.layout.part or layer.layout.reshape else to_map(layer, gradient)
        return bool((gradient if maps is None else maps).any())

    connected = [layer for layer in layers if layer.path in gradients]
    return [layer for layer in connected if is_read(layer)] or connected


def _worth_naming(layers: list[Layer]) -> list[Layer]:
    """Without single cells; of nested modules with the same map, the outermost."""
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
    close = get_close_matches(wanted, by_name, n=n)
    related = [name for name in by_name if prefix and name.startswith(prefix)]
    similar = [by_name[name] for name in dict.fromkeys(close + related)]
    return similar[:n] or _worth_naming(layers)[-n:]


def _such_as(layers: list[Layer]) -> str:
    return f", such as {', '.join(layer.name for layer in layers)}" if layers else ""
