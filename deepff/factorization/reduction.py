"""Sums over the ranks of `torch.distributed`, for rows that are spread over processes.

Every rank holds its own rows and calls the same estimator with the same parameters; the rows
of A are those of rank 0, then those of rank 1, and so on. In a single process all of these
give back what they are given.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Whether `torch.distributed` is initialised with more than one rank."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum over ranks."""
    return _exchanged(values, dist.all_reduce)


def all_reduce_max(values: Tensor) -> Tensor:
    """The largest over ranks, entry by entry."""
    return _exchanged(values, lambda moved: dist.all_reduce(moved, op=dist.ReduceOp.MAX))


def from_first_rank(values: Tensor) -> Tensor:
    """Those of rank 0: what is drawn or rounded must not differ between ranks."""
    return _exchanged(values, lambda moved: dist.broadcast(moved, src=0))


def rows_before(n_rows: int) -> tuple[int, int]:
    """How many rows the lower ranks have, and all ranks together, where this one has `n_rows`."""
    if not is_distributed():
        return 0, n_rows
    rank = dist.get_rank()
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    counts[rank] = n_rows
    counts = all_reduce_sum(counts)
    return int(counts[:rank].sum()), int(counts.sum())


def gather_rows(rows: Tensor) -> Tensor:
    """The rows (m, c) of all ranks, in the order of the ranks, on each of them."""
    if not is_distributed():
        return rows
    first, total = rows_before(len(rows))
    gathered = rows.new_zeros(total, rows.shape[1])
    gathered[first : first + len(rows)] = rows
    return all_reduce_sum(gathered)


def _exchanged(values: Tensor, exchange: Callable[[Tensor], object]) -> Tensor:
    if not is_distributed():
        return values
    moved = values.to("cuda" if dist.get_backend() == "nccl" else "cpu", copy=True)
    exchange(moved)
    return moved.to(values.device)
