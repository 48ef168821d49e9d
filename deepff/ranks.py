"""One run over several processes, as ``torchrun`` starts them: each rank has a share of the images.

The ranks' shares follow each other in the set's order, so the rows of A are those of rank 0, then
those of rank 1, and so on, as :mod:`deepff.factorization` expects them.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import accumulate
from typing import TypeVar

import torch
import torch.distributed as dist

from deepff.factorization.reduction import is_distributed
from deepff.image_files import ImageFile
from deepff.images import UnreadableImageError, image_size, resized_shape

T = TypeVar("T")

# A rank that dies is noticed by its closed connection; this only bounds how long the others wait
# for one with more to do.
_TIMEOUT = timedelta(days=7)


def join() -> None:
    """Join the processes that ``torchrun`` started, if it started this one.

    With CUDA each rank takes the GPU of its local number.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    # nccl for tensors on a GPU, gloo for those in main memory.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_TIMEOUT)


def leave() -> None:
    """Leave the other processes in order, when all have come to this; then each is alone.

    Ending without this closes connections under processes that may still be at work.
    """
    if is_distributed():
        dist.barrier()
        dist.destroy_process_group()


def rank() -> int:
    """This process's number; 0 where there is only one."""
    return dist.get_rank() if is_distributed() else 0


def n_ranks() -> int:
    """The number of processes."""
    return dist.get_world_size() if is_distributed() else 1


def own_share(files: Sequence[ImageFile], size: int) -> list[ImageFile]:
    """This rank's images: consecutive ones, with about as many rows of A as another rank's.

    Parameters
    ----------
    files : sequence of ImageFile
        The whole set. The headers of all are read.
    size : int
        The longer side of the resized images, in pixels.
    """
    if not is_distributed():
        return list(files)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        areas = list(pool.map(lambda file: _resized_area(file, size), files))
    return [
        file for file, owner in zip(files, owners(areas, n_ranks()), strict=True) if owner == rank()
    ]


def owners(weights: Sequence[int], n: int) -> list[int]:
    """Which of ``n`` owners has each item, so that their items' weights differ little.

    Items are shared out in order: each goes where its middle lies on the way to the total.
    """
    total = max(1, sum(weights))
    ends = accumulate(weights)
    return [
        min(n - 1, n * (2 * end - weight) // (2 * total))
        for weight, end in zip(weights, ends, strict=True)
    ]


def gather(items: Sequence[T]) -> list[T]:
    """The items of all ranks, in the order of the ranks, on each of them."""
    if not is_distributed():
        return list(items)
    shares: list[list[T]] = [[]] * n_ranks()
    dist.all_gather_object(shares, list(items))
    return [item for share in shares for item in share]


def _resized_area(file: ImageFile, size: int) -> int:
    try:
        height, width = resized_shape(*image_size(file.path), size, 1)
    except UnreadableImageError:
        return 0
    return height * width
