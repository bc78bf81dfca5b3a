"""Names what the front door needs from the rest of the daemon; the agent provides it.

Everything here is small on purpose: the front door asks where an instance answers and posts what happened. It takes no
scheduling decision and keeps no copy of the core's state.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from swapd.core.commands import Grant
from swapd.core.events import Event, RequestArrived
from swapd.core.ids import Duration, InstanceId, Instant, ModelName, RequestId
from swapd.core.view import ModelView, Offer
from swapd.proxy.record import RequestRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an instance's engine listens."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """Return ``host:port``, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One configured model as ``GET /v1/models`` shows it."""

    name: ModelName
    aliases: tuple[str, ...] = ()
    #: unix time, seconds
    created: int = 0


@dataclass(frozen=True, slots=True)
class RouteOptions:
    """What the front door does differently for one model."""

    #: a client that leaves does not end the answer: it is read to its end
    finish_on_abort: bool = False
    #: a request that has been at its engine for longer is ended; ``None``: never
    request_timeout: Duration | None = None


class Directory(Protocol):
    """The configured names."""

    def resolve(self, name: str) -> ModelName | None:
        """Return the model that a name or alias stands for."""

    def models(self) -> Sequence[ListedModel]:
        """Return every configured model, by name."""


class TaskStarter(Protocol):
    """Owner of background tasks; ``swapd.aio.supervise.Tasks`` is one."""

    def start(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task that its owner will cancel and await."""


@dataclass(frozen=True, slots=True)
class Services:
    """The daemon, as seen from the front door. Every callable is synchronous and quick."""

    #: gives the core a fact; it may call the gate's granted, rejected or cut before it returns
    post: Callable[[Event], None]
    #: as ``post``; returns the grant of a request that was granted at once, of which the gate is not told then
    admit: Callable[[RequestArrived], Grant | None]
    now: Callable[[], Instant]
    next_request_id: Callable[[], RequestId]
    directory: Directory
    #: what clients are told of a model; ``None``: there is none of this name
    offer: Callable[[ModelName], Offer | None]
    #: all of one model, which costs as much as many offers; ``None`` likewise
    model: Callable[[ModelName], ModelView | None]
    #: ``None``: the instance is gone
    endpoint: Callable[[InstanceId], Endpoint | None]
    options: Callable[[ModelName], RouteOptions]
    #: model, method in capitals, path: may clients reach it below ``/upstream/<model>``?
    allowed: Callable[[ModelName, str, str], bool]
    #: told once of each inference request, after its end
    finished: Callable[[RequestRecord], None]
    tasks: TaskStarter
    #: uniform in [0, 1)
    random: Callable[[], float]
