"""Run a network over an image set and collect one layer's activations."""

import warnings
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from deepff.activations.activations import Activations, ImageRecord
from deepff.activations.batches import (
    PlannedImage,
    RunBatches,
    cut_into_batches,
    is_held,
    plan,
    run_over,
    those_read,
)
from deepff.activations.cache import ActivationCache
from deepff.activations.engines import chosen_engine, torch_forward
from deepff.activations.feature_source import FeatureSource
from deepff.errors import InputError, InputWarning
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import SetImage, nothing_readable
from deepff.images.reading import SkippedFile
from deepff.layers.layer import Layer
from deepff.layers.layer_map import check_named_once
from deepff.networks.backbone import Backbone
from deepff.options import BATCH_SIZE, Engine
from deepff.runtime.distributed import all_reduce_sum
from deepff.runtime.memory import available_memory, freed_memory_kept
from deepff.runtime.parallel import one_thread
from deepff.runtime.progress import track


def extract(
    files: Sequence[SetImage],
    backbone: Backbone,
    layer: Layer,
    *,
    size: int = 448,
    batch_size: int = 8,
    amp: bool = False,
    stretch: bool = False,
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
        What :func:`deepff.networks.loading.load_backbone` and
        :meth:`deepff.layers.layer_map.LayerMap.resolve` give.
    size : int
        The longer side of the resized images, in pixels.
    batch_size : int
        Images a forward pass.
    amp : bool
        Run the network in automatic mixed precision; only on a CUDA device.
    stretch : bool
        As for :func:`deepff.images.reading.read_picture`. Without it, an `InputWarning` tells of
        images that are nearly black.
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
        stretch=stretch,
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
    stretch: bool = False,
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
    files, backbone, size, batch_size, amp, stretch, cache, memory, progress
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
    check_named_once(layers)
    coarsest = max(layers, key=lambda layer: layer.stride)
    coarsest_stride = coarsest.stride
    if coarsest.input_size is None and 2 * size < 3 * coarsest_stride:
        warnings.warn(
            f"at {size} pixels an image is one cell of {coarsest.name}, whose stride is "
            f"{coarsest_stride}; give a larger size",
            InputWarning,
            stacklevel=2,
        )
    planned, reasons = plan(
        files,
        backbone,
        layers,
        size,
        coarsest_stride,
        once_each=cache is not None,
        stretch=stretch,
    )

    def source(layer: Layer, engine: str) -> FeatureSource:
        return FeatureSource.of(backbone, layer, size, amp, coarsest_stride, stretch, engine)

    def is_all_held(engine: str) -> bool:
        return cache is not None and all(
            ActivationCache(cache, source(layer, engine)).find(records) is not None
            for layer, records in zip(layers, _records(planned, layers), strict=True)
        )

    engine, forward = chosen_engine(backbone, layers, len(planned), cache, is_all_held)
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
        stores: list[_Memory | ActivationCache] = [
            _Memory(layer.channels, backbone.device)
            if in_memory
            else ActivationCache(str(folder), source(layer, engine))
            for layer in layers
        ]
        for store, records in zip(stores, _records(planned, layers), strict=True):
            store.reserve(records)
        batches = cut_into_batches(planned, batch_size, stores)
        dark: list[str] = []
        unreadable: dict[str, str] = {}
        if batches:
            by_torch = forward is None or engine == Engine.TORCH
            forward = forward or torch_forward(backbone, layers)
            running = run_over(batches, backbone, layers, forward, amp)
            with nullcontext() if by_torch else one_thread():
                dark, unreadable = _fill(stores, running, sum(map(len, batches)), progress)
        # Of files of equal content only one was tried.
        reasons |= {i.name: unreadable[i.content] for i in planned if i.content in unreadable}
        kept = [image for image in planned if is_held(image, stores)]
        activations = [
            Activations(records, store.blocks(records), engine)
            for store, records in zip(stores, _records(kept, layers), strict=True)
        ]
    if dark:
        warnings.warn(_nearly_black(dark), InputWarning, stacklevel=2)
    skipped = [SkippedFile(file.name, reasons[file.name]) for file in files if file.name in reasons]
    # Another rank may have images where this one has none.
    if int(all_reduce_sum(torch.tensor(len(kept), device=backbone.device))) == 0:
        raise InputError(nothing_readable(skipped))
    return activations, skipped


def extract_as(
    source: FeatureSource,
    files: Sequence[SetImage],
    backbone: Backbone,
    layers: Sequence[Layer],
    *,
    batch_size: int = BATCH_SIZE,
    cache: str | Path | None = None,
    progress: bool = False,
) -> tuple[list[Activations], list[SkippedFile]]:
    """As :func:`extract_layers`, of images prepared as those of a source."""
    return extract_layers(
        files,
        backbone,
        layers,
        size=source.size,
        batch_size=batch_size,
        amp=source.runs_in_amp(backbone.device),
        stretch=source.stretch,
        cache=cache,
        progress=progress,
    )


def _records(images: Sequence[PlannedImage], layers: Sequence[Layer]) -> list[list[ImageRecord]]:
    """The images' records of each layer."""
    return [[image.records[index] for image in images] for index in range(len(layers))]


def _nearly_black(dark: Sequence[str]) -> str:
    n = f"{len(dark)} images are" if len(dark) > 1 else "1 image is"
    return (
        f"{n} nearly black: the largest value {dark[0]}; where that is meant as white, use "
        f"stretch=True (--stretch)"
    )


def _fill(
    stores: "Sequence[_Memory | ActivationCache]",
    running: RunBatches,
    n_images: int,
    progress: bool,
) -> tuple[list[str], dict[str, str]]:
    """Store what the stores lack; which images are nearly black, and why others have no rows."""
    dark: list[str] = []
    unreadable: dict[str, str] = {}
    with (
        track("network", n_images, enabled=progress) as advance,
        freed_memory_kept(),
        closing(running),
    ):
        for batch, decoded, features in running:
            images = [image for image, _ in those_read(batch, decoded)]
            for index, rows in enumerate(features):
                store = stores[index]
                records = [image.records[index] for image in images]
                missing = [i for i, record in enumerate(records) if not store.holds(record)]
                lacking = rows if len(missing) == len(records) else rows[missing]
                store.write([records[i] for i in missing], lacking)
            for image, found in zip(batch, decoded, strict=True):
                if isinstance(found, UnreadableImageError):
                    unreadable[image.content] = str(found)
                elif found.darkness is not None:
                    dark.append(f"in {image.name} is {found.darkness}")
            advance(len(batch))
    return dark, unreadable


def _free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


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
