"""Keeps the connections to one engine as a stack: the one used last is the one most surely open."""

import asyncio
from typing import Final

from swapd.core.ids import SECOND, Duration
from swapd.proxy.front.engine import EngineConnection
from swapd.proxy.services import Endpoint

_IDLE_S: Final = 4.0
"""Shorter than the 5 s after which common engines close idle connections, so that they are rarely met closed."""


class EnginePool:
    """The idle connections to one engine."""

    def __init__(self, endpoint: Endpoint, connect_timeout: Duration) -> None:
        self._endpoint = endpoint
        self._connect_timeout_s = connect_timeout / SECOND
        #: the connections that wait for a request, the one used last at the end
        self.idle: Final[list[EngineConnection]] = []
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        #: number of connections, idle or not, those included that are being made
        self.open = 0
        #: the line that names the engine's host, with the line end before it
        self.host_line: Final = b"\r\nHost: " + endpoint.authority.encode()

    def take(self) -> EngineConnection | None:
        """Return the connection that was used last, if it is fresh enough to be open still."""
        idle = self.idle
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing() and self._time() - connection.idle_since < _IDLE_S:
                return connection
            connection.close()
        return None

    async def connect(self) -> EngineConnection:
        """Open another connection; raises ``OSError``, ``TimeoutError`` among them."""
        connection = EngineConnection(self)
        self.open += 1
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._loop.create_connection(lambda: connection, self._endpoint.host, self._endpoint.port)
        except BaseException:
            connection.give_up()
            raise
        return connection

    def put(self, connection: EngineConnection) -> None:
        """Take a connection whose answer is complete (called by the connection)."""
        connection.idle_since = self._time()
        self.idle.append(connection)

    def lost(self, connection: EngineConnection) -> None:
        """Forget a connection that was closed (called by the connection)."""
        self.open -= 1
        if connection in self.idle:
            self.idle.remove(connection)

    def expire(self, *, everything: bool = False) -> None:
        """Close the connections that have been idle for too long, or all."""
        now = self._time()
        while self.idle and (everything or now - self.idle[0].idle_since >= _IDLE_S):
            self.idle.pop(0).close()
