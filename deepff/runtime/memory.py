"""How much main memory there is to use."""

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
    """Bytes of main memory that are free or can be freed at once; at least 1 GiB is assumed."""
    try:
        with open("/proc/meminfo") as file:
            kilobytes = next(line.split()[1] for line in file if line.startswith("MemAvailable"))
        found = 1024 * int(kilobytes)
    except (OSError, StopIteration):
        try:
            found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        except (AttributeError, ValueError, OSError):  # not on Windows
            found = 0
    return max(found, _LEAST_MEMORY)


# glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER = 2**31 - 1
# What glibc comes to by itself in a process that frees large blocks.
_USUAL = {_TRIM_THRESHOLD: 2**26, _MMAP_THRESHOLD: 2**25, _MMAP_MAX: 2**16}

_lock = Lock()
_n_inside = 0


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, memory that is freed stays with the process; at the end it goes back to the system.

    A network on the CPU allocates and frees the map of each layer. glibc gets blocks of such a size
    from the system and gives them back each time, and to fill them with zeros page by page took a
    third of EfficientNet-Lite0's forward pass. Elsewhere than on Linux with glibc nothing changes.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    _enter(libc)
    try:
        yield
    finally:
        _leave(libc)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None)
        return libc if libc.gnu_get_libc_version and libc.mallopt and libc.malloc_trim else None
    except (AttributeError, OSError, TypeError):  # another library, or Windows
        return None


def _enter(libc: ctypes.CDLL) -> None:
    global _n_inside
    with _lock:
        _n_inside += 1
        if _n_inside == 1:
            libc.mallopt(_MMAP_MAX, 0)
            libc.mallopt(_TRIM_THRESHOLD, _NEVER)


def _leave(libc: ctypes.CDLL) -> None:
    global _n_inside
    with _lock:
        _n_inside -= 1
        if _n_inside == 0:
            for option, value in _USUAL.items():
                libc.mallopt(option, value)
            libc.malloc_trim(0)


class Sized(Protocol):
    """What says how much memory it takes."""

    @property
    def n_bytes(self) -> int:
        """Bytes."""


T = TypeVar("T", bound=Sized)


class Kept(Generic[T]):
    """The outcomes that fit into memory, by what they were made of; for several threads.

    When it is full, any are given up for a new one, not those that were asked for longest ago:
    who goes over a set again and again would ask for just these next, and find none.

    Parameters
    ----------
    most : int
        Bytes that are kept at most. What takes more by itself is not kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[Hashable, T] = {}
        self._n_bytes = 0
        self._draw = random.Random(0)
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, or gave before for an equal key."""
        with self._lock:
            if key in self._found:
                return self._found[key]
        made = make()
        if made.n_bytes > self._most:
            return made
        with self._lock:
            if key not in self._found:
                while self._n_bytes + made.n_bytes > self._most:
                    given_up = self._found.pop(self._draw.choice(list(self._found)))
                    self._n_bytes -= given_up.n_bytes
                self._found[key] = made
                self._n_bytes += made.n_bytes
            return self._found[key]
