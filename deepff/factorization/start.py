"""Where NMF starts: components found on a sample of the rows."""

import torch
from torch import Tensor

from deepff.factorization.nnls import sweep

# Measured on the layers of benchmarks/nmf.py: less of any leaves more to the full
# reads, or ends in a worse local minimum more often; more only costs time. The
# subspace has SUBSPACE dimensions for each factor and is found on SUBSPACE_ROWS.
SAMPLE_ROWS, SUBSPACE_ROWS, SUBSPACE = 6000, 3000, 6
# The race: (rows, runs still in it, iterations). The first round takes all runs.
ROUNDS = ((1500, None, 10), (3000, 3, 10), (SAMPLE_ROWS, 1, 15))
_SWEEPS = 3


def random_start(sample: Tensor, k: int, n_init: int, generator: torch.Generator) -> Tensor:
    """The best of `n_init` HALS runs from random rows, on a sample (m, c); components (k, c).

    All runs go at once on a part of the sample; the best go on with more of it. Rows
    are redundant and nearly of low rank, so the products are taken in a subspace that holds
    the sample's leading right singular vectors (Halko, Martinsson & Tropp 2011; for NMF:
    Erichson et al. 2018); non-negativity is kept in the full space.
    """
    basis = _leading_subspace(_part(sample, SUBSPACE_ROWS, k), SUBSPACE * k, generator)
    rows = torch.randint(len(sample), (n_init, k), generator=generator)
    W = sample[rows.to(sample.device)] + 0.01 * sample.mean(0)
    losses = torch.zeros(n_init, device=sample.device)
    projected = sample @ basis
    for n_rows, n_runs, iterations in ROUNDS:
        kept = losses.topk(min(n_runs or n_init, n_init), largest=False).indices
        W, losses = _hals(_part(projected, n_rows, k), basis, W[kept], iterations)
    return W[0]


def _part(sample: Tensor, n_rows: int, k: int) -> Tensor:
    """About `n_rows` of the rows, evenly spread, and enough for k factors."""
    return sample[:: max(1, len(sample) // max(n_rows, 8 * k))]


def nndsvda_start(sample: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """NNDSVDa (Boutsidis & Gallopoulos 2008) of a sample (m, c); components (k, c).

    Each singular triplet gives the larger of its positive and negative parts; zeros are
    filled with the mean.
    """
    basis = _leading_subspace(sample, SUBSPACE * k, generator)
    U, S, Vh = torch.linalg.svd(sample @ basis, full_matrices=False)
    U, S, V = U[:, :k], S[:k], (basis @ Vh[:k].T)
    parts = [(U.clamp_min(0), V.clamp_min(0)), ((-U).clamp_min(0), (-V).clamp_min(0))]
    weights = torch.stack([u.norm(dim=0) * v.norm(dim=0) for u, v in parts])
    V = torch.where(weights[0] >= weights[1], parts[0][1], parts[1][1])
    V = V / V.norm(dim=0).clamp_min(torch.finfo(V.dtype).tiny)
    W = (V * (S * weights.amax(0)).sqrt()).T
    W = torch.cat([W, W.new_zeros(k - len(W), W.shape[1])])  # fewer rows in the sample than k
    return torch.where(1e-6 * W.amax() < W, W, sample.mean())


def _leading_subspace(sample: Tensor, dimension: int, generator: torch.Generator) -> Tensor:
    """An orthonormal basis near the leading right singular vectors: (c, dimension), or (c, c)."""
    c = sample.shape[1]
    if dimension * 2 > c:
        return torch.eye(c, device=sample.device)
    sketch = torch.randn(c, dimension, generator=generator).to(sample.device)
    for _ in range(2):
        sketch = sample.T @ (sample @ torch.linalg.qr(sketch)[0])
    return torch.linalg.qr(sketch)[0]


def _hals(B: Tensor, basis: Tensor, W: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Batched HALS on the matrix B basisᵀ: components (batch, k, c) and their losses (batch,)."""
    batch, k, _ = W.shape
    m, transposed = len(B), B.T.contiguous()
    H = torch.zeros(batch, k, m, device=B.device)
    for _ in range(iterations):
        W = normalize(W)
        G = ((W @ basis).flatten(0, 1) @ transposed).view(batch, k, m)
        sweep(H, G, W @ W.mT, _SWEEPS)
        P = ((H.flatten(0, 1) @ B).view(batch, k, -1)) @ basis.T
        Q = H @ H.mT
        sweep(W, P, Q, _SWEEPS)
        norms = W.norm(dim=2, keepdim=True)
        H = H * norms
    losses = (Q * (W @ W.mT)).sum((1, 2)) - 2 * (P * W).sum((1, 2))
    return normalize(W), losses


def normalize(W: Tensor) -> Tensor:
    """The rows of W at length one; zero rows stay zero."""
    return W / W.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(W.dtype).tiny)
