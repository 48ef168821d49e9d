"""A run over batches keeps rows with their images, and ends at once where the network fails."""

import threading

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from deepff.activations.activations import Preparation
from deepff.activations.engines import openvino_version
from deepff.activations.extraction import extract_layers
from deepff.errors import InputError
from deepff.images.image_files import find_images
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import normalized
from deepff.networks.loading import load_backbone

SIZE = 128
EPSILON = torch.finfo(torch.float32).eps
OPENVINO = pytest.param(
    "openvino",
    marks=pytest.mark.skipif(openvino_version() is None, reason="OpenVINO is not installed"),
)


pytestmark = pytest.mark.usefixtures("conversions")


class Means(nn.Module):
    """Cells of 32 × 32 pixels: the mean of each color, and of red squared."""

    def __init__(self) -> None:
        super().__init__()
        self.colors, self.cells = nn.Conv2d(3, 3, 1, bias=False), nn.Identity()
        nn.init.eye_(self.colors.weight.data[..., 0, 0])

    def forward(self, x: Tensor) -> Tensor:
        means = nn.functional.avg_pool2d(self.colors(x), 32)
        return self.cells(torch.cat([means, means[:, :1].square()], 1))


class MeansOfWide(Means):
    """The same, of images that are three cells wide or more."""

    def forward(self, x: Tensor) -> Tensor:
        over_three = nn.functional.avg_pool2d(x, (32, 96), 32)
        return super().forward(x + 0 * over_three.mean((2, 3), keepdim=True))


def opened(network: nn.Module, engine: str):
    as_they_are = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    backbone = load_backbone(network, engine=engine, device="cpu", **as_they_are)
    return backbone, map_layers(backbone, SIZE).resolve("cells")


@pytest.mark.parametrize("engine", ["torch", OPENVINO])
@pytest.mark.parametrize("cached", [False, True])
def test_rows_are_with_their_images_whatever_the_batches_are(engine, cached, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    shapes = [(128, 128)] * 5 + [(128, 64)] * 2 + [(64, 128)] * 7 + [(128, 96), (96, 128)]
    damaged = (1, 5, 6, 9, 14)  # among others, and all of a batch
    colors = {}
    for n in torch.randperm(16, generator=torch.Generator().manual_seed(0)).tolist():
        file, color = photos / f"{n * 7 % 16:02}.png", (16 * n, 255 - 16 * n, 7 * n)
        image = Image.new("RGB", shapes[n], color)
        image.paste("black", (0, 0, 32, 32))  # the first cell
        image.save(file)
        if n in damaged:
            file.write_bytes(file.read_bytes()[:-40])
        else:
            colors[file.name] = torch.tensor(color) / 255
    backbone, layer = opened(Means(), engine)
    options = {"batch_size": 3, "cache": tmp_path / "cache" if cached else None}
    (activations,), skipped = extract_layers(
        find_images(photos), backbone, [layer], Preparation(SIZE), **options
    )
    assert activations.source.engine.startswith(engine) and len(skipped) == len(damaged)
    assert [image.name for image in activations.images] == sorted(colors)
    for image, rows in zip(activations.images, activations.image_rows, strict=True):
        color = colors[image.name]
        expected = torch.cat([color, color[:1].square()]).repeat(len(rows), 1)
        expected[0] = 0
        # A mean over 1,024 pixels rounds 1,024 times, by half an ε of its sum at most.
        torch.testing.assert_close(rows, expected, atol=1024 * EPSILON / 2, rtol=0)
    (again,), _ = extract_layers(
        find_images(photos), backbone, [layer], Preparation(SIZE), **options
    )
    assert torch.equal(again.rows, activations.rows)


@pytest.mark.parametrize("engine", ["torch", OPENVINO])
def test_a_network_that_fails_in_a_later_batch_leaves_no_thread(engine, tmp_path):
    for n in range(40):
        image = Image.new("RGB", (128 if n < 9 else 64, 128), (6 * n, 0, 0))
        image.paste("white", (0, 0, 32, 32))
        image.save(tmp_path / f"{n:02}.png")
    backbone, layer = opened(MeansOfWide(), engine)
    threads, n_threads = set(threading.enumerate()), torch.get_num_threads()
    with pytest.raises(InputError, match="128×64 pixels") as caught:
        extract_layers(find_images(tmp_path), backbone, [layer], Preparation(SIZE), batch_size=4)
    assert "MeansOfWide" in str(caught.value)  # which holds the frames that failed
    assert set(threading.enumerate()) == threads and torch.get_num_threads() == n_threads


@pytest.mark.parametrize(
    ("shape", "squeezed"),
    [((2000, 128), "2000 × 128"), ((128, 300), ""), ((40, 2000), "40 × 2000")],
)
def test_a_panorama_that_is_squeezed_is_named(shape, squeezed, tmp_path, recwarn):
    """At 128 pixels 2000 × 128 would be 128 × 8, and becomes 128 × 32: 3.9 times as high."""
    Image.linear_gradient("L").resize(shape).save(tmp_path / "wide.png")
    Image.linear_gradient("L").save(tmp_path / "square.png")
    backbone, layer = opened(Means(), "torch")
    extract_layers(find_images(tmp_path), backbone, [layer], Preparation(SIZE))
    said = [str(warning.message) for warning in recwarn if "squeezed" in str(warning.message)]
    assert [text.partition(" of ")[2][: len(squeezed)] for text in said] == [squeezed] * bool(
        squeezed
    )
    assert all("wide.png" in text and "square" not in text for text in said)


def test_pixels_are_normalized_by_channel():
    pixels = torch.randint(0, 256, (2, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    backbone = load_backbone(Means(), mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3), device="cpu")
    mean, std = (torch.tensor(v).double().view(3, 1, 1) for v in (backbone.mean, backbone.std))
    expected = ((pixels.double() / 255 - mean) / std).float()
    # Three roundings of values up to 10.
    pixels_in = normalized(backbone, pixels.to(torch.uint8))
    assert (
        pixels_in.dtype == torch.float32 and (pixels_in - expected).abs().max() < 3 * 10 * EPSILON
    )
