"""A warning names networks whose values change from run to run or with the batch; no others."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from deepff.activations.activations import Preparation
from deepff.activations.extraction import extract_layers
from deepff.errors import InputWarning
from deepff.images.image_set import resolve_images
from deepff.layers.layer_map import map_layers
from deepff.networks.loading import load_backbone

SIZE = 64
GRADIENT = np.linspace(0, 80, SIZE).repeat(3).reshape(1, SIZE, 3).repeat(SIZE, 0)
PHOTOS = [(GRADIENT * i).astype(np.uint8) for i in (1, 2, 3)]


def messages(network: nn.Module | str, size: int = SIZE, layer: str | None = None) -> list[str]:
    """The warnings of a run over three images."""
    backbone = load_backbone(network, pretrained=False, device="cpu", engine="torch")
    found = map_layers(backbone, size).resolve(layer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InputWarning)
        extract_layers(resolve_images(PHOTOS), backbone, [found], Preparation(size))
    texts = [str(x.message) for x in caught if issubclass(x.category, InputWarning)]
    return [text for text in texts if "nearly black" not in text]


class FunctionalDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.1)  # training=True is the default


class StaysTraining(nn.Dropout2d):
    def train(self, mode: bool = True) -> nn.Module:
        return super().train(True)


class LessTheBatchMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def with_middle(middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    first, last = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 2, 1)
    return nn.Sequential(first, nn.ReLU(), middle, last, nn.ReLU())


RANDOM = {"functional": FunctionalDropout, "a train that is overridden": StaysTraining}
OF_THE_BATCH: dict[str, Callable[[], nn.Module]] = {
    "no running statistics": lambda: nn.BatchNorm2d(16, track_running_stats=False),
    "its own mean": LessTheBatchMean,
}


@pytest.mark.parametrize("case", RANDOM)
def test_dropout_that_stays_on_is_told(case: str) -> None:
    assert messages(with_middle(RANDOM[case]()), layer="4") == [
        "Sequential gives different values for the same image each time (probably dropout that "
        "stays on), so results differ from run to run: switch it off"
    ]


@pytest.mark.parametrize("case", OF_THE_BATCH)
def test_statistics_of_the_batch_are_told(case: str) -> None:
    assert messages(with_middle(OF_THE_BATCH[case]()), layer="4") == [
        "Sequential gives different values for the same image next to other images (probably "
        "statistics of the batch), so results depend on the batch: run images one by one "
        "(batch_size=1)"
    ]


def test_what_comes_after_the_layer_does_not_matter() -> None:
    assert messages(with_middle(FunctionalDropout()), layer="1") == []


@pytest.mark.parametrize(
    "network",
    [
        "resnet18",
        "efficientnet_lite0",
        "googlenet",
        "timm/vit_tiny_patch16_224",
        lambda: with_middle(nn.Dropout(0.5)),
        lambda: with_middle(nn.BatchNorm2d(16)),
        lambda: with_middle(nn.InstanceNorm2d(16)),
        lambda: with_middle(nn.GroupNorm(4, 16)).bfloat16(),
        lambda: with_middle(nn.BatchNorm2d(16)).half(),
        lambda: with_middle(nn.Threshold(1e9, 0.0)),  # all zero
    ],
)
def test_ordinary_networks_raise_no_alarm(network: str | Callable[[], nn.Module]) -> None:
    assert messages(network if isinstance(network, str) else network()) == []
