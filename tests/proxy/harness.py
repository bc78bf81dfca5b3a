"""The front door with a scripted core, an engine made of a raw socket or of aiohttp, and raw clients."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from aiohttp import web

from swapd.aio.supervise import Tasks
from swapd.core.commands import Cut, Grant, Reject
from swapd.core.events import Event, RequestArrived, RequestEnded, UpstreamFailed
from swapd.core.ids import MILLISECOND, Bytes, Duration, GpuSet, InstanceId, Instant, ModelName, RequestId
from swapd.core.reasons import Outcome, Rejection, Stage, State, WaitingFor
from swapd.core.view import InstanceView, ModelView, Offer
from swapd.proxy.app import FrontDoor
from swapd.proxy.gate import Gate
from swapd.proxy.record import RequestRecord
from swapd.proxy.services import Endpoint, ListedModel, RouteOptions, Services
from swapd.proxy.settings import ProxySettings
from tests.fakes import node_views
from tests.fakes.node_views import offer_of

#: other test runs may share the machine: finite is all that a deadline has to be
DEADLINE_S = 60.0
INSTANCE = InstanceId(7)
FAST_PATH = True
"""Set by each test's parameter, see ``conftest.py``."""


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait until the condition holds; fails after a generous deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline, f"{what} did not come to hold"
        await asyncio.sleep(0.002)


@dataclass
class FakeCore:
    """Answers arrivals by a script and keeps its own list of open requests."""

    events: list[Event] = field(default_factory=list)
    open: dict[RequestId, str] = field(default_factory=dict)
    hold: bool = False
    refusal: tuple[Rejection, Duration | None, bool] | None = None
    #: more grants after a failed attempt
    retries: int = 1
    cold: bool = False
    gate: Gate | None = None
    waiting: list[RequestArrived] = field(default_factory=list)

    def post(self, event: Event) -> None:
        self.events.append(event)
        assert self.gate is not None
        match event:
            case RequestArrived():
                assert event.request not in self.open
                self.open[event.request] = "waiting"
                if self.refusal is not None:
                    reason, retry_after, permanent = self.refusal
                    self.reject(event, reason, retry_after, permanent=permanent)
                elif self.hold:
                    self.waiting.append(event)
                else:
                    self.grant(event)
            case RequestEnded():
                # a KeyError here is a request that ended twice, or never arrived
                del self.open[event.request]
            case UpstreamFailed():
                arrival = next(e for e in self.events if isinstance(e, RequestArrived) and e.request == event.request)
                failures = [e for e in self.events if isinstance(e, UpstreamFailed) and e.request == event.request]
                if len(failures) > self.retries:
                    self.reject(arrival, Rejection.UPSTREAM_FAILED, None)
                else:
                    self.grant(arrival)
            case _:
                raise AssertionError(f"the front door has nothing to say of {event}")

    def admit(self, event: RequestArrived) -> Grant | None:
        if self.hold or self.cold or self.refusal is not None:
            self.post(event)
            return None
        assert event.request not in self.open
        self.events.append(event)
        self.open[event.request] = "granted"
        return Grant(event.request, INSTANCE, event.model, False, Duration(0), {})  # noqa: FBT003

    def grant(self, event: RequestArrived) -> None:
        assert self.gate is not None
        told = {Stage.QUEUED: 8, Stage.STOP: 2, Stage.LOAD: 30, Stage.PAGE_CACHE: 5} if self.cold else {}
        stages = {stage: Duration(ms * MILLISECOND) for stage, ms in told.items()}
        waited = Duration(40_000_000 if self.cold else 0)
        self.gate.granted(Grant(event.request, INSTANCE, event.model, self.cold, waited, stages))

    def reject(
        self, event: RequestArrived, reason: Rejection, retry_after: Duration | None, *, permanent: bool = False
    ) -> None:
        assert self.gate is not None
        detail = f"refused because of {reason.value}"
        self.gate.rejected(Reject(event.request, event.model, reason, retry_after, detail, permanent))

    def grant_all(self) -> None:
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            if event.request in self.open:
                self.grant(event)

    def reject_all(self, reason: Rejection) -> None:
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            if event.request in self.open:
                self.reject(event, reason, Duration(3_000_000_000))

    def cut_all(self) -> None:
        assert self.gate is not None
        for request in list(self.open):
            self.gate.cut(Cut(request, MODELS[0].name, INSTANCE))

    @property
    def arrivals(self) -> list[RequestArrived]:
        return [event for event in self.events if isinstance(event, RequestArrived)]

    @property
    def outcomes(self) -> list[Outcome]:
        return [event.outcome for event in self.events if isinstance(event, RequestEnded)]


@dataclass
class FakeDirectory:
    """Names and aliases."""

    listed: Sequence[ListedModel]

    def resolve(self, name: str) -> ModelName | None:
        for model in self.listed:
            if name == model.name or name in model.aliases:
                return model.name
        return None

    def models(self) -> Sequence[ListedModel]:
        return self.listed


MODELS = (
    ListedModel(ModelName("m01"), ("tiny-one",), 1_700_000_000),
    ListedModel(ModelName("m02"), (), 1_700_000_000),
    ListedModel(ModelName("meta/llama"), (), 1_700_000_000),
    ListedModel(ModelName("meta/llama/v1"), (), 1_700_000_000),
)


def model_view(name: str, state: State | None) -> ModelView:
    instance = None
    if state is not None:
        instance = InstanceView(
            INSTANCE, ModelName(name), state, Instant(0), GpuSet(1), Bytes(1), None, 0, Instant(0), outdated=False
        )
    return node_views.model_view(name, instance=instance, queued={WaitingFor.LOAD: 1})


@dataclass
class Node:
    """A front door that listens, and what it reports."""

    core: FakeCore
    front: FrontDoor
    port: int
    tasks: Tasks
    records: list[RequestRecord]
    endpoints: dict[InstanceId, Endpoint]
    options: dict[str, RouteOptions]
    failures: list[BaseException]
    states: dict[str, State | None]
    #: fields of models' rows, by name of the model
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def unattended(self) -> int:
        """Number of abandoned answers that are being read to their end."""
        return sum(task.get_name().startswith("finish ") for task in self.tasks._running)

    def reconfigure(self, settings: ProxySettings) -> None:
        self.front.reconfigure(replace(settings, fast_path=FAST_PATH))

    async def settled(self, count: int) -> RequestRecord:
        """Wait until ``count`` requests have ended and nothing is left; return the last record."""
        await until(lambda: len(self.records) >= count, f"the end of {count} requests")
        assert len(self.records) == count
        self.assert_nothing_left()
        return self.records[-1]

    def assert_nothing_left(self) -> None:
        assert self.core.open == {}
        assert self.front.gate.open_requests == 0
        assert self.front.buffered_bytes == 0


@asynccontextmanager
async def running(settings: ProxySettings | None = None, *, engine_port: int | None = None) -> AsyncIterator[Node]:
    """Serve a front door on a free port until the block ends; then nothing may be left."""
    core = FakeCore()
    records: list[RequestRecord] = []
    failures: list[BaseException] = []
    tasks = Tasks(on_failure=lambda _name, error: failures.append(error))
    endpoints = {} if engine_port is None else {INSTANCE: Endpoint("127.0.0.1", engine_port)}
    options: dict[str, RouteOptions] = {}
    states: dict[str, State | None] = {"m01": State.READY}
    clock = itertools.count(1_000_000_000, 1_000)
    ids = itertools.count(1)

    def model(name: ModelName) -> ModelView | None:
        if not any(listed.name == name for listed in MODELS):
            return None
        return replace(model_view(name, states.get(name)), **node.rows.get(name, {}))

    def offer(name: ModelName) -> Offer | None:
        view = model(name)
        return None if view is None else offer_of(view)

    services = Services(
        post=core.post,
        admit=core.admit,
        now=lambda: Instant(next(clock)),
        next_request_id=lambda: RequestId(next(ids)),
        directory=FakeDirectory(MODELS),
        offer=offer,
        model=model,
        endpoint=endpoints.get,
        options=lambda model: options.get(model, RouteOptions()),
        allowed=lambda _model, _method, path: not path.startswith("/slots"),
        finished=records.append,
        tasks=tasks,
        random=lambda: 0.5,
    )
    front = FrontDoor(services, replace(settings or ProxySettings(), fast_path=FAST_PATH))
    core.gate = front.gate
    runner = front.runner()
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    node = Node(core, front, port, tasks, records, endpoints, options, failures, states)
    try:
        yield node
    finally:
        await runner.cleanup()
        await tasks.aclose()
        await front.aclose()
        # connectors close their sockets in the next turns of the loop
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert failures == []
    assert core.open == {}


@asynccontextmanager
async def http_engine(handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    """Serve ``handler`` on a free port with aiohttp; yields the port."""
    server = web.Server(handler, handler_cancellation=True, auto_decompress=False, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_engine(talk: Talk) -> AsyncIterator[int]:
    """Run ``talk`` for each connection on a free port; yields the port."""
    open_now: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            open_now.discard(task)
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(open_now):
            task.cancel()
        await until(lambda: not open_now, "the end of the engine's connections")


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one request with a Content-Length; returns head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            size = int(line.split(b":")[1])
    return head, await reader.readexactly(size)


@dataclass
class RawClient:
    """A client that writes and reads bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_head(self) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), DEADLINE_S)

    async def read_until(self, mark: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(mark), DEADLINE_S)

    async def read_all(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), DEADLINE_S)

    def stop_reading(self) -> None:
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    def go_on_reading(self) -> None:
        cast("asyncio.Transport", self.writer.transport).resume_reading()

    def leave(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def raw_client(port: int, *, limit: int = 1 << 16) -> AsyncIterator[RawClient]:
    """Connect to the front door."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()


def post_bytes(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    """Return a whole POST request."""
    lines = [f"POST {path} HTTP/{version}", "Host: node", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def header(head: bytes, name: str) -> str | None:
    """Return a field of a raw head."""
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name.lower().encode():
            return value.strip().decode()
    return None


CHAT: dict[str, Any] = {"model": "m01", "messages": [{"role": "user", "content": "Hi"}]}
