"""Factorization of rows on disk as the set grows: time a row, reads and memory.

    python benchmarks/scale.py [--images 100 300 1000] [--memory 256] [-k 5] [--folder DIR]
                               [--file-images N] [--photos PHOTOS]

One file of planted rows, sparse and non-negative with noise, of the shape of EfficientNet-Lite0's
head (196 × 1280 float32 an image, 1 MB) is written to a temporary folder; each fit reads the first
so many images of it, memory-mapped, in a process of its own. Its memory is what it takes beside the
system's file cache (Linux: RssAnon), above what it had taken before the fit. `--file-images` bounds
the file where the disk is too small, and longer sets read it over and over. `--photos` adds the
head's activations of a folder of photographs, collected in a cache first.
"""

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

from deepff.factorization import NMF

ROWS, CHANNELS = 196, 1280
PLANTED = 8  # factors
COLUMNS = "| rows | images | GB | seconds | µs a row | reads | relative error | memory, MB |"


def write_planted(path: Path, n_images: int) -> None:
    """Rows H W + noise ≥ 0, (images · 196, 1280), image by image."""
    generator = torch.Generator().manual_seed(0)
    W = torch.rand(PLANTED, CHANNELS, generator=generator) ** 8
    with open(path, "wb") as file:
        for first in range(0, n_images, 16):
            n_rows = ROWS * min(16, n_images - first)
            H = torch.rand(n_rows, PLANTED, generator=generator) ** 4
            noise = torch.randn(n_rows, CHANNELS, generator=generator).mul_(0.1).sub_(0.05)
            file.write(noise.addmm_(H, W).clamp_(min=0).numpy().data)


def anonymous_bytes() -> int:
    """What this process takes of the memory beside mapped files; 0 where that is not known."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def fit(path: str, n_images: int, k: int, memory: int) -> tuple[float, int, float, int]:
    """Seconds, reads, relative error and peak memory of one fit."""
    file = np.memmap(path, np.float32, mode="r").reshape(-1, CHANNELS)
    starts = range(0, n_images * ROWS, len(file))
    rows = [file[: n_images * ROWS - start] for start in starts]
    NMF(k, random_state=0).fit(torch.rand(100, CHANNELS))  # pays for threads and libraries
    before = peak = anonymous_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    model = NMF(k, random_state=0, memory=memory).fit(rows)
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    return seconds, model.n_reads_, model.relative_err_, peak - before


def write_photos(path: Path, photos: Path) -> int:
    """The head's activations of photographs; how many whole images of rows they make."""
    from deepff.activations.extraction import extract_layers
    from deepff.images.image_files import find_images
    from deepff.layers.layer_map import map_layers
    from deepff.networks.loading import load_backbone

    backbone = load_backbone()
    layer = map_layers(backbone).resolve("bn2")
    with tempfile.TemporaryDirectory(dir=path.parent) as cache:
        (activations,), _ = extract_layers(find_images(photos), backbone, [layer], cache=cache)
        with open(path, "wb") as file:
            for rows in activations.image_rows:
                file.write(rows.numpy().data)
    return path.stat().st_size // (4 * CHANNELS * ROWS)


def report(kind: str, path: Path, n_images: int, k: int, memory: int) -> None:
    """Print one line of the table, from a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, reads, error, peak = pool.apply(fit, (str(path), n_images, k, memory))
    n_rows = n_images * ROWS
    print(
        f"| {kind} | {n_images} | {4 * n_rows * CHANNELS / 1e9:.2f} | {seconds:.1f} "
        f"| {1e6 * seconds / n_rows:.1f} | {reads} | {error:.4f} | {peak / 1e6:.0f} |",
        flush=True,
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--memory", type=int, default=256, help="the bound of a fit, in MiB")
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the rows are written")
    parser.add_argument("--file-images", type=int, help="the most images that the file holds")
    parser.add_argument("--photos", type=Path, help="a folder of photographs")
    options = parser.parse_args()
    memory = options.memory * 2**20
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        planted = Path(folder) / "planted.f32"
        longest = max(options.images)
        write_planted(planted, min(longest, options.file_images or longest))
        print(f"k = {options.k}, memory bound {memory / 1e6:.0f} MB\n\n{COLUMNS}")
        print("|---" * COLUMNS.count(" |") + "|")
        for n_images in options.images:
            report("planted", planted, n_images, options.k, memory)
        if options.photos:
            photos = Path(folder) / "photos.f32"
            n_images = write_photos(photos, options.photos)
            report("photos", photos, n_images, options.k, memory)
    print(f"\n{torch.get_num_threads()} threads, torch {torch.__version__}")


if __name__ == "__main__":
    sys.exit(main())
