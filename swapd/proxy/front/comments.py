"""Keeps a stream's connection alive by comments while its model loads (see ``keepalive.py`` for why)."""

import asyncio

from swapd.core.ids import SECOND, Duration
from swapd.proxy.desk import Desk
from swapd.proxy.front.outlet import Outlet
from swapd.proxy.gate import Lease
from swapd.proxy.keepalive import comment


class Comments:
    """Sends one whenever the interval has passed, until it is stopped; the first one begins the stream."""

    def __init__(self, outlet: Outlet, desk: Desk, lease: Lease, interval: Duration) -> None:
        self._outlet = outlet
        self._desk = desk
        self._lease = lease
        self._interval_s = interval / SECOND
        self._timer = self._later()

    def stop(self) -> None:
        """Send no more."""
        self._timer.cancel()

    def _later(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._interval_s, self._send)

    def _send(self) -> None:
        if not self._outlet.begun:
            self._outlet.begin_stream()
        self._outlet.comment(comment(self._desk, self._lease))
        self._timer = self._later()
