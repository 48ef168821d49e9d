"""Batch normalization folded into the convolutions before it, which then costs no time."""

import copy
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from deepff.errors import InputError
from deepff.layers.later import forward_to_layers
from deepff.layers.layer import Layer
from deepff.layers.layer_map import noise
from deepff.networks.backbone import Backbone

PROBE_SIDE = 128  # pixels
# Of the largest value. Rounding makes about 1e-6, or 1e-3 on a GPU that multiplies in TF32; a pair
# that is folded wrongly makes about 1.
TOLERANCE = 1e-2
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def folded(backbone: Backbone, layers: Sequence[Layer]) -> Backbone:
    """A copy of the network for reading these layers: y = γ (w ∗ x + b − μ) / √(σ² + ε) + β is a
    convolution with weights w γ / √(σ² + ε). The same backbone if nothing can be folded, or the
    copy would give other values."""
    if backbone.dtype not in (torch.float32, torch.float64):
        return backbone  # rounding of the weights would be visible
    side = probe_side(layers)
    try:
        network, originals = copied(backbone.network)
        ours = replace(backbone, network=network)
        with torch.no_grad():
            image = noise(backbone, side)
            with _watching(network) as calls:
                before = forward_to_layers(ours, layers, image)
            hooked = {new for new, old in originals.items() if any(getattr(old, n) for n in _HOOKS)}
            # A normalization's own activation is gone once it is folded.
            read = {network.get_submodule(layer.module) for layer in layers}
            pairs = {
                conv: norm
                for conv, norm in _adjacent(calls).items()
                if not hooked & {conv, norm}
                and not read & {*norm.modules()} - {norm}
                and _can_be_folded(conv, norm)
            }
            if not pairs:
                return backbone
            _fold(network, pairs)
            after = forward_to_layers(ours, layers, image)
    except InputError:
        return backbone
    for ours_now, expected in zip(after, before, strict=True):
        if not (ours_now - expected).abs().max() <= TOLERANCE * expected.abs().max():
            return backbone
    for new, old in originals.items():
        for name in _HOOKS:
            setattr(new, name, getattr(old, name))
    return ours


def probe_side(layers: Sequence[Layer]) -> int:
    """Pixels along a side of noise that shows what a network does up to these layers."""
    return layers[0].input_size or max(PROBE_SIDE, 2 * max(layer.stride for layer in layers))


def copied(network: nn.Module) -> tuple[nn.Module, dict[nn.Module, nn.Module]]:
    """A copy with the same tensors and without hooks; and by each of its modules, the original."""
    memo: dict[int, Any] = {id(x): x for x in (*network.parameters(), *network.buffers())}
    for module in network.modules():
        memo |= {id(getattr(module, name)): OrderedDict() for name in _HOOKS}
    try:
        ours = copy.deepcopy(network, memo)
    except Exception as error:  # a user's network can refuse in any way
        raise InputError("the network cannot be copied") from error
    return ours, dict(zip(ours.modules(), network.modules(), strict=True))


# A call of a normalization: what made its input, if that was a convolution, and the normalization.
Call = tuple[nn.Conv2d | None, nn.Module]


@contextmanager
def _watching(network: nn.Module) -> Iterator[list[Call]]:
    """Yields a list, which every forward pass inside fills."""
    calls: list[Call] = []
    makers: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # with the output, so that no id comes twice

    def note_output(module: nn.Conv2d, inputs: Any, output: Tensor) -> None:
        makers[id(output)] = module, output

    def note_call(module: nn.Module, inputs: Any) -> None:
        maker = makers.get(id(inputs[0])) if inputs else None
        calls.append((None if maker is None else maker[0], module))

    with ExitStack() as handles:
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                handles.callback(module.register_forward_hook(note_output).remove)
            elif isinstance(module, nn.BatchNorm2d | nn.SyncBatchNorm):
                handles.callback(module.register_forward_pre_hook(note_call).remove)
        yield calls


def _adjacent(calls: Sequence[Call]) -> dict[nn.Conv2d, nn.Module]:
    """Convolutions, each with the one normalization that follows it, which follows nothing else."""
    distinct = dict.fromkeys(calls)
    times = Counter(module for call in distinct for module in call)
    return {c: n for c, n in distinct if c is not None and times[c] == times[n] == 1}


def _can_be_folded(conv: nn.Conv2d, norm: Any) -> bool:
    # A weight that is computed in each pass is not a parameter of the module.
    return (
        conv._parameters.get("weight") is not None
        and not norm.training
        and norm.running_mean is not None
        and norm.running_var is not None
        and norm.num_features == conv.out_channels
        and _rest(norm) is not None
    )


def _rest(norm: nn.Module) -> nn.Module | None:
    """What a module does after its batch normalization; None if that is not known."""
    if type(norm) in (nn.BatchNorm2d, nn.SyncBatchNorm):
        return nn.Identity()
    if type(norm).__name__ == "BatchNormAct2d":  # timm's, by name to avoid importing timm
        return nn.Sequential(norm.get_submodule("drop"), norm.get_submodule("act"))
    return None


def _fold(network: nn.Module, pairs: dict[nn.Conv2d, Any]) -> None:
    for conv, norm in pairs.items():
        exact = fuse_conv_bn_eval(copy.deepcopy(conv).double(), copy.deepcopy(norm).double())
        fused = exact.to(conv.weight.dtype).requires_grad_(False)
        conv.weight, conv.bias = fused.weight, fused.bias
    rests = {norm: _rest(norm) for norm in pairs.values()}
    for parent in network.modules():
        for name, child in parent.named_children():
            if child in rests:
                setattr(parent, name, rests[child])
