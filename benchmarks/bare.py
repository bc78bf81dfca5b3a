"""The front door without the rest of the daemon: a stub for a core grants everything at once and keeps no books.

What swapd costs beyond it is the product's own work: the core's decision, metrics and the log.
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Never

import uvloop
from aiohttp import web

from swapd.aio.supervise import Tasks
from swapd.core.commands import Grant
from swapd.core.events import Event, RequestArrived, RequestEnded
from swapd.core.ids import Duration, InstanceId, Instant, ModelName, RequestId
from swapd.core.view import Offer
from swapd.proxy.app import FrontDoor
from swapd.proxy.services import Endpoint, ListedModel, RouteOptions, Services
from swapd.proxy.settings import ProxySettings

NAME = ModelName("bench")
_INSTANCE = InstanceId(1)
_NOTHING = Duration(0)


@dataclass(frozen=True, slots=True)
class Directory:
    """These models, without aliases."""

    listed: tuple[ListedModel, ...]

    def resolve(self, name: str) -> ModelName | None:
        return next((model.name for model in self.listed if model.name == name), None)

    def models(self) -> Sequence[ListedModel]:
        return self.listed


def _admit(event: RequestArrived) -> Grant:
    return Grant(event.request, _INSTANCE, event.model, False, _NOTHING, {})  # noqa: FBT003


def _post(event: Event) -> None:
    assert isinstance(event, RequestEnded), f"the stub knows no answer to {event}"


def _unknown(model: ModelName) -> Never:
    raise NotImplementedError(model)


def _failed(name: str, error: BaseException) -> Never:
    raise RuntimeError(name) from error


def front_door(
    engine: int, names: tuple[ModelName, ...] = (NAME,), offer: Callable[[ModelName], Offer | None] = _unknown
) -> FrontDoor:
    """Make a front door before an engine's port, for models of which ``offer`` knows what clients are told."""
    ids = itertools.count(1)
    endpoint, options = Endpoint("127.0.0.1", engine), RouteOptions()
    services = Services(
        post=_post,
        admit=_admit,
        now=lambda: Instant(time.monotonic_ns()),
        next_request_id=lambda: RequestId(next(ids)),
        directory=Directory(tuple(map(ListedModel, names))),
        offer=offer,
        model=_unknown,
        endpoint=lambda _: endpoint,
        options=lambda _: options,
        allowed=lambda _model, _method, _path: False,
        finished=lambda _: None,
        tasks=Tasks(on_failure=_failed),
        random=lambda: 0.5,
    )
    return FrontDoor(services, ProxySettings())


async def serve(port: int, engine: int) -> None:
    """Serve until killed."""
    runner = front_door(engine).runner()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", type=int, required=True)
    given = parser.parse_args()
    uvloop.run(serve(given.port, given.engine))
