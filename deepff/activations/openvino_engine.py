"""A network converted to OpenVINO, which runs convolutions on a CPU faster than PyTorch does."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from deepff.errors import InputError, first_line
from deepff.layers.layer import Layer
from deepff.layers.layer_map import forward_to_layers, noise, reading
from deepff.layers.layouts import output_of, tensor_of
from deepff.networks.backbone import Backbone, StopForwardError, normalized, run_network
from deepff.options import BATCH_SIZE

TOLERANCE = 1e-3  # of a layer's largest value; rounding makes about 1e-5
MOST_KEPT = 16
# Batch, height and width, in cells: what a network is traced with, and what tells whether the
# conversion holds for others.
_TRACED, _TRIED = (2, 5, 4), (1, 4, 7)
_LEAST_CELL = 32  # pixels
_MODEL, _REASON = "model.xml", "reason.txt"

# Sets the network to work on images of uint8 (b, 3, H, W), and gives what waits for the layers'
# maps, (b, c, h, w) each: meanwhile the caller may start another batch.
Forward = Callable[[Tensor], Callable[[], list[Tensor]]]


class ConversionError(Exception):
    """A network cannot be converted; ``str(error)`` is why, in a few words."""


def openvino_version() -> str | None:
    """The version that is installed; None where none is."""
    return version("openvino") if find_spec("openvino") is not None else None


def openvino_forward(backbone: Backbone, layers: Sequence[Layer], folder: Path) -> Forward:
    """What runs batches, as `forward_to_layers` does once they are normalised, by OpenVINO.

    It computes in float32 with as many threads as torch has. Whether it gives what torch gives is
    tried on noise of another shape than the one that the network was traced with.

    Parameters
    ----------
    backbone : Backbone
        On the CPU.
    layers : sequence of Layer
    folder : Path
        Where conversions are kept, and looked for; the latest `MOST_KEPT` stay.

    Returns
    -------
    Forward

    Raises
    ------
    ConversionError
        The network cannot be converted, or the conversion gives other values.
    """
    place = folder / _key(backbone, layers)
    if (place / _REASON).is_file():
        raise ConversionError((place / _REASON).read_text("utf-8"))
    openvino = _openvino()
    core = openvino.Core()
    if (place / _MODEL).is_file():
        with suppress(RuntimeError, ConversionError):  # damaged, or of a module that was changed
            # Beside the model OpenVINO keeps what it compiles, which takes longer than to read it.
            core.set_property({"CACHE_DIR": str(place)})
            forward = _compiled(core, core.read_model(place / _MODEL), backbone, layers)
            _try(forward, backbone, layers)
            place.touch()
            return forward
    try:
        model = _converted(openvino, backbone, layers)
        forward = _compiled(core, model, backbone, layers)
        _try(forward, backbone, layers)
    except ConversionError as error:
        reason = str(error)
        _keep(place, lambda at: (at / _REASON).write_text(reason, "utf-8"))
        raise
    _keep(place, lambda at: openvino.save_model(model, at / _MODEL, compress_to_fp16=False))
    return forward


def _openvino() -> Any:
    # It would report that it is used over the network, unasked: it does not where the package
    # that does is missing.
    name = "openvino_telemetry"
    known = name in sys.modules
    if not known:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        import openvino

        return openvino
    finally:
        if not known:
            del sys.modules[name]


def _key(backbone: Backbone, layers: Sequence[Layer]) -> str:
    described = (
        backbone.name,
        backbone.weights_digest,
        backbone.structure,
        (backbone.mean, backbone.std),
        [(layer.path, layer.calls, layer.input_size) for layer in layers],
        [version(package) for package in ("torch", "openvino")],
    )
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:24]


class _Reading(nn.Module):
    """A network that gives what some of its modules give, and ends after the last of them.

    It takes pixels as they are decoded, uint8 with the channels last: threads that run an image
    each normalise it, too, and it need not be copied.
    """

    def __init__(self, backbone: Backbone, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.network = backbone.network
        self._backbone = backbone
        self._layers = layers

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        batch = normalized(self._backbone, pixels.permute(0, 3, 1, 2))
        calls: Counter[str] = Counter()
        found: dict[str, Tensor] = {}

        def keep(layer: Layer, module: nn.Module, inputs: Any, output: Any) -> None:
            calls[layer.path] += 1
            if calls[layer.path] != layer.calls:
                return
            values = tensor_of(output_of(module, inputs, output, layer.layout))
            if values is None:
                raise ConversionError(f"{layer.name} gives no tensor")
            # With the channels last, rows are copied in one piece.
            values = values.permute(0, 2, 3, 1) if values.ndim == 4 else values
            found[layer.path] = values.clone()
            if len(found) == len(self._layers):
                raise StopForwardError

        try:
            with reading(self._backbone, self._layers, keep):
                run_network(self._backbone, batch)
        except StopForwardError:
            pass
        return tuple(found[layer.path] for layer in self._layers)


def _converted(openvino: Any, backbone: Backbone, layers: Sequence[Layer]) -> Any:
    if any(layer.layout.kind == "own" for layer in layers):
        raise ConversionError("its maps are made by a function that was given")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the tracer, on what the trial finds out
            return openvino.convert_model(
                _Reading(backbone, layers),
                example_input=_image(backbone, layers, _TRACED).permute(0, 2, 3, 1),
            )
    except Exception as error:  # tracing runs all of one's own network; the converter has its own
        raise ConversionError(first_line(error)) from error


def _image(backbone: Backbone, layers: Sequence[Layer], cells: tuple[int, int, int]) -> Tensor:
    """Noise as pixels of so many images and cells; of the only size that the network takes, if it
    has one.
    """
    n, rows, columns = cells
    stride = max(layer.stride for layer in layers)
    pixels = stride * -(-_LEAST_CELL // stride)
    fixed = layers[0].input_size
    height, width = (fixed, fixed) if fixed else (rows * pixels, columns * pixels)
    image = noise(backbone, max(height, width))[..., :height, :width].expand(-1, 3, -1, -1)
    image = (128 + 64 * image).clamp(0, 255).to(torch.uint8)
    return torch.cat([image, image.flip(3)])[:n]


def _compiled(core: Any, model: Any, backbone: Backbone, layers: Sequence[Layer]) -> Forward:
    """Each thread works on an image of its own, which is faster than all on the whole batch, and
    where one has less of a core, as images are decoded meanwhile, the others go on.
    """
    n_threads = torch.get_num_threads()
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": n_threads,
        "NUM_STREAMS": min(n_threads, BATCH_SIZE),
    }
    compiled = core.compile_model(model, "CPU", options)
    idle: list[Any] = []

    def start(batch: Tensor) -> Callable[[], list[Tensor]]:
        shape = (batch.shape[2], batch.shape[3])
        images = batch.permute(0, 2, 3, 1).contiguous().split(1)
        at_work = [idle.pop() if idle else compiled.create_infer_request() for _ in images]
        with _explained(backbone, shape):
            for request, image in zip(at_work, images, strict=True):
                request.start_async([image.numpy()], share_inputs=True)

        def finish() -> list[Tensor]:
            with _explained(backbone, shape):
                for request in at_work:
                    request.wait()
                maps = [_map(at_work, index, layer, shape) for index, layer in enumerate(layers)]
            idle.extend(at_work)
            return maps

        return finish

    return start


@contextmanager
def _explained(backbone: Backbone, shape: tuple[int, int]) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise InputError(
            f"OpenVINO cannot run {backbone.name} on images of {shape[0]}×{shape[1]} pixels "
            f"({first_line(error)}); choose the engine torch"
        ) from error


def _map(requests: Sequence[Any], index: int, layer: Layer, shape: tuple[int, int]) -> Tensor:
    """A layer's map of the images that requests were of."""
    found = [torch.from_numpy(request.get_output_tensor(index).data) for request in requests]
    values = torch.cat(found)
    values = values.permute(0, 3, 1, 2) if values.ndim == 4 else values
    found_map = layer.layout.to_map(values, shape, layer.stride)
    if found_map is None:
        raise RuntimeError(f"{layer.name} gives no map")
    return found_map


def _try(forward: Forward, backbone: Backbone, layers: Sequence[Layer]) -> None:
    pixels = _image(backbone, layers, _TRIED)
    try:
        found = forward(pixels)()
    except InputError as error:
        raise ConversionError(first_line(error)) from error
    expected = forward_to_layers(backbone, layers, normalized(backbone, pixels))
    for layer, ours, theirs in zip(layers, expected, found, strict=True):
        same = ours.shape == theirs.shape
        if not same or not (ours - theirs).abs().max() <= TOLERANCE * ours.abs().max():
            raise ConversionError(f"{layer.name} would have other values")


def _keep(place: Path, write: Callable[[Path], Any]) -> None:
    """Write a folder as a whole, and remove those that were not used for longest."""
    with suppress(OSError, RuntimeError):  # to convert again the next time is no fault
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=place.parent, prefix=".") as temporary:
            whole = Path(temporary, "whole")
            whole.mkdir()
            write(whole)
            shutil.rmtree(place, ignore_errors=True)
            whole.rename(place)
        kept = sorted(place.parent.glob("[!.]*"), key=lambda at: at.stat().st_mtime)
        for old in kept[:-MOST_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
