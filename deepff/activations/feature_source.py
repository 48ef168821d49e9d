"""What identifies the activations of an image: network, weights, layer and preparation."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from deepff.errors import InputError
from deepff.layers.layer import SIGNS, Centers, Layer
from deepff.layers.layer_map import LayerMap
from deepff.layers.layouts import CHANNELS_FIRST, declared
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone
from deepff.options import SIZE, Engine


@dataclass(frozen=True)
class Preparation:
    """How images are prepared for a network, and in which precision it runs."""

    size: int = SIZE  # pixels of the longer side
    stretch: bool = False  # as for :func:`deepff.images.reading.read_picture`
    amp: bool = False  # automatic mixed precision, on a CUDA device


DEFAULT_PREPARATION = Preparation()


@dataclass(frozen=True)
class FeatureSource:
    """The network, the layer and how images are prepared for it."""

    model: str  # as ``deepff models`` lists it, or the class of a user's module
    weights: str  # where they came from, for people
    weights_digest: str  # SHA-256 of the state dict
    layer: str  # module path
    channels: int
    stride: int  # input pixels per cell
    size: int  # pixels of the longer side of the resized images
    # Each side of the resized images is a multiple of this: the largest stride of the layers.
    multiple: int
    # Per-channel normalization of values in [0, 1]; one number each if the network takes gray.
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str  # "bilinear" or "bicubic", for resizing images
    amp: bool  # whether the network ran in automatic mixed precision
    stretch: bool = False
    layout: str = str(CHANNELS_FIRST)  # how the layer's output holds the map
    # How many tokens were declared to precede the grid's, or the fingerprint of the function that
    # makes maps of outputs.
    tokens: int | str | None = None
    square: bool = False  # images were squeezed to squares, as the network takes only one size
    # The fingerprint of how a user's module is built: networks that differ only in parts without
    # weights, such as an activation's slope, give other activations.
    structure: str = ""
    centers: Centers | None = None  # None also in results of older versions
    engine: str = Engine.TORCH  # what ran the network: "torch", or "openvino" with its version

    @classmethod
    def of(
        cls,
        backbone: Backbone,
        layer: Layer,
        preparation: Preparation = DEFAULT_PREPARATION,
        multiple: int | None = None,
        engine: str = Engine.TORCH,
    ) -> "FeatureSource":
        """The source of activations of a layer; by default ``multiple`` is the layer's stride."""
        return cls(
            model=backbone.name,
            weights=backbone.weights,
            weights_digest=backbone.weights_digest,
            layer=layer.path,
            channels=layer.channels,
            stride=layer.stride,
            size=layer.input_size or preparation.size,
            multiple=multiple or layer.stride,
            mean=backbone.mean,
            std=backbone.std,
            interpolation=backbone.interpolation,
            amp=preparation.amp,
            stretch=preparation.stretch,
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
        fields = dict(fields)
        # "places" is what versions before 0.2 called the centers.
        centers = fields.pop("places", None) or fields.pop("centers", None)
        fields |= {name: tuple(fields[name]) for name in ("mean", "std")}
        return cls(**fields, centers=None if centers is None else Centers.from_dict(centers))

    @property
    def by_sign(self) -> bool:
        """Whether the layer is taken by sign (:func:`deepff.layers.layer.by_sign`)."""
        return self.layer.endswith(f":{SIGNS}")

    def resolved(self, layer_map: LayerMap) -> Layer:
        """The layer in a network's map, with the centers that are saved here."""
        return replace(layer_map.resolve(self.layer), centers=self.centers)

    def runs_in_amp(self, device: torch.device) -> bool:
        """Whether to run in mixed precision: it was used, and the device has it."""
        return self.amp and device.type == "cuda"

    def preparation(self, device: torch.device) -> Preparation:
        """How to prepare other images in the same way, on this device."""
        return Preparation(self.size, self.stretch, self.runs_in_amp(device))

    def backbone(self, *, model: nn.Module | Backbone | None = None, **options: Any) -> Backbone:
        """The network of this source, loaded again with options of `deepff.load_backbone`; or
        ``model``, a user's or an open one. InputError if it cannot be loaded or is not the same."""
        if self.structure and model is None:
            raise InputError(
                f"this needs your network {self.model}, which is not saved with the result; pass "
                "it as model, as in deepff.load(folder, model=network)"
            )
        try:
            backbone = (
                model
                if isinstance(model, Backbone)
                else load_backbone(
                    self.model if model is None else model, channels=len(self.mean), **options
                )
            )
        except InputError as error:
            raise InputError(
                f"this needs the network {self.model} with its weights ({self.weights}): {error}"
            ) from error
        if backbone.weights_digest != self.weights_digest:
            raise InputError(
                f"this needs {self.model} with the weights of the run ({self.weights}), but the "
                f"given ones ({backbone.weights}) differ; pass the run's weights"
            )
        if isinstance(self.tokens, str) and not callable(backbone.tokens):
            raise InputError(
                f"your function made the maps from the output of {self.model}; pass "
                "load_backbone(network, tokens=function) as model"
            )
        return replace(
            backbone,
            mean=self.mean,
            std=self.std,
            interpolation=self.interpolation,
            tokens=backbone.tokens if isinstance(self.tokens, str) else self.tokens,
        )
