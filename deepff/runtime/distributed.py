"""Several processes, as ``torchrun`` starts them: joining them, sums over ranks, gathering.

Every rank holds a share of the rows and calls the same estimator with the same parameters; the rows
of A are those of rank 0, then those of rank 1, and so on. In a single process all of these return
their arguments.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

# How long ranks wait for one with more to do; one that dies closes its connection.
_TIMEOUT = timedelta(days=7)


def is_distributed() -> bool:
    """Whether `torch.distributed` is initialized with more than one rank."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def launched() -> tuple[int, int]:
    """This process's number among those that ``torchrun`` started, and how many there are, without
    joining them; each takes the GPU of its local number."""
    n = int(os.environ.get("WORLD_SIZE", "1"))
    if n > 1 and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return int(os.environ.get("RANK", "0")), n


def join() -> None:
    """Join the processes that ``torchrun`` started."""
    if launched()[1] == 1 or dist.is_initialized():
        return
    # nccl for tensors on a GPU, gloo for those in main memory.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_TIMEOUT)


def leave() -> None:
    """Leave the other processes when all are ready to: ending a process closes connections."""
    if is_distributed():
        dist.barrier()
        dist.destroy_process_group()


def rank() -> int:
    """This process's number; 0 if there is only one."""
    return dist.get_rank() if is_distributed() else 0


def n_ranks() -> int:
    """The number of processes."""
    return dist.get_world_size() if is_distributed() else 1


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum over ranks."""
    return _exchanged(values, dist.all_reduce)


def all_reduce_max(values: Tensor) -> Tensor:
    """The largest over ranks, entry by entry."""
    return _exchanged(values, lambda moved: dist.all_reduce(moved, op=dist.ReduceOp.MAX))


def from_first_rank(values: Tensor) -> Tensor:
    """The values of rank 0: random or rounded values must not differ between ranks."""
    return _exchanged(values, lambda moved: dist.broadcast(moved, src=0))


def rows_before(n_rows: int) -> tuple[int, int]:
    """How many rows the lower ranks have, and all ranks together, if this one has `n_rows`."""
    if not is_distributed():
        return 0, n_rows
    counts = torch.zeros(n_ranks(), dtype=torch.int64, device="cpu")
    counts[rank()] = n_rows
    counts = all_reduce_sum(counts)
    return int(counts[: rank()].sum()), int(counts.sum())


def gather_rows(rows: Tensor) -> Tensor:
    """The rows (m, c) of all ranks, in the order of the ranks, on each of them."""
    if not is_distributed():
        return rows
    first, total = rows_before(len(rows))
    gathered = rows.new_zeros(total, rows.shape[1])
    gathered[first : first + len(rows)] = rows
    return all_reduce_sum(gathered)


def gather(items: Sequence[T]) -> list[T]:
    """The items of all ranks, in the order of the ranks, on each of them."""
    if not is_distributed():
        return list(items)
    shares: list[list[T]] = [[]] * n_ranks()
    dist.all_gather_object(shares, list(items))
    return [item for share in shares for item in share]


def _exchanged(values: Tensor, exchange: Callable[[Tensor], object]) -> Tensor:
    if not is_distributed():
        return values
    moved = values.to("cuda" if dist.get_backend() == "nccl" else "cpu", copy=True)
    exchange(moved)
    return moved.to(values.device)
