"""What identifies the activations of an image: network, weights, layer and preparation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from deepff.errors import InputError
from deepff.layers.layer import SIGNS, Centers, Layer
from deepff.layers.layer_map import LayerMap
from deepff.layers.layouts import CHANNELS_FIRST, declared
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone
from deepff.options import Device, Engine


@dataclass(frozen=True)
class FeatureSource:
    """The network, the layer and how images are prepared for it.

    Attributes
    ----------
    model : str
        The network's name, as ``deepff models`` lists it, or the class of one's own module.
    weights : str
        Where its weights came from, for people.
    weights_digest : str
        SHA-256 over its state dict.
    layer : str
        Module path of the layer.
    channels, stride : int
        The layer's number of channels, and input pixels per cell.
    size : int
        The longer side of the resized images, in pixels.
    multiple : int
        Each side of the resized images is a multiple of this many pixels: the stride, or with
        several layers the largest.
    mean, std : three floats, or one
        Per-channel normalisation of RGB values in [0, 1]; one where the network takes grey images.
    interpolation : str
        How images are resized: "bilinear" or "bicubic".
    amp : bool
        Whether the network ran in automatic mixed precision.
    stretch : bool
        Whether the largest value of images of more than 8 bits was made white.
    layout : str
        How the layer's output holds the map (:class:`deepff.layers.layouts.Layout`).
    tokens : int, str or None
        What was declared of the network's tokens: how many come before the grid's, or the
        fingerprint of the function that makes maps of outputs.
    square : bool
        Whether images were squeezed to squares of that size, the only ones that the network takes.
    structure : str
        Of a module of one's own, the fingerprint of how it is built: networks that differ only in
        what has no weights, such as an activation's slope, give other activations.
    centers : Centers or None
        As of :class:`deepff.layers.layer.Layer`; None, too, in what older versions saved.
    engine : str
        What ran the network: "torch", or "openvino" with its version.
    """

    model: str
    weights: str
    weights_digest: str
    layer: str
    channels: int
    stride: int
    size: int
    multiple: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    amp: bool
    stretch: bool = False
    layout: str = str(CHANNELS_FIRST)
    tokens: int | str | None = None
    square: bool = False
    structure: str = ""
    centers: Centers | None = None
    engine: str = Engine.TORCH

    @classmethod
    def of(
        cls,
        backbone: Backbone,
        layer: Layer,
        size: int,
        amp: bool = False,
        multiple: int | None = None,
        stretch: bool = False,
        engine: str = Engine.TORCH,
    ) -> "FeatureSource":
        """The source of activations taken from ``backbone`` at ``layer``.

        By default ``multiple`` is the layer's stride.
        """
        return cls(
            model=backbone.name,
            weights=backbone.weights,
            weights_digest=backbone.weights_digest,
            layer=layer.path,
            channels=layer.channels,
            stride=layer.stride,
            size=layer.input_size or size,
            multiple=multiple or layer.stride,
            mean=backbone.mean,
            std=backbone.std,
            interpolation=backbone.interpolation,
            amp=amp,
            stretch=stretch,
            layout=layer.layout.identity,
            tokens=declared(backbone.tokens),
            square=layer.input_size is not None,
            structure=backbone.structure,
            centers=layer.centers,
            engine=engine,
        )

    @classmethod
    def from_dict(cls, fields: dict) -> "FeatureSource":
        """The inverse of :func:`dataclasses.asdict`, also after a round trip through JSON."""
        triples = {name: tuple(fields[name]) for name in ("mean", "std")}
        # "places" is what versions before 0.2 called the centers.
        fields = dict(fields)
        centers = fields.pop("places", None) or fields.pop("centers", None)
        return cls(
            **{
                **fields,
                **triples,
                "centers": None if centers is None else Centers.from_dict(centers),
            }
        )

    @property
    def by_sign(self) -> bool:
        """Whether the layer is taken by sign (:func:`deepff.layers.layer.by_sign`)."""
        return self.layer.endswith(f":{SIGNS}")

    def resolved(self, layer_map: LayerMap) -> Layer:
        """The layer among those of the network, drawn where it was."""
        return replace(layer_map.resolve(self.layer), centers=self.centers)

    def runs_in_amp(self, device: torch.device) -> bool:
        """Whether to run in mixed precision there: where it was used, and the device has it."""
        return self.amp and device.type == "cuda"

    def backbone(
        self,
        *,
        model: nn.Module | Backbone | None = None,
        weights: str | Path | None = None,
        num_classes: int | None = None,
        labels: Sequence[str] | None = None,
        words: Sequence[str] | None = None,
        device: str | torch.device = Device.AUTO,
        engine: str = Engine.AUTO,
    ) -> Backbone:
        """The network that this is a source of, loaded again.

        Parameters
        ----------
        model : torch.nn.Module or Backbone, optional
            The network, where it is one's own or is open already; the latter stays where it is.
        weights, num_classes : optional
            Its weights, where they are from a file.
        labels, words : sequence of str, optional
            The names of its classes, or words in place of them, as :func:`deepff.load_backbone`
            takes them.
        device, engine : str
            Where to put it, and what runs it.

        Raises
        ------
        InputError
            It cannot be had, its weights are others than those of the source, or the function that
            made maps of its outputs is not given.
        """
        try:
            backbone = (
                model
                if isinstance(model, Backbone)
                else load_backbone(
                    self.model if model is None else model,
                    weights=weights,
                    num_classes=num_classes,
                    labels=labels,
                    words=words,
                    channels=len(self.mean),
                    device=device,
                    engine=engine,
                )
            )
        except InputError as error:
            raise InputError(
                f"this needs the network {self.model} with its weights ({self.weights}): {error}"
            ) from error
        if backbone.weights_digest != self.weights_digest:
            raise InputError(
                f"this needs {self.model} with the weights that were used before "
                f"({self.weights}), but {backbone.weights} are others; give the file of the weights"
            )
        if isinstance(self.tokens, str) and not callable(backbone.tokens):
            raise InputError(
                f"a function of your own made maps of what {self.model} gives: give as model what "
                "load_backbone(network, tokens=function) makes of the network"
            )
        return replace(
            backbone,
            mean=self.mean,
            std=self.std,
            interpolation=self.interpolation,
            tokens=backbone.tokens if isinstance(self.tokens, str) else self.tokens,
        )
