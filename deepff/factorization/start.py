"""Where NMF starts: a sample of the rows, and the best of several short runs on it."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from deepff.factorization.blocks import RowBlocks
from deepff.factorization.nnls import hals, solve, solve_free
from deepff.runtime.distributed import all_reduce_sum, gather_rows, is_distributed, n_ranks, rank

# Measured on the layers of benchmarks/nmf.py: less of any leaves more to the full
# reads, or ends in a worse local minimum more often; more only costs time. The
# subspace has about SUBSPACE dimensions for each factor.
SAMPLE_ROWS, SUBSPACE = 6000, 6
WHOLE_ENTRIES = 2**21  # of A: no more are fitted in memory, whole
# Of A, measured: with more entries a race takes less time than two starts; with no more factors, or
# fewer rows and channels, a second start is a large part of the time and seldom the better one.
_RACED_ENTRIES, _FEW, _LONG = 2**20, 2, 512
_FEW_CHANNELS = 64  # whose subspace saves no time
_CLOSE = 4  # starts, where k is near the number of rows or channels
_SAMPLE_SHARE = 8  # the start holds the sample a few times
_ROWS_PER_FACTOR = 32  # of the sample at least, whatever the memory
# The race: (rows, runs still in it, iterations). The first round takes all runs.
_ROUNDS = ((SAMPLE_ROWS // 3, None, 8), (SAMPLE_ROWS, 3, 12), (SAMPLE_ROWS, 1, 10))
# Losses of two runs that differ by no more than these shares, of the least of them and of what is
# fitted, are a tie: starts that come to the same factors differ by rounding only.
_TIE, _ROUNDING = 1e-4, 1e-6
_SWEEPS = 3
# Where components may be signed, runs end with nearly the same loss, and the first read mends the
# rest: measured on the layers of benchmarks/semi_nmf.py, NMF's race ends at 0.02 to 0.06 % less.
SIGNED_ROWS = SAMPLE_ROWS // 2
_SIGNED_ROUNDS = ((SIGNED_ROWS // 4, None, 4), (SIGNED_ROWS // 2, 2, 4), (SIGNED_ROWS, 1, 5))
_MOMENTUM = 0.5  # without it, half as many iterations again
_BLOCK = 512  # rows that stay in the cache from one product to the next
_GOLDEN = (5**0.5 - 1) / 2
_SPLIT = 2**20  # rows at once: what is computed of all would take many bytes for each


@dataclass(frozen=True)
class Sample:
    """Rows of A, weighted so that sums of squares are in proportion to those of A."""

    rows: Tensor  # (m, c)
    mass: Tensor  # (m,), how many draws each row stands for; float64, on the CPU
    is_whole: bool  # whether these are all rows of A that are not zero


def start_sample(
    rows: RowBlocks, lengths: Tensor, k: int, generator: torch.Generator, n_rows: int = SAMPLE_ROWS
) -> Sample | None:
    """About `n_rows` rows for a fit of k factors to start on, fewer where the memory is short. Few
    rows are taken as a whole; None if all are zero."""
    bound = rows.memory // (_SAMPLE_SHARE * 4 * rows.n_channels)
    # Some rows more or less than this are drawn.
    n_allowed = min(SAMPLE_ROWS, max(bound * 49 // 50, _ROWS_PER_FACTOR * k))
    n_draws, n_whole = min(n_rows, n_allowed), min(WHOLE_ENTRIES // rows.n_channels, bound)
    sample = _draw(rows, lengths, n_draws, max(n_whole, n_allowed), generator)
    if n_draws < n_rows and sample is not None and not sample.is_whole:
        enough = _SAMPLE_SHARE * 4 * rows.n_channels * n_rows
        warnings.warn(
            f"memory is {rows.memory / 2**20:.3g} MiB, so the fit starts on {n_draws} of {n_rows} "
            f"rows, and its error may be a few percent higher; {math.ceil(enough / 2**20)} MiB are "
            "enough.",
            stacklevel=6,
        )
    return sample


def starts_in_memory(
    sample: Sample, k: int, init: str, n_init: int, generator: torch.Generator
) -> Tensor:
    """Components (n, k, c) to refine on all rows: of many entries the best of a race, of fewer one
    or two starts from NNDSVDa, which rarely end above the best of many."""
    rows = sample.rows
    if init == "nndsvda":
        return nndsvda_start(sample, k, generator)[None]
    if 2 * k > min(rows.shape):
        return _distant_starts(rows, k, min(n_init, _CLOSE), generator)
    if rows.numel() > _RACED_ENTRIES:
        return race(sample, k, n_init, generator)[None]
    energies = rows.square().sum(0)
    lengths = torch.where(energies > 0, energies, 1.0).sqrt()
    # Where few channels carry nearly all of A, what the others say of the factors only shows with
    # all channels at length one.
    if 2 * energies.max() > energies.sum():
        return race(replace(sample, rows=rows / lengths), k, n_init, generator)[None] * lengths
    starts = [nndsvda_start(sample, k, generator)]
    if k > _FEW and sum(rows.shape) >= _LONG:
        balanced = replace(sample, rows=rows / lengths)
        starts.append(nndsvda_start(balanced, k, generator) * lengths)
    return torch.stack(starts)


def nndsvda_start(sample: Sample, k: int, generator: torch.Generator) -> Tensor:
    """NNDSVDa (Boutsidis & Gallopoulos 2008) of a sample (m, c); components (k, c). Each singular
    triplet gives the larger of its positive and negative parts; zeros are filled with the mean,
    of a sample of mean 1, so that the unit of the entries does not matter."""
    basis = leading_subspace(sample.rows, k, generator)
    return _nndsvda(sample.rows, projected(sample.rows, basis), basis, k)


def race(
    sample: Sample, k: int, n_init: int, generator: torch.Generator, signed: bool = False
) -> Tensor:
    """The best of `n_init` HALS runs on a sample (m, c); components (k, c).

    The first starts from NNDSVDa, the others (with `signed` all) from rows far apart; the best go
    on with more of the sample. Products are in the subspace of the leading singular vectors (Halko,
    Martinsson & Tropp 2011; Erichson et al. 2018); non-negativity is kept in full space.
    """
    basis = leading_subspace(sample.rows, k, generator)
    B = projected(sample.rows, basis)
    W = _distant_rows(sample.rows, B, k, n_init, generator)
    if n_init > 1 and not signed:
        W[0] = _nndsvda(sample.rows, B, basis, k)
    order = torch.zeros(n_init, dtype=torch.float32, device=B.device)
    for n_rows, n_runs, iterations in _SIGNED_ROUNDS if signed else _ROUNDS:
        kept = order.topk(min(n_runs or n_init, n_init), largest=False).indices
        part = _thinned(B, sample.mass, max(n_rows, 8 * k))
        W, losses = hals_runs(part, basis, W[kept], iterations, signed)
        order = losses if signed else stable_order(losses, part.square().sum())
    return W[0]


def stable_order(losses: Tensor, energy: Tensor) -> Tensor:
    """Keys (n,) that sort runs by loss, and by index where losses tie: rounding, which differs on
    other engines or threads, must not choose among runs that come to the same factors. `losses` are
    ‖B − HW‖² − ‖B‖² and `energy` is ‖B‖²."""
    least = losses.min()
    step = torch.maximum(_TIE * (least + energy), _ROUNDING * energy)
    indices = torch.arange(len(losses), device=losses.device)
    return ((losses - least) / step).floor() * len(losses) + indices


def hals_runs(
    B: Tensor, basis: Tensor, W: Tensor, iterations: int, signed: bool = False
) -> tuple[Tensor, Tensor]:
    """HALS on B basisᵀ from each W (n, k, c): components (n, k, c) and ‖B − HW‖² − ‖B‖² (n,). Each
    iteration starts ahead of the last W, the way it went (Ang & Gillis 2019). Components that may
    go negative, with `signed`, stay in the subspace."""
    transposed = B.T.contiguous()
    H = torch.zeros(*W.shape[:2], len(B), dtype=torch.float32, device=B.device)
    W = last = normalize(W @ basis if signed else W)
    for _ in range(iterations):
        ahead = W + _MOMENTUM * (W - last)
        ahead = normalize(ahead if signed else ahead.clamp_min(0))
        within = ahead if signed else ahead @ basis
        G = (within.flatten(0, 1) @ transposed).view_as(H)
        hals(H, G, ahead @ ahead.mT, _SWEEPS)
        P, Q = (H.flatten(0, 1) @ B).view_as(within), H @ H.mT
        if not signed:
            P = P @ basis.T
        solution = solve_free(P, Q) if signed else hals(ahead, P, Q, _SWEEPS)
        H *= solution.norm(dim=2, keepdim=True)
        W, last = normalize(solution), W
    losses = (Q * (solution @ solution.mT)).sum((1, 2)) - 2 * (P * solution).sum((1, 2))
    return W @ basis.T if signed else W, losses


def normalize(W: Tensor) -> Tensor:
    """The rows of W at length one; zero rows stay zero."""
    return W / W.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(W.dtype).tiny)


def leading_subspace(rows: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """An orthonormal basis near the leading right singular vectors, (c, dimension) or (c, c), from
    random sums of rows, each row in one: a product less than random directions take."""
    c = rows.shape[1]
    dimension = math.ceil(SUBSPACE * k / 16) * 16  # products are fastest with multiples of 16
    if dimension * 2 > c or c <= _FEW_CHANNELS:
        return torch.eye(c, dtype=torch.float32, device=rows.device)
    weights = torch.randn(len(rows), 1, generator=generator, dtype=torch.float32, device="cpu")
    sketch = torch.zeros(dimension, c, dtype=torch.float32, device=rows.device)
    parts = zip(rows.split(dimension), weights.to(rows.device).split(dimension), strict=True)
    for part, weight in parts:
        sketch[: len(part)] += weight * part
    start = torch.linalg.qr(sketch.T)[0]
    return torch.linalg.qr(sum(part.T @ (part @ start) for part in rows.split(_BLOCK)))[0]


def projected(rows: Tensor, basis: Tensor) -> Tensor:
    """Rows in a subspace (m, dimension), or as they are where it is the whole space."""
    if basis.shape[0] == basis.shape[1]:
        return rows
    return torch.cat([part @ basis for part in rows.split(_BLOCK)])


def _nndsvda(rows: Tensor, B: Tensor, basis: Tensor, k: int) -> Tensor:
    # In NumPy, whose calls take less time for so few numbers.
    values, vectors = np.linalg.eigh((B.T @ B).cpu().double().numpy())
    S = np.sqrt(values[::-1][:k].clip(0)).astype(np.float32)
    right = torch.from_numpy(vectors[:, ::-1][:, :k].astype(np.float32)).to(B)
    least = max(1e-6 * S[0], np.finfo(np.float32).tiny)
    U = (B @ right).cpu().numpy() / np.maximum(S, least)
    V = (basis @ right).cpu().numpy()
    parts = [(np.maximum(u, 0), np.maximum(v, 0)) for u, v in ((U, V), (-U, -V))]
    weights = np.stack([_lengths(u) * _lengths(v) for u, v in parts])
    V = np.where(weights[0] >= weights[1], parts[0][1], parts[1][1])
    V = V / np.maximum(_lengths(V), np.finfo(np.float32).tiny)
    W = (V * np.sqrt(S * weights.max(0))).T
    return torch.from_numpy(np.where(1e-6 * W.max() < W, W, math.sqrt(rows.mean()))).to(B)


def _lengths(X: np.ndarray) -> np.ndarray:
    """Of the columns."""
    return np.sqrt((X * X).sum(0))


def _distant_starts(A: Tensor, k: int, n_init: int, generator: torch.Generator) -> Tensor:
    """Components (n_init, k, c) that are rows of A (m, c) far apart. With k more than half of the
    channels, every other one writes A by channels far apart, one for each factor."""
    W = _distant_rows(A, A, k, n_init, generator)
    if 2 * k > A.shape[1]:
        for w, channels in zip(W[1::2], _spread_rows(A.T, k, n_init // 2, generator), strict=True):
            H = A[:, channels.to(A.device)]
            G = H.T @ A
            w.copy_(solve(torch.zeros_like(G), G, H.T @ H))
    return W


def _distant_rows(
    rows: Tensor, B: Tensor, k: int, n_init: int, generator: torch.Generator
) -> Tensor:
    """Components (n_init, k, c): rows that lie far apart in their projection B (m, dimension)."""
    return rows[_spread_rows(B, k, n_init, generator).to(B.device)] + 0.01 * rows.mean(0)


def _spread_rows(B: Tensor, k: int, n_init: int, generator: torch.Generator) -> Tensor:
    """Rows to start from (n_init, k), each drawn by what those before it leave of a row.

    As in k-means++ (Arthur & Vassilvitskii 2007), with the squared distance to the nearest ray
    through a row already drawn: groups of rows without a row in the start would rarely get one.
    """
    B = B.cpu()
    energy = B.square().sum(1)
    directions = B / energy.sqrt().clamp_min(torch.finfo(B.dtype).tiny)[:, None]
    left = energy.expand(n_init, -1)
    rows = []
    for _ in range(k):
        weights = left + 1e-6 * energy  # where nothing is left
        ends = weights.cumsum(1, dtype=torch.float64)
        points = torch.rand(n_init, 1, generator=generator, dtype=torch.float64, device="cpu")
        drawn = torch.searchsorted(ends, points * ends[:, -1:], right=True)
        rows.append(drawn[:, 0].clamp_max(len(B) - 1))
        cosines = directions[rows[-1]] @ directions.T
        left = torch.minimum(left, energy * (1 - cosines.clamp_min(0).square()).clamp_min(0))
    return torch.stack(rows, 1)


def _thinned(sample: Tensor, mass: Tensor, n_draws: int) -> Tensor:
    """About `n_draws` of the draws that made a sample (m, c): evenly spread, heavy rows kept."""
    thin = max(1.0, float(mass.sum()) / n_draws)
    if thin == 1:
        return sample
    ends = mass.cumsum(0) / thin
    n_kept = ends.floor().diff(prepend=ends.new_zeros(1))
    kept = n_kept > 0
    weights = (n_kept[kept] * thin / mass[kept]).sqrt().to(sample)
    return sample[kept.to(sample.device)] * weights[:, None]


def _draw(
    rows: RowBlocks, lengths: Tensor, n_draws: int, n_whole: int, generator: torch.Generator
) -> Sample | None:
    """About `n_draws` rows of all ranks, on each of them; None if all rows are zero. Where no more
    than `n_whole` (or `n_draws`) rows are not zero, these are taken as they are. `lengths` (rows,)
    are those of this rank's rows."""
    counted = np.zeros((3, n_ranks()))
    counted[2, rank()] = len(lengths)
    for part in lengths.split(_SPLIT):
        array = part.cpu().double().numpy()
        counted[:2, rank()] += np.count_nonzero(array), np.vdot(array, array)
    totals = all_reduce_sum(torch.from_numpy(counted))
    measure = _Measure(int(totals[0].sum()), float(totals[1].sum()))
    if measure.n_filled == 0:
        return None
    is_whole = measure.n_filled <= max(n_draws, n_whole)
    if is_whole:
        lengths = lengths.cpu()
        indices = lengths.nonzero()[:, 0]
        mass = measure.n_filled * measure.of(lengths[indices].double())
        drawn = rows.take(indices)
    else:
        start = torch.rand((), generator=generator, dtype=torch.float64, device="cpu")
        first_row = int(totals[2, : rank()].sum())
        indices, mass, probabilities = _draws(measure, lengths, n_draws, first_row, float(start))
        weights = (mass / (probabilities * measure.n_filled)).sqrt().float()
        drawn = rows.take(indices)
        drawn *= weights.to(drawn.device)[:, None]
    if is_distributed():
        drawn = gather_rows(drawn)
        mass = gather_rows(mass[:, None])[:, 0]
    return Sample(drawn, mass, is_whole)


@dataclass(frozen=True)
class _Measure:
    """A row is drawn with probability ½ / n + ½ ‖a‖² / ‖A‖², where n rows are not zero. So a few
    rows that carry much of A are not missed, and the others keep half of the sample."""

    n_filled: int
    energy: float  # ‖A‖²

    def of(self, lengths: Tensor) -> Tensor:
        """The probabilities of rows of these lengths, which are written over."""
        return lengths.square_().div_(self.energy or 1.0).add_(1 / self.n_filled).div_(2)


def _draws(
    measure: _Measure, lengths: Tensor, n_draws: int, first_row: int, start: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Which rows of this rank are drawn, how often, and their probabilities.

    Row i, of probability p, is drawn ⌊p `n_draws` + u⌋ times, u being the fraction of i times the
    golden ratio from `start` on. No row's draws depend on another's probability, so that rounding
    in A seldom changes the sample.
    """
    drawn = []
    # Written over for each part: what is allocated for each stays with the process.
    buffers = torch.empty(2, min(_SPLIT, len(lengths)), dtype=torch.float64, device="cpu")
    first = 0
    for part in lengths.split(_SPLIT):
        probabilities, counts = buffers[:, : len(part)]
        probabilities.copy_(part)
        is_empty = probabilities == 0
        measure.of(probabilities)
        torch.arange(first_row + first, first_row + first + len(part), out=counts, device="cpu")
        counts.mul_(_GOLDEN).add_(start).remainder_(1)
        counts.add_(probabilities, alpha=n_draws).floor_().masked_fill_(is_empty, 0)
        which = counts.nonzero()[:, 0]
        drawn.append((which + first, counts[which], probabilities[which]))
        first += len(part)
    indices, mass, chosen = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    return indices, mass, chosen
