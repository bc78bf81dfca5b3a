"""Decides how long a download has to wait so that all of them together keep to a bandwidth."""

import threading
from collections.abc import Callable
from typing import Final

_BURST_S: Final = 0.25
"""Seconds of the bandwidth that may pass at once after a silence."""


class Bucket:
    """A token bucket that may be overdrawn: whoever takes more than is there waits afterwards. For any thread."""

    def __init__(self, rate: float | None, *, now: Callable[[], float]) -> None:
        """``rate``: bytes a second, ``None``: no limit; ``now``: seconds on a monotonic clock."""
        self._rate = rate
        self._now = now
        self._lock = threading.Lock()
        self._level = 0.0 if rate is None else rate * _BURST_S
        self._since = now()

    def take(self, count: int) -> float:
        """Take bytes that have come; return the seconds to wait before the next ones."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._now()
            self._level = min(self._level + (now - self._since) * self._rate, self._rate * _BURST_S) - count
            self._since = now
            return max(0.0, -self._level / self._rate)

    def chunk(self, most: int) -> int:
        """Return how much to read at a time, at most ``most``, so that no wait is long."""
        return most if self._rate is None else max(1024, min(most, int(self._rate * _BURST_S)))
