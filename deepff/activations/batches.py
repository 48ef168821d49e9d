"""From a set of files to batches of decoded images of one shape."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from deepff.activations.activations import ImageRecord
from deepff.activations.openvino_engine import Forward
from deepff.errors import InputError
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import SetImage, origin_size_and_digest
from deepff.images.reading import resize, resized_shape
from deepff.images.reduced import read_and_reduce
from deepff.layers.layer import Layer
from deepff.layers.layer_map import forward_to_layers
from deepff.networks.backbone import Backbone
from deepff.runtime.parallel import ahead

BATCHES_AHEAD = 2  # of the one that is run


@dataclass(frozen=True)
class PlannedImage:
    """An image of the set, the shape at which it goes through the network, and the grids then."""

    records: tuple[ImageRecord, ...]  # one a layer
    shape: tuple[int, int]
    content: str  # equal for images that need go through the network once

    @property
    def name(self) -> str:
        return self.records[0].name


@dataclass(frozen=True)
class Decoded:
    """An image as the network gets it, and, where it is nearly black, its largest value."""

    pixels: Tensor  # uint8, (3, H, W)
    darkness: str | None


Found = Decoded | UnreadableImageError


class Store(Protocol):
    """Where rows of images are kept: in memory or in a cache."""

    def holds(self, image: ImageRecord) -> bool:
        """Whether the image's rows are there."""


def plan(
    files: Sequence[SetImage],
    backbone: Backbone,
    layers: Sequence[Layer],
    size: int,
    coarsest_stride: int,
    once_each: bool,
    stretch: bool,
) -> tuple[list[PlannedImage], dict[str, str]]:
    """Look at each image: its resized shape, grids and digest, or why it is skipped.

    With ``once_each`` images of equal content go through the network once, for a store that knows
    them by their digests.
    """

    def inspect(file: SetImage) -> tuple[tuple[int, int], str] | UnreadableImageError:
        try:
            return origin_size_and_digest(file.origin)
        except UnreadableImageError as error:
            return error

    fixed = layers[0].input_size
    planned: list[PlannedImage] = []
    reasons: dict[str, str] = {}
    grids: dict[tuple[int, int], list[tuple[int, int]]] = {}
    with ThreadPoolExecutor(_n_workers()) as pool:
        for file, header in zip(files, pool.map(inspect, files), strict=True):
            if isinstance(header, UnreadableImageError):
                reasons[file.name] = str(header)
                continue
            own_size, digest = header
            shape = (fixed, fixed) if fixed else resized_shape(*own_size, size, coarsest_stride)
            if shape not in grids:
                grids[shape] = _grids(backbone, layers, shape)
            records = tuple(
                ImageRecord(
                    file.name,
                    file.origin,
                    own_size,
                    grid,
                    digest,
                    stretch,
                    None
                    if layer.centers is None
                    else layer.centers.extent(layer.stride, shape, grid),
                )
                for layer, grid in zip(layers, grids[shape], strict=True)
            )
            planned.append(PlannedImage(records, shape, digest if once_each else file.name))
    return planned, reasons


def _grids(
    backbone: Backbone, layers: Sequence[Layer], shape: tuple[int, int]
) -> list[tuple[int, int]]:
    """The layers' grids on an input of ``shape``."""
    height, width = shape
    # A stride that is no power of two comes from padding that does not halve sides exactly, as in
    # AlexNet; then only a forward pass tells.
    if all(layer.stride & (layer.stride - 1) == 0 for layer in layers):
        return [(height // layer.stride, width // layer.stride) for layer in layers]
    blank = torch.zeros(
        1, backbone.channels, height, width, device=backbone.device, dtype=backbone.dtype
    )
    with torch.inference_mode():
        features = forward_to_layers(backbone, layers, blank)
    return [(layer.shape[2], layer.shape[3]) for layer in features]


def cut_into_batches(
    planned: Sequence[PlannedImage],
    batch_size: int,
    stores: Sequence[Store],
) -> list[list[PlannedImage]]:
    """Batches of one shape, cut over the whole set so that a resumed run has the same ones."""
    by_shape: dict[tuple[int, int], dict[str, PlannedImage]] = defaultdict(dict)
    for image in planned:
        by_shape[image.shape].setdefault(image.content, image)
    batches = [
        [image for image in images[first : first + batch_size] if not is_held(image, stores)]
        for images in (list(unique.values()) for unique in by_shape.values())
        for first in range(0, len(images), batch_size)
    ]
    return [batch for batch in batches if batch]


def is_held(image: PlannedImage, stores: Sequence[Store]) -> bool:
    return all(store.holds(record) for store, record in zip(stores, image.records, strict=True))


def decode_ahead(
    batches: Sequence[list[PlannedImage]], interpolation: str
) -> Generator[tuple[list[PlannedImage], list[Found]], None, None]:
    """Decode batches in threads, a few ahead of the one that is yielded."""

    def decode(image: PlannedImage) -> Found:
        record = image.records[0]
        try:
            picture = read_and_reduce(record.origin, record.size, max(image.shape), record.stretch)
        except UnreadableImageError as error:
            return error
        is_dark = picture.is_nearly_black and not record.stretch
        darkness = f"{picture.largest} of {picture.white}" if is_dark else None
        return Decoded(resize(picture.pixels, image.shape, interpolation), darkness)

    pool = ThreadPoolExecutor(_n_workers())
    begun = ((batch, [pool.submit(decode, image) for image in batch]) for batch in batches)
    try:
        for batch, futures in ahead(begun, BATCHES_AHEAD):
            yield batch, [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)


def those_read(
    batch: Sequence[PlannedImage], decoded: Sequence[Found]
) -> list[tuple[PlannedImage, Tensor]]:
    """Those of a batch that could be read, with their pixels."""
    pairs = zip(batch, decoded, strict=True)
    return [(image, found.pixels) for image, found in pairs if isinstance(found, Decoded)]


def _n_workers() -> int:
    return min(8, os.cpu_count() or 1)


# A batch, what came of decoding its images, and of those that were read the rows of each layer,
# float32 (images, cells, c); no layer's where none was read.
RunBatches = Generator[tuple[list[PlannedImage], list[Found], list[Tensor]], None, None]

BATCHES_STARTED = 1  # while the rows of the one before are awaited and kept


def run_over(
    batches: Sequence[list[PlannedImage]],
    backbone: Backbone,
    layers: Sequence[Layer],
    forward: Forward,
    amp: bool,
) -> RunBatches:
    """Run a network over batches in their order; some are decoded, and one runs, ahead.

    Raises
    ------
    InputError
        The network cannot run on a batch, or gives another grid or values that are not finite.
    """

    def start(
        batch: Sequence[PlannedImage], decoded: Sequence[Found]
    ) -> Callable[[], list[Tensor]]:
        read = those_read(batch, decoded)
        if not read:
            return lambda: []
        images, pixels = zip(*read, strict=True)
        maps = _start(backbone, forward, pixels, amp)
        return lambda: [
            _rows(layer, values.float(), [image.records[index] for image in images])
            for index, (layer, values) in enumerate(zip(layers, maps(), strict=True))
        ]

    with closing(decode_ahead(batches, backbone.interpolation)) as all_decoded:
        started = ((batch, found, start(batch, found)) for batch, found in all_decoded)
        for batch, found, rows in ahead(started, BATCHES_STARTED):
            yield batch, found, rows()
            del rows  # before the next batch but one is started


def _start(
    backbone: Backbone, forward: Forward, pixels: Sequence[Tensor], amp: bool
) -> Callable[[], list[Tensor]]:
    """Set the network to work on images of uint8 (3, H, W); what waits for the layers' maps."""
    # With the channels last, as images are decoded, they are copied in one piece.
    batch = torch.stack([image.permute(1, 2, 0) for image in pixels]).permute(0, 3, 1, 2)
    device = backbone.device
    try:
        with torch.inference_mode(), torch.autocast(device.type, torch.float16, enabled=amp):
            return forward(batch)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"a batch of {len(batch)} images does not fit in the memory of {device}; choose a "
            "smaller batch size"
        ) from error


def _rows(layer: Layer, features: Tensor, images: Sequence[ImageRecord]) -> Tensor:
    """A layer's map (b, c, h, w) as rows (b, cells, c), checked."""
    grid = tuple(features.shape[2:])
    if grid != images[0].grid:
        raise InputError(
            f"layer {layer.name} gave a grid of {grid} cells for {images[0].name}, where its "
            f"stride of {layer.stride} means {images[0].grid}; choose a layer whose grid follows "
            "its stride"
        )
    rows = features.permute(0, 2, 3, 1).flatten(1, 2)
    # Where the sum is finite, which takes one pass and no memory, all are.
    if rows.sum().isfinite():
        return rows
    finite = rows.isfinite().flatten(1).all(1)
    if not finite.all():
        culprit = images[int((~finite).nonzero()[0])].name
        raise InputError(
            f"the activations of layer {layer.name} for {culprit} hold NaN or infinity; check the "
            "weights of the network and its preprocessing"
        )
    return rows
