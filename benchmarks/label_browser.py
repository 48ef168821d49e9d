"""A browser on ``deepff label``, and what a person does in it: clicks, keys and answers counted."""

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

PATIENCE = 600_000  # milliseconds; the machine may be busy
WIDE, NARROW = (1366, 768), (390, 844)
_ANSWERED = """before => {
    const head = document.querySelector('.dff-head');
    return head && head.dataset.serial !== before
        && !document.body.classList.contains('dff-waits')
        && [...document.images].every(image => image.complete);
}"""

Point = tuple[float, float]


@dataclass(frozen=True)
class Server:
    """A running ``deepff label``."""

    process: subprocess.Popen[str]
    url: str

    @property
    def megabytes(self) -> float:
        """Main memory that it has to itself, mapped files not counted."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) / 1000

    @property
    def cpu_seconds(self) -> float:
        """What it has computed so far."""
        fields = (
            Path(f"/proc/{self.process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(*arguments: str | Path) -> Iterator[Server]:
    """``deepff label`` with these arguments, as a user starts it; ended with SIGKILL."""
    command = [sys.executable, "-m", "deepff", "label", "--no-browser", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Server(process, process.stdout.readline().strip())
        finally:
            process.kill()


@contextmanager
def browser_page(chromium: str, size: tuple[int, int] = WIDE) -> Iterator[Page]:
    """A page of an own browser."""
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: print("page:", error, file=sys.stderr))
        yield page
        browser.close()


@dataclass
class Count:
    """What a stage of work took: answers apart, the seconds are those that a script needs."""

    clicks: int = 0
    keys: int = 0
    seconds: float = 0.0


@dataclass
class Person:
    """Somebody before a page.

    Attributes
    ----------
    page : Page
    server : Server
    stages : dict of str to Count
        By name, in order.
    answers : dict of str to list of (seconds, CPU seconds of the server)
        Of each kind of action: until the page shows what came of it.
    """

    page: Page
    server: Server
    stages: dict[str, Count] = field(default_factory=dict)
    answers: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    _now: Count = field(default_factory=Count)

    def open(self) -> float:
        """Open the server's page; gives the seconds until its images are there."""
        started = time.perf_counter()
        self.page.goto(self.server.url)
        self.page.wait_for_selector(".dff-card")
        self.page.wait_for_function("() => [...document.images].every(image => image.complete)")
        return time.perf_counter() - started

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what is done inside as one stage."""
        self._now = self.stages.setdefault(name, Count())
        started = time.perf_counter()
        yield
        self._now.seconds += time.perf_counter() - started
        self._now = Count()

    def press(self, *keys: str) -> None:
        for key in keys:
            self._now.keys += 1
            self.page.keyboard.press(key)

    def type(self, text: str) -> None:
        self._now.keys += len(text)
        self.page.keyboard.type(text)

    def click(self, target: Any) -> None:
        """Click on a locator."""
        self._now.clicks += 1
        target.click()

    def draw(self, points: Sequence[Point]) -> None:
        """Press, move along points of the image that is mended (shares of its sides), let go."""
        self._now.clicks += 1
        box = self.page.locator("#mend-sheet").bounding_box()
        assert box is not None
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
        self.page.mouse.move(*places[0])
        self.page.mouse.down()
        for place in places[1:]:
            self.page.mouse.move(*place, steps=3)
        self.page.mouse.up()

    def wait_for(self, kind: str, act: Callable[[], object]) -> None:
        """Do something, and wait until the page shows what came of it."""
        before = self.page.locator(".dff-head").get_attribute("data-serial")
        started, computed = time.perf_counter(), self.server.cpu_seconds
        act()
        self.page.wait_for_function(_ANSWERED, arg=before)
        took = time.perf_counter() - started
        self.answers[kind].append((took, self.server.cpu_seconds - computed))

    def print_answers(self) -> None:
        """A line a kind: how often, its median and longest time, and the server's CPU time."""
        print(
            "| action | times | median s | longest s | longest CPU s of the server |\n|-|-|-|-|-|"
        )
        for kind, found in self.answers.items():
            walls = sorted(wall for wall, _ in found)
            median, most = walls[len(walls) // 2], max(computed for _, computed in found)
            print(f"| {kind} | {len(found)} | {median:.2f} | {walls[-1]:.2f} | {most:.2f} |")
