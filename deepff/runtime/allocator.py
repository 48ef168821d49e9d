"""Freed memory kept for what is allocated next, where the C library would give it back at once."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

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
