"""Takes one request of plain form to its engine: asks the core for a place, and sends it on a connection of the pool.

No task, future or timer comes to be while the model is resident and its engine has a connection in the pool. The gate's
calls come from inside a post; what follows from them is done in the next turn of the loop. How often a request that got
no byte of an answer is sent again is the core's decision.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final

from swapd.core.catalog import Priority
from swapd.core.commands import Grant, Reject
from swapd.core.ids import Duration, InstanceId, Instant
from swapd.core.reasons import Outcome
from swapd.proxy.errors import cut_off, failure_of_reject, overdue
from swapd.proxy.failure import Failure, RefusedError
from swapd.proxy.front.account import Account
from swapd.proxy.front.comments import Comments
from swapd.proxy.front.engine import Body, EngineConnection
from swapd.proxy.front.heads import RequestHead
from swapd.proxy.front.outlet import Outlet
from swapd.proxy.front.pool import EnginePool
from swapd.proxy.front.sink import Sink
from swapd.proxy.front.surroundings import Client, Door
from swapd.proxy.front.understand import understand
from swapd.proxy.gist import Gist
from swapd.proxy.model_name import read_plain

# on Python 3.11 a member costs ten times as much as a global
_HIGH: Final = Priority.HIGH


class Attempts(Account, Sink):
    """One request until its answer begins. It is the ``Sink`` of its connection to the engine."""

    #: booked in the budget
    _booked = 0
    #: ``None``: it is not complete, or has been let go
    _body: Body | None = None
    #: has looked at a large body while it came
    _gist: Gist | None = None
    _engine: EngineConnection | None = None
    #: not to be sent on a pooled connection: that may be why the first attempt failed
    _fresh = False
    _opening: asyncio.Task[None] | None = None
    #: while the request waits
    _comments: Comments | None = None
    #: the client takes no more for now
    _paused = False
    _over = False
    #: path and query for the engine; ``None``: as received
    _target: bytes | None = None

    def __init__(self, door: Door, client: Client, head: RequestHead, digits: bytes, outlet: Outlet) -> None:
        """``digits``: the length of the body, as received."""
        self._door = door
        self._client = client
        self.head = head
        self._digits = digits
        self._desk = desk = door.desk
        self.outlet = outlet
        self.arrived = desk.services.now()

    # ── what the one who tells the client does ───────────────────────────────────────────────────────────────────

    @abstractmethod
    def refuse(self, failure: Failure) -> None:
        """Answer with a failure."""

    @abstractmethod
    def _fail(self, outcome: Outcome, failure: Failure) -> None:
        """Tell the client of a failure, by an error if nothing was sent yet, else by a visible break."""

    @abstractmethod
    def _close(self, outcome: Outcome) -> None:
        """Let go of everything and report the end; the first call counts."""

    # ── what the client's connection says ────────────────────────────────────────────────────────────────────────

    def book(self, count: int) -> bool:
        """Note that bytes of the body have come; ``False``: there is no room for them."""
        if not self._desk.budget.take(count):
            return False
        self.size += count
        self._booked += count
        return True

    def read_while_it_comes(self) -> Gist | None:
        """Return what is to look at a large body; ``None``: nobody has to read it."""
        match = self.head.match
        if match is not None and match.path_name is None:
            self._gist = Gist()
        return self._gist

    def withdraw(self) -> bytes:
        """Forget the request, which is not complete yet; return its head as received."""
        self._release_body()
        return self.head.received(self._digits)

    def begin(self, body: Body) -> None:
        """Serve the request, which is complete now."""
        self._body = body
        self._ask_or_refuse(body, self._desk.services.now())

    def begin_at_once(self, body: bytes) -> bool:
        """Book and serve a request whose body has come with its head; ``False``: there is no room for it."""
        size = len(body)
        if not self._desk.budget.take(size):
            return False
        self.size = self._booked = size
        self._body = body
        self._ask_or_refuse(body, self.arrived)
        return True

    def pause(self) -> None:
        """Read no more from the engine for now: the client does not keep up."""
        self._paused = True
        if self._engine is not None:
            self._engine.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._engine is not None:
            self._engine.resume_reading()

    # ── the core ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask_or_refuse(self, body: Body, at: Instant) -> None:
        try:
            self._ask(body, at)
        except RefusedError as error:
            failure = error.failure
        else:
            return
        # only now: while the error is there, the frames that have raised it hold the body
        self.refuse(failure)

    def _ask(self, body: Body, at: Instant) -> None:
        """Find out the model and ask the core for a place; raises ``RefusedError``. It is complete since ``at``."""
        head, desk = self.head, self._desk
        services = desk.services
        plain = read_plain(body) if head.is_ordinary and type(body) is bytes else None
        model = None if plain is None else services.directory.resolve(plain.model)
        if plain is None or model is None:
            model, priority, streams, self._target, self.dialect = understand(services, head, body, self._gist)
        else:
            priority, streams = _HIGH, plain.stream
        self.model = model
        limit = services.options(model).request_timeout
        lease = self.lease = desk.gate.open(model, priority, self.size, limit, at)
        lease.on_break = self._broken_off_soon
        answer = lease.answer
        if type(answer) is Grant:
            pool = self._door.pools.get(answer.instance)
            engine = None if pool is None else pool.take()
            if pool is not None and engine is not None:
                # the common case
                self._send(engine, pool)
            else:
                self._attempt(answer.instance)
            return
        lease.on_answer = self._go_on_soon
        if answer is not None:
            self._go_on()
        elif streams and head.streams_events and desk.settings.sse_keepalive is not None:
            self._comments = Comments(self.outlet, desk, lease, desk.settings.sse_keepalive)

    def _go_on_soon(self) -> None:
        _ = asyncio.get_running_loop().call_soon(self._take, self._go_on)

    def _broken_off_soon(self) -> None:
        _ = asyncio.get_running_loop().call_soon(self._take, self._broken_off)

    def _take(self, step: Callable[[], None]) -> None:
        """Take a step of its own, of which nobody else would see that it has raised."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this one request
            self.fails(error)

    def _go_on(self) -> None:
        """Act on the core's answer."""
        lease = self.lease
        if self._over or lease is None or lease.answer is None:
            return
        if self._comments is not None:
            self._comments.stop()
        if isinstance(lease.answer, Reject):
            self._fail(Outcome.REJECTED, failure_of_reject(lease.answer))
        elif lease.is_cut or lease.is_overdue:
            self._broken_off()
        else:
            self._attempt(lease.answer.instance)

    def _broken_off(self) -> None:
        """End a request that the core has cut, or that has been at its engine for too long."""
        lease = self.lease
        if self._over or lease is None:
            return
        failure = cut_off() if lease.is_cut else overdue(lease.limit or Duration(0))
        outcome = Outcome.CUT if lease.is_cut else Outcome.UPSTREAM_FAILED
        self._fail(outcome, failure)

    # ── the engine ───────────────────────────────────────────────────────────────────────────────────────────────

    def _attempt(self, instance: InstanceId) -> None:
        pool = self._door.pool(instance)
        if pool is None:
            self._attempt_failed()
            return
        engine = None if self._fresh else pool.take()
        if engine is not None:
            self._send(engine, pool)
            return
        try:
            self._opening = self._desk.services.tasks.start(self._open(pool), name=f"connect {self.outlet.request_id}")
        except RuntimeError:
            # the daemon is closing
            self._attempt_failed()

    def _attempt_failed(self) -> None:
        """Report that not one byte of an answer came; the core's next answer says how it goes on."""
        self._fresh = True
        assert self.lease is not None
        self.lease.on_answer = self._go_on_soon
        self.lease.upstream_failed()

    async def _open(self, pool: EnginePool) -> None:
        try:
            engine = await pool.connect()
        except OSError:
            engine = None
        self._opening = None
        if engine is not None:
            self._take(partial(self._send, engine, pool))
        elif self.outlet.gone:
            self._close(Outcome.CANCELLED)
        else:
            self._attempt_failed()

    def _send(self, engine: EngineConnection, pool: EnginePool) -> None:
        head, body = self.head, self._body
        assert body is not None
        self._engine = engine
        outlet, host_line = self.outlet, pool.host_line
        if self._target is None and not outlet.begun:
            before, after = head.written if head.host_line is host_line else head.for_engine(host_line)
        else:
            before, after = head.rewritten(host_line, self._target or head.target, readable=outlet.begun)
        written = b"".join((before, self._digits, after, outlet.request_id.encode(), b"\r\n\r\n"))
        engine.send(self, written, body, bodiless=head.bodiless)
        if self._paused:
            engine.pause_reading()

    def _release_body(self) -> None:
        """Let go of the body; its memory serves the next one."""
        booked = self._booked
        if booked:
            self._desk.budget.give(booked)
            self._booked = 0
        body, self._body = self._body, None
        if type(body) is memoryview:
            self._door.give_back(body)
