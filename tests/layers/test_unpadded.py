"""Networks whose grids do not cover the image: what they draw is where it is in the image."""

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import deepff
from deepff.activations.activations import Preparation
from deepff.activations.extraction import extract_layers
from deepff.discovery.contrast import border_cells
from deepff.images.image_set import resolve_images
from deepff.images.reading import resized_shape
from deepff.layers.centers import with_centers
from deepff.layers.later import grids_on
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.pictures.crops import strongest_crops

Step = tuple[str, int, int, int, int, bool]  # kind, kernel, stride, padding, dilation, ceil_mode


def stack(steps: list[Step]) -> nn.Sequential:
    """One-channel convolutions that add up what they see, and pools."""
    modules: list[nn.Module] = []
    for kind, kernel, stride, padding, dilation, ceil_mode in steps:
        if kind == "conv":
            conv = nn.Conv2d(1 if modules else 3, 1, kernel, stride, padding, dilation, bias=False)
            nn.init.constant_(conv.weight, 1 / kernel**2)
            modules.append(conv)
        else:
            pool = nn.MaxPool2d if kind == "max" else nn.AvgPool2d
            modules.append(pool(kernel, stride, padding, ceil_mode=ceil_mode))
    return nn.Sequential(*modules).eval()


def own(network: nn.Module) -> Backbone:
    return deepff.load_backbone(network, mean=(0, 0, 0), std=(1, 1, 1), device="cpu")


def photo(shape: tuple[int, int], center: tuple[int, int], side: int) -> np.ndarray:
    """A bright square on black."""
    pixels = np.zeros((*shape, 3), np.uint8)
    rows, columns = (slice(x - side // 2, x - side // 2 + side) for x in center)
    pixels[rows, columns] = 255
    return pixels


def centroid(heatmap: torch.Tensor) -> torch.Tensor:
    down, across = (torch.arange(n) + 0.5 for n in heatmap.shape)
    total = heatmap.sum()
    return torch.stack([heatmap.sum(1) @ down / total, heatmap.sum(0) @ across / total])


def assert_drawn_in_place(network: nn.Module, side: int, spacing: int) -> None:
    """A square of two cells, in images of two shapes, is drawn to half a cell."""
    square = 2 * spacing
    places = {
        (side, side): (side // 2, side // 2),
        (side, 3 * side // 4): (side // 2, 3 * side // 8),
    }
    photos = [photo(shape, center, square) for shape, center in places.items()]
    layer = str(len(network) - 1)
    result = deepff.discover(photos, 1, model=own(network), layer=layer, size=side, random_state=0)
    for heatmap, center in zip(result.heatmaps, places.values(), strict=True):
        true = torch.tensor(center) - square // 2 + square / 2
        # Exactly half a cell is possible, and the centroid is rounded.
        assert (centroid(heatmap[0]) - true).abs().max() <= spacing / 2 + 1e-3


def reach_of(steps: list[Step]) -> tuple[int, int]:
    """The pixels between cells, and those that a cell sees."""
    spacing, reach = 1, 1
    for _, kernel, stride, _, dilation, _ in steps:
        reach += dilation * (kernel - 1) * spacing
        spacing *= stride
    return spacing, reach


@pytest.mark.parametrize(
    "steps",
    [
        [("conv", 3, 2, 0, 1, False)] * 4,
        [("conv", 3, 2, 1, 1, False)] * 4,
        [("conv", 3, 1, 1, 1, False), ("max", 2, 2, 0, 1, False)] * 3,  # "same"
        # As AlexNet begins, and SqueezeNet.
        [("conv", 11, 4, 2, 1, False), ("max", 3, 2, 0, 1, False), ("conv", 5, 1, 2, 1, False)],
        [("conv", 7, 2, 0, 1, False)] + [("max", 3, 2, 0, 1, True)] * 3,
        [("conv", 7, 2, 0, 1, False)] + [("max", 3, 2, 0, 1, False)] * 3,
        [("conv", 11, 4, 0, 1, False), ("avg", 3, 2, 0, 1, True)],
    ],
)
def test_a_square_is_drawn_where_it_is(steps: list[Step]) -> None:
    assert_drawn_in_place(stack(steps), 320, reach_of(steps)[0])


@st.composite
def a_step(draw: st.DrawFn) -> Step:
    kind = draw(st.sampled_from(["conv", "conv", "max", "avg"]))
    kernel = draw(st.integers(1 if kind == "conv" else 2, 7))
    dilation = draw(st.integers(1, 2)) if kind == "conv" else 1
    padding = draw(st.integers(0, dilation * (kernel - 1) if kind == "conv" else kernel // 2))
    return kind, kernel, draw(st.integers(1, 4)), padding, dilation, draw(st.booleans())


@given(st.lists(a_step(), min_size=1, max_size=3))
@settings(max_examples=12, deadline=None)
def test_a_square_is_drawn_where_it_is_by_any_stack(steps: list[Step]) -> None:
    spacing, reach = reach_of([("conv", 1, 1, 0, 1, False), *steps])
    assume(2 <= spacing <= 24)
    side = max(224, 8 * spacing + 3 * reach)
    assert_drawn_in_place(stack([("conv", 1, 1, 0, 1, False), *steps]), side, spacing)


# Its layer, its grid on 224 × 160 pixels, and where windows put the first cell: padding before it
# moves the middle of the first window back, and each window of a stride moves it on.
FAMILIES = {
    "alexnet": ("features.11", (13, 9), 16, 15.5),
    "squeezenet1_0": ("classifier.2", (13, 9), 16, 17.5),
    "squeezenet1_1": ("classifier.2", (13, 9), 16, 15.5),
    "inception_v3": ("Mixed_5d", (25, 17), 8, 13.5),
}
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        "alexnet",
        "squeezenet1_1",
        *(pytest.param(x, marks=SLOW) for x in ("squeezenet1_0", "inception_v3")),
    ],
)
def test_known_networks_draw_a_square_where_it_is(name: str, tmp_path) -> None:
    layer, grid, spacing, first = FAMILIES[name]
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, weights=None)
    with torch.no_grad():  # random means of what cells see; batch normalization stays as it is
        for path, parameter in network.named_parameters():
            if parameter.ndim == 4:
                parameter.abs_().div_(parameter.sum((1, 2, 3), keepdim=True))
            elif path.endswith("bias"):
                parameter.zero_()
    backbone = own(network.eval())
    shape, center = (224, 160), (96, 100)
    ramp = np.linspace(0, 40, shape[1]).astype(np.uint8)[:, None].repeat(3, 1)
    without = np.broadcast_to(ramp, (*shape, 3)).copy()  # a picture of one color would be skipped
    square = np.maximum(without, photo(shape, center, 40))
    photos = [without, square, photo((200, 200), (100, 100), 40)]
    options = {"model": backbone, "layer": layer, "size": 224, "random_state": 0}
    result = deepff.discover(photos, 1, cache=tmp_path, **options)
    assert result.grids[0] == grid
    height, width = resized_shape(*shape, 224, result.sources[0].multiple)
    ((top, bottom), (left, right)) = result.images[0].extent
    spacings = (bottom - top) * height / grid[0], (right - left) * width / grid[1]
    assert spacings == pytest.approx((spacing, spacing))
    drawn = (top * height + spacing / 2, left * width + spacing / 2)
    assert drawn == pytest.approx((first, first), abs=spacing / 4)
    difference = (result.heatmaps[1][0] - result.heatmaps[0][0]).abs()
    assert (centroid(difference) - torch.tensor(center)).abs().max() <= spacing / 2

    again = deepff.discover(photos, 1, cache=tmp_path, **options)
    assert torch.equal(again.coefficients, result.coefficients)
    applied = deepff.apply(result.bank, photos[1:], model=backbone)
    assert applied.grids == result.grids[1:]
    assert applied.images[0].extent == result.images[1].extent
    # A click is answered by the cell whose center is nearest.
    row, column = 5, 5
    x = (left + (column + 0.6) * spacing / width) * shape[1]
    y = (top + (row + 0.4) * spacing / height) * shape[0]
    similarity = result.similar(1, (x, y))
    assert similarity.heatmaps.grid(1)[0, row, column] == pytest.approx(1, abs=1e-4)


@SLOW
@pytest.mark.parametrize("layer", ["Mixed_5d", "Mixed_7c"])
def test_inception_at_448(layer: str) -> None:
    torch.manual_seed(0)
    backbone = deepff.load_backbone("inception_v3", pretrained=False, device="cpu")
    photos = [photo((448, 320), (200, 180), 64), photo((448, 448), (200, 180), 64)]
    result = deepff.discover(photos, 1, model=backbone, layer=layer, size=448, random_state=0)
    # By hand: windows of 3 and of stride 2, without padding, end at 53 and 12 cells.
    assert result.grids[1] == {"Mixed_5d": (53, 53), "Mixed_7c": (12, 12)}[layer]


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("shape", [(96, 60), (72, 96), (96, 96), (56, 96)])
def test_the_grid_is_what_the_network_gives(shape: tuple[int, int], measured: bool) -> None:
    """Windows of 5 and 3, each of stride 2: a cell per 4 pixels, from 9 pixels on."""
    backbone = own(stack([("conv", 5, 2, 0, 1, False), ("max", 3, 2, 0, 1, False)]))
    layer = map_layers(backbone, 96).resolve("1")
    if measured:
        (layer,) = with_centers(backbone, [layer])
        assert layer.centers is not None and (layer.centers.spacing, layer.centers.centred) == (
            4,
            4.5,
        )
        assert layer.grid_on((61, 62)) == grids_on(backbone, [layer], (61, 62))[0] == (14, 14)
    images = resolve_images([photo(shape, (30, 30), 20)])
    (activations,), _ = extract_layers(images, backbone, [layer], Preparation(96))
    height, width = (side - side % layer.stride for side in shape)
    assert activations.images[0].grid == ((height - 9) // 4 + 1, (width - 9) // 4 + 1)


def test_a_network_without_gradient_is_drawn_by_its_windows() -> None:
    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = stack([("conv", 7, 4, 0, 1, False), ("conv", 3, 2, 0, 1, False)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.detach())

    backbone = own(Blind().eval())
    (layer,) = with_centers(backbone, [map_layers(backbone, 64).resolve("inner.1")])
    # The first cell sees 7 + 2 · 4 pixels.
    assert layer.centers is not None
    assert (layer.centers.spacing, layer.centers.drawn_offset) == (8, (7.5, 7.5))


def test_the_border_is_where_cells_respond() -> None:
    """Nearer than a tenth to an edge: 0.05 and 0.15 of the side, but 0.15 and 0.25 inset."""
    ring = border_cells((10, 10))
    assert ring.sum() == 36
    assert torch.equal(border_cells((10, 10), ((0.0, 1.0), (0.0, 1.0))), ring)
    # Half a cell up: the second row is at 0.1, which is no longer near; 0.06 still is.
    shifted = border_cells((10, 10), ((-0.06, 0.94), (0.0, 1.0)))
    assert shifted[:, 5].tolist() == [True, True, *[False] * 7, True]
    # However far inside, the outermost cells are border.
    assert border_cells((4, 4), ((0.3, 0.7), (0.3, 0.7))).sum() == 12


def test_crops_are_three_cells_wide() -> None:
    """Cells of 64 pixels, which cover the middle of the image alone."""
    image = photo((640, 640), (320, 320), 64)
    torch.manual_seed(0)
    network = stack([("conv", 8, 8, 0, 1, False), ("conv", 3, 1, 0, 1, False)])
    result = deepff.discover([image], 1, model=own(network), layer="1", size=80, random_state=0)
    assert result.grids == [(8, 8)]
    (((crop,),),) = strongest_crops(result).values()
    left, top, right, bottom = crop.box
    assert (right - left, bottom - top) == (192, 192)
    assert ((left + right) / 2, (top + bottom) / 2) == pytest.approx((320, 320), abs=32)
