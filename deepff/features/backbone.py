"""A network that is ready to run."""

from dataclasses import dataclass

import torch
from torch import nn

from deepff.features.layouts import Tokens
from deepff.features.words import WordHead
from deepff.options import Engine


@dataclass
class Backbone:
    """A network ready to run, with what its input needs.

    Attributes
    ----------
    name : str
        ``efficientnet_lite0``, ``vgg19``, ``timm/convnext_tiny``, or one's own module's class name.
    network : nn.Module
        In evaluation mode, on its device.
    mean, std : tuple of float
        Per channel (red, green, blue; or grey alone), for pixel values in [0, 1].
    interpolation : str
        How images are resized: ``bilinear`` or ``bicubic``.
    default_layer : str or None
        Module path; None leaves the choice to `resolve_layer`.
    weights : str
        Where the weights came from, for people.
    weights_digest : str
        `weights_digest` of the network.
    engine : Engine
        What runs it over a set (:func:`deepff.features.engines.chosen_engine`).
    tokens : int or callable, optional
        How many tokens come before those of the grid, or what makes maps of outputs
        (:data:`deepff.features.layouts.Reshape`), where the network does not tell.
    structure : str
        Of one's own module, the fingerprint of how it is built
        (:func:`deepff.features.fingerprint.structure_fingerprint`); empty where its name says so.
    missing : tuple of str
        Parameters and buffers that a file of weights did not fill, such as those of the head; they
        are NaN.
    labels : tuple of str or None
        The names of its outputs, where they were given; or the words.
    words : WordHead or None
        What makes one number a word of its outputs, where words are its classes.
    """

    name: str
    network: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    default_layer: str | None
    weights: str
    weights_digest: str
    missing: tuple[str, ...] = ()
    tokens: Tokens | None = None
    structure: str = ""
    labels: tuple[str, ...] | None = None
    words: WordHead | None = None
    engine: str = Engine.AUTO

    @property
    def device(self) -> torch.device:
        """Where the network's parameters are."""
        parameter = next(self.network.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    @property
    def channels(self) -> int:
        """Channels of the images that it takes: 3, or 1 for grey ones."""
        return len(self.mean)

    @property
    def dtype(self) -> torch.dtype:
        """The type of its input: that of its first floating-point parameter."""
        floating = (p.dtype for p in self.network.parameters() if p.is_floating_point())
        return next(floating, torch.float32)
