"""From a set of images to batches of decoded images of one shape, run through a network."""

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from deepff.activations.activations import ImageRecord, Preparation
from deepff.activations.cache import Store
from deepff.activations.engines import Forward
from deepff.errors import InputError
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_files import ImageFile
from deepff.images.image_set import REPLACED, SetImage, read_and_reduce, read_header
from deepff.images.reading import Picture, is_blank, reading_size, resize, resized_shape
from deepff.images.stored import StoredFile
from deepff.layers.later import grids_on
from deepff.layers.layer import Layer
from deepff.networks.backbone import Backbone
from deepff.runtime.parallel import ahead, reading_threads

WINDOW = 512  # images whose headers are read, and which are cut into batches, together
BATCHES_AHEAD = 2  # decoded before the one that is run
BATCHES_STARTED = 1  # while the rows of the one before are awaited and kept


@dataclass(frozen=True)
class PlannedImage:
    """An image of the set, with the shape at which it goes through the network."""

    records: tuple[ImageRecord, ...]  # one per layer
    shape: tuple[int, int]
    content: str  # images of equal content go through the network once

    @property
    def name(self) -> str:
        return self.records[0].name

    @property
    def distortion(self) -> float:
        """How many times longer one side has become in relation to the other, at least 1."""
        (height, width), (h, w) = self.records[0].size, self.shape
        return max(height * w / (width * h), width * h / (height * w))


@dataclass(frozen=True)
class Decoded:
    """An image as the network gets it."""

    image: PlannedImage
    pixels: Tensor | None = None  # uint8, (3, H, W); None if it cannot be read
    fault: str = ""  # why it cannot be read
    darkness: str = ""  # where it is nearly black, its largest value


# A batch, and for its images that could be read the rows of each layer, float32
# (images, cells, c); no rows if none could be read.
RunBatches = Generator[tuple[list[Decoded], list[Tensor]], None, None]


def plan(
    images: Sequence[SetImage],
    backbone: Backbone,
    layers: Sequence[Layer],
    preparation: Preparation,
    once_each: bool,
    pictures: dict[str, Picture] | None = None,
) -> Iterator[tuple[list[PlannedImage], dict[str, str]]]:
    """Window by window, each image with its resized shape, grids and digest (its content, if
    ``once_each``); and by name, why others are skipped. The next window is read meanwhile. Small
    images, which are decoded at once, are added to ``pictures``, by name."""
    fixed = layers[0].input_size
    multiple = max(layer.stride for layer in layers)
    grids = cache(partial(_grids, backbone, layers, preparation.size))
    origins = (image.origin for image in images)
    are_remote = any(isinstance(origin, StoredFile) and origin.is_remote for origin in origins)
    pool = reading_threads(waiting=are_remote)
    submitted = (
        [
            (image, pool.submit(read_header, image.origin, preparation.stretch))
            for image in images[first : first + WINDOW]
        ]
        for first in range(0, len(images), WINDOW)
    )

    def with_shape(
        image: SetImage, size: tuple[int, int], digest: str, picture: Picture | None
    ) -> PlannedImage:
        if isinstance(image, ImageFile) and image.digest not in (None, digest):
            raise UnreadableImageError(REPLACED)
        shape = (fixed, fixed) if fixed else resized_shape(*size, preparation.size, multiple)
        if pictures is not None and picture and reading_size(size, max(shape)) == size:
            pictures[image.name] = picture
        records = tuple(
            ImageRecord(
                image.name,
                image.origin,
                size,
                grid,
                digest,
                preparation.stretch,
                layer.centers.extent(shape, grid) if layer.centers else None,
            )
            for layer, grid in zip(layers, grids(shape), strict=True)
        )
        return PlannedImage(records, shape, digest if once_each else image.name)

    try:
        for window in ahead(submitted, 1):
            planned: list[PlannedImage] = []
            reasons: dict[str, str] = {}
            for image, header in window:
                try:
                    planned.append(with_shape(image, *header.result()))
                except UnreadableImageError as error:
                    reasons[image.name] = str(error)
            yield planned, reasons
    finally:
        pool.shutdown(cancel_futures=True)


def _grids(
    backbone: Backbone, layers: Sequence[Layer], size: int, shape: tuple[int, int]
) -> list[tuple[int, int]]:
    """The layers' grids on an input of ``shape``; their own were seen at ``size``."""
    # Where centers were not measured, the probe shows whether the grid follows the stride.
    are_known = all(layer.centers or layer.grid[0] == size // layer.stride for layer in layers)
    grids = [grid for layer in layers if are_known and (grid := layer.grid_on(shape)) is not None]
    return grids if len(grids) == len(layers) else grids_on(backbone, layers, shape)


def most_cells(backbone: Backbone, layers: Sequence[Layer], size: int) -> list[int]:
    """The most cells that the layers have on an image: on a square one."""
    multiple = max(layer.stride for layer in layers)
    side = layers[0].input_size or resized_shape(1, 1, size, multiple)[0]
    return [math.prod(grid) for grid in _grids(backbone, layers, size, (side, side))]


def cut_into_batches(
    planned: Sequence[PlannedImage], batch_size: int, stores: Sequence[Store]
) -> list[list[PlannedImage]]:
    """Batches of one shape, cut over a window so that a resumed run has the same ones."""
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
    """Whether the rows of every layer are there."""
    return all(store.holds(record) for store, record in zip(stores, image.records, strict=True))


def run_over(
    batches: Iterable[list[PlannedImage]],
    backbone: Backbone,
    layers: Sequence[Layer],
    forward: Forward,
    amp: bool,
    pictures: dict[str, Picture] | None = None,
) -> RunBatches:
    """Run a network over batches in their order; some are decoded, and one runs, ahead."""
    pool = reading_threads()
    submitted = (
        [
            pool.submit(
                _decode, image, backbone.interpolation, (pictures or {}).pop(image.name, None)
            )
            for image in batch
        ]
        for batch in batches
    )
    decoded = (
        [future.result() for future in futures] for futures in ahead(submitted, BATCHES_AHEAD)
    )
    started = ((batch, _started(batch, backbone, layers, forward, amp)) for batch in decoded)
    try:
        for batch, rows in ahead(started, BATCHES_STARTED):
            yield batch, rows()
            del rows  # before the next batch but one is started
    finally:
        pool.shutdown(cancel_futures=True)


def _decode(image: PlannedImage, interpolation: str, picture: Picture | None) -> Decoded:
    record = image.records[0]
    try:
        picture = picture or read_and_reduce(
            record.origin, record.size, max(image.shape), record.stretch
        )
    except UnreadableImageError as error:
        return Decoded(image, fault=str(error))
    is_dark = picture.is_nearly_black and not record.stretch
    darkness = f"in {image.name} is {picture.largest} of {picture.white}" if is_dark else ""
    pixels = resize(picture.pixels, image.shape, interpolation)
    if not is_dark and is_blank(pixels):
        return Decoded(image, fault="one color all over, so there is nothing to find in it")
    return Decoded(image, pixels, darkness=darkness)


def _started(
    batch: Sequence[Decoded],
    backbone: Backbone,
    layers: Sequence[Layer],
    forward: Forward,
    amp: bool,
) -> Callable[[], list[Tensor]]:
    """Start the network on a batch; calling the result waits for the rows of each layer."""
    images = [decoded.image for decoded in batch if decoded.pixels is not None]
    pixels = [decoded.pixels for decoded in batch if decoded.pixels is not None]
    if not images:
        return lambda: []
    # With the channels last, as images are decoded, they are copied in one piece.
    inputs = torch.stack([image.permute(1, 2, 0) for image in pixels]).permute(0, 3, 1, 2)
    device = backbone.device
    try:
        with torch.inference_mode(), torch.autocast(device.type, torch.float16, enabled=amp):
            maps = forward(inputs)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"a batch of {len(images)} images does not fit in the memory of {device}; choose a "
            "smaller batch size"
        ) from error
    return lambda: [
        _rows(layer, values.float(), [image.records[index] for image in images])
        for index, (layer, values) in enumerate(zip(layers, maps(), strict=True))
    ]


def _rows(layer: Layer, features: Tensor, images: Sequence[ImageRecord]) -> Tensor:
    """A layer's map (b, c, h, w) as rows (b, cells, c), checked."""
    grid = tuple(features.shape[2:])
    if grid != images[0].grid:
        raise InputError(
            f"layer {layer.name} has {grid} cells for {images[0].name}, but {images[0].grid} for a "
            "blank image of the same size; choose a layer whose grid depends only on the image "
            "size"
        )
    rows = features.permute(0, 2, 3, 1).flatten(1, 2)
    # If the sum is finite, which takes one pass and no memory, all values are.
    if rows.sum().isfinite():
        return rows
    finite = rows.isfinite().flatten(1).all(1)
    if not finite.all():
        culprit = images[int((~finite).nonzero()[0])].name
        raise InputError(
            f"the activations of layer {layer.name} for {culprit} contain NaN or infinity; check "
            "the network's weights and preprocessing"
        )
    return rows
