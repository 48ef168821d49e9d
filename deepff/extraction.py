"""Run a network over an image set and collect one layer's activations."""

import os
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from deepff.activation_cache import ActivationCache
from deepff.activations import Activations, ImageRecord
from deepff.backbones import Backbone
from deepff.errors import InputError
from deepff.feature_source import FeatureSource
from deepff.image_files import ImageFile
from deepff.images import (
    SkippedFile,
    UnreadableImageError,
    content_digest,
    image_size,
    read_image,
    resize,
    resized_shape,
)
from deepff.layers import Layer, forward_to_layer
from deepff.progress import track

BATCHES_AHEAD = 3


def extract(
    files: Sequence[ImageFile],
    backbone: Backbone,
    layer: Layer,
    *,
    size: int = 448,
    batch_size: int = 8,
    amp: bool = False,
    cache: str | Path | None = None,
    progress: bool = False,
) -> tuple[Activations, list[SkippedFile]]:
    """Collect the activations of ``layer`` for every readable image.

    Images keep their aspect ratio and are batched by resized shape; they are decoded by threads
    while the network runs, which stops right after the layer.

    Parameters
    ----------
    files : sequence of ImageFile
        The set, in order.
    backbone, layer
        What :func:`deepff.backbones.load_backbone` and :func:`deepff.layers.resolve_layer` give.
    size : int
        The longer side of the resized images, in pixels.
    batch_size : int
        Images a forward pass.
    amp : bool
        Run the network in automatic mixed precision; only on a CUDA device.
    cache : path, optional
        A folder in which activations are kept, so that no image goes through the network twice
        and an interrupted run resumes. Without it A is in the memory of the network's device.
    progress : bool
        Show progress with images per second on standard error.

    Returns
    -------
    activations : Activations
    skipped : list of SkippedFile
        The files that could not be decoded, in the set's order.

    Raises
    ------
    InputError
        If no image can be read, activations are not finite, or the cache cannot be written.
    """
    if not files:
        raise InputError("no images were named: give at least one")
    if batch_size < 1:
        raise InputError(f"the batch size must be 1 or more, not {batch_size}")
    if amp and backbone.device.type != "cuda":
        raise InputError(f"mixed precision needs a CUDA device; this run is on {backbone.device}")
    planned, reasons = _plan(files, backbone, layer, size, with_digests=cache is not None)
    records = [image.record for image in planned]
    if cache is None:
        store: _Memory | ActivationCache = _Memory(layer.channels, backbone.device)
    else:
        store = ActivationCache(cache, FeatureSource.of(backbone, layer, size, amp))
    store.reserve(records)
    batches = _batches(planned, batch_size, store)
    with track("network", sum(map(len, batches)), enabled=progress) as advance:
        for batch, decoded in _decode_ahead(batches, backbone.interpolation):
            readable = [(i, p) for i, p in zip(batch, decoded, strict=True) if torch.is_tensor(p)]
            if readable:
                images, pixels = zip(*readable, strict=True)
                features = _forward(backbone, layer, torch.stack(pixels), images, amp)
                store.write([image.record for image in images], features)
            for image, error in zip(batch, decoded, strict=True):
                if isinstance(error, UnreadableImageError):
                    reasons[image.record.name] = str(error)
            advance(len(batch))
    kept = [record for record in records if store.holds(record)]
    skipped = [SkippedFile(file.name, reasons[file.name]) for file in files if file.name in reasons]
    if not kept:
        first = skipped[0]
        raise InputError(
            f"none of the {len(skipped)} files is an image that can be read; the first, "
            f"{first.name}, was skipped for this reason: {first.reason}"
        )
    return Activations(kept, store.blocks(kept)), skipped


@dataclass(frozen=True)
class _PlannedImage:
    record: ImageRecord
    shape: tuple[int, int]


def _plan(
    files: Sequence[ImageFile],
    backbone: Backbone,
    layer: Layer,
    size: int,
    with_digests: bool,
) -> tuple[list[_PlannedImage], dict[str, str]]:
    """Read the headers: each image's resized shape and grid, or why it is skipped."""

    def inspect(file: ImageFile) -> tuple[tuple[int, int], str | None] | UnreadableImageError:
        try:
            return image_size(file.path), content_digest(file.path) if with_digests else None
        except UnreadableImageError as error:
            return error

    planned: list[_PlannedImage] = []
    reasons: dict[str, str] = {}
    grids: dict[tuple[int, int], tuple[int, int]] = {}
    with ThreadPoolExecutor(_n_workers()) as pool:
        for file, header in zip(files, pool.map(inspect, files), strict=True):
            if isinstance(header, UnreadableImageError):
                reasons[file.name] = str(header)
                continue
            own_size, digest = header
            shape = resized_shape(*own_size, size, layer.stride)
            if shape not in grids:
                grids[shape] = _grid(backbone, layer, size, shape)
            record = ImageRecord(file.name, file.path, own_size, grids[shape], digest)
            planned.append(_PlannedImage(record, shape))
    return planned, reasons


def _grid(backbone: Backbone, layer: Layer, size: int, shape: tuple[int, int]) -> tuple[int, int]:
    """The layer's grid on an input of ``shape``."""
    height, width = shape
    # A stride that is no power of two comes from padding that does not halve sides exactly, as in
    # AlexNet; then only a forward pass tells.
    if layer.stride & (layer.stride - 1) == 0:
        return height // layer.stride, width // layer.stride
    blank = torch.zeros(1, 3, height, width, device=backbone.device)
    with torch.inference_mode():
        features = forward_to_layer(backbone, layer, blank)
    return features.shape[2], features.shape[3]


def _batches(
    planned: Sequence[_PlannedImage], batch_size: int, store: "_Memory | ActivationCache"
) -> list[list[_PlannedImage]]:
    """Batches of one shape, cut over the whole set so that a resumed run has the same ones."""
    by_shape: dict[tuple[int, int], dict[str, _PlannedImage]] = defaultdict(dict)
    for image in planned:
        by_shape[image.shape].setdefault(image.record.digest or image.record.name, image)
    batches = [
        [image for image in images[first : first + batch_size] if not store.holds(image.record)]
        for images in (list(unique.values()) for unique in by_shape.values())
        for first in range(0, len(images), batch_size)
    ]
    return [batch for batch in batches if batch]


def _decode_ahead(
    batches: Sequence[list[_PlannedImage]], interpolation: str
) -> Iterator[tuple[list[_PlannedImage], list[Tensor | UnreadableImageError]]]:
    """Decode batches in threads, a few ahead of the one that is yielded."""

    def decode(image: _PlannedImage) -> Tensor | UnreadableImageError:
        try:
            pixels = read_image(image.record.path, min_longest_side=max(image.shape))
        except UnreadableImageError as error:
            return error
        return resize(pixels, image.shape, interpolation)

    pool = ThreadPoolExecutor(_n_workers())
    pending: deque[tuple[list[_PlannedImage], list[Future]]] = deque()
    upcoming = iter(batches)
    try:
        while True:
            for batch in islice(upcoming, BATCHES_AHEAD - len(pending)):
                pending.append((batch, [pool.submit(decode, image) for image in batch]))
            if not pending:
                return
            batch, futures = pending.popleft()
            yield batch, [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)


def _n_workers() -> int:
    return min(8, os.cpu_count() or 1)


def _forward(
    backbone: Backbone,
    layer: Layer,
    pixels: Tensor,
    images: Sequence[_PlannedImage],
    amp: bool,
) -> Tensor:
    """The rows of a batch of uint8 images (b, 3, H, W): float32 (b, cells, c)."""
    device = backbone.device
    mean, std = (
        torch.tensor(values, device=device).view(3, 1, 1)
        for values in (backbone.mean, backbone.std)
    )
    batch = ((pixels.to(device).float() / 255 - mean) / std).to(memory_format=torch.channels_last)
    try:
        with torch.inference_mode(), torch.autocast(device.type, torch.float16, enabled=amp):
            features = forward_to_layer(backbone, layer, batch).float()
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"a batch of {len(batch)} images does not fit in the memory of {device}; choose a "
            "smaller batch size"
        ) from error
    grid, record = tuple(features.shape[2:]), images[0].record
    if grid != record.grid:
        raise InputError(
            f"layer {layer.name} gave a grid of {grid} cells for {record.name}, where its stride "
            f"of {layer.stride} means {record.grid}; choose a layer whose grid follows its stride"
        )
    finite = features.isfinite().flatten(1).all(1)
    if not finite.all():
        culprit = images[int((~finite).nonzero()[0])].record.name
        raise InputError(
            f"the activations of layer {layer.name} for {culprit} hold NaN or infinity; check the "
            "weights of the network and its preprocessing"
        )
    return features.permute(0, 2, 3, 1).flatten(1, 2)


class _Memory:
    """Activations in one tensor, on the network's device."""

    def __init__(self, channels: int, device: torch.device) -> None:
        self._channels = channels
        self._device = device
        self._held: set[str] = set()

    def reserve(self, images: Sequence[ImageRecord]) -> None:
        self._first_rows: dict[str, int] = {}
        n_rows = 0
        for image in images:
            self._first_rows[image.name] = n_rows
            n_rows += image.n_cells
        try:
            self._rows = torch.empty(n_rows, self._channels, device=self._device)
        except RuntimeError as error:
            gigabytes = 4 * n_rows * self._channels / 1e9
            raise InputError(
                f"{gigabytes:.1f} GB of activations do not fit in the memory of {self._device}; "
                "keep them on disk with a cache folder"
            ) from error

    def holds(self, image: ImageRecord) -> bool:
        return image.name in self._held

    def write(self, images: Sequence[ImageRecord], rows: Tensor) -> None:
        for image, values in zip(images, rows, strict=True):
            first = self._first_rows[image.name]
            self._rows[first : first + image.n_cells] = values
        self._held.update(image.name for image in images)

    def blocks(self, images: Sequence[ImageRecord]) -> list[Tensor]:
        """The rows of images in their order, moved together where skipped images left gaps."""
        n_rows = 0
        for image in images:
            first = self._first_rows[image.name]
            if first != n_rows:
                moved = self._rows[first : first + image.n_cells].clone()
                self._rows[n_rows : n_rows + image.n_cells] = moved
            n_rows += image.n_cells
        return [self._rows[:n_rows]]
