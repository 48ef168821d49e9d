"""`deepff apply --each` over small images in shards, next to the network alone, in processes.

    python benchmarks/stream.py PHOTOS --folder DIR [--images 2000] [--shards 4] [--size 128] [-k 4]
        [--processes 2] [--kill]

Random crops of 64 to 128 pixels are written to tar files in DIR, which keeps them for another run.
The network alone runs decoded batches of these images from memory, in the engine that `apply`
chooses, in as many processes at once. `--kill` ends a process by SIGKILL in the middle, runs the
command again, and compares the results with those of the whole run.
"""

import argparse
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import deepff
from deepff.activations.batches import plan, run_over
from deepff.activations.engines import chosen_engine
from deepff.images.image_files import find_images
from deepff.images.image_set import read_pixels
from deepff.layers.layer_map import map_layers

NETWORK_IMAGES = 1000  # that the network alone runs over and over


def write_shards(photos: Path, folder: Path, n_images: int, n_shards: int) -> list[Path]:
    """The shards, tar files of JPEGs with a text for each; those that are there are left alone."""
    paths = [folder / f"shard-{number:03d}.tar" for number in range(n_shards)]
    files = [image.path for image in find_images(photos)]
    for number, path in enumerate(paths):
        if path.exists():
            continue
        random = np.random.default_rng(number)
        pixels = [read_pixels(files[i]) for i in random.permutation(len(files))[:60]]
        with tarfile.open(path.with_suffix(".part"), "w") as archive:
            for index in range(n_images // n_shards):
                photo = pixels[random.integers(len(pixels))]
                side = min(int(random.integers(64, 129)), *photo.shape[:2])
                top, left = (random.integers(n - side + 1) for n in photo.shape[:2])
                file = io.BytesIO()
                crop = photo[top : top + side, left : left + side]
                Image.fromarray(crop).save(file, "JPEG", quality=90)
                for suffix, data in (("jpg", file.getvalue()), ("txt", b"a crop")):
                    member = tarfile.TarInfo(f"{index:06d}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
        path.with_suffix(".part").replace(path)
    return paths


def network_alone(bank_path: str, shard: str, seconds: float) -> None:
    """Print the images per second, and CPU seconds per image, of the network on decoded images."""
    bank = deepff.load_concepts(bank_path)
    source = bank.sources[0]
    backbone = source.backbone()
    layers = [source.resolved(map_layers(backbone, source.size))]
    images = find_images(shard)[:NETWORK_IMAGES]
    windows = plan(images, backbone, layers, source.preparation(backbone.device), False)
    planned = [image for window, _ in windows for image in window]
    _, forward = chosen_engine(backbone, layers, len(planned), None, lambda _: False)
    assert forward is not None
    batches: list[torch.Tensor] = []

    def kept(pixels: torch.Tensor) -> object:
        batches.append(pixels)
        return forward(pixels)

    cut = [planned[first : first + 8] for first in range(0, len(planned), 8)]  # all are squares
    for _ in run_over(cut, backbone, layers, kept, False):
        pass
    torch.set_num_threads(1)
    started, cpu, n = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - started < seconds:
        waiting = None
        for batch in batches:
            finish = forward(batch)
            if waiting is not None:
                waiting()
            waiting = finish
            n += len(batch)
        waiting()
    print(n / (time.perf_counter() - started), (time.process_time() - cpu) / n)


class Ranks:
    """The same command in several processes, as torchrun starts them."""

    def __init__(self, command: list[str], n: int) -> None:
        shared = {**os.environ, "WORLD_SIZE": str(n), "OMP_NUM_THREADS": "1"}
        self.started = time.perf_counter()
        self.processes = [
            subprocess.Popen(
                [sys.executable, *command],
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(n)
        ]

    def wait(self) -> tuple[float, float, float, list[str]]:
        """Seconds, CPU seconds of all, the most memory of one in GB, and what each printed."""
        printed, cpu, peak = [], 0.0, 0
        for process in self.processes:
            printed.append(process.stdout.read())
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            cpu += usage.ru_utime + usage.ru_stime
            peak = max(peak, usage.ru_maxrss)
        return time.perf_counter() - self.started, cpu, peak / 1e6, printed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--network", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.network:
        return network_alone(*options.network, 20)
    options.folder.mkdir(parents=True, exist_ok=True)
    shards = write_shards(options.photos, options.folder, options.images, options.shards)
    bank = options.folder / f"bank-{options.size}-{options.k}.safetensors"
    if not bank.exists():
        sample = find_images(shards[0])[:300]
        deepff.discover(sample, options.k, size=options.size).bank.save(bank)

    alone = Ranks(
        [__file__, str(options.photos), "--folder", "x", "--network", str(bank), str(shards[0])],
        options.processes,
    )
    figures = [list(map(float, text.split())) for text in alone.wait()[3]]
    rate, cpu_each = sum(f[0] for f in figures), sum(f[1] for f in figures) / len(figures)
    print(f"network alone: {rate:.0f} images/s, {1e3 * cpu_each:.2f} ms of CPU per image")

    def apply(out: Path) -> Ranks:
        named = str(options.folder / f"shard-{{000..{options.shards - 1:03d}}}.tar")
        command = ["-m", "deepff", "apply", str(bank), named, "--each", "--out", str(out)]
        return Ranks(command, options.processes)

    whole = options.folder / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    seconds, cpu, peak, _ = apply(whole).wait()
    n = options.images
    print(
        f"apply --each: {n} images in {seconds:.0f} s, {n / seconds:.0f} images/s "
        f"({n / seconds / rate:.2f} of the network), {1e3 * cpu / n:.2f} ms of CPU per image "
        f"({cpu_each * n / cpu:.2f}), at most {peak:.2f} GB per process",
        flush=True,
    )
    if not options.kill:
        return None
    out = options.folder / "killed"
    shutil.rmtree(out, ignore_errors=True)
    ranks = apply(out)
    second = out / shards[1].stem / "manifest.json"  # the first shard of the second process
    while not second.exists():
        time.sleep(0.1)
    time.sleep(1)
    ranks.processes[1].send_signal(signal.SIGKILL)
    ranks.wait()
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/manifest.json")}
    apply(out).wait()
    rewritten = [path for path, state in before.items() if path.stat().st_mtime_ns != state]
    same = all(
        torch.equal(
            deepff.load(out / shard.stem).coefficients, deepff.load(whole / shard.stem).coefficients
        )
        for shard in shards
    )
    print(
        f"killed with {len(before)} of {len(shards)} shards written; after the rerun "
        f"{len(rewritten)} of them were written again, and all results are "
        f"{'the same' if same else 'NOT the same'} as without"
    )
    return None


if __name__ == "__main__":
    sys.exit(main())
