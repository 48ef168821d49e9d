"""A, the activations of one layer for an image set; and what identifies them: network, weights,
layer and preparation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepff.errors import InputError
from deepff.images.image_files import ImageFile
from deepff.images.image_set import Origin, SetImage, as_it_was, read_pixels
from deepff.layers.layer import SIGNS, Centers, Extent, Layer
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
    # How many tokens were declared to precede the grid's; "function" if one makes maps of outputs.
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
        centers = fields.pop("centers", None)
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


@dataclass(frozen=True)
class ImageRecord:
    """An image of the set."""

    name: str  # in the set, a POSIX path
    origin: Origin
    size: tuple[int, int]  # (H, W) in pixels, upright
    grid: tuple[int, int]  # (h, w) of the layer on it, in cells
    digest: str | None = None  # SHA-256 of the file, known when activations are cached
    stretch: bool = False  # as for :func:`deepff.images.reading.read_picture`
    extent: Extent | None = None  # what the grid covers; None for the whole image

    @property
    def path(self) -> Path | None:
        """The file that it was read from; None for other origins."""
        return self.origin if isinstance(self.origin, Path) else None

    @property
    def item(self) -> SetImage:
        """The image as :func:`deepff.discover` takes it; raises InputError if it is gone."""
        if self.origin is None:
            raise InputError(
                f"the image {self.name} did not come from a file, so it cannot be read again; load "
                "the result with images=..."
            )
        if isinstance(self.origin, PathLike):
            return ImageFile(self.origin, self.name, self.digest)
        return replace(self.origin, name=self.name)

    def read(self, min_longest_side: int | None = None) -> np.ndarray:
        """The image's pixels: :func:`deepff.images.image_set.read_pixels`."""
        return read_pixels(self.unchanged_origin(), min_longest_side, self.stretch)

    def unchanged_origin(self) -> Origin:
        """The origin; raises UnreadableImageError if it is another file by now."""
        return as_it_was(self.origin, self.digest)

    @property
    def n_cells(self) -> int:
        """The number of rows that the image has in A."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True, repr=False)
class Activations:
    """A, the activations of one layer for an image set; its rows are image by image, row-major."""

    images: list[ImageRecord]
    # (rows of the block, c) each, float32: one in memory, or parts of a memory-mapped file.
    blocks: list[Tensor]
    source: FeatureSource | None = None  # what gave them, where that is known

    def __repr__(self) -> str:
        n_rows = sum(map(len, self.blocks))
        return f"<Activations of {len(self.images)} images, {n_rows} × {self.channels}>"

    @property
    def channels(self) -> int:
        """c."""
        return self.blocks[0].shape[1]

    @property
    def rows(self) -> Tensor:
        """The whole of A as one tensor, (rows, c); a copy if there are several blocks."""
        return self.blocks[0] if len(self.blocks) == 1 else torch.cat(self.blocks)

    def restricted(self, is_kept: Sequence[bool]) -> "Activations":
        """A of some of the images, without copying."""
        every = zip(self.images, self.image_rows, is_kept, strict=True)
        kept = [(image, rows) for image, rows, is_kept_image in every if is_kept_image]
        blocks = [rows for _, rows in kept] or [self.blocks[0][:0]]
        return replace(self, images=[image for image, _ in kept], blocks=blocks)

    @cached_property
    def image_rows(self) -> list[Tensor]:
        """The rows of each image, (cells, c), without copying; blocks hold whole images."""
        images = iter(self.images)
        rows: list[Tensor] = []
        for block in self.blocks:
            first = 0
            while first < len(block):
                last = first + next(images).n_cells
                rows.append(block[first:last])
                first = last
        return rows


def sources_of(activations: Sequence[Activations]) -> tuple[FeatureSource, ...]:
    """The sources of activations that a network gave."""
    return tuple(layer.source for layer in activations if layer.source is not None)
