"""OpenVINO gives what torch gives, where it can; where it can't, torch runs and a line says so."""

import json
import sys
import warnings
from pathlib import Path

import pytest
import timm
import torch
from network_rounding import assert_equal_but_for_rounding
from torch import Tensor, nn

import deepff
from deepff.activations import engines
from deepff.activations.activations import Preparation
from deepff.activations.engines import openvino_version
from deepff.activations.extraction import extract_layers
from deepff.errors import InputError, InputWarning
from deepff.images.image_files import ImageFile, find_images
from deepff.layers.layer_map import map_layers
from deepff.networks.loading import load_backbone

# Not importorskip: imported by itself, it would report over the network.
pytestmark = [
    pytest.mark.skipif(openvino_version() is None, reason="OpenVINO is not installed"),
    pytest.mark.usefixtures("conversions"),
]
SIZE = 128


@pytest.fixture(scope="module")
def files(data_root: Path) -> list[ImageFile]:
    return list(find_images(data_root / "VOCdevkit/VOC2007/JPEGImages"))[:6]


def read(engine: str, files, layers=("bn2",), model="efficientnet_lite0", **options):
    backbone = load_backbone(model, engine=engine, device="cpu", pretrained=model[0] == "e")
    resolved = [map_layers(backbone, SIZE).resolve(layer) for layer in layers]
    return extract_layers(files, backbone, resolved, Preparation(SIZE), **options)[0]


def test_the_rows_of_several_layers_are_those_of_torch(files, conversions):
    layers = ("blocks.3.0.bn1", "blocks.6.0", "bn2")
    ours, theirs = (read(engine, files, layers) for engine in ("openvino", "torch"))
    assert len({image.grid for image in ours[0].images}) > 1
    for rows, expected in zip(ours, theirs, strict=True):
        assert rows.source.engine.startswith("openvino 20") and expected.source.engine == "torch"
        assert [i.name for i in rows.images] == [i.name for i in expected.images]
        assert_equal_but_for_rounding(rows.rows, expected.rows)
    kept = max(conversions.iterdir(), key=lambda folder: folder.stat().st_mtime)
    assert (kept / "model.xml").is_file()
    again = read("openvino", files, layers)
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(again, ours, strict=True))
    (kept / "model.bin").write_bytes(b"damaged")
    repaired = read("openvino", files, layers)
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(repaired, ours, strict=True))


def test_maps_and_masks_are_those_of_torch(data_root, tmp_path):
    folder = next((data_root / "icoseg/images").glob("042*"))
    photos = sorted(folder.glob("*.jpg"))[:5]
    ours, theirs = (
        deepff.discover(photos, 4, model=load_backbone(engine=engine), size=224)
        for engine in ("openvino", "torch")
    )
    for k in range(4):
        maps, expected = ours.coefficients[:, k], theirs.coefficients[:, k]
        assert (maps - expected).abs().max() < 1e-3 * expected.max()
    pairs = list(zip(ours.regions(), theirs.regions(), strict=True))
    different = sum(int((a.masks != b.masks).sum()) for a, b in pairs)
    assert different < 1e-3 * sum(a.masks.numel() for a, _ in pairs)
    ours.save(tmp_path / "result")
    manifest = json.loads((tmp_path / "result/manifest.json").read_text())
    assert manifest["sources"][0]["engine"] == ours.sources[0].engine != "torch"
    assert deepff.load(tmp_path / "result").sources == ours.sources


def test_token_layouts_are_those_of_torch(files):
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", depth=2, dynamic_img_size=True)
    activations = []
    for engine in ("openvino", "torch"):
        backbone = load_backbone(network, engine=engine, device="cpu")
        resolve = map_layers(backbone, SIZE).resolve
        layers = [resolve("blocks.1.attn.qkv:keys"), resolve("blocks.0")]
        activations.append(extract_layers(files[:3], backbone, layers, Preparation(SIZE))[0])
    for ours, theirs in zip(*activations, strict=True):
        assert ours.source.engine != "torch"
        assert_equal_but_for_rounding(ours.rows, theirs.rows)


def test_engines_share_no_rows_and_what_is_held_is_not_run(files, tmp_path):
    cache = tmp_path / "cache"
    for engine in ("torch", "openvino", "openvino"):
        read(engine, files[:2], cache=cache)
    sources = [json.loads(path.read_text()) for path in cache.glob("*/source.json")]
    assert {source.get("engine", "torch")[:8] for source in sources} == {"torch", "openvino"}
    (kept,) = (cache / "openvino").iterdir()
    (kept / "model.xml").unlink()
    read("openvino", files[:2], cache=cache)
    assert not (kept / "model.xml").exists()


class Own(nn.Module):
    """A network whose forward does with each image's size what tracing cannot follow."""

    def __init__(self, follows: bool = True) -> None:
        super().__init__()
        self.conv, self.norm, self.follows = nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), follows

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        if not self.follows:
            x = x * float(x.shape[3] / (x.shape[2] + x.shape[3]))
        return self.norm(x)


def test_ones_own_network_runs_by_it_where_it_can(files, tmp_path):
    torch.manual_seed(0)
    network = Own()
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        (ours,) = read_own(network, files, tmp_path)
    assert ours.source.engine.startswith("openvino")
    network.follows = False
    for _ in range(2):
        with pytest.warns(
            InputWarning, match=r"Own runs in torch, because OpenVINO .* different values"
        ):
            (ours,) = read_own(network, files, tmp_path)
        backbone = load_backbone(network, engine="torch", device="cpu")
        (theirs,), _ = extract_layers(
            files, backbone, [map_layers(backbone, SIZE).resolve("norm")], Preparation(SIZE)
        )
        assert ours.source.engine == "torch" and torch.equal(ours.rows, theirs.rows)


def read_own(network: nn.Module, files, folder: Path):
    backbone = load_backbone(network, engine="openvino", device="cpu")
    layer = map_layers(backbone, SIZE).resolve("norm")
    return extract_layers(files, backbone, [layer], Preparation(SIZE))[0]


def test_hooks_are_called_and_other_types_kept(files):
    network = Own()
    seen: list[Tensor] = []
    network.conv.register_forward_hook(lambda m, i, out: seen.append(out))
    with pytest.warns(InputWarning, match="it has hooks, which only PyTorch calls"):
        (activations,) = read_own(network, files[:2], Path())
    assert activations.source.engine == "torch" and len(seen) >= 2
    with pytest.warns(InputWarning, match="its weights are float64"):
        assert read_own(Own().double(), files[:2], Path())[0].source.engine == "torch"


def test_auto_takes_it_for_large_sets_of_networks_that_gain(files, monkeypatch):
    assert read("auto", files[:6])[0].source.engine == "torch"
    monkeypatch.setattr(engines, "AUTO_LEAST_IMAGES", 6)
    assert read("auto", files[:5])[0].source.engine == "torch"
    assert read("auto", files[:6])[0].source.engine.startswith("openvino")
    assert read("auto", files[:6], ["features.15"], "vgg11")[0].source.engine == "torch"


def test_what_cannot_be_had_is_refused(monkeypatch):
    with pytest.raises(InputError, match="OpenVINO computes on the CPU, not on cuda"):
        load_backbone(engine="openvino", device="cuda")
    with pytest.raises(InputError, match="no engine 'onnx'; choose one of auto, torch, openvino"):
        load_backbone(engine="onnx")
    monkeypatch.setattr("deepff.networks.loading.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'deepff\[openvino\]'"):
        load_backbone(engine="openvino")


def test_nothing_is_reported_over_the_network(files):
    read("openvino", files[:1])
    assert "openvino_telemetry" not in sys.modules
