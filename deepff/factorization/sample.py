"""The rows that NMF starts on: drawn half evenly and half by energy, or all of few."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from deepff.factorization.blocks import RowBlocks
from deepff.factorization.sparse import SparseBlock, dense
from deepff.runtime.distributed import all_reduce_sum, gather_rows, is_distributed, n_ranks, rank

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
