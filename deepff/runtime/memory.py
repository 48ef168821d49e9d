"""Main memory: how much is free, keeping freed memory, and keeping results in bounded memory."""

import ctypes
import os
import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Generic, Protocol, TypeVar

_LEAST_MEMORY = 2**30


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


class Sized(Protocol):
    """An object that knows how much memory it takes."""

    @property
    def n_bytes(self) -> int:
        """Bytes."""


T = TypeVar("T", bound=Sized)


class Kept(Generic[T]):
    """Results by key, up to ``most`` bytes, for several threads. When full, it drops random ones:
    repeated passes over a set would ask for exactly those used longest ago."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: dict[Hashable, T] = {}
        self._n_bytes = 0
        self._random = random.Random(0)
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, or returned before for an equal key."""
        with self._lock:
            if key in self._results:
                return self._results[key]
        result = make()
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
