"""Semi-NMF of real signed activations: time and error beside Ding's updates, and how far factors
match over seeds.

    python benchmarks/semi_nmf.py --images ICOSEG VOC CARS [--k 2 4 6 8 10] [--seeds 8]
        [--only time | match | parts] [--cache FOLDER]

Time: `SemiNMF` and 300 iterations of the multiplicative updates (Ding, Li & Jordan 2010, from their
start, k-means and 0.2, whose time is not counted) take turns on the same matrix and thread; the
process's own time.

Match: of the factors of two seeds the best one-to-one matching by cosine, its mean, over all pairs
of seeds; 1 where all seeds find the same. NMF beside it is of a ReLU layer of the same images, and
of the positive and negative parts of the signed one.

Parts: how well factors fit the parts of the cars (CARS is Car Parts), as `deepff benchmark table4`
measures it for NMF.
"""

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

ROWS = 25_088
# Of three folders: which layer of which.
SIGNED = (
    ("blocks.6.0", 0),
    ("blocks.6.0", 1),
    ("blocks.6.0", 2),
    ("blocks.5.3", 1),
    ("conv_head", 0),
)
RELU = "blocks.6.0.bn1"
PARTS = (("bn2", "nmf"), ("blocks.6.0", "semi-nmf"), ("blocks.6.0:signs", "nmf"))
DING_ITERATIONS = 300


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=Path, nargs=3, required=True, help="three folders")
    parser.add_argument("--k", type=int, nargs="+", default=[2, 4, 6, 8, 10])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--cache", type=Path, help="keep activations here for another run")
    parser.add_argument("--only", choices=["time", "match", "parts"])
    return parser.parse_args()


OPTIONS = arguments()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import torch  # noqa: E402
from scipy.optimize import linear_sum_assignment  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn.functional import normalize  # noqa: E402

from deepff.activations.extraction import extract_layers  # noqa: E402
from deepff.evaluation.datasets.coco_parts import CAR_PARTS, load_coco  # noqa: E402
from deepff.evaluation.metrics import factor_quality  # noqa: E402
from deepff.evaluation.predictions import (  # noqa: E402
    DFF,
    Features,
    Variant,
    count_by_variant,
    factor_finders,
    factorize,
)
from deepff.factorization import NMF, KMeans, SemiNMF  # noqa: E402
from deepff.factorization.nnls import hals, solve, solve_free  # noqa: E402
from deepff.images.image_files import find_images  # noqa: E402
from deepff.layers.centers import with_centers  # noqa: E402
from deepff.layers.layer_map import map_layers  # noqa: E402
from deepff.networks.loading import load_backbone  # noqa: E402

Fit = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]


def semi_nmf(A: Tensor, k: int, seed: int) -> tuple[Tensor, Tensor]:
    """This package's."""
    model = SemiNMF(k, random_state=seed)
    return model.fit_transform(A), model.components_


def nmf(A: Tensor, k: int, seed: int) -> tuple[Tensor, Tensor]:
    """This package's NMF."""
    model = NMF(k, random_state=seed)
    return model.fit_transform(A), model.components_


def sparse_semi_nmf(share: float) -> Fit:
    """With a penalty on the sum of H: `share` of the rows' mean length, W's rows of length one."""

    def fit(A: Tensor, k: int, seed: int) -> tuple[Tensor, Tensor]:
        penalty = share * float(A.norm(dim=1).mean())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is to stop early
            W = SemiNMF(k, random_state=seed, max_iter=1).fit(A).components_
        H = torch.zeros(k, len(A))
        for _ in range(60):
            hals(H, W @ A.T - penalty, W @ W.T, 4)
            W = normalize(solve_free((H @ A).double(), (H @ H.T).double()).float(), dim=1)
        return solve(H, W @ A.T - penalty, W @ W.T).T, W

    return fit


def ding_start(A: Tensor, k: int, seed: int) -> Tensor:
    """H (rows, k) of their start: which cluster of k-means a row is in, and 0.2."""
    return KMeans(k, random_state=seed).fit_transform(A) + 0.2


def ding(A: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
    """300 of their multiplicative updates of H, each after W = (HᵀH)⁻¹HᵀA."""
    for _ in range(DING_ITERATIONS):
        W = torch.linalg.solve(H.T @ H, H.T @ A)
        G, Q = A @ W.T, W @ W.T
        above = G.clamp_min(0) + H @ (-Q).clamp_min(0)
        below = (-G).clamp_min(0) + H @ Q.clamp_min(0)
        H = H * (above / below.clamp_min(1e-12)).sqrt()
    return H, torch.linalg.solve(H.T @ H, H.T @ A)


def error(A: Tensor, H: Tensor, W: Tensor) -> float:
    """‖A − HW‖ / ‖A‖."""
    return float((A - H @ W).double().norm() / A.double().norm())


def matrices() -> Iterator[tuple[str, Tensor, Tensor]]:
    """A name, a signed matrix, and that of the ReLU layer of the same images."""
    backbone = load_backbone()
    layer_map = map_layers(backbone)
    for path, number in SIGNED:
        layers = [layer_map.resolve(path), layer_map.resolve(RELU)]
        needed = 2 * ROWS // (layers[0].grid[0] * layers[0].grid[1])
        files = find_images(OPTIONS.images[number])
        files = files[:: max(1, len(files) // needed)][:needed]
        found, _ = extract_layers(files, backbone, layers, cache=OPTIONS.cache)
        signed, relu = (one.rows[:ROWS].clone() for one in found)
        yield f"{path}, {OPTIONS.images[number].name}, {tuple(signed.shape)}", signed, relu


def timed(A: Tensor, k: int) -> str:
    """Seconds and errors of both, in turns."""
    ours, theirs, ratios = [], [], []
    for seed in range(3):
        start = ding_start(A, k, seed)
        began = time.process_time()
        H, W = semi_nmf(A, k, seed)
        between = time.process_time()
        H2, W2 = ding(A, start)
        ended = time.process_time()
        ours.append((between - began, error(A, H, W)))
        theirs.append((ended - between, error(A, H2, W2)))
        ratios.append((ended - between) / (between - began))
    seconds, errors = (statistics.median(x) for x in zip(*ours, strict=True))
    their_seconds, their_errors = (statistics.median(x) for x in zip(*theirs, strict=True))
    worst = max(own / other for (_, own), (_, other) in zip(ours, theirs, strict=True)) - 1
    return (
        f"{k} | {seconds:.2f} | {their_seconds:.1f} | {statistics.median(ratios):.0f} "
        f"| {errors:.4f} | {their_errors:.4f} | {100 * worst:+.2f} %"
    )


def match(A: Tensor, k: int, fit: Fit) -> tuple[float, float]:
    """How far the factors of all pairs of seeds match, and the mean error."""
    found = [fit(A, k, seed) for seed in range(OPTIONS.seeds)]
    units = [normalize(W, dim=1) for _, W in found]
    cosines = []
    for one, other in combinations(units, 2):
        similar = (one @ other.T).numpy()
        cosines.append(similar[linear_sum_assignment(-similar)].mean())
    return statistics.mean(map(float, cosines)), statistics.mean(error(A, *x) for x in found)


def matched(signed: Tensor, relu: Tensor, k: int) -> str:
    """A row of figures."""
    by_sign = torch.cat([signed.clamp_min(0), (-signed).clamp_min(0)], dim=1)
    of_semi = match(signed, k, semi_nmf)
    cells = [f"{k}", f"{of_semi[0]:.3f}"]
    for share in (0.1, 0.3):
        sparse = match(signed, k, sparse_semi_nmf(share))
        cells.append(f"{sparse[0]:.3f} ({100 * (sparse[1] / of_semi[1] - 1):+.1f} %)")
    cells += [f"{match(A, k, nmf)[0]:.3f}" for A in (relu, by_sign)]
    return " | ".join(cells)


def print_parts(root: Path) -> None:
    """Factor quality, the mean over k, of the paper's recipe on three kinds of layer."""
    truth = load_coco(root, merge=CAR_PARTS)
    backbone = load_backbone()
    layer_map = map_layers(backbone)
    print("\n| layer | factors by | factor quality, mean over k |\n|---|---|--:|")
    for path, method in PARTS:
        files = [image.image for image in truth.images]
        layers = with_centers(backbone, [layer_map.resolve(path)], OPTIONS.cache)
        (found,), _ = extract_layers(files, backbone, layers)
        features = Features(truth, found)
        fits = {Variant(DFF, k, 0): factorize(found, method, k, 0) for k in OPTIONS.k}
        counts = count_by_variant(features, factor_finders(features, fits, crf=False))
        quality = statistics.mean(factor_quality(counts[variant]) for variant in fits)
        print(f"| {path} | {method} | {quality:.3f} |", flush=True)


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    if OPTIONS.only == "parts":
        print_parts(OPTIONS.images[2])
        return
    for title, signed, relu in matrices():
        if OPTIONS.only != "match":
            print(f"\n{title}\n\n| k | semi-NMF, s | Ding, s | × | error | Ding's | worst |")
            print("|---|---|---|---|---|---|---|")
            for k in OPTIONS.k:
                print(f"| {timed(signed, k)} |", flush=True)
        if OPTIONS.only != "time":
            print(f"\n{title}\n\n| k | semi-NMF | sparse, 0.1 | 0.3 | NMF, ReLU | NMF, by sign |")
            print("|---|---|---|---|---|---|")
            step = max(1, len(signed) // 5000)
            for k in OPTIONS.k:
                print(f"| {matched(signed[::step], relu[::step], k)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
