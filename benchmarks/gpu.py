"""Factorization on a GPU: its tests, time beside a read of A, a whole run, and streaming.

    python benchmarks/gpu.py [--images 6000] [--stream 40]

For a machine with one GPU, in less than 10 minutes. (a) The GPU tests. (b) NMF, k = 5, of as many
images' rows as are asked for (196 × 512 each, VGG-19 at 224 pixels), already on the device, in
milliseconds and as a multiple of one read of A at the bandwidth of a copy there. (c) VGG-19 with
random weights over synthetic images and NMF of its conv5_4. (d) Rows in the host's memory,
streamed through the device. Without a GPU it runs on the CPU at a small size, which says that
the script works and nothing else.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from deepff.factorization import NMF

CELLS, CHANNELS, K = 196, 512, 5
CONV5_4 = 36  # modules of VGG-19's features up to the ReLU after conv5_4
GPU_TESTS = Path(__file__).parents[1] / "tests" / "factorization" / "test_scale_gpu.py"


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def activations(n_rows: int, sparse: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Planted rows with noise: all positive, or 80 % zeros as a ReLU leaves them."""
    generator = torch.Generator(device).manual_seed(0)
    W = torch.rand(8, CHANNELS, generator=generator, device=device) ** 4
    A = torch.empty(n_rows, CHANNELS, dtype=dtype, device=device)
    threshold = None
    for part in A.split(2**16):
        H = torch.rand(len(part), 8, generator=generator, device=device) ** 4
        noise = torch.randn(len(part), CHANNELS, generator=generator, device=device)
        values = H @ W + 0.3 * noise
        if sparse:
            if threshold is None:
                threshold = values[:1000].flatten().kthvalue(int(0.8 * values[:1000].numel()))[0]
            part.copy_((values - threshold).clamp_(min=0))
        else:
            part.copy_(values.abs_())
    return A


def on_device(n_images: int, device: torch.device) -> None:
    """(b): NMF of rows that are on the device."""
    print("| rows | ms | µs an image | × one read | reads | relative error |")
    print("|---|---|---|---|---|---|")
    for sparse in (False, True):
        for dtype in (torch.float32, torch.float16):
            A = activations(n_images * CELLS, sparse, dtype, device)
            read = read_time(A, device)
            seconds, model = fit_time(A, device)
            kind = f"{'80 % zeros' if sparse else 'dense'}, {str(dtype).removeprefix('torch.')}"
            print(
                f"| {kind} | {1e3 * seconds:.1f} | {1e6 * seconds / n_images:.1f} "
                f"| {seconds / read:.1f} | {model.n_reads_} | {model.relative_err_:.4f} |",
                flush=True,
            )
            del A


def read_time(A: Tensor, device: torch.device) -> float:
    """Seconds of one read of A at the bandwidth of a copy, which reads and writes."""
    copy = torch.empty_like(A)
    copy.copy_(A)
    return min(timed(lambda: copy.copy_(A), device) for _ in range(5)) / 2


def fit_time(A: Tensor, device: torch.device) -> tuple[float, NMF]:
    """Seconds of one fit, the median of five, and the last of them."""
    model = NMF(K, random_state=0).fit(A[:10_000])
    return statistics.median(timed(lambda: model.fit(A), device) for _ in range(5)), model


def end_to_end(n_images: int, size: int, device: torch.device) -> None:
    """(c): the network and the factorization of what it gives."""
    from torchvision.models.vgg import cfgs, make_layers

    torch.manual_seed(0)
    network = make_layers(cfgs["E"])[:CONV5_4].to(device).eval()
    half = device.type == "cuda"
    batch_size = min(64, n_images)
    images = torch.rand(batch_size, 3, size, size, device=device)
    cells = (size // 16) ** 2
    rows = torch.empty(n_images * cells, CHANNELS, device=device)

    @torch.inference_mode()
    def forward() -> None:
        for part in rows.split(batch_size * cells):
            with torch.autocast(device.type, torch.float16, enabled=half):
                features = network(torch.rand_like(images[: len(part) // cells]))
            part.copy_(features.permute(0, 2, 3, 1).flatten(0, 2))

    with torch.inference_mode():
        network(images)
    stages = {"forward": timed(forward, device)}
    model = NMF(K, random_state=0)
    stages["factorization"] = timed(lambda: model.fit(rows), device)
    print("| stage | seconds | share |")
    print("|---|---|---|")
    for stage, seconds in stages.items():
        print(f"| {stage} | {seconds:.2f} | {seconds / sum(stages.values()):.1%} |")


def streamed(gigabytes: float, device: torch.device) -> None:
    """(d): rows in the host's memory; the same part over and over, as each is sent anyway."""
    n_parts = max(1, round(gigabytes))
    n_rows = int(gigabytes * 1e9 / n_parts / (4 * CHANNELS))
    part = activations(n_rows, True, torch.float32, torch.device("cpu"))
    model = NMF(K, random_state=0, device=device)
    seconds = timed(lambda: model.fit([part] * n_parts), device)
    rate = gigabytes * model.n_reads_ / seconds
    print(
        f"{gigabytes:g} GB streamed from the host: {seconds:.2f} s, {model.n_reads_} reads, "
        f"{rate:.2f} GB/s"
    )


def main() -> None:
    """Run and print everything."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=torch.device, default=torch.device(default))
    parser.add_argument("--images", type=int, help="6000, on the CPU 20")
    parser.add_argument("--size", type=int, help="pixels a side in (c): 224, on the CPU 64")
    parser.add_argument("--stream", type=float, help="GB in (d): 40, on the CPU 0.02")
    parser.add_argument("--skip-tests", action="store_true", help="leave (a) out")
    options = parser.parse_args()
    device = options.device
    on_gpu = device.type == "cuda"
    if on_gpu:
        name = torch.cuda.get_device_name(device)
    else:
        name = "No GPU: these are figures of the CPU at a small size; the GPU is unmeasured"
    print(f"{name}. torch {torch.__version__}\n", flush=True)
    if not options.skip_tests:
        subprocess.run([sys.executable, "-m", "pytest", "-q", str(GPU_TESTS)], check=True)
    n_images = options.images or (6000 if on_gpu else 20)
    on_device(n_images, device)
    end_to_end(n_images, options.size or (224 if on_gpu else 64), device)
    streamed(options.stream or (40 if on_gpu else 0.02), device)


if __name__ == "__main__":
    sys.exit(main())
