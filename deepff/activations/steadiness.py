"""Whether a network gives the same values for an image each time, and whatever is next to it."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from deepff.activations.folding import copied, probe_side
from deepff.errors import InputError, InputWarning
from deepff.layers.later import forward_to_layers
from deepff.layers.layer import Layer
from deepff.layers.layer_map import hooks, noise
from deepff.networks.backbone import Backbone

# Of the values' length. Rounding makes 1e-6, or 1e-2 in half precision; dropout of a tenth of the
# values makes 0.4, and statistics of this batch, half of which is empty, about as much.
TOLERANCE = 0.05


def warn_if_unsteady(backbone: Backbone, layers: Sequence[Layer]) -> None:
    """One warning where the layers' values for noise change, and what would keep them the same."""
    alone = noise(backbone, probe_side(layers))
    together = torch.cat([alone, torch.zeros_like(alone)])
    with torch.no_grad():
        try:
            # Hooks are not for noise.
            backbone = replace(backbone, network=copied(backbone.network)[0])
            expected = forward_to_layers(backbone, layers, alone)
            if _are_same(expected, forward_to_layers(backbone, layers, together)):
                return
            is_random = not _are_same(expected, forward_to_layers(backbone, layers, alone))
            runs = [
                _outputs(backbone, layers, x) for x in (alone, alone if is_random else together)
            ]
        except InputError:  # it cannot be copied or run on noise
            return
    pairs = zip(*runs, strict=False)
    path = next((path for (path, a), (_, b) in pairs if not _are_same([a], [b])), layers[-1].path)
    how, cause, advice = (
        ("each time", "dropout that stays on", "so results differ from run to run: switch it off")
        if is_random
        else (
            "next to other images",
            "statistics of the batch",
            "so results depend on the batch: run images one by one (batch_size=1)",
        )
    )
    warnings.warn(
        f"{backbone.name} gives other values for the same image {how}, first at {path!r} (probably "
        f"{cause}), {advice}",
        InputWarning,
        stacklevel=4,
    )


def _outputs(
    backbone: Backbone, layers: Sequence[Layer], batch: Tensor
) -> list[tuple[str, Tensor]]:
    """The tensors that modules give for the first image, in order, with their paths."""
    outputs: list[tuple[str, Tensor]] = []

    def keep(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            outputs.append((path, output[:1].clone()))

    with hooks((module, partial(keep, path)) for path, module in backbone.network.named_modules()):
        forward_to_layers(backbone, layers, batch)
    return outputs


def _are_same(values: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether the first image's are; what is not a number is not compared."""
    pairs = [(a.float(), b[:1].float()) for a, b in zip(values, others, strict=True)]
    return not any(bool((a - b).norm() > TOLERANCE * a.norm()) for a, b in pairs)
