"""What identifies the activations of an image: network, weights, layer and preparation."""

from dataclasses import dataclass

from deepff.backbones import Backbone
from deepff.layers import Layer


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
    mean, std : three floats
        Per-channel normalisation of RGB values in [0, 1].
    interpolation : str
        How images are resized: "bilinear" or "bicubic".
    amp : bool
        Whether the network ran in automatic mixed precision.
    """

    model: str
    weights: str
    weights_digest: str
    layer: str
    channels: int
    stride: int
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str
    amp: bool

    @classmethod
    def of(cls, backbone: Backbone, layer: Layer, size: int, amp: bool) -> "FeatureSource":
        """The source of activations taken from ``backbone`` at ``layer``."""
        return cls(
            model=backbone.name,
            weights=backbone.weights,
            weights_digest=backbone.weights_digest,
            layer=layer.path,
            channels=layer.channels,
            stride=layer.stride,
            size=size,
            mean=backbone.mean,
            std=backbone.std,
            interpolation=backbone.interpolation,
            amp=amp,
        )

    @classmethod
    def from_dict(cls, fields: dict) -> "FeatureSource":
        """The inverse of :func:`dataclasses.asdict`, also after a round trip through JSON."""
        triples = {name: tuple(fields[name]) for name in ("mean", "std")}
        return cls(**{**fields, **triples})
