"""Where the time goes."""

import time


class Stopwatch:
    """Seconds by stage, of a run whose stages follow each other.

    Attributes
    ----------
    seconds : dict of str to float
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """What was done since the last lap was this."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
