"""Seconds an image of each stage of a run, beside the bare forward pass of the same network.

    python benchmarks/pipeline.py PHOTOS [--count 200] [-k 4] [--repeats 3]

The bare forward pass runs the same batches of the same shapes, already decoded and in memory.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path

import torch

import deepff
from deepff.features.backbone import Backbone
from deepff.features.layers import resolve_layer
from deepff.features.loading import load_backbone
from deepff.images.files import ImageFile, find_images
from deepff.images.reading import image_size, read_image, resize, resized_shape

SIZE, BATCH_SIZE = 448, 8


def decode(files: list[ImageFile], stride: int, interpolation: str) -> list[torch.Tensor]:
    """Decode and resize every image, one after the other."""
    resized = []
    for file in files:
        shape = resized_shape(*image_size(file.path), SIZE, stride)
        pixels = read_image(file.path, min_longest_side=max(shape))
        resized.append(resize(pixels, shape, interpolation))
    return resized


def batches(images: list[torch.Tensor]) -> list[torch.Tensor]:
    """The images in float batches of one shape."""
    by_shape: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
    for image in images:
        by_shape[image.shape].append(image)
    cut = []
    for same in by_shape.values():
        rest = iter(same)
        while batch := list(islice(rest, BATCH_SIZE)):
            stacked = torch.stack(batch).float() / 255
            cut.append(stacked.contiguous(memory_format=torch.channels_last))
    return cut


def forward(backbone: Backbone, inputs: list[torch.Tensor]) -> None:
    """The bare forward pass."""
    with torch.inference_mode():
        for batch in inputs:
            backbone.network(batch)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    files = find_images(options.photos)[: options.count]
    backbone = load_backbone()
    layer = resolve_layer(backbone, None, SIZE)
    stages = defaultdict(list)
    for _ in range(options.repeats):
        started = time.perf_counter()
        images = decode(files, layer.stride, backbone.interpolation)
        decoded = time.perf_counter()
        inputs = batches(images)
        prepared = time.perf_counter()
        forward(backbone, inputs)
        forwarded = time.perf_counter()
        result = deepff.discover(files, options.k, model=backbone)
        discovered = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            result.save(folder)
        saved = time.perf_counter()
        stages["decode and resize, one thread, alone"].append(decoded - started)
        stages["bare forward pass"].append(forwarded - prepared)
        stages["activations: decode beside the network"].append(result.seconds["network"])
        stages["factorization"].append(result.seconds["factorization"])
        stages["writing the result and its report"].append(saved - discovered)
        stages["the whole run"].append(saved - forwarded)
        print(".", end="", flush=True)

    print(f"\n{len(files)} images, k = {options.k}, {torch.get_num_threads()} threads\n")
    print("| stage | ms an image | × bare forward |")
    print("|---|---|---|")
    bare = statistics.median(stages["bare forward pass"])
    for stage, seconds in stages.items():
        median = statistics.median(seconds)
        print(f"| {stage} | {1000 * median / len(files):.1f} | {median / bare:.2f} |")


if __name__ == "__main__":
    main()
