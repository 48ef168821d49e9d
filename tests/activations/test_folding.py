"""Batch normalization folded into convolutions: equal outputs, and only where it is allowed."""

from dataclasses import replace

import pytest
import torch
from network_rounding import ROUNDING
from torch import Tensor, nn

from deepff.activations.folding import folded
from deepff.layers.later import forward_to_layers
from deepff.layers.layer_map import map_layers, noise
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone

SIZE = 96


def norms(backbone: Backbone) -> int:
    return sum(isinstance(m, nn.BatchNorm2d) for m in backbone.network.modules())


def with_statistics(network: nn.Module) -> nn.Module:
    """Statistics and weights as training leaves them, not those of a new network."""
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
        if isinstance(module, nn.BatchNorm2d) and module.affine:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    return network


def opened(network: nn.Module) -> Backbone:
    return load_backbone(with_statistics(network), device="cpu")


def largest_difference(backbone: Backbone, *paths: str | None) -> tuple[Backbone, float]:
    """The folded network, and how far its layers are from the unfolded one's, of their scale."""
    layer_map = map_layers(backbone, SIZE)
    layers = [layer_map.resolve(path) for path in paths or (None,)]
    ours = folded(backbone, layers)
    batch = noise(backbone, SIZE)[..., : SIZE // 2, :]
    before = [values.clone() for values in forward_to_layers(backbone, layers, batch)]
    after = forward_to_layers(ours, layers, batch)
    errors = [
        float((a - b).abs().max() / b.abs().max()) for a, b in zip(after, before, strict=True)
    ]
    return ours, max(errors)


@pytest.mark.parametrize(
    ("model", "remaining"),
    [
        ("resnet18", 0),
        ("regnet_y_400mf", 0),
        # Of each dense layer the first comes after a concatenation, of each transition before.
        ("densenet121", 62),
        ("googlenet", 2),  # those of the branches that training alone uses
        ("timm/tf_efficientnet_b0", 0),
        ("timm/resnet18", 0),
        ("timm/convnext_atto", 0),
    ],
)
@pytest.mark.filterwarnings("ignore:The default weight init")
def test_families_give_the_same_maps(model, remaining):
    backbone = load_backbone(model, pretrained=False, device="cpu")
    with_statistics(backbone.network)
    before = norms(backbone)
    ours, error = largest_difference(backbone)
    assert norms(ours) == remaining and norms(backbone) == before
    assert error < ROUNDING


def test_trained_weights_give_the_same_maps():
    backbone = load_backbone(device="cpu")
    digest = {name: values.clone() for name, values in backbone.network.state_dict().items()}
    ours, error = largest_difference(backbone, "blocks.3.0.bn1", "blocks.5.0.bn1", "bn2")
    assert norms(backbone) == 49 and norms(ours) == 0
    assert error < ROUNDING
    after = backbone.network.state_dict()
    assert all(torch.equal(values, after[name]) for name, values in digest.items())


def test_a_layer_inside_a_normalization_can_be_read():
    backbone = load_backbone(device="cpu")
    ours, error = largest_difference(backbone, "blocks.3.0.bn1", "bn2.act")
    assert norms(ours) > 0  # at least the one whose activation is read
    assert error < ROUNDING


def test_two_by_hand():
    """w = 3, b = 1, μ = 5, σ² = 4, γ = 6, β = 7: y = 6 (3 x + 1 − 5) / 2 + 7 = 9 x − 5."""
    conv, norm = nn.Conv2d(3, 1, 1), nn.BatchNorm2d(1, eps=0)
    for tensor, value in [
        (conv.weight, 3.0),
        (conv.bias, 1.0),
        (norm.running_mean, 5.0),
        (norm.running_var, 4.0),
        (norm.weight, 6.0),
        (norm.bias, 7.0),
    ]:
        nn.init.constant_(tensor, value)
    backbone = load_backbone(nn.Sequential(conv, norm), device="cpu")
    ours = folded(backbone, [map_layers(backbone, 32).resolve("1")])
    first, second = ours.network
    assert first.weight.flatten().tolist() == [9.0] * 3 and first.bias.item() == -5.0
    assert isinstance(second, nn.Identity)


class Branches(nn.Module):
    """What may lie between a convolution and a batch normalization, or next to them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.shared = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])
        self.reused, self.reused_norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.between, self.between_norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.batch, self.batch_norm = (
            nn.Conv2d(8, 8, 1),
            nn.BatchNorm2d(8, track_running_stats=False),
        )
        self.plain, self.plain_norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8, affine=False)
        self.hooked, self.hooked_norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.norms[0](self.shared(x)) + self.norms[1](self.shared(x.flip(3)))
        x = self.reused_norm(self.reused(self.reused_norm(self.reused(x)).relu()))
        x = self.between_norm(self.between(x).relu())
        x = self.batch_norm(self.batch(x))
        x = self.plain_norm(self.plain(x))
        return self.hooked_norm(self.hooked(x)).relu()


def test_only_what_nothing_else_needs_is_folded():
    backbone = opened(Branches())
    seen: list[Tensor] = []
    handle = backbone.network.hooked.register_forward_hook(lambda m, i, out: seen.append(out))
    ours, error = largest_difference(backbone, "hooked_norm")
    left = {name for name, m in ours.network.named_modules() if isinstance(m, nn.BatchNorm2d)}
    # The pair that is run twice in a row stays a pair.
    assert left == {"norms.0", "norms.1", "between_norm", "batch_norm", "hooked_norm"}
    assert error < ROUNDING
    assert len(seen) == 3  # the map of layers, and the two passes that were compared
    handle.remove()
    ours, _ = largest_difference(backbone, "hooked_norm")
    assert isinstance(ours.network.hooked_norm, nn.Identity)


class ReadTwice(nn.Module):
    """The first convolution's output goes past its normalization, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
        self.second, self.second_norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second_norm(self.second(self.first_norm(x) + x))


def test_nothing_is_folded_where_that_would_change_another_use():
    backbone = opened(ReadTwice())
    ours, error = largest_difference(backbone, "second_norm")
    assert ours is backbone and error == 0


def test_what_is_read_between_stays():
    backbone = opened(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)))
    ours, error = largest_difference(backbone, "0", "2")
    assert ours is backbone and error == 0
    ours, error = largest_difference(backbone, "1", "2")
    assert norms(ours) == 0 and error < ROUNDING
    # A container gives its last module's map: that of the convolution, too, is read then.
    nested = opened(nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3)), nn.BatchNorm2d(8), nn.ReLU()))
    assert largest_difference(nested, "0", "2")[0] is nested


class Standardized(nn.Conv2d):
    """Its weights are computed in every pass."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight / self.weight.std((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight, self.bias)


class Training(nn.BatchNorm2d):
    def train(self, mode: bool = True) -> nn.BatchNorm2d:
        return super().train(True)


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(Standardized(3, 8, 3), nn.BatchNorm2d(8)),
        nn.Sequential(nn.Conv2d(3, 8, 3), Training(8)),
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).half(),
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()),
    ],
    ids=["computed weights", "in training", "half", "none"],
)
def test_what_would_be_changed_is_left_alone(network):
    backbone = opened(network)
    layer = replace(map_layers(backbone, 32).resolve("1"), path="1")
    assert folded(backbone, [layer]) is backbone


def test_a_weight_that_two_share_is_changed_in_one():
    first, second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
    second.weight = first.weight
    backbone = opened(nn.Sequential(first, nn.BatchNorm2d(3), second))
    ours, error = largest_difference(backbone, "2")
    assert norms(ours) == 0 and error < ROUNDING
    assert ours.network[2].weight is first.weight and ours.network[0].weight is not first.weight
