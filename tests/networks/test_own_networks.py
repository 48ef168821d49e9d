"""One's own modules: of any type, of grey images, with views; and images of few bits."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deepff
from deepff.activations.activations import Activations, Preparation
from deepff.activations.extraction import extract_layers
from deepff.errors import InputError, InputWarning
from deepff.images.image_files import find_images
from deepff.layers.layer_map import list_layers, map_layers
from deepff.networks.loading import load_backbone

SIZE = 32


def photos(folder: Path, n: int = 3) -> Path:
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    for number in range(n):
        small = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        image.save(folder / f"{number}.png")
    return folder


def pixels(folder: Path) -> Tensor:
    """The images as they are, (n, 3, SIZE, SIZE) in [0, 1]."""
    read = [np.asarray(Image.open(path)) for path in sorted(folder.iterdir())]
    return torch.from_numpy(np.stack(read)).permute(0, 3, 1, 2).contiguous() / 255


def trunk(channels: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 6, 3, 2, 1), nn.ReLU()
    )


def run(network: nn.Module, folder: Path, layer: str | None = None, **options: object) -> Tensor:
    """A of the images, which need no resizing, by a network whose input is not normalised."""
    n = options.get("channels", 3)
    backbone = load_backbone(network, mean=[0.0] * n, std=[1.0] * n, **options)
    found = map_layers(backbone, SIZE).resolve(layer)
    activations: Activations
    (activations,), _ = extract_layers(
        find_images(folder), backbone, [found], Preparation(SIZE), batch_size=2
    )
    return activations.rows


def as_rows(maps: Tensor) -> Tensor:
    return maps.permute(0, 2, 3, 1).flatten(0, 2).float()


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.float16])
def test_a_network_of_any_type_gets_a_batch_of_its_type(tmp_path: Path, kind: torch.dtype) -> None:
    folder = photos(tmp_path / "photos")
    rows = run(trunk().to(kind), folder)
    with torch.no_grad():
        expected = as_rows(trunk().to(kind).double()(pixels(folder).to(kind).double()))
    assert rows.dtype == torch.float32
    tolerance = {torch.float64: 1e-6, torch.bfloat16: 0.02, torch.float16: 0.003}[kind]
    assert float((rows - expected).norm() / expected.norm()) < tolerance


class Views(nn.Module):
    """Flattens by view before its last layers, as much code does; patch by patch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.mix = nn.Linear(4 * SIZE, 4 * SIZE)
        self.last = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        tokens = self.mix(x.view(len(x), -1, 4 * SIZE))
        return self.last(tokens.view(len(x), 8, SIZE, SIZE))


def test_a_forward_that_takes_views_runs(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    torch.manual_seed(0)
    network = Views()
    with torch.no_grad():
        expected = as_rows(network(pixels(folder)))
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        network(pixels(folder).to(memory_format=torch.channels_last))
    torch.testing.assert_close(run(network, folder, "last"), expected, atol=1e-5, rtol=1e-5)


def test_a_network_of_grey_images(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    rows = run(trunk(1), folder, channels=1)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    with torch.no_grad():
        expected = as_rows(trunk(1)((pixels(folder) * weights).sum(1, keepdim=True)))
    torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-5)


def test_statistics_of_grey_images() -> None:
    backbone = load_backbone(trunk(1), channels=1)
    assert backbone.channels == 1
    assert backbone.mean == pytest.approx((0.449,), abs=1e-3)
    assert backbone.std == pytest.approx((0.226,), abs=1e-3)
    with pytest.raises(InputError, match=r"mean is \[0.1, 0.2, 0.3\]; give one number"):
        load_backbone(trunk(1), channels=1, mean=[0.1, 0.2, 0.3])


def test_a_grey_network_of_timm_and_none_of_torchvision() -> None:
    backbone = load_backbone("timm/mobilenetv3_small_050", channels=1, pretrained=False)
    assert backbone.network.conv_stem.in_channels == 1
    assert list_layers(backbone, 64)
    for name in ("resnet18", "efficientnet_lite0"):
        with pytest.raises(InputError, match=f"{name} needs images with 3 channels"):
            load_backbone(name, channels=1, pretrained=False)
    with pytest.raises(InputError, match="channels is 4; use 3, or 1"):
        load_backbone(trunk(4), channels=4)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Captioned(nn.Module):
    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        return image


CANNOT = {
    "grey": (lambda: trunk(1), {}, "it takes 1 channel: load it with channels=1"),
    "colours": (lambda: trunk(3), {"channels": 1}, "it takes 3 channels: load it with channels=3"),
    "multispectral": (lambda: trunk(7), {}, "it takes 7 channels, but images have 3, or 1"),
    "two types": (Mixed, {}, "its parameters are float32 and float64; convert them to one type"),
    "two inputs": (Captioned, {}, "its forward must take just a batch of images"),
}


@pytest.mark.parametrize("case", CANNOT)
def test_a_network_that_cannot_run_says_why(case: str) -> None:
    make, options, advice = CANNOT[case]
    with pytest.raises(InputError) as error:
        map_layers(load_backbone(make(), **options), SIZE).resolve()
    assert advice in str(error.value)
    assert "try another size" not in str(error.value) and "\n" not in str(error.value)


def test_a_head_of_one_size_does_not_keep_from_the_layers_before(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.head = trunk(), nn.Linear(6 * 7 * 7, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.trunk(x).flatten(1))

    folder = photos(tmp_path / "photos")
    torch.testing.assert_close(run(Fixed(), folder, "trunk"), run(trunk(), folder))
    for layer in (None, "head"):
        with pytest.raises(InputError, match=r"try another size, or name a layer before, such as"):
            run(Fixed(), folder, layer)


class IntegersFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)
        self.trunk = trunk()

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x)


def test_parameters_of_integers_do_not_make_the_batch_one(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    torch.testing.assert_close(run(IntegersFirst(), folder), run(trunk(), folder))


class WantsLogits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.logits


class ElsewhereModule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to("cuda:99")


def traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        return torch.jit.trace(trunk(), torch.zeros(1, 3, SIZE, SIZE))


def exported() -> nn.Module:
    return torch.export.export(trunk().eval(), (torch.zeros(1, 3, SIZE, SIZE),)).module()


@pytest.mark.filterwarnings("ignore:.*jit.*deprecated")
def test_a_part_in_torchscript_hides_only_its_own_layers(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    network = nn.Sequential(torch.jit.script(trunk()), nn.ReLU())
    with torch.no_grad():
        expected = as_rows(trunk()(pixels(folder)))
    torch.testing.assert_close(run(network, folder), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(InputError, match=r"'0' of Sequential is TorchScript, .* such as 1$"):
        run(network, folder, "0")


NO_NETWORKS = {
    "lazy": (
        lambda: nn.Sequential(nn.LazyConv2d(4, 3)),
        "has no weights yet, as its layers are lazy",
    ),
    "meta": (
        lambda: trunk().to("meta"),
        "has no weights yet, as its layers are lazy or on the device meta",
    ),
    "TorchScript": (traced, "is TorchScript, which hides its layers"),
    "torch.export": (exported, "is a torch.export program, which hides its layers; pass the"),
    "a class": (lambda: nn.ReLU, "model is a type; pass a network's name or an nn.Module"),
    "a state dict": (lambda: trunk().state_dict(), "pass a network's name or an nn.Module"),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(3, 4, 3)), "it takes volumes, not images"),
    "an error of its own": (WantsLogits, "its forward must take just a batch of images"),
    "another device": (ElsewhereModule, "its forward must stay on the network's device, cpu"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("case", NO_NETWORKS)
def test_what_is_no_network_that_can_run_is_one_sentence(case: str) -> None:
    make, words = NO_NETWORKS[case]
    with pytest.raises(InputError) as error:
        map_layers(load_backbone(make()), SIZE).resolve()
    assert words in str(error.value) and "\n" not in str(error.value)


# --- few bits in files of 16


def deep_photos(folder: Path, largest: int) -> Path:
    folder.mkdir()
    for path in sorted(photos(folder.parent / "of 8 bits").iterdir()):
        grey = np.asarray(Image.open(path).convert("L")).astype(np.float64)
        grey = np.rint(grey / grey.max() * largest).astype(np.uint16)
        Image.fromarray(grey).save(folder / path.name)
    return folder


def test_images_that_are_nearly_black_are_told_once_and_can_be_stretched(tmp_path: Path) -> None:
    dark, light = deep_photos(tmp_path / "dark", 1023), deep_photos(tmp_path / "light", 65535)
    backbone = load_backbone(trunk())
    layer = map_layers(backbone, SIZE).resolve()
    cache = tmp_path / "cache"
    with pytest.warns(InputWarning) as caught:
        (as_is,), _ = extract_layers(
            find_images(dark), backbone, [layer], Preparation(SIZE), cache=cache
        )
    assert [str(warning.message) for warning in caught] == [
        "3 images are nearly black: the largest value in 0.png is 1023 of 65535; if that should "
        "be white, use stretch=True (--stretch)"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        (stretched,), _ = extract_layers(
            find_images(dark), backbone, [layer], Preparation(SIZE, stretch=True), cache=cache
        )
        (expected,), _ = extract_layers(find_images(light), backbone, [layer], Preparation(SIZE))
    assert float((stretched.rows - expected.rows).abs().max()) < 0.02
    assert float((as_is.rows - expected.rows).abs().max()) > 0.1


def test_of_equal_broken_files_each_is_skipped(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    cut = (folder / "0.png").read_bytes()[:-50]
    for name in ("a.png", "b.png", "sub/c.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(cut)
    backbone = load_backbone(trunk())
    layer = map_layers(backbone, SIZE).resolve()
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        (activations,), skipped = extract_layers(
            find_images(folder), backbone, [layer], Preparation(SIZE), cache=cache
        )
        assert sorted(file.name for file in skipped) == ["a.png", "b.png", "sub/c.png"]
        assert [image.name for image in activations.images] == ["0.png", "1.png", "2.png"]


def test_threads_can_share_a_network(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    network = nn.Sequential(*trunk(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
    shared = load_backbone(network, labels=list("abcd"))

    def run_all(number: int) -> list[Tensor]:
        # Every other one opens the user's module itself.
        model = shared if number % 2 else load_backbone(network, labels=list("abcd"))
        result = deepff.discover(tmp_path / "photos", 2, model=model, size=SIZE)
        new = deepff.apply(result.bank, tmp_path / "photos", model=model)
        return [result.coefficients, new.coefficients, result.importance().falls]

    alone = run_all(0)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(run_all, range(24)):
            assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))
    assert not any(module._forward_hooks for module in network.modules())


def test_the_size_is_by_default_that_of_small_images_in_an_own_network(tmp_path: Path) -> None:
    photos(tmp_path / "small")
    network = trunk()
    result = deepff.discover(tmp_path / "small", 2, model=network)
    assert result.sources[0].size == SIZE
    large = photos(tmp_path / "large", 1)
    Image.open(large / "0.png").resize((600, 500)).save(large / "0.png")
    assert deepff.discover(large, 2, model=network).sources[0].size == 448
    with pytest.warns(
        InputWarning, match="at most 32 pixels wide or high and are enlarged 5 times"
    ):
        deepff.discover(tmp_path / "small", 2, model=network, size=5 * SIZE)
