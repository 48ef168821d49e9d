"""Main memory that a run takes at its peak, for sets of several sizes.

    python benchmarks/memory.py PHOTOS [--count 200 2000] [--memory 512] [-k 4] [--engine torch]

A process of its own for each number of photographs, which are taken over and over where the folder
has fewer. Memory is what the process has to itself (Linux: RssAnon), mapped files not counted.
"""

import argparse
import multiprocessing
import tempfile
import threading
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

from pipeline import resident

import deepff
from deepff.images.image_files import ImageFile, find_images
from deepff.networks.loading import load_backbone


def peak(work: Callable[[], object]) -> float:
    """Megabytes at the peak of some work."""
    peaks = [resident()]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peaks.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return max(peaks)


def measure(options: argparse.Namespace, count: int) -> None:
    """Print a row of the table."""
    found = islice(cycle(find_images(options.photos)), count)
    files = [ImageFile(file.path, f"{number:05d}") for number, file in enumerate(found)]
    backbone = load_backbone(engine=options.engine)
    before = resident()
    results: list[deepff.Result] = []

    def discover() -> None:
        memory = options.memory * 2**20
        results.append(deepff.discover(files, options.k, model=backbone, memory=memory))

    with tempfile.TemporaryDirectory() as folder:
        stages: list[Callable[[], object]] = [
            discover,
            lambda: results[0].save(folder),
            lambda: [None for _ in results[0].regions()],
            lambda: results[0].boxes(),
        ]
        peaks = [peak(stage) for stage in stages]
    cells = " | ".join(f"{megabytes:.0f}" for megabytes in (before, *peaks))
    print(f"| {count} | {cells} |", flush=True)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--memory", type=int, default=512, help="MiB, as of `deepff discover`")
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--engine", default="torch", choices=["torch", "openvino"])
    options = parser.parse_args()
    print("| photographs | before, MB | discover | writing | regions | boxes |")
    print("|---|---|---|---|---|---|")
    for count in options.count:
        process = multiprocessing.get_context("spawn").Process(
            target=measure, args=(options, count)
        )
        process.start()
        process.join()


if __name__ == "__main__":
    main()
