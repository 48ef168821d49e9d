"""Work on many items at once, in bounded memory; how much is free, and what is kept in it."""

import ctypes
import os
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Barrier, Lock
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")

_LEAST_MEMORY = 2**30

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


def available_memory() -> int:
    """Bytes of main memory that are free or can be freed at once; never below 1 GiB."""
    try:
        with open("/proc/meminfo") as file:
            kilobytes = next(line.split()[1] for line in file if line.startswith("MemAvailable"))
        n_bytes = 1024 * int(kilobytes)
    except (OSError, StopIteration):
        try:
            n_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        except (AttributeError, ValueError, OSError):  # not on Windows
            n_bytes = 0
    return max(n_bytes, _LEAST_MEMORY)


# glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER = 2**31 - 1
# What glibc itself sets in a process that frees large blocks.
_USUAL = {_TRIM_THRESHOLD: 2**26, _MMAP_THRESHOLD: 2**25, _MMAP_MAX: 2**16}

_lock = Lock()
_n_inside = 0


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, freed memory stays with the process: glibc returns a layer's map each time, and
    filling new ones with zeros took a third of EfficientNet-Lite0's forward pass."""
    global _n_inside
    libc = _glibc()
    if libc is None:
        yield
        return
    with _lock:
        _n_inside += 1
        if _n_inside == 1:
            libc.mallopt(_MMAP_MAX, 0)
            libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        with _lock:
            _n_inside -= 1
            if _n_inside == 0:
                for option, value in _USUAL.items():
                    libc.mallopt(option, value)
                libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None)
        return libc if libc.gnu_get_libc_version and libc.mallopt and libc.malloc_trim else None
    except (AttributeError, OSError, TypeError):  # another library, or Windows
        return None


class Kept(Generic[T]):
    """Results by key, up to ``most`` of their ``n_bytes``, for several threads. When full, it drops
    random ones: repeated passes over a set would ask for exactly those used longest ago."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: dict[Hashable, Any] = {}
        self._n_bytes = 0
        self._random = random.Random(0)
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, or returned before for an equal key."""
        with self._lock:
            if key in self._results:
                return self._results[key]
        result: Any = make()
        if result.n_bytes > self._most:
            return result
        with self._lock:
            if key not in self._results:
                while self._n_bytes + result.n_bytes > self._most:
                    dropped = self._results.pop(self._random.choice(list(self._results)))
                    self._n_bytes -= dropped.n_bytes
                self._results[key] = result
                self._n_bytes += result.n_bytes
            return self._results[key]
