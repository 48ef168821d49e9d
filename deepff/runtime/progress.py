"""Progress of long work, on standard error."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LOG_EVERY_SECONDS = 10.0

Listener = Callable[[str, int, int], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
SHOWN: ContextVar[bool] = ContextVar("SHOWN", default=True)  # whether any progress is shown


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        return Text(f"{rate:.1f} {task.fields['unit']}/s" if rate else "")


@contextmanager
def track(
    stage: str, total: int, *, unit: str = "images", enabled: bool = True
) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of units that were just completed."""
    listener = _listener.get()
    with _shown(stage, total, unit, enabled) as show:
        count = 0

        def advance(n: int) -> None:
            nonlocal count
            count += n
            show(n)
            if listener is not None:
                listener(stage, count, total)

        yield advance


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Also call a function for what is tracked inside, in this thread: stage, count, total."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def _shown(stage: str, total: int, unit: str, enabled: bool) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    if not enabled or total == 0 or not SHOWN.get():
        yield lambda n: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, _RateColumn(), TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task(stage, total=total, unit=unit)
            yield lambda n: bar.advance(task, n)
    else:
        yield from _logged(console, stage, total, unit)


def _logged(console: Console, stage: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    start = last = time.monotonic()
    count = 0

    def log(now: float) -> None:
        rate = count / max(now - start, 1e-9)
        console.print(f"{stage}: {count}/{total} {unit}, {rate:.1f} {unit}/s", highlight=False)

    def advance(n: int) -> None:
        nonlocal count, last
        count += n
        now = time.monotonic()
        if now - last >= LOG_EVERY_SECONDS and count < total:
            last = now
            log(now)

    yield advance
    log(time.monotonic())


class Stopwatch:
    """``seconds`` by stage of a run whose stages follow each other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to this stage."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
