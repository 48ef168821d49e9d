"""One layer's map for random images, and the one sentence of an error."""

import pytest
import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.layers.later import forward_to_layers
from deepff.layers.layer import Layer
from deepff.networks.backbone import Backbone


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def forward_to_layer(backbone: Backbone, layer: Layer, batch: Tensor) -> Tensor:
    (output,) = forward_to_layers(backbone, [layer], batch)
    return output


def message(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert ". " not in text
    return text
