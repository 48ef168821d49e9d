"""NMF of real activations: deepff beside every other implementation that is installed.

    python benchmarks/nmf.py --images PHOTOS [--k 5 10] [--seeds 5] [--threads 2] [--plot FILE]

All get the same matrix and the same number of threads, and take turns within each seed, so that
a busy machine slows all alike. Ratios are medians over seeds of the ratio within one turn.
`--clock cpu` takes the process's own time instead of the wall's, which with one thread is the
fairer of the two on a shared machine. Also run when installed: nmf-torch, torchnmf. `--plot`,
of error over time, needs matplotlib.

    python benchmarks/nmf.py --small [--images PHOTOS] [--clock cpu] [--threads 1]

compares deepff with scikit-learn on many small matrices: digits, smooth images, sparse counts, a
heavy tail, and with `--images` activations of 100 to 10,000 rows and 16 to 1,280 channels.
"""

import argparse
import contextlib
import importlib.util
import io
import itertools
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS = 25_088
LAYERS = {"EfficientNet-Lite0, head": "bn2", "EfficientNet-Lite0, stride 16": "blocks.5.0.bn1"}
PROJECTED = "512 channels projected from stride 16"
SMALL_LAYERS = ("bn1", "blocks.1.0.bn1", "blocks.3.0.bn1", "blocks.5.0.bn1", "bn2")
SMALL_ROWS, SMALL_K, SMALL_REPEATS = (100, 300, 1000, 3000, 10_000), (2, 4, 8, 16), 5
SLACK = 1e-4  # within this of scikit-learn's, a relative error is as good
MAX_ITERATIONS = 200
PLOT_ITERATIONS = (1, 2, 5, 10, 20, 50, 100, MAX_ITERATIONS)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
PEERS = {"nmf-torch HALS": "nmf", "torchnmf": "torchnmf"}  # their modules


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=Path, help="a folder of photographs")
    parser.add_argument("--small", action="store_true", help="many small matrices, two methods")
    parser.add_argument("--k", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--rows", type=int, default=ROWS, help="the most rows of a matrix")
    parser.add_argument("--only", nargs="+", help="methods whose names begin so")
    parser.add_argument("--plot", type=Path, help="write error over time to this picture")
    options = parser.parse_args()
    if not (options.images or options.small):
        parser.error("give --images, a folder of photographs, or --small")
    return options


OPTIONS = arguments()
# Math libraries read these when they are first imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(OPTIONS.threads)

# This file must not be taken for the package nmf-torch, whose module is called nmf.
sys.path.remove(str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from deepff.activations.extraction import extract_layers  # noqa: E402
from deepff.factorization import NMF  # noqa: E402
from deepff.images.image_files import find_images  # noqa: E402
from deepff.layers.layer_map import map_layers  # noqa: E402
from deepff.networks.loading import load_backbone  # noqa: E402

Factors = tuple[Tensor, Tensor]
# (A, k, seed, most iterations) to H and W
Method = Callable[[Tensor, int, int, int], Factors]
reads: dict[str, list[int]] = {}


def ours(name: str, solver: str) -> Method:
    """This package; notes how often A was read."""

    def run(A: Tensor, k: int, seed: int, max_iter: int) -> Factors:
        # HALS as it comes makes no more than eight reads.
        default = solver == "hals" and max_iter == MAX_ITERATIONS
        model = NMF(k, solver=solver, random_state=seed, max_iter=None if default else max_iter)
        H = model.fit_transform(A)
        reads.setdefault(name, []).append(model.n_reads_)
        return H, model.components_

    return run


def scikit_learn(solver: str) -> Method:
    """scikit-learn with its default tolerance."""

    def run(A: Tensor, k: int, seed: int, max_iter: int) -> Factors:
        from sklearn import decomposition

        model = decomposition.NMF(
            k, init="random", solver=solver, max_iter=max_iter, random_state=seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            H = model.fit_transform(A.numpy())
        return torch.from_numpy(H), torch.from_numpy(model.components_)

    return run


def paper_authors(A: Tensor, k: int, seed: int, max_iter: int) -> Factors:
    """Multiplicative updates as the paper describes them, its tolerance checked every 10th."""
    generator = torch.Generator().manual_seed(seed)
    scale = float((A.mean() / k).sqrt())
    H = scale * torch.randn(len(A), k, generator=generator).abs()
    W = scale * torch.randn(k, A.shape[1], generator=generator).abs()
    first = previous = float(torch.linalg.norm(A - H @ W))
    for iteration in range(1, max_iter + 1):
        W *= (H.T @ A) / (H.T @ H @ W).clamp_min(1e-9)
        H *= (A @ W.T) / (H @ (W @ W.T)).clamp_min(1e-9)
        if iteration % 10 == 0:
            error = float(torch.linalg.norm(A - H @ W))
            if (previous - error) / first < 1e-4:
                break
            previous = error
    return H, W


def nmf_torch(A: Tensor, k: int, seed: int, max_iter: int) -> Factors:
    """nmf-torch's batch HALS."""
    from nmf import run_nmf

    with contextlib.redirect_stdout(io.StringIO()):
        H, W, _ = run_nmf(
            A.numpy(),
            k,
            init="random",
            algo="hals",
            mode="batch",
            random_state=seed,
            n_jobs=OPTIONS.threads,
            batch_max_iter=max(max_iter, 10),  # it fails before its first check, at 10
        )
    return torch.as_tensor(H), torch.as_tensor(W)


def torchnmf(A: Tensor, k: int, seed: int, max_iter: int) -> Factors:
    """torchnmf's multiplicative updates."""
    from torchnmf import nmf

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nmf.NMF(A.shape, rank=k)
    model.fit(A, max_iter=max_iter)
    return model.H.detach(), model.W.detach().T


METHODS: dict[str, Method] = {
    "deepff HALS": ours("deepff HALS", "hals"),
    "deepff MU": ours("deepff MU", "mu"),
    "scikit-learn CD": scikit_learn("cd"),
    "scikit-learn MU": scikit_learn("mu"),
    "paper's authors": paper_authors,
}
MISSING = [name for name, module in PEERS.items() if not importlib.util.find_spec(module)]
for name, method in (("nmf-torch HALS", nmf_torch), ("torchnmf", torchnmf)):
    if name not in MISSING:
        METHODS[name] = method


def matrices() -> dict[str, Tensor]:
    """Activations of two layers, and of a third made from one of them.

    The third stands for VGG's conv5 (no weights of VGG come with the package): 512 random
    mixtures of the centred channels of the stride-16 layer, less half their standard deviation,
    through a ReLU.
    """
    backbone = load_backbone()
    files = find_images(OPTIONS.images)
    found = {}
    for name, path in LAYERS.items():
        layer = map_layers(backbone).resolve(path)
        cells = layer.grid[0] * layer.grid[1]
        needed = files[: 2 * -(-OPTIONS.rows // cells)]  # an image fills at most its square
        (activations,), _ = extract_layers(needed, backbone, [layer])
        found[f"{name} ({layer.channels} channels)"] = activations.rows[: OPTIONS.rows].clone()
    A = list(found.values())[-1]
    mixing = torch.randn(A.shape[1], 512, generator=torch.Generator().manual_seed(0))
    mixed = (A - A.mean(0)) @ mixing / A.shape[1] ** 0.5
    found[PROJECTED] = (mixed - mixed.std(0) / 2).clamp_min(0)
    return found


def measure(method: Method, A: Tensor, k: int, seed: int, max_iter: int) -> tuple[float, float]:
    """Seconds and relative error of one run."""
    clock = CLOCKS[OPTIONS.clock]
    started = clock()
    H, W = method(A, k, seed, max_iter)
    seconds = clock() - started
    squares = [
        float((rows - h @ W).double().square().sum())
        for rows, h in zip(A.split(4096), H.split(4096), strict=True)
    ]
    return seconds, sum(squares) ** 0.5 / float(A.double().norm())


def compare(A: Tensor, k: int, methods: dict[str, Method]) -> None:
    """Print one table."""
    reads.clear()
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    for seed in range(OPTIONS.seeds):
        for name, method in methods.items():
            runs[name].append(measure(method, A, k, seed, MAX_ITERATIONS))
    print(f"| method | seconds ({OPTIONS.clock}) | × deepff's | error | worst error | reads of A |")
    print("|---|---|---|---|---|---|")
    base = next(iter(runs.values()))
    for name, results in runs.items():
        seconds, errors = zip(*results, strict=True)
        ratio = statistics.median(s / b for s, (b, _) in zip(seconds, base, strict=True))
        count = " to ".join(map(str, sorted({min(n), max(n)}))) if (n := reads.get(name)) else ""
        print(
            f"| {name} | {statistics.median(seconds):.3f} | {ratio:.1f} "
            f"| {statistics.median(errors):.5f} | {max(errors):.5f} | {count} |",
            flush=True,
        )


def small_matrices() -> dict[str, np.ndarray]:
    """Matrices by name: real ones of scikit-learn, made ones, and activations of `--images`."""
    from sklearn.datasets import load_digits

    random = np.random.default_rng(0)
    y, x = np.mgrid[:32, :32] / 31
    places, widths = random.random((2, 30, 1, 1)), 0.1 + 0.2 * random.random((2, 30, 1, 1))
    bumps = np.exp(-(((x - places[0]) / widths[0]) ** 2) - ((y - places[1]) / widths[1]) ** 2)
    smooth = random.gamma(2, size=(400, 30)) @ bumps.reshape(30, -1)
    H = random.exponential(size=(2000, 10)) * (random.random((2000, 10)) < 0.2)
    W = random.exponential(size=(10, 300)) * (random.random((10, 300)) < 0.15)
    factors = [random.exponential(size=size) for size in ((300, 8), (8, 50))]
    named = {
        "digits": load_digits().data,
        "smooth images": smooth + 0.05 * random.random(smooth.shape),
        "sparse counts": random.poisson(0.3 * H @ W),
        "low rank, noise": np.abs(factors[0] @ factors[1] + random.normal(size=(300, 50))),
        "heavy tail": random.pareto(1.5, (400, 50)),
    }
    found = {name: A.astype(np.float32) for name, A in named.items()}
    if OPTIONS.images:
        backbone = load_backbone()
        files = find_images(OPTIONS.images)
        for layer in map(map_layers(backbone).resolve, SMALL_LAYERS):
            needed = files[: max(8, 2 * -(-SMALL_ROWS[-1] // (layer.grid[0] * layer.grid[1])))]
            (activations,), _ = extract_layers(needed, backbone, [layer])
            A = activations.rows
            for n_rows in SMALL_ROWS:
                rows = A[:: len(A) // n_rows][:n_rows].numpy().copy()
                found[f"{layer.path} of {n_rows}"] = rows
                if layer.channels == 32:
                    found[f"half of {layer.path} of {n_rows}"] = rows[:, ::2].copy()
    return found


def compare_small() -> None:
    """Print one table: medians of seconds, with turns taken in each repeat."""
    from sklearn import decomposition

    unit = f"{OPTIONS.clock} ms"
    print(f"| matrix | k | deepff, {unit} | scikit-learn, {unit} | × | to its error, × | errors |")
    print("|---|--:|--:|--:|--:|--:|---|")
    results: list[tuple[float, float, float, bool]] = []
    for name, A in small_matrices().items():
        for k in (k for k in SMALL_K if k <= min(A.shape)):
            runs: list[tuple[float, ...]] = []
            for repeat in range(SMALL_REPEATS + 1):
                _, their_seconds, their_error = timed(A, decomposition.NMF(k, random_state=0))
                model, seconds, error = timed(A, NMF(k, random_state=0))
                enough = [i for i, e in enumerate(model.errors_, 1) if e <= their_error + SLACK]
                needed = min(enough, default=model.n_iter_)
                _, short, _ = timed(A, NMF(k, random_state=0, max_iter=needed, tol=0))
                if repeat:  # the first only warms up
                    runs.append(
                        (seconds, their_seconds, seconds / their_seconds, short / their_seconds)
                    )
            ours, others, ratio, to_error = (
                statistics.median(run) for run in zip(*runs, strict=True)
            )
            mark = " above" if error > their_error + SLACK else ""
            results.append((others, ratio, to_error, bool(mark)))
            print(
                f"| {name}, {A.shape[0]} × {A.shape[1]} | {k} | {1e3 * ours:.1f} "
                f"| {1e3 * others:.1f} | {ratio:.2f} | {'–' if mark else f'{to_error:.2f}'} "
                f"| {error:.4f}, {their_error:.4f}{mark} |",
                flush=True,
            )
    print(f"\n| scikit-learn, {unit} | matrices | × | largest | faster | to its error | above it |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for low, high in itertools.pairwise((0, 0.005, 0.02, 0.1, math.inf)):
        part = [row for row in results if low <= row[0] < high]
        if part:
            _, all_ratios, to_errors, above = zip(*part, strict=True)
            print(
                f"| {1e3 * low:g} to {1e3 * high:g} | {len(part)} "
                f"| {statistics.median(all_ratios):.2f} | {max(all_ratios):.2f} "
                f"| {sum(r <= 1 for r in all_ratios)} "
                f"| {sum(r <= 1 and not a for r, a in zip(to_errors, above, strict=True))} "
                f"| {sum(above)} |"
            )


def timed(A: np.ndarray, model: Any) -> tuple[Any, float, float]:
    """A fitted model, the seconds that it took, and its relative error."""
    clock = CLOCKS[OPTIONS.clock]
    started = clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        H = model.fit_transform(A)
    seconds = clock() - started
    residual = A - H.astype(np.float64) @ model.components_
    return model, seconds, float(np.linalg.norm(residual) / np.linalg.norm(A.astype(np.float64)))


def plot(found: dict[str, Tensor], methods: dict[str, Method]) -> None:
    """Draw error over time: each point is a run of its own with so many iterations."""
    import matplotlib.pyplot as plt

    shape = len(OPTIONS.k), len(found)
    figure, axes = plt.subplots(*shape, figsize=(6 * shape[1], 4 * shape[0]), squeeze=False)
    for column, (title, A) in zip(axes.T, found.items(), strict=True):
        for panel, k in zip(column, OPTIONS.k, strict=True):
            for name, method in methods.items():
                points = [measure(method, A, k, 0, n) for n in PLOT_ITERATIONS]
                panel.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
            panel.set(xscale="log", title=f"{title}, k = {k}")
            panel.set(xlabel=f"seconds ({OPTIONS.clock})", ylabel="‖A − HW‖ / ‖A‖")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(OPTIONS.plot, dpi=120)


def main() -> None:
    """Compare on every matrix and k."""
    torch.set_num_threads(OPTIONS.threads)
    if OPTIONS.small:
        compare_small()
        return
    methods = {
        name: method
        for name, method in METHODS.items()
        if not OPTIONS.only or name == "deepff HALS" or name.startswith(tuple(OPTIONS.only))
    }
    if MISSING:
        print(f"Not installed, so passed over: {', '.join(MISSING)}.")
    found = matrices()
    for title, A in found.items():
        zeros = float((A == 0).float().mean())
        for k in OPTIONS.k:
            print(f"\n{title}: {len(A)} × {A.shape[1]}, {zeros:.0%} zeros, k = {k}\n")
            # A first run pays for starting threads and libraries.
            for method in methods.values():
                method(A[:500], k, 0, 2)
            compare(A, k, methods)
    if OPTIONS.plot:
        plot(found, methods)
    print(f"\n{OPTIONS.threads} threads, torch {torch.__version__}, numpy {np.__version__}")


if __name__ == "__main__":
    sys.exit(main())
