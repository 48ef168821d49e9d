"""Run a network over an image set and collect one layer's activations."""

import os
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.features.activations import Activations, ImageRecord
from deepff.features.backbone import Backbone
from deepff.features.cache import ActivationCache
from deepff.features.layers import Layer, forward_to_layers
from deepff.features.source import FeatureSource
from deepff.images.reading import (
    SkippedFile,
    UnreadableImageError,
    resize,
    resized_shape,
)
from deepff.images.sources import SetImage, source_digest, source_size
from deepff.runtime.distributed import all_reduce_sum
from deepff.runtime.memory import available_memory
from deepff.runtime.progress import track

BATCHES_AHEAD = 3


def extract(
    files: Sequence[SetImage],
    backbone: Backbone,
    layer: Layer,
    *,
    size: int = 448,
    batch_size: int = 8,
    amp: bool = False,
    cache: str | Path | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> tuple[Activations, list[SkippedFile]]:
    """Collect the activations of ``layer`` for every readable image.

    Images keep their aspect ratio and are batched by resized shape; they are decoded by threads
    while the network runs, which stops right after the layer.

    Parameters
    ----------
    files : sequence of ImageFile or ImageItem
        The set, in order.
    backbone, layer
        What :func:`deepff.features.loading.load_backbone` and
        :func:`deepff.features.layers.resolve_layer` give.
    size : int
        The longer side of the resized images, in pixels.
    batch_size : int
        Images a forward pass.
    amp : bool
        Run the network in automatic mixed precision; only on a CUDA device.
    cache : path, optional
        A folder in which activations are kept, so that no image goes through the network twice
        and an interrupted run resumes. Without it A is in the memory of the network's device, or
        in a temporary file where it would take more than ``memory``.
    memory : int, optional
        Bytes that A may take in memory; by default half of what the device has free.
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
    (activations,), skipped = extract_layers(
        files,
        backbone,
        [layer],
        size=size,
        batch_size=batch_size,
        amp=amp,
        cache=cache,
        memory=memory,
        progress=progress,
    )
    return activations, skipped


def extract_layers(
    files: Sequence[SetImage],
    backbone: Backbone,
    layers: Sequence[Layer],
    *,
    size: int = 448,
    batch_size: int = 8,
    amp: bool = False,
    cache: str | Path | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> tuple[list[Activations], list[SkippedFile]]:
    """Collect the activations of several layers in one pass over the images.

    As :func:`extract`, but that each side of the resized images is a multiple of the largest
    stride, so that the layers' grids cover the same pixels.

    Parameters
    ----------
    layers : sequence of Layer
        Each once.
    files, backbone, size, batch_size, amp, cache, memory, progress
        As for :func:`extract`.

    Returns
    -------
    activations : list of Activations
        Of each layer, for the same images.
    skipped : list of SkippedFile

    Raises
    ------
    InputError
        As :func:`extract`, or a layer is named twice.
    """
    if batch_size < 1:
        raise InputError(f"the batch size must be 1 or more, not {batch_size}")
    if amp and backbone.device.type != "cuda":
        raise InputError(f"mixed precision needs a CUDA device; this run is on {backbone.device}")
    if len({layer.path for layer in layers}) < len(layers):
        raise InputError(f"{layers[0].name} or another layer is named twice; name each once")
    multiple = max(layer.stride for layer in layers)
    planned, reasons = _plan(
        files, backbone, layers, size, multiple, with_digests=cache is not None
    )
    n_bytes = 4 * sum(
        record.n_cells * layer.channels
        for image in planned
        for record, layer in zip(image.records, layers, strict=True)
    )
    fits = n_bytes <= (_free_memory(backbone.device) // 2 if memory is None else memory)
    in_memory = cache is None and fits
    # What is mapped into memory outlives the names of a temporary folder's files.
    temporary = TemporaryDirectory(prefix="deepff-") if cache is None and not fits else None
    with temporary or nullcontext(cache) as folder:
        sources = [FeatureSource.of(backbone, layer, size, amp, multiple) for layer in layers]
        stores: list[_Memory | ActivationCache] = [
            _Memory(source.channels, backbone.device)
            if in_memory
            else ActivationCache(str(folder), source)
            for source in sources
        ]
        _fill(stores, planned, backbone, layers, batch_size, amp, reasons, progress)
        kept = [image for image in planned if _is_held(image, stores)]
        activations = []
        for index, store in enumerate(stores):
            records = [image.records[index] for image in kept]
            activations.append(Activations(records, store.blocks(records)))
    skipped = [SkippedFile(file.name, reasons[file.name]) for file in files if file.name in reasons]
    # Another rank may have images where this one has none.
    if int(all_reduce_sum(torch.tensor(len(kept), device=backbone.device))) == 0:
        raise InputError(_nothing_readable(skipped))
    return activations, skipped


def _nothing_readable(skipped: Sequence[SkippedFile]) -> str:
    if not skipped:
        return "no images were named: give at least one"
    return (
        f"none of the {len(skipped)} files is an image that can be read; the first, "
        f"{skipped[0].name}, was skipped for this reason: {skipped[0].reason}"
    )


def _fill(
    stores: "Sequence[_Memory | ActivationCache]",
    planned: "Sequence[_PlannedImage]",
    backbone: Backbone,
    layers: Sequence[Layer],
    batch_size: int,
    amp: bool,
    reasons: dict[str, str],
    progress: bool,
) -> None:
    """Run the network over what the stores lack; note in `reasons` what cannot be decoded."""
    for index, store in enumerate(stores):
        store.reserve([image.records[index] for image in planned])
    batches = _batches(planned, batch_size, stores)
    with track("network", sum(map(len, batches)), enabled=progress) as advance:
        for batch, decoded in _decode_ahead(batches, backbone.interpolation):
            readable = [(i, p) for i, p in zip(batch, decoded, strict=True) if torch.is_tensor(p)]
            if readable:
                images, pixels = zip(*readable, strict=True)
                features = _forward(backbone, layers, torch.stack(pixels), images, amp)
                for index, (store, rows) in enumerate(zip(stores, features, strict=True)):
                    records = [image.records[index] for image in images]
                    missing = [i for i, record in enumerate(records) if not store.holds(record)]
                    store.write([records[i] for i in missing], rows[missing])
            for image, error in zip(batch, decoded, strict=True):
                if isinstance(error, UnreadableImageError):
                    reasons[image.name] = str(error)
            advance(len(batch))


def _free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


@dataclass(frozen=True)
class _PlannedImage:
    records: tuple[ImageRecord, ...]  # one a layer
    shape: tuple[int, int]

    @property
    def name(self) -> str:
        return self.records[0].name

    @property
    def content(self) -> str:
        """Equal for files of equal content, as far as that is known."""
        return self.records[0].digest or self.name


def _plan(
    files: Sequence[SetImage],
    backbone: Backbone,
    layers: Sequence[Layer],
    size: int,
    multiple: int,
    with_digests: bool,
) -> tuple[list[_PlannedImage], dict[str, str]]:
    """Read the headers: each image's resized shape and grids, or why it is skipped."""

    def inspect(file: SetImage) -> tuple[tuple[int, int], str | None] | UnreadableImageError:
        try:
            return source_size(file.source), source_digest(file.source) if with_digests else None
        except UnreadableImageError as error:
            return error

    planned: list[_PlannedImage] = []
    reasons: dict[str, str] = {}
    grids: dict[tuple[int, int], list[tuple[int, int]]] = {}
    with ThreadPoolExecutor(_n_workers()) as pool:
        for file, header in zip(files, pool.map(inspect, files), strict=True):
            if isinstance(header, UnreadableImageError):
                reasons[file.name] = str(header)
                continue
            own_size, digest = header
            shape = resized_shape(*own_size, size, multiple)
            if shape not in grids:
                grids[shape] = _grids(backbone, layers, shape)
            records = tuple(
                ImageRecord(file.name, file.source, own_size, grid, digest) for grid in grids[shape]
            )
            planned.append(_PlannedImage(records, shape))
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
    blank = torch.zeros(1, 3, height, width, device=backbone.device)
    with torch.inference_mode():
        features = forward_to_layers(backbone, layers, blank)
    return [(layer.shape[2], layer.shape[3]) for layer in features]


def _batches(
    planned: Sequence[_PlannedImage],
    batch_size: int,
    stores: "Sequence[_Memory | ActivationCache]",
) -> list[list[_PlannedImage]]:
    """Batches of one shape, cut over the whole set so that a resumed run has the same ones."""
    by_shape: dict[tuple[int, int], dict[str, _PlannedImage]] = defaultdict(dict)
    for image in planned:
        by_shape[image.shape].setdefault(image.content, image)
    batches = [
        [image for image in images[first : first + batch_size] if not _is_held(image, stores)]
        for images in (list(unique.values()) for unique in by_shape.values())
        for first in range(0, len(images), batch_size)
    ]
    return [batch for batch in batches if batch]


def _is_held(image: _PlannedImage, stores: "Sequence[_Memory | ActivationCache]") -> bool:
    return all(store.holds(record) for store, record in zip(stores, image.records, strict=True))


def _decode_ahead(
    batches: Sequence[list[_PlannedImage]], interpolation: str
) -> Iterator[tuple[list[_PlannedImage], list[Tensor | UnreadableImageError]]]:
    """Decode batches in threads, a few ahead of the one that is yielded."""

    def decode(image: _PlannedImage) -> Tensor | UnreadableImageError:
        try:
            pixels = image.records[0].read(min_longest_side=max(image.shape))
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
    layers: Sequence[Layer],
    pixels: Tensor,
    images: Sequence[_PlannedImage],
    amp: bool,
) -> list[Tensor]:
    """The rows of each layer for a batch of uint8 images (b, 3, H, W): float32 (b, cells, c)."""
    device = backbone.device
    mean, std = (
        torch.tensor(values, device=device).view(3, 1, 1)
        for values in (backbone.mean, backbone.std)
    )
    batch = ((pixels.to(device).float() / 255 - mean) / std).to(memory_format=torch.channels_last)
    try:
        with torch.inference_mode(), torch.autocast(device.type, torch.float16, enabled=amp):
            outputs = forward_to_layers(backbone, layers, batch)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"a batch of {len(batch)} images does not fit in the memory of {device}; choose a "
            "smaller batch size"
        ) from error
    return [
        _rows(layer, output.float(), [image.records[index] for image in images])
        for index, (layer, output) in enumerate(zip(layers, outputs, strict=True))
    ]


def _rows(layer: Layer, features: Tensor, images: Sequence[ImageRecord]) -> Tensor:
    """A layer's map (b, c, h, w) as rows (b, cells, c), checked."""
    grid = tuple(features.shape[2:])
    if grid != images[0].grid:
        raise InputError(
            f"layer {layer.name} gave a grid of {grid} cells for {images[0].name}, where its "
            f"stride of {layer.stride} means {images[0].grid}; choose a layer whose grid follows "
            "its stride"
        )
    finite = features.isfinite().flatten(1).all(1)
    if not finite.all():
        culprit = images[int((~finite).nonzero()[0])].name
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
