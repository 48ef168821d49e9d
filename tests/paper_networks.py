"""The five networks of the paper with random weights, as small as their layers allow."""

import torch
import torchvision
from torch import nn


def random_network(name: str) -> nn.Module:
    """Without VGG's classifier, which takes most of the memory and none of the layers."""
    with torch.device("meta"):
        network = torchvision.models.get_model(name, weights=None)
    if name != "resnet101":
        network.classifier = nn.Identity()
    network.to_empty(device="cpu")
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    return network
