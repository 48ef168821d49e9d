"""What follows a layer, tried on noise: whether it reads the layer's map, and how."""

from __future__ import annotations

import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.features.later import OpenLayer, later_outputs
from deepff.features.probe import noise

_CELLS = 4
_LINEAR = 1e-3
# Of the outputs' size: what differs by less differs by rounding.
_SAME = 1e-5


def small_noise(opened: OpenLayer) -> Tensor:
    """An image of noise, (1, channels, size, size): 4 cells a side unless the size is fixed."""
    layer = opened.layer
    return noise(opened.backbone, layer.input_size or _CELLS * layer.stride)


def outputs_for_noise(opened: OpenLayer) -> Tensor | None:
    """The network's outputs for five maps in place of the layer's: a, b, their mean, a's mean in
    every cell, and 0, with a and b random, (5, classes).

    None where the map cannot be replaced, as inside an attention.

    Raises
    ------
    InputError
        It cannot because weights are missing.
    """
    generator = torch.Generator().manual_seed(0)

    def probes(maps: Tensor) -> Tensor:
        a, b = torch.randn(2, *maps.shape[1:], generator=generator).to(maps)
        if opened.layer.non_negative:
            a, b = a.abs(), b.abs()
        mean = a.mean((1, 2), keepdim=True).expand_as(a)
        return torch.stack([a, b, (a + b) / 2, mean, torch.zeros_like(a)])

    try:
        return later_outputs(opened, small_noise(opened), probes)
    except InputError:
        if opened.backbone.missing:
            raise
        return None


def check_is_read(opened: OpenLayer, outputs: Tensor | None) -> None:
    """Raise InputError where none of :func:`outputs_for_noise` differ.

    So it is at the last block of a vision transformer whose head reads the class token: whatever
    factor is taken out of the map, the outputs stay.
    """
    if outputs is None:
        return
    if (outputs - outputs[-1]).abs().max() <= _SAME * outputs.abs().max():
        raise InputError(
            f"what follows layer {opened.layer.name} of {opened.backbone.name} does not read its "
            "map (as a head that reads only the class token), so it cannot say what factors mean; "
            "choose an earlier layer"
        )


def is_linear_in_mean(outputs: Tensor | None) -> bool:
    """Whether the network's outputs are linear in the mean of the layer's map, by
    :func:`outputs_for_noise`; what could not be tried is not."""
    if outputs is None:
        return False
    of_a, of_b, of_both, of_mean, of_none = outputs
    tolerance = _LINEAR * (of_a - of_none).abs().max()
    is_linear = bool(((of_a + of_b) / 2 - of_both).abs().max() <= tolerance)
    return is_linear and bool((of_a - of_mean).abs().max() <= tolerance)
