"""Milliseconds an image of what can run a network on a CPU, taking turns.

    python benchmarks/engines.py [--models NAME ...] [--threads 1] [--repeats 3]
    python benchmarks/engines.py --photos PHOTOS [--count 60]

PyTorch as it comes, with batch normalisation folded as deepff does, and OpenVINO as deepff runs it;
``torch.compile`` (which needs a C++ compiler) and ONNX Runtime, where they are installed, of the
folded network. Weights are random; noise of 320 × 448 pixels, in batches of 8. With ``--photos``,
instead, how far results by OpenVINO are from those by torch, over ``--count`` of these photographs.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

import deepff
from deepff.activations.engines import openvino_forward
from deepff.activations.folding import folded
from deepff.images.image_files import find_images
from deepff.layers.layer import Layer
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone, normalized
from deepff.networks.loading import load_backbone
from deepff.runtime.parallel import freed_memory_kept

SHAPE = (8, 3, 320, 448)
N_BATCHES = 2
KS = (2, 3, 4, 5, 6, 8)
Run = Callable[[Tensor], object]


def onnx_forward(network: nn.Module, batch: Tensor, folder: Path) -> Run:
    """The network by ONNX Runtime."""
    import onnxruntime

    file = folder / "network.onnx"
    torch.onnx.export(network, (batch.contiguous(),), file, dynamo=False, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images.contiguous().numpy()})


def engines(
    backbone: Backbone, layer: Layer, pixels: Tensor, batch: Tensor, folder: Path
) -> dict[str, Run]:
    """What is compared, by name; each runs the network up to its end, or to the layer.

    OpenVINO normalises the pixels, too.
    """
    network = folded(backbone, [layer]).network
    start = openvino_forward(backbone, [layer], folder)
    found: dict[str, Run] = {
        "PyTorch": backbone.network,
        "folded": network,
        "folded, freed memory kept": network,
        "OpenVINO": lambda _: start(pixels)(),
        "torch.compile": torch.compile(network),
    }
    if find_spec("onnxruntime") and find_spec("onnx"):
        with suppress(torch.onnx.errors.UnsupportedOperatorError):
            found["ONNX Runtime"] = onnx_forward(network, batch, folder)
    return found


def seconds(run: Run, batch: Tensor, keep: bool) -> float:
    """Of a batch."""
    with freed_memory_kept() if keep else nullcontext():
        started = time.perf_counter()
        for _ in range(N_BATCHES):
            run(batch)
        return (time.perf_counter() - started) / N_BATCHES


def print_differences(photos: Path, count: int) -> None:
    """Of fits by OpenVINO from those by torch."""
    files = find_images(photos)
    files = files[:: max(1, len(files) // count)][:count]
    backbones = [load_backbone(engine=engine) for engine in ("torch", "openvino")]
    worst: list[float] = []
    pixels: list[float] = []
    for k, seed in product(KS, range(3)):
        found = [deepff.discover(files, k, model=own, random_state=seed) for own in backbones]
        H, other = (result.coefficients for result in found)
        worst.append(float((H - other).abs().max() / H.max()))
        pairs = zip(*(result.regions() for result in found), strict=True)
        differ, total = 0, 0
        for one, two in pairs:
            differ += int((one.masks != two.masks).sum())
            total += one.masks.numel()
        pixels.append(differ / total)
    print(f"{len(worst)} fits (k = {KS}, 3 seeds) of {len(files)} photographs")
    above = [sum(x > limit for x in worst) for limit in (1e-4, 1e-3)]
    print(
        f"H: {max(worst):.1e} of its maximum at most, above 1e-4 in {above[0]}, 1e-3 in {above[1]}"
    )
    print(f"masks: {1e6 * max(pixels):.0f} pixels of a million at most")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["efficientnet_lite0", "resnet18"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--photos", type=Path, help="a folder: compare results, not time")
    parser.add_argument("--count", type=int, default=60, help="how many of them")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.photos is not None:
        print_differences(options.photos, options.count)
        return
    pixels = torch.randint(256, SHAPE, dtype=torch.uint8)
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    print(f"{options.threads} threads, ms an image, medians of {options.repeats}")
    for model in options.models:
        backbone = load_backbone(model, pretrained=False)
        layer = map_layers(backbone, SHAPE[-1]).resolve()
        batch = normalized(backbone, pixels)
        times: dict[str, list[float]] = defaultdict(list)
        with TemporaryDirectory() as folder, torch.inference_mode():
            compared = engines(backbone, layer, pixels, batch, Path(folder))
            for run in compared.values():
                run(batch)
            for _ in range(options.repeats):
                for name, run in compared.items():
                    times[name].append(seconds(run, batch, keep="kept" in name))
        for name, own in times.items():
            each = 1000 * statistics.median(own) / len(batch)
            print(f"| {model} | {name} | {each:.1f} |")


if __name__ == "__main__":
    main()
