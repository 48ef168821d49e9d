"""What runs a network over a set: PyTorch, or OpenVINO, which runs convolutions faster on a CPU."""

import hashlib
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from deepff.activations.folding import folded
from deepff.errors import InputError, first_line, warn_user
from deepff.layers.later import forward_to_layers, last_outputs
from deepff.layers.layer import Layer
from deepff.layers.layer_map import noise
from deepff.layers.layouts import tensor_of
from deepff.networks.backbone import HOOKED, Backbone, normalized
from deepff.options import BATCH_SIZE, Engine
from deepff.runtime.distributed import all_reduce_sum

# A conversion takes 3 to 10 s, which the embedded network gains on about this many images. The set
# decides, not the clock, so that the same set gives the same bits.
AUTO_LEAST_IMAGES = 100

TOLERANCE = 1e-3  # of a layer's largest value; rounding makes about 1e-5
MOST_KEPT = 16
# Batch, height and width, in cells: for tracing a network, and for testing the conversion.
_TRACED, _TRIED = (2, 5, 4), (1, 4, 7)
_LEAST_CELL = 32  # pixels
_MODEL, _REASON = "model.xml", "reason.txt"

# Starts the network on images, uint8 (b, 3, H, W). Calling the result waits for the layers' maps,
# (b, c, h, w) each: the caller may start another batch before.
Forward = Callable[[Tensor], Callable[[], list[Tensor]]]


class ConversionError(Exception):
    """A network cannot be converted; ``str(error)`` says why, in a few words."""


def torch_forward(backbone: Backbone, layers: Sequence[Layer]) -> Forward:
    """What runs batches in PyTorch, with batch normalization folded."""
    with HOOKED:
        ours = folded(backbone, layers)

    def forward(pixels: Tensor) -> Callable[[], list[Tensor]]:
        # With the channels last convolutions are faster, and rows are copied in one piece.
        batch = normalized(backbone, pixels).to(memory_format=torch.channels_last)
        maps = forward_to_layers(ours, layers, batch)
        return lambda: maps

    return forward


def chosen_engine(
    backbone: Backbone,
    layers: Sequence[Layer],
    n_images: int,
    cache: str | Path | None,
    is_held: Callable[[str], bool],
) -> tuple[str, Forward | None]:
    """The engine ("torch", or "openvino" with its version), and what runs batches in OpenVINO,
    unless ``is_held`` says that all activations from an engine are cached. Conversions are kept in
    ``cache``, or next to the weights that torch downloads."""
    installed = openvino_version()
    n_all = int(all_reduce_sum(torch.tensor(n_images, device=backbone.device)))
    obstacle = _obstacle(backbone)
    if backbone.engine == Engine.TORCH or installed is None:
        return Engine.TORCH, None
    if backbone.engine == Engine.AUTO:
        # OpenVINO is faster for convolutions with batch normalization.
        are_maps = all(layer.layout.kind == "channels first" for layer in layers)
        gains = any(isinstance(module, nn.BatchNorm2d) for module in backbone.network.modules())
        if obstacle is not None or n_all < AUTO_LEAST_IMAGES or not (are_maps and gains):
            return Engine.TORCH, None
    engine = f"{Engine.OPENVINO} {installed}"
    if obstacle is None:
        if is_held(engine):
            return engine, None
        folder = Path(torch.hub.get_dir() if cache is None else cache, "openvino")
        try:
            return engine, openvino_forward(backbone, layers, folder)
        except ConversionError as error:
            obstacle = str(error)
    warn_user(f"{backbone.name} runs in torch, because OpenVINO cannot run it: {obstacle}")
    return Engine.TORCH, None


def _obstacle(backbone: Backbone) -> str | None:
    """Why OpenVINO is not even tried."""
    if backbone.device.type != "cpu":
        return f"it is on {backbone.device}"
    if backbone.dtype != torch.float32:
        return f"its weights are {str(backbone.dtype).removeprefix('torch.')}"
    with HOOKED:
        hooked = [m._forward_hooks or m._forward_pre_hooks for m in backbone.network.modules()]
    if any(hooked):
        return "it has hooks, which only PyTorch calls"
    return None


def openvino_version() -> str | None:
    """The installed version; None if OpenVINO is not installed."""
    return version("openvino") if find_spec("openvino") is not None else None


def openvino_forward(backbone: Backbone, layers: Sequence[Layer], folder: Path) -> Forward:
    """What runs batches in OpenVINO in float32, compared with torch on noise of another shape than
    the traced one; ``folder`` keeps the latest `MOST_KEPT` conversions. Raises ConversionError."""
    kept = folder / _key(backbone, layers)
    if (kept / _REASON).is_file():
        raise ConversionError((kept / _REASON).read_text("utf-8"))
    openvino = _openvino()
    core = openvino.Core()
    if (kept / _MODEL).is_file():
        with suppress(RuntimeError, ConversionError):  # damaged, or of a module that was changed
            # OpenVINO also keeps what it compiles there: compiling takes longer than reading.
            core.set_property({"CACHE_DIR": str(kept)})
            forward = _compiled(core, core.read_model(kept / _MODEL), backbone, layers)
            kept.touch()
            return forward
    try:
        model = _converted(openvino, backbone, layers)
        forward = _compiled(core, model, backbone, layers)
    except ConversionError as error:
        reason = str(error)
        _keep(kept, lambda new: (new / _REASON).write_text(reason, "utf-8"))
        raise
    _keep(kept, lambda new: openvino.save_model(model, new / _MODEL, compress_to_fp16=False))
    return forward


def _openvino() -> Any:
    # It would report its use over the network without asking, unless this package is missing.
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
    """A network on uint8 images, channels last, that returns the outputs of layers, and ends."""

    def __init__(self, backbone: Backbone, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.network = backbone.network
        self._backbone = backbone
        self._layers = layers

    def forward(self, pixels: Tensor) -> tuple[Tensor | None, ...]:
        def with_channels_last(layer: Layer, output: Any) -> Tensor:
            values = tensor_of(output)
            if values is None:
                raise ConversionError(f"{layer.name} returns no tensor")
            # Rows are then copied in one piece.
            return values.permute(0, 2, 3, 1) if values.ndim == 4 else values

        batch = normalized(self._backbone, pixels.permute(0, 3, 1, 2))
        return tuple(last_outputs(self._backbone, self._layers, batch, with_channels_last))


def _converted(openvino: Any, backbone: Backbone, layers: Sequence[Layer]) -> Any:
    if any(layer.layout.kind == "own" for layer in layers):
        raise ConversionError("a function of yours makes its maps")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer's; `_compare` finds what is wrong
            return openvino.convert_model(
                _Reading(backbone, layers),
                example_input=_image(backbone, layers, _TRACED).permute(0, 2, 3, 1),
            )
    except Exception as error:  # a user's network and the converter may raise anything
        raise ConversionError(first_line(error)) from error


def _image(backbone: Backbone, layers: Sequence[Layer], cells: tuple[int, int, int]) -> Tensor:
    """Noise as pixels: so many images, rows and columns of cells; or of the network's only size."""
    n, rows, columns = cells
    stride = max(layer.stride for layer in layers)
    pixels = stride * -(-_LEAST_CELL // stride)
    fixed = layers[0].input_size
    height, width = (fixed, fixed) if fixed else (rows * pixels, columns * pixels)
    image = noise(backbone, max(height, width))[..., :height, :width].expand(-1, 3, -1, -1)
    image = (128 + 64 * image).clamp(0, 255).to(torch.uint8)
    return torch.cat([image, image.flip(3)])[:n]


def _compiled(core: Any, model: Any, backbone: Backbone, layers: Sequence[Layer]) -> Forward:
    """What runs batches, an image per thread, as torch would: all threads on one are slower."""
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
        requests = [idle.pop() if idle else compiled.create_infer_request() for _ in images]
        with _explained(backbone, shape):
            for request, image in zip(requests, images, strict=True):
                request.start_async([image.numpy()], share_inputs=True)

        def finish() -> list[Tensor]:
            with _explained(backbone, shape):
                for request in requests:
                    request.wait()
                maps = [_map(requests, index, layer, shape) for index, layer in enumerate(layers)]
            idle.extend(requests)
            return maps

        return finish

    _compare(start, backbone, layers)
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
    """A layer's map (b, c, h, w), from the requests of b images."""
    outputs = [torch.from_numpy(request.get_output_tensor(index).data) for request in requests]
    values = torch.cat(outputs)
    values = values.permute(0, 3, 1, 2) if values.ndim == 4 else values
    layer_map = layer.layout.to_map(values, shape, layer.stride)
    if layer_map is None:
        raise RuntimeError(f"{layer.name} gives no map")
    return layer_map


def _compare(forward: Forward, backbone: Backbone, layers: Sequence[Layer]) -> None:
    """Raise ConversionError unless the values are torch's."""
    pixels = _image(backbone, layers, _TRIED)
    try:
        converted = forward(pixels)()
    except InputError as error:
        raise ConversionError(first_line(error)) from error
    expected = forward_to_layers(backbone, layers, normalized(backbone, pixels))
    for layer, ours, theirs in zip(layers, expected, converted, strict=True):
        same = ours.shape == theirs.shape
        if not same or not (ours - theirs).abs().max() <= TOLERANCE * ours.abs().max():
            raise ConversionError(f"{layer.name} would have different values")


def _keep(folder: Path, write: Callable[[Path], Any]) -> None:
    """Write a folder as a whole, and remove the ones that were unused for longest."""
    with suppress(OSError, RuntimeError):  # the next run converts again
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=".") as temporary:
            whole = Path(temporary, "whole")
            whole.mkdir()
            write(whole)
            shutil.rmtree(folder, ignore_errors=True)
            whole.rename(folder)
        kept = sorted(folder.parent.glob("[!.]*"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-MOST_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
