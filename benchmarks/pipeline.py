"""Seconds and memory of each stage of a run, beside the bare forward pass of the same network.

    python benchmarks/pipeline.py PHOTOS [--count 200] [-k 4] [--repeats 3]
        [--engine torch openvino] [--object] [--clock wall|cpu]

The bare forward pass is PyTorch's own, batch normalisation not folded, of the same batches of the
same shapes, already decoded and in memory. Engines take turns with it. ``--clock cpu`` counts the
process's own time, for a machine that is shared.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import Event, Thread

import torch

import deepff
from deepff.export.folder import localize, segment
from deepff.images import image_set
from deepff.images.image_files import ImageFile, find_images
from deepff.images.image_set import read_pixels
from deepff.images.reading import image_size, resize, resized_shape
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone
from deepff.options import Engine, Recipe
from deepff.regions import dense_crf
from deepff.report.load import load
from deepff.runtime.parallel import Kept

SIZE, BATCH_SIZE = 448, 8
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Stages:
    """Seconds and peak memory of stages, by name, over repeats."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.megabytes: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def measured(self, stage: str) -> Iterator[None]:
        """Count what is done inside as one repeat of a stage."""
        peaks: list[float] = [resident()]
        done = Event()

        def watch() -> None:
            while not done.wait(0.02):
                peaks.append(resident())

        watcher = Thread(target=watch, daemon=True)
        watcher.start()
        started = self._clock()
        try:
            yield
        finally:
            self.seconds[stage].append(self._clock() - started)
            done.set()
            watcher.join()
            self.megabytes[stage].append(max(peaks))


def resident() -> float:
    """Megabytes of main memory that this process has to itself, mapped files not counted."""
    status = Path("/proc/self/status").read_text("utf-8")
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1000


def decode(files: list[ImageFile], stride: int, interpolation: str) -> list[torch.Tensor]:
    """Decode and resize every image, one after the other."""
    resized = []
    for file in files:
        shape = resized_shape(*image_size(file.path), SIZE, stride)
        pixels = read_pixels(file.path, min_longest_side=max(shape))
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


def forget() -> None:
    """Give up what is kept of images for later steps."""
    dense_crf._KEPT, image_set._KEPT = Kept(3 * 2**27), Kept(3 * 2**25)


def run(
    stages: Stages,
    files: list[ImageFile],
    k: int | None,
    backbone: Backbone,
    name: str,
    recipe: str,
) -> None:
    """A whole run, from files to a result on the disk; of the object its masks and boxes too."""
    with tempfile.TemporaryDirectory() as folder:
        with stages.measured(f"{name}: whole run"):
            with stages.measured(f"{name}: discover"):
                result = deepff.discover(files, k, model=backbone, recipe=recipe)
            with stages.measured(f"{name}: writing the result and its report"):
                result.save(folder)
        if recipe == Recipe.CONTRAST:
            for make in (segment, localize):
                # As in a process of its own, which has nothing of the images in memory yet.
                forget()
                with stages.measured(f"{name}: {make.__name__}"):
                    make(load(folder), folder)
    used = result.sources[0].engine
    print(f"{name}: {used}, seconds { ({s: round(t, 1) for s, t in result.seconds.items()}) }")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engine", nargs="+", default=[Engine.TORCH], choices=list(Engine))
    parser.add_argument(
        "--object", action="store_true", help="the recipe contrast too, its masks and its boxes"
    )
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    options = parser.parse_args()

    files = find_images(options.photos)[: options.count]
    reference = load_backbone(engine=Engine.TORCH)
    backbones = {engine: load_backbone(engine=engine) for engine in options.engine}
    layer = map_layers(reference, SIZE).resolve()
    stages = Stages(CLOCKS[options.clock])
    bare = "bare forward pass"
    for _ in range(options.repeats):
        with stages.measured("decode and resize, one thread, alone"):
            images = decode(files, layer.stride, reference.interpolation)
        inputs = batches(images)
        with stages.measured(bare):
            forward(reference, inputs)
        del images, inputs
        for engine, backbone in backbones.items():
            run(stages, files, options.k, backbone, engine, Recipe.PAPER)
            if options.object:
                run(stages, files, None, backbone, f"{engine}, object", Recipe.CONTRAST)

    print(f"\n{len(files)} images, k = {options.k}, {torch.get_num_threads()} threads, ", end="")
    print(f"{options.clock} clock, medians of {options.repeats}\n")
    print("| stage | ms an image | × bare forward | memory at its peak, MB |")
    print("|---|---|---|---|")
    reference_seconds = statistics.median(stages.seconds[bare])
    for stage, seconds in stages.seconds.items():
        median, peak = statistics.median(seconds), max(stages.megabytes[stage])
        each = 1000 * median / len(files)
        print(f"| {stage} | {each:.1f} | {median / reference_seconds:.2f} | {peak:.0f} |")


if __name__ == "__main__":
    main()
