"""Opens the connections of the data port, on the fast path or on aiohttp's, and keeps what they have in common."""

import asyncio
from typing import Any, Final

from typing_extensions import override

from swapd.core.ids import SECOND, InstanceId
from swapd.proxy.desk import Desk
from swapd.proxy.front.arena import Arena
from swapd.proxy.front.client import ClientConnection
from swapd.proxy.front.pool import EnginePool
from swapd.proxy.front.replies import Date
from swapd.proxy.front.surroundings import Connection
from swapd.proxy.server import Handler, HttpServer, Malformed

_SWEEP_S: Final = 1.0
_SWEEPS_PER_TIMEOUT: Final = 6


class FrontServer(HttpServer):
    """Makes a protocol for each connection. One sweep serves all times of the fast path."""

    def __init__(self, handler: Handler, malformed: Malformed, *, desk: Desk, **options: Any) -> None:
        super().__init__(handler, malformed, head_timeout=desk.settings.head_timeout, **options)
        #: replaced when the settings change
        self.desk = desk
        self.date: Final = Date()
        self._arena = Arena()
        self.pools: Final[dict[InstanceId, EnginePool]] = {}
        self._fast: dict[Connection, None] = {}
        self._watched: dict[Connection, None] = {}
        self._front_sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    @override
    def __call__(self) -> asyncio.Protocol:  # type: ignore[override]
        return ClientConnection(self) if self.desk.settings.fast_path else super().__call__()

    @override
    def pre_shutdown(self) -> None:
        super().pre_shutdown()
        for connection in list(self._fast):
            connection.close_when_idle()

    @override
    async def shutdown(self, timeout: float | None = None) -> None:
        await self._wait_until_empty(timeout)
        for connection in list(self._fast):
            connection.abort()
        await self._wait_until_empty(timeout)
        await super().shutdown(timeout)

    def close_engines(self) -> None:
        """Close the connections to the engines."""
        if self._front_sweeper is not None:
            self._front_sweeper.cancel()
            self._front_sweeper = None
        for pool in self.pools.values():
            pool.expire(everything=True)

    # ── what the fast connections need ───────────────────────────────────────────────────────────────────────────

    @property
    def engine_connections(self) -> int:
        """Return the number of connections to engines, idle or not."""
        return sum(pool.open for pool in self.pools.values())

    def pool(self, instance: InstanceId) -> EnginePool | None:
        """Return the connections to an instance's engine; ``None``: the instance is gone."""
        pool = self.pools.get(instance)
        # with an open connection there is no need to ask whether the instance is still there
        if pool is not None and pool.idle:
            return pool
        endpoint = self.desk.services.endpoint(instance)
        if endpoint is None:
            return None
        if pool is None:
            pool = self.pools[instance] = EnginePool(endpoint, self.desk.settings.connect_timeout)
        return pool

    def take_memory(self, length: int) -> bytearray:
        """Return memory for a body of so many bytes; it grows if it has to."""
        return self._arena.take(length)

    def give_back(self, body: memoryview) -> None:
        """Take a body's memory for the next one, if nobody reads it any more."""
        memory = body.obj
        try:
            body.release()
        except BufferError:
            # a parser that has failed still reads it
            return
        if isinstance(memory, bytearray):
            self._arena.give(memory)

    def watch(self, connection: Connection) -> None:
        """Look at the connection's time in the next sweeps."""
        self._watched[connection] = None

    def opened(self, connection: Connection) -> None:
        """Know a new connection."""
        self._fast[connection] = None
        if self._front_sweeper is None:
            self._sweep_front_later()

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._fast.pop(connection, None)
        self._watched.pop(connection, None)
        if self._emptied is not None and not self._fast and not self._emptied.done():
            self._emptied.set_result(None)

    def fallback(self) -> asyncio.Protocol:
        """Return aiohttp's protocol for one connection."""
        return super().__call__()

    async def _wait_until_empty(self, limit_s: float | None) -> None:
        if self._fast:
            self._emptied = self._loop.create_future()
            await asyncio.wait((self._emptied,), timeout=limit_s)

    def _sweep_front_later(self) -> None:
        interval = min(_SWEEP_S, self.desk.settings.head_timeout / SECOND / _SWEEPS_PER_TIMEOUT)
        self._front_sweeper = self._loop.call_later(interval, self._sweep_front)

    def _sweep_front(self) -> None:
        now = self._loop.time()
        for connection in [each for each in self._watched if not each.in_time(now)]:
            self._watched.pop(connection, None)
        for instance, pool in list(self.pools.items()):
            pool.expire()
            # that of an instance which is still there may be about to open a connection
            if not pool.open and self.desk.services.endpoint(instance) is None:
                del self.pools[instance]
        self._front_sweeper = None
        if self._fast or self.engine_connections:
            self._sweep_front_later()
