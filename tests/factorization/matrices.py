"""Matrices of many kinds, each with a number of factors, and what tests do with all of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from deepff.factorization import METHODS, PCA

Made = tuple[np.ndarray, int]


def estimator(method: str, k: int) -> Any:
    """An unfitted one of `METHODS`, with a seed where it takes one."""
    return PCA(k) if method == "pca" else METHODS[method](k, random_state=0)


def relative_error(A: np.ndarray, H: np.ndarray, W: np.ndarray) -> float:
    """‖A − HW‖ / ‖A‖ in float64, whatever the magnitude of A."""
    scale = np.abs(A).max()
    residual = A / scale - (H / scale).astype(np.float64) @ W.astype(np.float64)
    return float(np.linalg.norm(residual) / np.linalg.norm(A / scale))


def noisy_product(rows: int = 40_000, channels: int = 64, k: int = 4) -> Tensor:
    """Factors of few strong entries, and noise; non-negative."""
    generator = torch.Generator().manual_seed(0)
    H = torch.rand(rows, k, generator=generator) ** 4
    W = torch.rand(k, channels, generator=generator) ** 4
    return (H @ W + 0.05 * torch.randn(rows, channels, generator=generator)).clamp_min(0)


def _low_rank(
    rng: Generator, rows: int, channels: int, rank: int, density: float = 0.5
) -> np.ndarray:
    """The product of two non-negative factors with this share of entries that are not zero."""
    H = rng.exponential(size=(rows, rank)) * (rng.random((rows, rank)) < density)
    W = rng.exponential(size=(rank, channels)) * (rng.random((rank, channels)) < density)
    return H @ W


def _noisy(rng: Generator, A: np.ndarray, noise: float) -> np.ndarray:
    return np.maximum(A + noise * A.mean() * rng.normal(size=A.shape), 0)


def _groups(rng: Generator, rows: int, k: int, width: int) -> np.ndarray:
    """Each row has the channels of one group."""
    H = np.eye(k)[rng.integers(k, size=rows)] * rng.random((rows, 1))
    return H @ np.kron(np.eye(k), rng.random(width))


def _strong_rows(rng: Generator, rows: int, strong: int, strength: float) -> np.ndarray:
    """Weak rows of three factors, and a few strong ones with five channels of their own."""
    A = np.zeros((rows, 30))
    A[:, :25] = _low_rank(rng, rows, 25, 3) + 0.05 * rng.random((rows, 25))
    where = rng.choice(rows, strong, replace=False)
    A[where] = 0
    A[where, 25:] = strength * (0.5 + rng.random((strong, 5)))
    return A


def _negative_part_cut(rng: Generator, rows: int, channels: int, rank: int) -> np.ndarray:
    """Two factors of which half is zero: rank-deficient parts, as float32 leaves them."""
    H = (rng.random((rows, rank), dtype=np.float32) - 0.5).clip(0)
    return H @ (rng.random((rank, channels), dtype=np.float32) - 0.5).clip(0)


def _relu(rng: Generator, rows: int, channels: int, rank: int) -> np.ndarray:
    """What a ReLU leaves of signed factors and noise; some rows are all zero."""
    A = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, channels))
    A = np.maximum(A + rng.normal(size=A.shape) - 1, 0)
    A[::17] = 0
    return A


def _digits(rng: Generator) -> np.ndarray:
    from sklearn.datasets import load_digits

    return load_digits().data[rng.permutation(1797)[:800]]


MATRICES: dict[str, Callable[[Generator], Made]] = {
    # planted
    "three factors": lambda r: (_low_rank(r, 400, 60, 3), 3),
    "eight factors, noise": lambda r: (_noisy(r, _low_rank(r, 600, 80, 8), 0.3), 8),
    "fewer factors than planted": lambda r: (_noisy(r, _low_rank(r, 500, 60, 12), 0.1), 5),
    "twenty factors": lambda r: (_low_rank(r, 300, 60, 20), 20),
    "twenty factors, noise": lambda r: (_noisy(r, _low_rank(r, 300, 60, 20), 0.2), 20),
    "groups": lambda r: (_groups(r, 1000, 12, 5), 12),
    "overlapping dense factors": lambda r: (_low_rank(r, 300, 50, 6, density=1), 6),
    # sparse
    "one entry in twenty": lambda r: (r.random((500, 100)) * (r.random((500, 100)) < 0.05), 8),
    "sparse factors": lambda r: (_low_rank(r, 800, 90, 10, density=0.1), 10),
    "counts": lambda r: (r.poisson(0.3 * _low_rank(r, 500, 120, 6)).astype(float), 6),
    "zeros and ones": lambda r: ((r.random((200, 40)) < 0.2).astype(float), 6),
    "identity": lambda r: (np.eye(30), 10),
    "relu": lambda r: (_relu(r, 900, 64, 5), 6),
    # heavy-tailed
    "heavy rows": lambda r: (_low_rank(r, 1000, 40, 5) * r.pareto(1.1, (1000, 1)), 5),
    "heavy channels": lambda r: (_low_rank(r, 500, 60, 6) * r.pareto(0.8, 60), 6),
    "heavy entries": lambda r: (r.pareto(1.5, (400, 50)), 6),
    "three strong rows": lambda r: (_strong_rows(r, 40_000, 3, 1000.0), 4),
    "twenty stronger rows": lambda r: (_strong_rows(r, 20_000, 20, 20.0), 4),
    "one strong row of few": lambda r: (_strong_rows(r, 300, 1, 100.0), 4),
    # rank-deficient
    "more factors than rank": lambda r: (_negative_part_cut(r, 100, 40, 3), 6),
    "rank one": lambda r: (_low_rank(r, 80, 20, 1, density=1), 4),
    "equal rows": lambda r: (np.repeat(_low_rank(r, 10, 30, 8), 30, axis=0), 6),
    "equal channels": lambda r: (np.repeat(_low_rank(r, 300, 10, 8), 4, axis=1), 6),
    "mostly empty": lambda r: (np.pad(_low_rank(r, 30, 20, 4), ((0, 500), (0, 40))), 4),
    # tiny, huge
    "four by three": lambda r: (r.random((4, 3)), 2),
    "entries of 1e-30": lambda r: (1e-30 * _noisy(r, _low_rank(r, 200, 40, 5), 0.2), 5),
    "entries of 1e30": lambda r: (1e30 * _noisy(r, _low_rank(r, 200, 40, 5), 0.2), 5),
    "images of digits": lambda r: (_digits(r), 16),
    # wide, tall, k at its limits
    "wide": lambda r: (_noisy(r, _low_rank(r, 25, 700, 6), 0.5), 6),
    "k = rows": lambda r: (_noisy(r, _low_rank(r, 12, 200, 12), 0.2), 12),
    "k = rows − 1": lambda r: (r.random((12, 200)), 11),
    "tall": lambda r: (_noisy(r, _low_rank(r, 30_000, 8, 3), 0.3), 3),
    "k = channels": lambda r: (r.random((200, 10)), 10),
    "k = channels − 1": lambda r: (_noisy(r, _low_rank(r, 300, 10, 10), 0.1), 9),
    "k = two thirds of the channels": lambda r: (_noisy(r, _low_rank(r, 400, 30, 20), 0.1), 20),
}
