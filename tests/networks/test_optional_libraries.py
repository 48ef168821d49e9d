"""Networks of transformers and open_clip, made from a configuration with random weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deepff.errors import InputError
from deepff.layers.later import forward_to_layers
from deepff.layers.layer_map import map_layers
from deepff.networks import building
from deepff.networks.loading import load_backbone

SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def transformers_network(config: str, **options: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    made = getattr(transformers, config)(**SMALL, **options)
    return transformers.AutoModel.from_config(made).eval()


def clip() -> nn.Module:
    open_clip = pytest.importorskip("open_clip")
    vision = {"image_size": 64, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16}
    text = {"context_length": 8, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1}
    torch.manual_seed(0)
    return open_clip.model.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text).eval()


# What makes a network, its layout, patch and the prefix.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "ViT": (lambda: transformers_network("ViTConfig", image_size=64, patch_size=16), 16, 1),
    "DINOv2 with registers": (
        lambda: transformers_network("Dinov2WithRegistersConfig", image_size=56, patch_size=14),
        14,
        5,
    ),
    "CLIP": (lambda: transformers_network("CLIPVisionConfig", image_size=64, patch_size=16), 16, 1),
    "SigLIP": (
        lambda: transformers_network("SiglipVisionConfig", image_size=64, patch_size=16),
        16,
        0,
    ),
}


def hidden_states(network: nn.Module, batch: Tensor) -> Tensor:
    with torch.no_grad():
        return network(batch, interpolate_pos_encoding=True, output_hidden_states=True)[
            "hidden_states"
        ][-1]


@pytest.mark.parametrize("name", NETWORKS)
def test_transformers_layers_are_maps_of_any_size(name: str) -> None:
    build, patch, prefix = NETWORKS[name]
    network = build()
    backbone = load_backbone(network)
    layer_map = map_layers(backbone, 6 * patch)
    encoder = layer_map.resolve("encoder" if "encoder" in layer_map.by_path else "layers.1")
    layout = f"tokens after {prefix}" if prefix else "tokens"
    assert (str(encoder.layout), encoder.stride, encoder.grid) == (layout, patch, (6, 6))
    assert encoder.input_size is None
    assert layer_map.resolve().path.endswith(("k_proj", "key"))
    batch = torch.randn(2, 3, 4 * patch, 5 * patch)
    (found,) = forward_to_layers(backbone, [encoder], batch)
    assert found.shape == (2, 24, 4, 5)
    torch.testing.assert_close(found.flatten(2).mT, hidden_states(network, batch)[:, prefix:])


def test_a_network_in_a_folder_is_loaded_by_name(tmp_path: Path) -> None:
    network = transformers_network("ViTConfig", image_size=64, patch_size=16)
    network.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        '{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25], "resample": 3}'
    )
    backbone = load_backbone(f"hf/{tmp_path}")
    assert backbone.name == f"hf/{tmp_path}"
    assert (backbone.mean, backbone.std) == ((0.5,) * 3, (0.25,) * 3)
    assert backbone.interpolation == "bicubic"
    state = backbone.network.state_dict()
    assert all(torch.equal(state[key], value) for key, value in network.state_dict().items())
    random = load_backbone(f"hf/{tmp_path}", pretrained=False)
    assert random.weights == "random" and random.weights_digest != backbone.weights_digest


def test_open_clip_runs_at_its_own_size() -> None:
    network = clip()
    for made, path in ((network, "visual.transformer"), (network.visual, "transformer")):
        backbone = load_backbone(made)
        layer = map_layers(backbone, 96).resolve(path)
        assert (str(layer.layout), layer.grid, layer.input_size) == ("tokens after 1", (4, 4), 64)
        batch = torch.randn(2, 3, 64, 64)
        (found,) = forward_to_layers(backbone, [layer], batch)
        seen: list[Tensor] = []
        module = backbone.network.get_submodule(path)
        module.register_forward_hook(lambda m, i, output, seen=seen: seen.append(output))
        with torch.no_grad():
            network.visual(batch)
        torch.testing.assert_close(found.flatten(2).mT, seen[-1][:, 1:])


def test_open_clip_by_name() -> None:
    pytest.importorskip("open_clip")
    backbone = load_backbone("open_clip/RN50", pretrained=False)
    assert backbone.mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))
    assert backbone.interpolation == "bicubic" and backbone.weights == "random"
    assert map_layers(backbone, 224).resolve("layer4").channels == 2048


def test_what_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("open_clip")
    with pytest.raises(InputError, match=r"hf/.* cannot be loaded"):
        load_backbone(f"hf/{tmp_path}")
    with pytest.raises(InputError, match=r"no network 'ViT-B-33'; the closest are ViT-B-32"):
        load_backbone("open_clip/ViT-B-33")
    with pytest.raises(InputError, match=r"no weights 'laion' for ViT-B-32; choose one of"):
        load_backbone("open_clip/ViT-B-32/laion")
    with pytest.raises(InputError, match="images of 3 channels"):
        load_backbone("open_clip/ViT-B-32", channels=1)
    monkeypatch.setitem(building.OPTIONAL, "hf", "module_not_there")
    with pytest.raises(InputError, match=r"run: pip install 'deepff\[module_not_there\]'"):
        load_backbone("hf/facebook/dinov2-small")
