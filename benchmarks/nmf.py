"""NMF of real activations: deepff beside every other implementation that is installed.

    python benchmarks/nmf.py --images PHOTOS [--k 5 10] [--seeds 5] [--threads 2] [--plot FILE]

All get the same matrix and the same number of threads, and take turns within each seed, so that
a busy machine slows all alike. Ratios are medians over seeds of the ratio within one turn.
Also run when installed: nmf-torch, torchnmf. `--plot` needs matplotlib.
"""

import argparse
import contextlib
import importlib.util
import io
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

ROWS = 25_088
LAYERS = {"EfficientNet-Lite0, head": "bn2", "EfficientNet-Lite0, stride 16": "blocks.5.0.bn1"}
PROJECTED = "512 channels projected from stride 16"
PLOT_ITERATIONS = (1, 2, 5, 10, 20, 50, 100, 200)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=Path, required=True, help="a folder of photographs")
    parser.add_argument("--k", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=ROWS, help="the most rows of a matrix")
    parser.add_argument("--only", nargs="+", help="methods whose names begin so")
    parser.add_argument("--plot", type=Path, help="write error over time to this picture")
    return parser.parse_args()


OPTIONS = arguments()
# Math libraries read these when they are first imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(OPTIONS.threads)

# This file must not be taken for the package nmf-torch, whose module is called nmf.
sys.path.remove(str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from deepff.backbones import load_backbone  # noqa: E402
from deepff.extraction import extract  # noqa: E402
from deepff.factorization import NMF  # noqa: E402
from deepff.image_files import find_images  # noqa: E402
from deepff.layers import resolve_layer  # noqa: E402

Factors = tuple[Tensor, Tensor]
Method = Callable[[Tensor, int, int, int], Factors]
reads: dict[str, list[int]] = {}


def ours(name: str, solver: str) -> Method:
    """This package; notes how often A was read."""

    def run(A: Tensor, k: int, seed: int, max_iter: int) -> Factors:
        model = NMF(k, solver=solver, random_state=seed, max_iter=max_iter)
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
if importlib.util.find_spec("nmf"):
    METHODS["nmf-torch HALS"] = nmf_torch
if importlib.util.find_spec("torchnmf"):
    METHODS["torchnmf"] = torchnmf


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
        layer = resolve_layer(backbone, path)
        cells = layer.grid[0] * layer.grid[1]
        needed = files[: 2 * -(-OPTIONS.rows // cells)]  # an image fills at most its square
        activations, _ = extract(needed, backbone, layer)
        found[f"{name} ({layer.channels} channels)"] = activations.rows[: OPTIONS.rows].clone()
    A = list(found.values())[-1]
    mixing = torch.randn(A.shape[1], 512, generator=torch.Generator().manual_seed(0))
    mixed = (A - A.mean(0)) @ mixing / A.shape[1] ** 0.5
    found[PROJECTED] = (mixed - mixed.std(0) / 2).clamp_min(0)
    return found


def measure(method: Method, A: Tensor, k: int, seed: int, max_iter: int) -> tuple[float, float]:
    """Seconds and relative error of one run."""
    started = time.perf_counter()
    H, W = method(A, k, seed, max_iter)
    seconds = time.perf_counter() - started
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
            runs[name].append(measure(method, A, k, seed, 200))
    print("| method | seconds | times deepff's | error, median | error, worst | reads of A |")
    print("|---|---|---|---|---|---|")
    base = next(iter(runs.values()))
    for name, results in runs.items():
        seconds, errors = zip(*results, strict=True)
        ratio = statistics.median(s / b for s, (b, _) in zip(seconds, base, strict=True))
        count = str(max(reads[name])) if name in reads else ""
        print(
            f"| {name} | {statistics.median(seconds):.3f} | {ratio:.1f} "
            f"| {statistics.median(errors):.5f} | {max(errors):.5f} | {count} |",
            flush=True,
        )


def plot(A: Tensor, k: int, title: str, methods: dict[str, Method]) -> None:
    """Draw error over time: each point is a run of its own with so many iterations."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    for name, method in methods.items():
        points = [measure(method, A, k, 0, n) for n in PLOT_ITERATIONS]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    axes.set(xscale="log", xlabel="seconds", ylabel="‖A − HW‖ / ‖A‖", title=f"{title}, k = {k}")
    axes.legend()
    figure.savefig(OPTIONS.plot, dpi=150)


def main() -> None:
    """Compare on every matrix and k."""
    torch.set_num_threads(OPTIONS.threads)
    methods = {
        name: method
        for name, method in METHODS.items()
        if not OPTIONS.only or name == "deepff HALS" or name.startswith(tuple(OPTIONS.only))
    }
    for title, A in matrices().items():
        zeros = float((A == 0).float().mean())
        for k in OPTIONS.k:
            print(f"\n{title}: {len(A)} × {A.shape[1]}, {zeros:.0%} zeros, k = {k}\n")
            # A first run pays for starting threads and libraries.
            for method in methods.values():
                method(A[:500], k, 0, 2)
            compare(A, k, methods)
    if OPTIONS.plot:
        plot(A, k, title, methods)
    print(f"\n{OPTIONS.threads} threads, torch {torch.__version__}, numpy {np.__version__}")


if __name__ == "__main__":
    sys.exit(main())
