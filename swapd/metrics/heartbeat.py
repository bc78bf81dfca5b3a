"""Measures whether the event loop turns: a stamp every second, and how late each one came."""

import asyncio
from collections import deque
from collections.abc import Callable

from swapd.core.ids import SECOND, Duration, Instant

PERIOD = Duration(SECOND)
_WINDOW = 15
"""Beats that ``lag`` looks back: about one scrape interval, so that no stall falls between two scrapes."""


class Heartbeat:
    """The loop's pulse; ``run`` is a task of the daemon."""

    def __init__(self, now: Callable[[], Instant]) -> None:
        self._now = now
        self._beat_at = now()
        self._lags: deque[int] = deque(maxlen=_WINDOW)

    async def run(self) -> None:
        """Beat for ever."""
        self._beat_at = self._now()
        while True:
            await asyncio.sleep(PERIOD / SECOND)
            self.beat()

    def beat(self) -> None:
        """Stamp the present; the time beyond the period since the last stamp is the loop's lag."""
        at = self._now()
        self._lags.append(max(0, at - self._beat_at - PERIOD))
        self._beat_at = at

    def age(self) -> Duration:
        """Return the time since the last stamp."""
        return Duration(self._now() - self._beat_at)

    def lag(self) -> Duration:
        """Return the longest delay in the last 15 beats."""
        return Duration(max(self._lags, default=0))
