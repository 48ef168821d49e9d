"""Work on many items at once, in bounded memory."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from threading import Barrier, Lock
from typing import TypeVar

import torch

from deepff.runtime.memory import available_memory

T = TypeVar("T")

# What work in flight takes at most unless told otherwise, beside a single item that takes more.
_MOST_MEMORY = 3 * 2**29

_starting = Lock()


def ahead(items: Iterable[T], n: int) -> Iterator[T]:
    """The items, each of them after ``n`` later ones have been taken."""
    taken: deque[T] = deque()
    for item in items:
        taken.append(item)
        if len(taken) > n:
            yield taken.popleft()
    yield from taken


def in_parallel(
    work: Callable[[int], T], costs: Sequence[int], memory: int | None = None
) -> Iterator[T]:
    """The outcomes for 0, 1, … in order, worked out by a thread for each core, a few ahead.

    PyTorch's number of threads is one in these threads, and elsewhere as it was.

    Parameters
    ----------
    work : callable
    costs : sequence of int
        The bytes that each item takes.
    memory : int, optional
        The bytes that items in flight may take together; a single one may take more. By default
        half of what is free, and 1.5 GiB at most.
    """
    budget = min(available_memory() // 2, _MOST_MEMORY) if memory is None else memory
    n_threads = min(os.cpu_count() or 1, max(1, len(costs)))
    pool = _single_threads(n_threads)
    pending: deque[tuple[Future[T], int]] = deque()
    held = 0
    try:
        for index, cost in enumerate(costs):
            while pending and (held + cost > budget or len(pending) > n_threads):
                held -= pending[0][1]
                yield pending.popleft()[0].result()
            pending.append((pool.submit(work, index), cost))
            held += cost
        while pending:
            yield pending.popleft()[0].result()
    finally:
        pool.shutdown(cancel_futures=True)


def owners(weights: Sequence[int], n: int) -> list[int]:
    """Which of ``n`` owners has each item, so that their total weights differ little.

    Items are shared out in order, by where the middle of each is on the way to the total.
    """
    total = max(1, sum(weights))
    ends = accumulate(weights)
    return [
        min(n - 1, n * (2 * end - weight) // (2 * total))
        for weight, end in zip(weights, ends, strict=True)
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, PyTorch's number of threads is one in this thread, and elsewhere as it was.

    For small steps while threads of another library have every core: those of PyTorch would wait
    for each other by going round in circles, which takes from what they wait for.
    """
    before = torch.get_num_threads()
    try:
        with _starting:
            _alone()
            with ThreadPoolExecutor(1) as elsewhere:
                elsewhere.submit(torch.set_num_threads, before).result()
        yield
    finally:
        torch.set_num_threads(before)


def _alone() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # what a thread asks for first is what it keeps


def _single_threads(n_threads: int) -> ThreadPoolExecutor:
    """A pool whose threads each work on one core, which is twice as fast as all on each item.

    PyTorch keeps the number of threads for each thread, but a new thread takes that which was set
    last anywhere: so all of the pool are started before it is set back.
    """
    pool = ThreadPoolExecutor(n_threads, initializer=_alone)
    with _starting:
        before = torch.get_num_threads()
        started = Barrier(n_threads)
        for waiting in [pool.submit(started.wait) for _ in range(n_threads)]:
            waiting.result()
        torch.set_num_threads(before)
    return pool
