"""Decides how many connections a transfer has, from what they have brought.

Where each connection gets its share of a store or of a long line, several bring more. Where one brings all that the
line, the disk or this machine can take, each further one costs a request, memory and turns of the processors, and
brings nothing. Nobody knows beforehand, so it is tried.

Rules:
* It begins with one, and doubles as long as that brings clearly more.
* A number that has not brought more is given up, and tried again after a while: sources and lines change.
* It knows no clock and no connection: who asks tells the time and the bytes.
"""

from typing import Final

from swapd.core.ids import SECOND, Instant

PERIOD: Final = SECOND // 2
"""So long does a rate have to last to count."""
REST: Final = 20 * PERIOD
"""So long is nothing tried after a try that was in vain."""
GAIN: Final = 1.2
"""Twice the connections are worth it if they bring so many times as much: where each has its own limit, it is two."""


class Ramp:
    """The number of connections of one transfer; for one thread."""

    def __init__(self, most: int) -> None:
        """``most``: connections that it may have, at least 1."""
        assert most >= 1, most
        self.connections = 1
        self._most = most
        #: begin of what is measured: a rate counts from here on
        self._since: Instant | None = None
        self._came = 0
        #: connections and rate, bytes a ns, before the try that runs; ``None``: none runs
        self._before: tuple[int, float] | None = None
        #: a try has just begun: its connections are being made
        self._beginning = False
        #: how long it has to have been measured before the next decision
        self._wait = PERIOD

    def look(self, now: Instant, came: int) -> int:
        """Return how many connections there should be; ``came``: bytes so far, by all of them."""
        if self._since is None:
            self._since, self._came = now, came
        took = now - self._since
        if took >= self._wait:
            self._decide((came - self._came) / took)
            self._since, self._came = now, came
        return self.connections

    def _decide(self, rate: float) -> None:
        if self._beginning:
            self._beginning = False  # measured from now on
        elif self._before is not None and rate <= GAIN * self._before[1]:
            self.connections, self._before, self._wait = self._before[0], None, REST
        elif self.connections < self._most:
            self._before = self.connections, rate
            self.connections = min(2 * self.connections, self._most)
            self._beginning, self._wait = True, PERIOD
        else:
            self._before = None
