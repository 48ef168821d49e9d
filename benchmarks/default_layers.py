"""The default layer of 40 networks with random weights, as the table of docs/default-layers.md.

    python benchmarks/default_layers.py            # all of them
    python benchmarks/default_layers.py vgg swin   # those whose name contains one of these

It needs timm, transformers and open_clip, and downloads nothing.
"""

import argparse
import gc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone

SIZE = 256  # a multiple of 32 that networks with windows of 8 take, too

NAMES = [
    *("efficientnet_lite0", "vgg16", "vgg19", "vgg19_bn", "resnet101"),
    *("alexnet", "squeezenet1_1", "densenet121", "googlenet", "inception_v3"),
    *("mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x1_0", "efficientnet_b0"),
    *("regnet_y_400mf", "convnext_tiny", "swin_t", "vit_b_32"),
    *("timm/mobilenetv3_small_100", "timm/hardcorenas_a", "timm/ghostnet_100"),
    *("timm/resnetv2_50", "timm/hrnet_w18_small", "timm/efficientformer_l1"),
    *("timm/mobilevit_xxs", "timm/fastvit_t8", "timm/poolformer_s12", "timm/pvt_v2_b0"),
    *("timm/swinv2_tiny_window8_256", "timm/coatnet_nano_rw_224", "timm/mixer_s32_224"),
    *("timm/vit_tiny_patch16_224", "timm/vit_small_patch14_reg4_dinov2", "timm/cait_xxs24_224"),
    *("open_clip/RN50", "open_clip/ViT-B-32"),
]


def from_config(config: str, **options: Any) -> nn.Module:
    """A network of transformers with random weights."""
    import transformers

    return transformers.AutoModel.from_config(getattr(transformers, config)(**options))


# Few and narrow blocks, which change no path but the last block's number.
_VIT = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 96,
}
CONFIGS: dict[str, Callable[[], nn.Module]] = {
    "transformers DINOv2": partial(from_config, "Dinov2Config", **_VIT),
    "transformers SigLIP": partial(from_config, "SiglipVisionConfig", **_VIT),
    "transformers Swin": partial(from_config, "SwinConfig", embed_dim=24, depths=[1, 1, 2, 1]),
    "transformers SegFormer": partial(from_config, "SegformerConfig", depths=[1, 1, 1, 1]),
}


def row(name: str, backbone: Backbone) -> str:
    """A line of the table."""
    layer = map_layers(backbone, SIZE).resolve()
    method = "NMF" if layer.non_negative else "semi-NMF"
    is_named = layer.name == layer.path
    shown = f"`{layer.name}`" if is_named else f"`{layer.name}`, which is `{layer.path}`"
    return f"| {name} | {shown} | {layer.stride} | {layer.channels} | {method} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", help="parts of names; by default all networks")
    parts = parser.parse_args().parts
    warnings.simplefilter("ignore")
    print("| network | default layer | stride | channels | method |\n|---|---|---|---|---|")
    for name in [*NAMES, *CONFIGS]:
        if parts and not any(part in name for part in parts):
            continue
        torch.manual_seed(0)
        model = CONFIGS[name]() if name in CONFIGS else name
        print(row(name, load_backbone(model, pretrained=False)), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
