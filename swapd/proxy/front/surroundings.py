"""Names what an exchange needs around it: what outlives it, and the connection on which it came."""

from typing import Protocol

from swapd.core.ids import InstanceId
from swapd.proxy.desk import Desk
from swapd.proxy.front.engine import EnginePool


class Door(Protocol):
    """What outlives a request."""

    @property
    def desk(self) -> Desk:
        """Return what holds for requests that arrive now."""

    def pool(self, instance: InstanceId) -> EnginePool | None:
        """Return the connections to an instance's engine; ``None``: the instance is gone."""

    def give_back(self, body: memoryview) -> None:
        """Take a body's memory for the next one; nobody reads it any more."""


class Client(Protocol):
    """The connection on which the request came."""

    def over(self) -> None:
        """Go on: the answer has been written, or never will be."""
