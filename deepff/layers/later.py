"""Running a network up to some layers, or on from a layer's map to the outputs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepff.errors import InputError, first_line
from deepff.layers.layer import Layer
from deepff.layers.layer_map import hooks, noise, reading
from deepff.layers.layouts import output_of
from deepff.networks.backbone import Backbone, LayoutError, StopForwardError, run_network

_MAPS_BYTES = 2**28  # of maps that go through what follows the layer together


class Edits(NamedTuple):
    """Ways to change a layer's map of one image."""

    n: int
    # From the map (c, h, w) to what some of the n ways make of it, (those, c, h, w).
    make: Callable[[Tensor, slice], Tensor]


AS_IS = Edits(1, lambda maps, _: maps[None])


@dataclass(frozen=True)
class OpenLayer:
    """A network and one of its layers."""

    backbone: Backbone
    layer: Layer


def forward_to_layers(backbone: Backbone, layers: Sequence[Layer], batch: Tensor) -> list[Tensor]:
    """The layers' maps (b, channels, h, w); the network runs up to the last of them, no further.
    With gradient where the batch, which is normalized, requires it. No layer is given twice."""

    def to_map(layer: Layer, output: Any) -> Tensor | None:
        return layer.layout.to_map(output, (batch.shape[2], batch.shape[3]), layer.stride)

    try:
        maps = last_outputs(backbone, layers, batch, to_map)
    except LayoutError:
        maps = last_outputs(backbone, layers, batch.contiguous(), to_map)
    checked = []
    for layer, values in zip(layers, maps, strict=True):
        if values is None or len(values) != len(batch):
            height, width = batch.shape[2:]
            raise InputError(
                f"layer {layer.name} of {backbone.name} has no map for images of {height}×{width} "
                "pixels; choose another layer or size"
            )
        checked.append(values)
    return checked


def grids_on(
    backbone: Backbone, layers: Sequence[Layer], shape: tuple[int, int]
) -> list[tuple[int, int]]:
    """The layers' grids on images of ``shape`` pixels, by a pass over a blank one."""
    blank = torch.zeros(1, backbone.channels, *shape, device=backbone.device, dtype=backbone.dtype)
    maps = forward_to_layers(backbone, layers, blank)
    return [(values.shape[2], values.shape[3]) for values in maps]


def last_outputs(
    backbone: Backbone,
    layers: Sequence[Layer],
    batch: Tensor,
    use: Callable[[Layer, Any], Tensor | None],
) -> list[Tensor | None]:
    """What ``use`` makes of each layer and its output; the network runs no further than needed."""
    calls: Counter[str] = Counter()
    outputs: dict[str, Tensor | None] = {}

    def keep_last_call(layer: Layer, module: nn.Module, inputs: Any, output: Any) -> None:
        calls[layer.path] += 1
        if calls[layer.path] != layer.calls:
            return
        is_last = len(outputs) + 1 == len(layers)
        values = use(layer, output_of(module, inputs, output, layer.layout))
        # What runs after this may overwrite the output in place; after the last nothing does.
        outputs[layer.path] = values if is_last or values is None else values.clone()
        if is_last:
            raise StopForwardError

    try:
        with reading(backbone, layers, keep_last_call):
            run_network(backbone, batch)
    except StopForwardError:
        return [outputs[layer.path] for layer in layers]
    missing = next(layer for layer in layers if layer.path not in outputs)
    raise InputError(
        f"layer {missing.name!r} of {backbone.name} ran {calls[missing.path]} times on these "
        f"images but {missing.calls} times on a test image; choose a layer that always runs "
        "equally often"
    )


def later_outputs(opened: OpenLayer, batch: Tensor, edit: Callable[[Tensor], Tensor]) -> Tensor:
    """The network's outputs (b', classes), float32, when ``edit`` makes another map (b', c, h, w)
    of a layer's, (b, c, h, w); any b' if b is 1. What bypasses the layer stays as it is."""
    try:
        outputs = _run(opened, batch, edit)
    except _WrongBatchError as error:
        # Something joins the map with what bypasses it, and needs as many of both.
        batch = batch.expand(error.args[0], -1, -1, -1)
        outputs = _run(opened, batch, lambda maps: edit(maps[:1]))
    backbone = opened.backbone
    if outputs.isnan().any():
        lacking = f" ({backbone.missing[0]!r} is not in the file)" if backbone.missing else ""
        raise InputError(
            f"the outputs of {backbone.name} with the weights {backbone.weights} are NaN{lacking}, "
            "so it cannot predict classes; use weights that include the head"
        )
    return outputs if backbone.words is None else backbone.words(outputs)


def outputs_of_edits(opened: OpenLayer, image: Tensor, edits: Edits) -> Tensor:
    """The outputs (n, classes) for one image (1, channels, H, W) with its map changed in n ways."""
    layer = opened.layer
    n_cells = image.shape[2] * image.shape[3] // layer.stride**2
    n_together = max(1, _MAPS_BYTES // (4 * layer.channels * max(1, n_cells)))
    outputs = []
    for first in range(0, edits.n, n_together):

        def edited(maps: Tensor, first: int = first) -> Tensor:
            return edits.make(maps[0], slice(first, first + n_together))

        outputs.append(later_outputs(opened, image, edited))
    return torch.cat(outputs)


def gradients(opened: OpenLayer, image: Tensor, edits: Edits, outputs: Sequence[int]) -> Tensor:
    """The gradients (n, c, h, w) of one output for each edit with respect to the map of an image
    that it makes."""
    leaves: list[Tensor] = []

    def edited(maps: Tensor) -> Tensor:
        torch.set_grad_enabled(True)  # until the context ends: the layers before need no graph
        leaves.append(edits.make(maps[0], slice(edits.n)).detach().clone().requires_grad_())
        return leaves[-1]

    with torch.no_grad():
        values = later_outputs(opened, image, edited)
        chosen = values[range(len(outputs)), list(outputs)].sum()
        (slopes,) = torch.autograd.grad(
            chosen, leaves[-1], allow_unused=True, materialize_grads=True
        )
    return slopes


class _WrongBatchError(Exception):
    """The later part did not run on so many maps, ``args[0]``, of one image."""


def _run(opened: OpenLayer, batch: Tensor, edit: Callable[[Tensor], Tensor]) -> Tensor:
    backbone, layer = opened.backbone, opened.layer
    calls = 0
    expected = len(batch)

    def replace_last_call(module: nn.Module, inputs: Any, output: Any) -> Any:
        nonlocal calls, expected
        calls += 1
        if calls != layer.calls:
            return None
        maps = layer.layout.to_map(output, (batch.shape[2], batch.shape[3]), layer.stride)
        if maps is None:
            raise InputError(f"layer {layer.name} of {backbone.name} has no map for these images")
        # What follows may overwrite its input in place.
        edited = edit(maps.float()).clone()
        expected = len(edited)
        return layer.layout.to_output(edited, output)

    read = backbone.network.get_submodule(layer.module)
    if layer.layout.part is not None and isinstance(read, nn.MultiheadAttention):
        raise InputError(
            f"layer {layer.name} of {backbone.name} is inside an attention and cannot be replaced; "
            "name the block around it"
        )
    try:
        with hooks([(read, replace_last_call)]):
            outputs = backbone.network(batch)
    except InputError:
        raise
    except Exception as error:  # a user's network can raise anything
        if expected != len(batch):
            raise _WrongBatchError(expected) from error
        raise InputError(
            f"the part of {backbone.name} after layer {layer.name} cannot run ({first_line(error)})"
        ) from error
    values = _logits(backbone, outputs)
    if len(values) != expected:
        raise _WrongBatchError(expected)
    return values.float()


def _logits(backbone: Backbone, outputs: Any) -> Tensor:
    """The one number a class, (b, classes), among what a network returns."""
    if is_dataclass(outputs) and not isinstance(outputs, Mapping):  # transformers' are both
        outputs = vars(outputs)
    fields = outputs if isinstance(outputs, Mapping) else {}
    values = list(fields.values()) or (outputs if isinstance(outputs, tuple | list) else [outputs])
    named = fields.get("logits", getattr(outputs, "logits", None))
    candidates = [named] if named is not None else values
    several = [x for x in candidates if isinstance(x, Tensor) and x.ndim == 2]
    if len(several) > 1 and backbone.labels is not None:
        several = [x for x in several if x.shape[1] == len(backbone.labels)]
    if len(several) != 1:
        which = "returns several tensors that could be" if several else "does not end with"
        advice = "; wrap it in a module that returns these alone" if several else ""
        raise InputError(f"{backbone.name} {which} one number per class{advice}")
    return several[0]


_CELLS = 4
_LINEAR = 1e-3
# As a share of the outputs: smaller differences are rounding.
_SAME = 1e-5


def small_noise(opened: OpenLayer) -> Tensor:
    """An image of noise, (1, channels, size, size): 4 cells a side unless the size is fixed."""
    layer = opened.layer
    return noise(opened.backbone, layer.input_size or _CELLS * layer.stride)


def outputs_for_noise(opened: OpenLayer) -> Tensor | None:
    """The outputs (5, classes) for random maps a and b, their mean, a's mean in every cell, and 0;
    None where the map cannot be replaced. InputError where weights are missing or all are equal."""
    generator = torch.Generator().manual_seed(0)

    def probes(maps: Tensor) -> Tensor:
        a, b = torch.randn(2, *maps.shape[1:], generator=generator).to(maps)
        if opened.layer.non_negative:
            a, b = a.abs(), b.abs()
        mean = a.mean((1, 2), keepdim=True).expand_as(a)
        return torch.stack([a, b, (a + b) / 2, mean, torch.zeros_like(a)])

    try:
        outputs = later_outputs(opened, small_noise(opened), probes)
    except InputError:
        if opened.backbone.missing:
            raise
        return None
    if (outputs - outputs[-1]).abs().max() <= _SAME * outputs.abs().max():
        raise InputError(
            f"the part of {opened.backbone.name} after layer {opened.layer.name} does not use its "
            "map (but, for example, the class token), so factors cannot be named; choose an "
            "earlier layer"
        )
    return outputs


def is_linear_in_mean(outputs: Tensor | None) -> bool:
    """Whether :func:`outputs_for_noise` are linear in the map's mean; False for None."""
    if outputs is None:
        return False
    of_a, of_b, of_both, of_mean, of_none = outputs
    tolerance = _LINEAR * (of_a - of_none).abs().max()
    deviations = torch.stack([(of_a + of_b) / 2 - of_both, of_a - of_mean])
    return bool(deviations.abs().max() <= tolerance)
