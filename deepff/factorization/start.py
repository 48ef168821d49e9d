"""Where NMF starts: components found on a sample of the rows."""

import math

import torch
from torch import Tensor

from deepff.factorization.nnls import sweep
from deepff.factorization.sparse import SparseBlock

Sample = Tensor | SparseBlock

# Measured on the layers of benchmarks/nmf.py: less of any leaves more to the full
# reads, or ends in a worse local minimum more often; more only costs time. The
# subspace has about SUBSPACE dimensions for each factor.
SAMPLE_ROWS, SUBSPACE = 6000, 6
# The race: (rows, runs still in it, iterations). The first round takes all runs.
ROUNDS = ((SAMPLE_ROWS // 3, None, 8), (SAMPLE_ROWS, 3, 12), (SAMPLE_ROWS, 1, 10))
_SWEEPS = 3
_MOMENTUM = 0.5  # without it, half as many iterations again
_BLOCK = 512  # rows that stay in the cache from one product to the next


def random_start(sample: Sample, k: int, n_init: int, generator: torch.Generator) -> Tensor:
    """The best of `n_init` HALS runs from rows far apart, on a sample (m, c); components (k, c).

    All runs go at once on a part of the sample; the best go on with more of it. Rows
    are redundant and nearly of low rank, so the products are taken in a subspace that holds
    the sample's leading right singular vectors (Halko, Martinsson & Tropp 2011; for NMF:
    Erichson et al. 2018); non-negativity is kept in the full space.
    """
    basis = _leading_subspace(sample, k, generator)
    if isinstance(sample, SparseBlock):
        projected = sample @ basis
    else:
        projected = torch.cat([part @ basis for part in sample.split(_BLOCK)])
    rows = _spread_rows(projected, k, n_init, generator)
    if isinstance(sample, SparseBlock):
        places, which = rows.unique(return_inverse=True)
        drawn = sample.take(places).to_dense()[which]
    else:
        drawn = sample[rows.to(sample.device)]
    W = drawn + 0.01 * _mean_row(sample)
    losses = torch.zeros(n_init, device=sample.device)
    for n_rows, n_runs, iterations in ROUNDS:
        kept = losses.topk(min(n_runs or n_init, n_init), largest=False).indices
        W, losses = _hals(_part(projected, n_rows, k), basis, W[kept], iterations)
    return W[0]


def _spread_rows(B: Tensor, k: int, n_init: int, generator: torch.Generator) -> Tensor:
    """Rows to start from (n_init, k), each drawn by what those before it leave of a row.

    As in k-means++ (Arthur & Vassilvitskii 2007), with the squared distance to the nearest line
    through a row already drawn: groups of rows without a row in the start would rarely get one.
    """
    B = B.cpu()
    energy = B.square().sum(1)
    directions = B / energy.sqrt().clamp_min(torch.finfo(B.dtype).tiny)[:, None]
    left = energy.expand(n_init, -1)
    rows = []
    for _ in range(k):
        weights = left + 1e-6 * energy  # where nothing is left
        rows.append(torch.multinomial(weights, 1, generator=generator)[:, 0])
        cosines = directions[rows[-1]] @ directions.T
        left = torch.minimum(left, energy * (1 - cosines.square()).clamp_min(0))
    return torch.stack(rows, 1)


def _part(sample: Tensor, n_rows: int, k: int) -> Tensor:
    """About `n_rows` of the rows, evenly spread, and enough for k factors."""
    return sample[:: max(1, round(len(sample) / max(n_rows, 8 * k)))]


def nndsvda_start(sample: Sample, k: int, generator: torch.Generator) -> Tensor:
    """NNDSVDa (Boutsidis & Gallopoulos 2008) of a sample (m, c); components (k, c).

    Each singular triplet gives the larger of its positive and negative parts; zeros are
    filled with the mean.
    """
    basis = _leading_subspace(sample, k, generator)
    U, S, Vh = torch.linalg.svd(sample @ basis, full_matrices=False)
    U, S, V = U[:, :k], S[:k], (basis @ Vh[:k].T)
    parts = [(U.clamp_min(0), V.clamp_min(0)), ((-U).clamp_min(0), (-V).clamp_min(0))]
    weights = torch.stack([u.norm(dim=0) * v.norm(dim=0) for u, v in parts])
    V = torch.where(weights[0] >= weights[1], parts[0][1], parts[1][1])
    V = V / V.norm(dim=0).clamp_min(torch.finfo(V.dtype).tiny)
    W = (V * (S * weights.amax(0)).sqrt()).T
    W = torch.cat([W, W.new_zeros(k - len(W), W.shape[1])])  # fewer rows in the sample than k
    return torch.where(1e-6 * W.amax() < W, W, _mean_row(sample).mean())


def _mean_row(sample: Sample) -> Tensor:
    if isinstance(sample, SparseBlock):
        return sample.weighted_sums(torch.full((1, len(sample)), 1 / len(sample)))[0].float()
    return sample.mean(0)


def _leading_subspace(sample: Sample, k: int, generator: torch.Generator) -> Tensor:
    """An orthonormal basis near the leading right singular vectors: (c, dimension), or (c, c).

    It starts from random sums of rows, each row in one of them, which take a product less than
    random directions.
    """
    c = sample.shape[1]
    dimension = math.ceil(SUBSPACE * k / 16) * 16  # products are fastest with multiples of 16
    if dimension * 2 > c:
        return torch.eye(c, device=sample.device)
    weights = torch.randn(len(sample), 1, generator=generator).to(sample.device)
    if isinstance(sample, SparseBlock):
        places = torch.arange(len(sample))
        sums = torch.zeros(dimension, len(sample))
        sums[places % dimension, places] = weights[:, 0]
        start = torch.linalg.qr(sample.weighted_sums(sums).T.float())[0]
        image = sample.weighted_sums((sample @ start).T).T.float()
    else:
        sketch = torch.zeros(dimension, c, device=sample.device)
        for part, weight in zip(sample.split(dimension), weights.split(dimension), strict=True):
            sketch[: len(part)] += weight * part
        start = torch.linalg.qr(sketch.T)[0]
        image = sum(part.T @ (part @ start) for part in sample.split(_BLOCK))
    return torch.linalg.qr(image)[0]


def _hals(B: Tensor, basis: Tensor, W: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Batched HALS on the matrix B basisᵀ: components (batch, k, c) and their losses (batch,).

    Each iteration starts ahead of the last one's W, the way it went (Ang & Gillis 2019).
    """
    batch, k, _ = W.shape
    m, transposed = len(B), B.T.contiguous()
    H = torch.zeros(batch, k, m, device=B.device)
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


def normalize(W: Tensor) -> Tensor:
    """The rows of W at length one; zero rows stay zero."""
    return W / W.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(W.dtype).tiny)
