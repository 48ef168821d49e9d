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

_MOST_MEMORY = 3 * 2**29  # bytes of work in flight by default, unless one item takes more

_starting = Lock()


def reading_threads(waiting: bool = False) -> ThreadPoolExecutor:
    """Threads for reading files: one per core, but at most 8; 16 if they wait for servers."""
    return ThreadPoolExecutor(16 if waiting else min(8, os.cpu_count() or 1))


def ahead(items: Iterable[T], n: int) -> Iterator[T]:
    """The items, each of them after ``n`` later ones have been started."""
    started: deque[T] = deque()
    for item in items:
        started.append(item)
        if len(started) > n:
            yield started.popleft()
    yield from started


def in_parallel(
    work: Callable[[int], T], costs: Sequence[int], memory: int | None = None
) -> Iterator[T]:
    """The results of ``work`` for 0, 1, … in order, by one thread per core. The ``costs``, bytes,
    of those in flight are at most ``memory``, by default half of what is free, at most 1.5 GiB."""
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
    """Which of ``n`` owners has each item, so that their total weights differ little. Items are
    shared out in order, by where the middle of each is on the way to the total."""
    total = max(1, sum(weights))
    ends = accumulate(weights)
    return [
        min(n - 1, n * (2 * end - weight) // (2 * total))
        for weight, end in zip(weights, ends, strict=True)
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, PyTorch uses one thread in this thread, and elsewhere as many as before. While
    another library uses every core, PyTorch's threads would wait for each other in busy loops."""
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
    torch.get_num_threads()  # a thread keeps the number that it first asks for


def _single_threads(n_threads: int) -> ThreadPoolExecutor:
    """A pool whose threads use one core each: twice as fast as all cores on each item. A new thread
    starts with the number set last anywhere, so all start before it is set back."""
    pool = ThreadPoolExecutor(n_threads, initializer=_alone)
    with _starting:
        before = torch.get_num_threads()
        started = Barrier(n_threads)
        for waiting in [pool.submit(started.wait) for _ in range(n_threads)]:
            waiting.result()
        torch.set_num_threads(before)
    return pool
