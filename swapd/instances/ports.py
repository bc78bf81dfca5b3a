"""Gives out loopback ports to engines: free, never one that is in use, never soon again the one just given back.

A port is tested by binding it, which also finds foreign listeners. Order is random, so that two daemons on one node
seldom want the same; some engines misbehave when they are started again on the port of a killed predecessor.
"""

import random
import socket
from collections.abc import Iterator

from swapd.engines.base import LOOPBACK

_GUESSES = 64
_RESTING = 256


class NoPortError(Exception):
    """No port of the range is free."""


class Ports:
    """The ports of one node's engines; ``first`` and ``last`` belong to the range."""

    def __init__(self, first: int, last: int, *, reserved: frozenset[int], rng: random.Random | None = None) -> None:
        self._usable = [port for port in range(first, last + 1) if port not in reserved]
        self._taken: set[int] = set()
        #: given back lately, longest ago first; a small range must still have something to give
        self._resting: dict[int, None] = {}
        self._rests = min(_RESTING, len(self._usable) // 2)
        self._rng = rng or random.Random()  # noqa: S311 - spreads, protects nothing

    def take(self) -> int:
        """Return a free port, if need be one on which old connections linger; raises ``NoPortError``."""
        for lingering in (False, True):
            for port in self._candidates():
                if port not in self._taken and _bindable(port, lingering=lingering):
                    self._resting.pop(port, None)
                    self._taken.add(port)
                    return port
        raise NoPortError("every port of engines.ports is in use; widen the range")

    def give_back(self, port: int) -> None:
        """Let a port rest; only once nothing of its instance is left. A port that was never taken is ignored."""
        if port not in self._taken:
            return
        self._taken.remove(port)
        self._resting[port] = None
        if len(self._resting) > self._rests:
            del self._resting[next(iter(self._resting))]

    def _candidates(self) -> Iterator[int]:
        if not self._usable:
            return
        for _ in range(_GUESSES):
            port = self._rng.choice(self._usable)
            if port not in self._resting:
                yield port
        yield from (port for port in self._usable if port not in self._resting)
        yield from tuple(self._resting)


def _bindable(port: int, *, lingering: bool) -> bool:
    """Say whether a server can have the port; with ``lingering``, one that does not mind closed connections can."""
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, lingering)
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
