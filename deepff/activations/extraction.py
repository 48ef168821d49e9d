"""Run a network over an image set and collect the activations of its layers."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from deepff.activations.activations import (
    DEFAULT_PREPARATION,
    Activations,
    FeatureSource,
    ImageRecord,
    Preparation,
)
from deepff.activations.batches import (
    PlannedImage,
    RunBatches,
    cut_into_batches,
    is_held,
    most_cells,
    plan,
    run_over,
)
from deepff.activations.cache import ActivationCache, InMemory, Store
from deepff.activations.engines import chosen_engine, torch_forward
from deepff.activations.folding import copied, probe_side
from deepff.errors import InputError, warn_user
from deepff.images.image_set import SetImage, nothing_readable
from deepff.images.reading import Picture, SkippedFile
from deepff.layers.later import forward_to_layers
from deepff.layers.layer import Layer
from deepff.layers.layer_map import check_named_once, noise
from deepff.networks.backbone import Backbone
from deepff.options import BATCH_SIZE
from deepff.runtime.distributed import all_reduce_max, all_reduce_sum
from deepff.runtime.parallel import available_memory, freed_memory_kept, one_thread
from deepff.runtime.progress import track

_SQUEEZED = 2  # times as much along one side as along the other
# Of the values' length. Rounding makes 1e-6, or 1e-2 in half precision; dropout of a tenth of the
# values makes 0.4, and statistics of this batch, half of which is empty, about as much.
_STEADY = 0.05


def extract_layers(
    images: Sequence[SetImage],
    backbone: Backbone,
    layers: Sequence[Layer],
    preparation: Preparation = DEFAULT_PREPARATION,
    *,
    batch_size: int = BATCH_SIZE,
    cache: str | Path | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> tuple[list[Activations], list[SkippedFile]]:
    """Collect the activations of layers for all images, in one pass, and the skipped files. Images
    are batched by resized shape, with sides that are multiples of the largest stride, so that the
    layers' grids cover the same pixels. What is in ``cache`` is not run again; without it, what
    takes more than ``memory`` bytes is in a temporary file."""
    _check(backbone, layers, preparation, batch_size)
    if callable(backbone.tokens):  # whether a function still does the same cannot be known
        cache = None
    multiple = max(layer.stride for layer in layers)
    # What is fetched first is run while the rest is fetched. Of files all headers are read first.
    is_ahead = cache is None and not all(isinstance(image.origin, Path) for image in images)
    pictures: dict[str, Picture] | None = {} if is_ahead else None
    windows = plan(images, backbone, layers, preparation, cache is not None, pictures)
    known = [] if is_ahead else list(windows)
    records = _records([image for window, _ in known for image in window], layers)
    if is_ahead:
        n_rows = [len(images) * n for n in most_cells(backbone, layers, preparation.size)]
    else:
        n_rows = [sum(image.n_cells for image in of_layer) for of_layer in records]

    def sources(engine: str) -> list[FeatureSource]:
        return [FeatureSource.of(backbone, x, preparation, multiple, engine) for x in layers]

    def is_all_cached(engine: str) -> bool:
        return cache is not None and all(
            ActivationCache(cache, source).find(of_layer) is not None
            for source, of_layer in zip(sources(engine), records, strict=True)
        )

    engine, forward = chosen_engine(backbone, layers, len(images), cache, is_all_cached)
    with _stores(sources(engine), n_rows, backbone.device, cache, memory) as stores:
        planned: list[PlannedImage] = []
        reasons: dict[str, str] = {}
        dark: list[str] = []
        unreadable: dict[str, str] = {}

        def reserved() -> Iterator[list[PlannedImage]]:
            for window, why in known or windows:
                for store, of_layer in zip(stores, _records(window, layers), strict=True):
                    store.reserve(of_layer)
                planned.extend(window)
                reasons.update(why)
                yield window

        each_window = reserved() if is_ahead else list(reserved())
        batches = (
            x for window in each_window for x in cut_into_batches(window, batch_size, stores)
        )
        if first := next(batches, None):
            runs_openvino = forward is not None
            _warn_if_unsteady(backbone, layers)
            forward = forward or torch_forward(backbone, layers)
            running = run_over(
                chain([first], batches), backbone, layers, forward, preparation.amp, pictures
            )
            with one_thread() if runs_openvino else nullcontext():
                dark, unreadable = _fill(stores, running, len(images), progress)
        # Of files with equal content only one was read.
        reasons |= {i.name: unreadable[i.content] for i in planned if i.content in unreadable}
        kept = [image for image in planned if is_held(image, stores)]
        each = zip(stores, _records(kept, layers), sources(engine), strict=True)
        activations = [Activations(images, store.blocks(images), x) for store, images, x in each]
    if squeezed := [image for image in kept if image.distortion > _SQUEEZED]:
        (height, width), (h, w) = squeezed[0].records[0].size, squeezed[0].shape
        warn_user(
            f"{_images_are(squeezed)} squeezed more than {_SQUEEZED} times: {squeezed[0].name} of "
            f"{width} × {height} pixels goes through the network at {w} × {h}; cut it into pieces, "
            "or choose a larger size"
        )
    if dark:
        warn_user(
            f"{_images_are(dark)} nearly black: the largest value {dark[0]}; if that should be "
            "white, use stretch=True (--stretch)"
        )
    skipped = [SkippedFile(x.name, reasons[x.name]) for x in images if x.name in reasons]
    # Another rank may have images when this one has none.
    if int(all_reduce_sum(torch.tensor(len(kept), device=backbone.device))) == 0:
        raise InputError(nothing_readable(skipped))
    _check_not_zero(backbone, layers, activations)
    return activations, skipped


def _check(
    backbone: Backbone, layers: Sequence[Layer], preparation: Preparation, batch_size: int
) -> None:
    if batch_size < 1:
        raise InputError(f"the batch size must be 1 or more, not {batch_size}")
    if preparation.amp and backbone.device.type != "cuda":
        raise InputError(f"mixed precision needs a CUDA device; this run is on {backbone.device}")
    check_named_once(layers)
    coarsest = max(layers, key=lambda layer: layer.stride)
    if coarsest.input_size is None and 2 * preparation.size < 3 * coarsest.stride:
        warn_user(
            f"at {preparation.size} pixels, an image is a single cell of {coarsest.name}, whose "
            f"stride is {coarsest.stride}; use a larger size",
            above=2,
        )


def _warn_if_unsteady(backbone: Backbone, layers: Sequence[Layer]) -> None:
    """Warn where the layers' values for noise differ from call to call, or next to an image."""
    alone = noise(backbone, probe_side(layers))
    together = torch.cat([alone, torch.zeros_like(alone)])
    with torch.no_grad():
        try:
            # Hooks are not for noise.
            backbone = replace(backbone, network=copied(backbone.network)[0])
            expected = forward_to_layers(backbone, layers, alone)
            if _are_steady(expected, forward_to_layers(backbone, layers, together)):
                return
            is_random = not _are_steady(expected, forward_to_layers(backbone, layers, alone))
        except InputError:  # it cannot be copied or run on noise
            return
    difference = (
        "each time (probably dropout that stays on), so results differ from run to run: switch it "
        "off"
        if is_random
        else "next to other images (probably statistics of the batch), so results depend on the "
        "batch: run images one by one (batch_size=1)"
    )
    message = f"{backbone.name} gives different values for the same image {difference}"
    warn_user(message, above=3)


def _are_steady(values: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether the first image's are the same; what is not a number is not compared."""
    pairs = [(a.float(), b[:1].float()) for a, b in zip(values, others, strict=True)]
    return not any(bool((a - b).norm() > _STEADY * a.norm()) for a, b in pairs)


def _check_not_zero(
    backbone: Backbone, layers: Sequence[Layer], activations: Sequence[Activations]
) -> None:
    """Raise InputError, in every rank, for a layer that is zero in the images of all ranks."""
    # By parts: as a rule the first shows that they are not.
    used = [any(x.any() for block in a.blocks for x in block.split(4096)) for a in activations]
    used = all_reduce_max(torch.tensor(used, dtype=torch.uint8, device=backbone.device)).tolist()
    for layer, is_used in zip(layers, used, strict=True):
        if not is_used:
            raise InputError(
                f"the activations of layer {layer.name} of {backbone.name} are zero in all images; "
                "choose another layer, or check the weights and their preprocessing"
            )


def _records(images: Sequence[PlannedImage], layers: Sequence[Layer]) -> list[list[ImageRecord]]:
    """The images' records of each layer."""
    return [[image.records[index] for image in images] for index in range(len(layers))]


def _images_are(images: Sequence[Any]) -> str:
    return f"{len(images)} images are" if len(images) > 1 else "1 image is"


@contextmanager
def _stores(
    sources: Sequence[FeatureSource],
    n_rows: Sequence[int],
    device: torch.device,
    cache: str | Path | None,
    memory: int | None,
) -> Iterator[Sequence[Store]]:
    """Where the rows of each layer are kept: in memory, in the cache or in temporary files."""
    each = list(zip(n_rows, sources, strict=True))
    n_bytes = 4 * sum(n * source.channels for n, source in each)
    is_cuda = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if is_cuda else available_memory()
    fits = n_bytes <= (free // 2 if memory is None else memory)
    # Files that are mapped into memory outlive their names in a temporary folder.
    temporary = TemporaryDirectory(prefix="deepff-") if cache is None and not fits else None
    with temporary or nullcontext(cache) as folder:
        yield [
            InMemory(n, source.channels, device)
            if folder is None
            else ActivationCache(folder, source)
            for n, source in each
        ]


def _fill(
    stores: Sequence[Store], running: RunBatches, n_images: int, progress: bool
) -> tuple[list[str], dict[str, str]]:
    """Store the missing rows; return which images are nearly black, and why others have no rows."""
    dark: list[str] = []
    unreadable: dict[str, str] = {}
    with (
        track("network", n_images, enabled=progress) as advance,
        freed_memory_kept(),
        closing(running),
    ):
        for batch, features in running:
            images = [decoded.image for decoded in batch if not decoded.fault]
            for index, rows in enumerate(features):
                store = stores[index]
                records = [image.records[index] for image in images]
                missing = [i for i, record in enumerate(records) if not store.holds(record)]
                lacking = rows if len(missing) == len(records) else rows[missing]
                store.write([records[i] for i in missing], lacking)
            unreadable |= {x.image.content: x.fault for x in batch if x.fault}
            dark += [decoded.darkness for decoded in batch if decoded.darkness]
            advance(len(batch))
            n_images -= len(batch)
        advance(n_images)  # those that were not run
    return dark, unreadable
