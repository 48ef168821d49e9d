"""Where NMF starts: components found on a sample of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepff.factorization.blocks import RowBlocks
from deepff.factorization.nnls import solve, solve_free, sweep
from deepff.factorization.sparse import SparseBlock, dense
from deepff.runtime.distributed import all_reduce_sum, gather_rows, is_distributed, n_ranks, rank

# Measured on the layers of benchmarks/nmf.py: less of any leaves more to the full
# reads, or ends in a worse local minimum more often; more only costs time. The
# subspace has about SUBSPACE dimensions for each factor.
SAMPLE_ROWS, SUBSPACE = 6000, 6
# The race: (rows, runs still in it, iterations). The first round takes all runs.
_ROUNDS = ((SAMPLE_ROWS // 3, None, 8), (SAMPLE_ROWS, 3, 12), (SAMPLE_ROWS, 1, 10))
# Losses of two runs that differ by no more than these shares, of the least of them and of what is
# fitted, are alike: starts that come to the same factors differ by what rounding makes of them.
_ALIKE, _ROUNDED = 1e-4, 1e-6
_SWEEPS = 3
# Where components may be signed, runs end nearly alike, and the first read mends what they lack:
# measured on the layers of benchmarks/semi_nmf.py, NMF's race ends at 0.02 to 0.06 % less error.
SIGNED_ROWS = SAMPLE_ROWS // 2
_SIGNED_ROUNDS = ((SIGNED_ROWS // 4, None, 4), (SIGNED_ROWS // 2, 2, 4), (SIGNED_ROWS, 1, 5))
_MOMENTUM = 0.5  # without it, half as many iterations again
_BLOCK = 512  # rows that stay in the cache from one product to the next


def distant_starts(A: Tensor, k: int, n_init: int, generator: torch.Generator) -> Tensor:
    """Components (n_init, k, c) that are rows of A (m, c) far apart.

    With k more than half of the channels, every other one writes A by channels far apart: of
    nearly as many factors as channels, each then begins with a channel of its own.
    """
    W = _distant_rows(A, A, k, n_init, generator)
    if 2 * k > A.shape[1]:
        for w, channels in zip(W[1::2], _spread_rows(A.T, k, n_init // 2, generator), strict=True):
            H = A[:, channels.to(A.device)]
            G = H.T @ A
            w.copy_(solve(torch.zeros_like(G), G, H.T @ H))
    return W


def race(
    sample: Sample,
    k: int,
    n_init: int,
    n_kept: int,
    generator: torch.Generator,
    signed: bool = False,
) -> Tensor:
    """The best of `n_init` HALS runs on a sample (m, c); components (n_kept, k, c).

    The first starts from NNDSVDa, the others from rows far apart, of which none may have what a
    few rows share. All go at once on a part of the sample; the best go on with more of it. Rows
    are redundant and nearly of low rank, so the products are taken in a subspace that holds
    the sample's leading right singular vectors (Halko, Martinsson & Tropp 2011; for NMF:
    Erichson et al. 2018); non-negativity is kept in the full space. Where components may be
    `signed`, all runs start from rows far apart.
    """
    basis = _leading_subspace(sample.rows, k, generator)
    projected = _projected(sample.rows, basis)
    W = _distant_rows(sample.rows, projected, k, n_init, generator)
    if n_init > 1 and not signed:
        W[0] = _nndsvda(sample.rows, projected, basis, k)
    order = torch.zeros(n_init, dtype=torch.float32, device=projected.device)
    descend = _semi_hals if signed else _hals
    for n_rows, n_runs, iterations in _SIGNED_ROUNDS if signed else _ROUNDS:
        n_best = min(max(n_runs or n_init, n_kept), n_init)
        kept = order.topk(n_best, largest=False).indices
        part = thinned(projected, sample.mass, max(n_rows, 8 * k))
        W, losses = descend(part, basis, W[kept], iterations)
        order = losses if signed else _order(losses, part.square().sum())
    return W


def _order(losses: Tensor, energy: Tensor) -> Tensor:
    """What runs are ordered by: their losses in steps, and in the same step their places.

    Else rounding, which other engines and numbers of threads do otherwise, would choose among runs
    that come to the same factors.

    Parameters
    ----------
    losses : Tensor, (n,)
        ‖B − HW‖² − ‖B‖².
    energy : Tensor, ()
        ‖B‖².
    """
    least = losses.min()
    step = torch.maximum(_ALIKE * (least + energy), _ROUNDED * energy)
    places = torch.arange(len(losses), device=losses.device)
    return ((losses - least) / step).floor() * len(losses) + places


def balanced_start(sample: Sample, k: int, n_init: int, generator: torch.Generator) -> Tensor:
    """The best of as many runs on the sample with its channels at length one; (1, k, c).

    Where few channels carry nearly all of A, what the others say of the factors is only found so.
    """
    rows = dense(sample.rows)
    lengths = torch.linalg.vector_norm(rows, dim=0)
    lengths = torch.where(lengths > 0, lengths, 1.0)
    return race(replace(sample, rows=rows / lengths), k, n_init, 1, generator)[:1] * lengths


def _distant_rows(
    rows: Tensor | SparseBlock, projected: Tensor, k: int, n_init: int, generator: torch.Generator
) -> Tensor:
    """Components (n_init, k, c) that are rows far apart in the subspace they are projected to."""
    chosen = _spread_rows(projected, k, n_init, generator)
    if isinstance(rows, SparseBlock):
        indices, which = chosen.unique(return_inverse=True)
        drawn = rows.take(indices).to_dense()[which]
    else:
        drawn = rows[chosen.to(projected.device)]
    return drawn + 0.01 * _mean_row(rows)


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


def nndsvda_start(sample: Sample, k: int, generator: torch.Generator) -> Tensor:
    """NNDSVDa (Boutsidis & Gallopoulos 2008) of a sample (m, c); components (k, c).

    Each singular triplet gives the larger of its positive and negative parts; zeros are
    filled with the mean.
    """
    basis = _leading_subspace(sample.rows, k, generator)
    return _nndsvda(sample.rows, _projected(sample.rows, basis), basis, k)


def _nndsvda(rows: Tensor | SparseBlock, projected: Tensor, basis: Tensor, k: int) -> Tensor:
    gram = (projected.T @ projected).cpu().double()
    values, vectors = (found.flip(-1)[..., :k] for found in torch.linalg.eigh(gram))
    S, right = values.clamp_min(0).sqrt().to(projected), vectors.to(projected)
    U = projected @ right / S.clamp_min(1e-6 * S[0]).clamp_min(torch.finfo(S.dtype).tiny)
    V = basis @ right
    parts = [(U.clamp_min(0), V.clamp_min(0)), ((-U).clamp_min(0), (-V).clamp_min(0))]
    weights = torch.stack([u.norm(dim=0) * v.norm(dim=0) for u, v in parts])
    V = torch.where(weights[0] >= weights[1], parts[0][1], parts[1][1])
    V = V / V.norm(dim=0).clamp_min(torch.finfo(V.dtype).tiny)
    W = (V * (S * weights.amax(0)).sqrt()).T
    return torch.where(1e-6 * W.amax() < W, W, _mean_row(rows).mean())


def _projected(rows: Tensor | SparseBlock, basis: Tensor) -> Tensor:
    """Rows in a subspace (m, dimension)."""
    if isinstance(rows, SparseBlock):
        return rows @ basis
    return torch.cat([part @ basis for part in rows.split(_BLOCK)])


def _mean_row(rows: Tensor | SparseBlock) -> Tensor:
    if isinstance(rows, SparseBlock):
        weights = torch.full((1, len(rows)), 1 / len(rows), dtype=torch.float32, device="cpu")
        return rows.weighted_sums(weights)[0].float()
    return rows.mean(0)


def _leading_subspace(rows: Tensor | SparseBlock, k: int, generator: torch.Generator) -> Tensor:
    """An orthonormal basis near the leading right singular vectors: (c, dimension), or (c, c).

    It starts from random sums of rows, each row in one of them, which take a product less than
    random directions.
    """
    c = rows.shape[1]
    dimension = math.ceil(SUBSPACE * k / 16) * 16  # products are fastest with multiples of 16
    if dimension * 2 > c:
        return torch.eye(c, dtype=torch.float32, device=rows.device)
    weights = torch.randn(len(rows), 1, generator=generator, dtype=torch.float32, device="cpu")
    if isinstance(rows, SparseBlock):
        indices = torch.arange(len(rows), device="cpu")
        sums = torch.zeros(dimension, len(rows), dtype=torch.float32, device="cpu")
        sums[indices % dimension, indices] = weights[:, 0]
        start = torch.linalg.qr(rows.weighted_sums(sums).T.float())[0]
        image = rows.weighted_sums((rows @ start).T).T.float()
    else:
        weights = weights.to(rows.device)
        sketch = torch.zeros(dimension, c, dtype=torch.float32, device=rows.device)
        for part, weight in zip(rows.split(dimension), weights.split(dimension), strict=True):
            sketch[: len(part)] += weight * part
        start = torch.linalg.qr(sketch.T)[0]
        image = sum(part.T @ (part @ start) for part in rows.split(_BLOCK))
    return torch.linalg.qr(image)[0]


def _hals(B: Tensor, basis: Tensor, W: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Batched HALS on the matrix B basisᵀ: components (batch, k, c) and their losses (batch,).

    Each iteration starts ahead of the last one's W, the way it went (Ang & Gillis 2019).
    """
    batch, k, _ = W.shape
    m, transposed = len(B), B.T.contiguous()
    H = torch.zeros(batch, k, m, dtype=torch.float32, device=B.device)
    W = last = normalize(W)
    for _ in range(iterations):
        ahead = normalize((W + _MOMENTUM * (W - last)).clamp_min(0))
        G = ((ahead @ basis).flatten(0, 1) @ transposed).view(batch, k, m)
        sweep(H, G, ahead @ ahead.mT, _SWEEPS)
        P = ((H.flatten(0, 1) @ B).view(batch, k, -1)) @ basis.T
        Q = H @ H.mT
        sweep(ahead, P, Q, _SWEEPS)
        H *= ahead.norm(dim=2, keepdim=True)
        W, last = normalize(ahead), W
    losses = (Q * (ahead @ ahead.mT)).sum((1, 2)) - 2 * (P * ahead).sum((1, 2))
    return W, losses


def _semi_hals(B: Tensor, basis: Tensor, W: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """As `_hals`, for components that may go negative: these stay in the subspace."""
    m, transposed = len(B), B.T.contiguous()
    W = last = normalize(W @ basis)
    H = torch.zeros(*W.shape[:2], m, dtype=torch.float32, device=B.device)
    for _ in range(iterations):
        ahead = normalize(W + _MOMENTUM * (W - last))
        G = (ahead.flatten(0, 1) @ transposed).view_as(H)
        sweep(H, G, ahead @ ahead.mT, _SWEEPS)
        P, Q = (H.flatten(0, 1) @ B).view_as(W), H @ H.mT
        found = solve_free(P, Q)
        H *= found.norm(dim=2, keepdim=True)
        W, last = normalize(found), W
    losses = (Q * (found @ found.mT)).sum((1, 2)) - 2 * (P * found).sum((1, 2))
    return W @ basis.T, losses


def normalize(W: Tensor) -> Tensor:
    """The rows of W at length one; zero rows stay zero."""
    return W / W.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(W.dtype).tiny)


_GOLDEN = (5**0.5 - 1) / 2
_SPLIT = 2**20  # rows at once: what is computed of all would take many bytes for each


@dataclass(frozen=True)
class Sample:
    """Rows of A, weighted so that sums of squares are in proportion to those of A.

    Attributes
    ----------
    rows : Tensor or SparseBlock (m, c)
    mass : Tensor (m,)
        How many draws each row stands for; float64, on the CPU.
    is_whole : bool
        Whether these are all rows of A that are not zero.
    """

    rows: Tensor | SparseBlock
    mass: Tensor
    is_whole: bool


def draw(
    rows: RowBlocks, norms: Tensor, n_draws: int, n_whole: int, generator: torch.Generator
) -> Sample | None:
    """About `n_draws` rows of all ranks, on each of them; None if all rows are zero.

    Where no more than `n_whole` (or `n_draws`) rows are not zero, these are taken as they are.

    A row is drawn with probability ½ / n + ½ ‖a‖² / ‖A‖², where n rows are not zero: a few rows
    that carry much of A are not missed, and the others keep half of the sample. Row i, of
    probability p, is drawn ⌊p `n_draws` + u⌋ times, u being the fraction of i times the golden
    ratio from a random start on: spread so evenly, what many rows or a strong one make up of the
    measure they make up of the sample. No row's draws depend on another's probability, so that
    rounding in A, which another engine or thread count changes, seldom changes the sample.

    Parameters
    ----------
    norms : Tensor (rows,)
        The lengths of this rank's rows.
    """
    measure = _Measure(norms)
    if measure.n_filled == 0:
        return None
    is_whole = measure.n_filled <= max(n_draws, n_whole)
    if is_whole:
        indices, probabilities = (torch.cat(p) for p in zip(*measure.parts(), strict=True))
        mass = measure.n_filled * probabilities
        found = rows.take_compressed(indices)
    else:
        start = torch.rand((), generator=generator, dtype=torch.float64, device="cpu")
        indices, mass, probabilities = measure.drawn(n_draws, float(start))
        weights = (mass / (probabilities * measure.n_filled)).sqrt().float()
        found = _weighted(rows.take_compressed(indices), weights)
    if is_distributed():
        found = gather_rows(dense(found))
        mass = gather_rows(mass[:, None])[:, 0]
    return Sample(found, mass, is_whole)


def thinned(sample: Tensor, mass: Tensor, n_draws: int) -> Tensor:
    """About `n_draws` of the draws that made a sample (m, c): evenly spread, heavy rows kept."""
    thin = max(1.0, float(mass.sum()) / n_draws)
    if thin == 1:
        return sample
    ends = mass.cumsum(0) / thin
    n_kept = ends.floor().diff(prepend=ends.new_zeros(1))
    kept = n_kept > 0
    weights = (n_kept[kept] * thin / mass[kept]).sqrt().to(sample)
    return sample[kept.to(sample.device)] * weights[:, None]


class _Measure:
    """The probabilities of rows of all ranks, of which this one's are looked through by parts."""

    def __init__(self, norms: Tensor) -> None:
        self._norms = norms
        totals = torch.zeros(3, n_ranks(), dtype=torch.float64, device="cpu")
        totals[2, rank()] = len(norms)
        for part in norms.split(_SPLIT):
            part = part.cpu().double()
            totals[0, rank()] += (part > 0).sum()
            totals[1, rank()] += part.square().sum()
        totals = all_reduce_sum(totals)
        self.n_filled, self._energy = int(totals[0].sum()), float(totals[1].sum())
        self._first_row = int(totals[2, : rank()].sum())

    def parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """By parts, the indices of this rank's rows that are not zero, and their probabilities."""
        first = 0
        for part in self._norms.split(_SPLIT):
            part = part.cpu().double()
            filled = part.nonzero()[:, 0]
            yield filled + first, self._to_probabilities(part[filled].square())
            first += len(part)

    def drawn(self, n_draws: int, start: float) -> tuple[Tensor, Tensor, Tensor]:
        """Which of this rank's rows are drawn, how often, and their probabilities."""
        found = []
        # Written over for each part: what is allocated anew each time stays with the process.
        held = torch.empty(2, min(_SPLIT, len(self._norms)), dtype=torch.float64, device="cpu")
        first = self._first_row
        for part in self._norms.split(_SPLIT):
            probabilities, counts = held[:, : len(part)]
            probabilities.copy_(part)
            is_empty = probabilities == 0
            self._to_probabilities(probabilities.square_())
            torch.arange(first, first + len(part), out=counts, device="cpu")
            counts.mul_(_GOLDEN).add_(start).remainder_(1)
            counts.add_(probabilities, alpha=n_draws).floor_().masked_fill_(is_empty, 0)
            which = counts.nonzero()[:, 0]
            found.append((which + first - self._first_row, counts[which], probabilities[which]))
            first += len(part)
        indices, counts, probabilities = (torch.cat(c) for c in zip(*found, strict=True))
        return indices, counts, probabilities

    def _to_probabilities(self, energies: Tensor) -> Tensor:
        """Of rows with these squared lengths, written over them."""
        return energies.div_(self._energy or 1.0).add_(1 / self.n_filled).div_(2)


def _weighted(rows: Tensor | SparseBlock, weights: Tensor) -> Tensor | SparseBlock:
    if isinstance(rows, SparseBlock):
        return rows.weighted(weights)
    return rows.mul_(weights.to(rows.device)[:, None])
