"""Pixels as a network takes them."""

from __future__ import annotations

import torch
from torch import Tensor

from deepff.features.backbone import Backbone

LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601


def normalised(backbone: Backbone, pixels: Tensor) -> Tensor:
    """Images of uint8 (b, 3, H, W) as the network takes them: grey where that is what it takes."""
    batch = pixels.to(backbone.device).float()
    if backbone.channels == 1:
        batch = (batch * batch.new_tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)
    mean, std = (
        batch.new_tensor(values).view(-1, 1, 1) for values in (backbone.mean, backbone.std)
    )
    return torch.addcmul(-mean / std, batch, 1 / (255 * std)).to(backbone.dtype)
