"""The later part of a network run on other maps: the same outputs as the whole network's."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deepff.errors import InputError
from deepff.layers.later import Edits, OpenLayer, later_outputs, outputs_of_edits
from deepff.layers.layer_map import map_layers, noise
from deepff.networks.loading import load_backbone


def opened(model: str, layer: str, size: int = 224) -> tuple[OpenLayer, Tensor]:
    torch.manual_seed(0)
    backbone = load_backbone(model, pretrained=False, device="cpu")
    return OpenLayer(backbone, map_layers(backbone, size).resolve(layer)), noise(backbone, size)


@pytest.mark.parametrize(
    ("model", "layer", "size"),
    [
        ("resnet18", "layer3.0.conv1", 64),  # a shortcut goes around it
        ("densenet121", "features.denseblock4.denselayer3.relu1", 64),  # what is before is joined
        ("timm/vit_tiny_patch16_224", "blocks.10", 224),  # tokens after one for the class
        ("timm/vit_tiny_patch16_224", "blocks.11.attn.qkv:keys", 224),  # a part of what is given
        ("timm/swin_tiny_patch4_window7_224", "layers.2", 224),  # channels last
    ],
)
@torch.no_grad()
def test_one_image_with_many_maps_gives_what_each_gives_alone(model, layer, size):
    later, batch = opened(model, layer, size)
    as_is = later_outputs(later, batch, lambda maps: maps)
    torch.testing.assert_close(as_is, later.backbone.network(batch))

    edits = [torch.clone, torch.zeros_like, lambda maps: maps.flip(1), lambda maps: maps / 2]

    def make(maps, part):
        return torch.cat([edit(maps[None]) for edit in edits[part]])

    together = outputs_of_edits(later, batch, Edits(len(edits), make))
    alone = [later_outputs(later, batch, edit) for edit in edits]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)
    assert (together[1] - together[0]).abs().max() > 1e-4  # the map matters


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.act(x) + 1).mean((2, 3))


@torch.no_grad()
def test_the_last_call_is_replaced():
    backbone = load_backbone(Twice(), device="cpu")
    layer = map_layers(backbone, 8).resolve("act")
    batch = torch.ones(1, 3, 8, 8)
    outputs = later_outputs(OpenLayer(backbone, layer), batch, lambda maps: 5 * maps)
    assert outputs.tolist() == [[10.0, 10.0, 10.0]]


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)


@torch.no_grad()
def test_a_network_without_classes_is_told_so():
    backbone = load_backbone(Features(), device="cpu")
    later = OpenLayer(backbone, map_layers(backbone, 8).resolve("act"))
    with pytest.raises(InputError, match="does not end with one number per class"):
        later_outputs(later, torch.ones(1, 3, 8, 8), lambda maps: maps)


@dataclass
class Fields:
    scores: Tensor
    maps: Tensor


Pair = namedtuple("Pair", ["maps", "scores"])
RETURNS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a tuple": lambda logits, maps: (logits, maps),
    "a list, the map first": lambda logits, maps: [maps, logits],
    "a named tuple": lambda logits, maps: Pair(maps, logits),
    "a dict": lambda logits, maps: {"logits": logits, "features": maps.mean((2, 3))},
    "a dict of other names": lambda logits, maps: {"out": logits, "aux": None, "maps": maps},
    "a data class": lambda logits, maps: Fields(logits, maps),
    "embeddings too, told by the labels": lambda logits, maps: (maps.mean((2, 3)), logits),
}


class Returning(nn.Module):
    def __init__(self, returned: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.act, self.head, self.returned = nn.ReLU(), nn.Linear(3, 2), returned

    def forward(self, x: Tensor) -> Any:
        maps = self.act(x)
        return self.returned(self.head(maps.mean((2, 3))), maps)


@pytest.mark.parametrize("case", RETURNS)
@torch.no_grad()
def test_the_logits_are_found_in_whatever_a_network_returns(case: str) -> None:
    network = Returning(RETURNS[case])
    backbone = load_backbone(network, device="cpu", labels=["a", "b"])
    layer = map_layers(backbone, 8).resolve("act")
    batch = torch.rand(2, 3, 8, 8)
    outputs = later_outputs(OpenLayer(backbone, layer), batch, lambda maps: 2 * maps)
    torch.testing.assert_close(outputs, network.head(2 * batch.mean((2, 3))))


@torch.no_grad()
def test_of_several_that_could_be_logits_none_is_guessed() -> None:
    backbone = load_backbone(Returning(lambda logits, maps: (logits, logits + 1)), device="cpu")
    later = OpenLayer(backbone, map_layers(backbone, 8).resolve("act"))
    with pytest.raises(InputError, match=r"returns several tensors that could be .*; wrap it in"):
        later_outputs(later, torch.ones(1, 3, 8, 8), lambda maps: maps)
