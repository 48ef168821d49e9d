"""A network run over batches of images, whose decoding and whose rows do not keep it waiting."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing

import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.features.activations import ImageRecord
from deepff.features.backbone import Backbone
from deepff.features.batches import Found, PlannedImage, decode_ahead, those_read
from deepff.features.layers import Layer
from deepff.features.openvino_engine import Forward
from deepff.runtime.parallel import ahead

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
