"""A run's network, opened again where it is not open, and the run's images as it is given them."""

from __future__ import annotations

from torch import Tensor

from deepff.errors import InputError
from deepff.features.backbone import Backbone
from deepff.features.later import OpenLayer, network_input
from deepff.features.layers import map_layers
from deepff.results.run import Run


def check_directions(run: Run) -> None:
    """Raise InputError where the components are no directions of one layer's activations."""
    if len(run.sources) > 1:
        raise InputError("several layers were fused, so what their map means is not looked for")
    if run.channel_weights is not None:
        raise InputError("the channels were weighted, so what the factors mean is not looked for")
    if run.parts_of is not None:
        raise InputError("the factors are parts of the object, whose classes are not looked for")


def opened_layer(run: Run, backbone: Backbone | None = None) -> OpenLayer:
    """The run's network and layer; opened by name, or the one that is given, where it is not open.

    Raises
    ------
    InputError
        It cannot be had, or its weights are others.
    """
    if not run.opened or backbone is not None:
        source = run.sources[0]
        network = source.backbone(model=backbone)
        run.opened = (OpenLayer(network, map_layers(network, source.size).resolve(source.layer)),)
    return run.opened[0]


def reopened(run: Run, opened: OpenLayer, index: int) -> Tensor:
    """An image of the run as the network was given it, (1, channels, H, W).

    Raises
    ------
    UnreadableImageError
        It cannot be read any more.
    """
    return network_input(opened, run.sources[0], run.images[index])
