"""Names what an exchange and its connection need around them: what outlives them, and each other."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from swapd.core.ids import InstanceId
from swapd.proxy.desk import Desk
from swapd.proxy.front.pool import EnginePool
from swapd.proxy.front.replies import Date


class Door(Protocol):
    """What outlives a request."""

    @property
    def desk(self) -> Desk:
        """Return what holds for requests that arrive now."""

    @property
    def pools(self) -> Mapping[InstanceId, EnginePool]:
        """Return the connections to engines; of an instance that is gone no idle one is among them for long."""

    def pool(self, instance: InstanceId) -> EnginePool | None:
        """Return the connections to an instance's engine; ``None``: the instance is gone."""

    def give_back(self, body: memoryview) -> None:
        """Take a body's memory for the next one, if nobody reads it any more."""


class Client(Protocol):
    """The connection on which the request came."""

    def over(self) -> None:
        """Go on: the answer has been written, or never will be."""


class Connection(Protocol):
    """A client's connection, as the port sees it."""

    def close_when_idle(self) -> None:
        """Take no further request."""

    def abort(self) -> None:
        """Close at once."""

    def in_time(self, now: float) -> bool:
        """End what takes too long; ``False``: the client owes nothing any more."""


class Server(Door, Protocol):
    """What the connections of one port have in common."""

    @property
    def date(self) -> Date:
        """Return the current time for heads."""

    def take_memory(self, length: int) -> bytearray:
        """Return memory for a body of so many bytes; it grows if it has to."""

    def watch(self, connection: Connection) -> None:
        """Look at the connection's time in the next sweeps."""

    def opened(self, connection: Connection) -> None:
        """Know a new connection."""

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""

    def fallback(self) -> asyncio.Protocol:
        """Return aiohttp's protocol for one connection."""
