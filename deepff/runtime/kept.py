"""What was worked out before, kept in bounded memory."""

import random
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, Protocol, TypeVar


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
