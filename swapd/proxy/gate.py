"""Holds a request at the gate until the core grants or refuses it, and reports its one ending.

A lease books itself before it posts, because the answer may come inside the post: then there is no future and no
await. RequestEnded is posted exactly once for each lease that was opened, by whoever holds it last. A granted request
may have a time limit, which starts anew when it is granted again.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from swapd.core.catalog import Priority
from swapd.core.commands import Cut, Grant, Reject
from swapd.core.events import Event, RequestArrived, RequestEnded, UpstreamFailed
from swapd.core.ids import SECOND, Bytes, Duration, Instant, ModelName, RequestId
from swapd.core.reasons import Outcome


class RejectedError(Exception):
    """The core refused the request."""

    def __init__(self, command: Reject) -> None:
        super().__init__(command.detail)
        self.command = command


class Lease:
    """One request's place, from its arrival to its end. What the class says holds until something happens."""

    #: the latest grant
    grant: Grant | None = None
    #: the core's latest; ``None``: it owes one
    answer: Grant | Reject | None = None
    #: from arrival to the latest answer of the core, or to the end of a request that left without one
    waited = Duration(0)
    #: it waited for a load
    cold_start = False
    #: the core has ordered to break it off
    is_cut = False
    #: it has been granted for longer than its limit
    is_overdue = False
    #: called when either happens, inside a post, too, so it must not post; set by whoever serves the request
    on_break: Callable[[], None] | None = None
    #: called when the core answers a request that has been waiting; inside a post, so it must not post
    on_answer: Callable[[], None] | None = None
    outcome: Outcome | None = None
    _waiter: asyncio.Future[None] | None = None
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self, gate: "Gate", request: RequestId, model: ModelName, arrived: Instant, limit: Duration | None
    ) -> None:
        self.request: Final = request
        self.model: Final = model
        self.arrived: Final = arrived
        #: how long it may be granted; ``None``: for ever
        self.limit: Final = limit
        self._gate = gate

    @property
    def waits(self) -> bool:
        """Tell whether the core still owes an answer."""
        return self.answer is None

    async def wait(self, timeout_s: float | None = None) -> Grant | None:
        """Return the grant, or ``None`` after ``timeout_s``; raises ``RejectedError``. May be called again."""
        if self.answer is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait((self._waiter,), timeout=timeout_s)
            finally:
                self._waiter = None
        answer = self.answer
        if isinstance(answer, Reject):
            raise RejectedError(answer)
        return answer

    def upstream_failed(self) -> None:
        """Report that the granted instance gave no byte of an answer; then wait again."""
        assert self.grant is not None
        self.answer = None
        self._stop_timer()
        failed = self.grant
        self._gate.post(UpstreamFailed(self._gate.now(), self.request, failed.instance))

    def end(self, outcome: Outcome, at: Instant | None = None) -> None:
        """Report the end, at this moment or now; the first call counts."""
        if self.outcome is None:
            self.outcome = outcome
            if self._timer is not None:
                self._stop_timer()
            gate, request = self._gate, self.request
            del gate.leases[request]
            gate.post(RequestEnded(gate.now() if at is None else at, request, outcome))

    def settle(self, answer: Grant | Reject) -> None:
        """Take the core's answer."""
        self.answer = answer
        # a refusal after a failed attempt did not wait again
        self.waited = max(self.waited, answer.waited)
        self.cold_start = self.cold_start or answer.cold_start
        if isinstance(answer, Grant):
            self.take(answer)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self.on_answer is not None:
            self.on_answer()

    def take(self, grant: Grant) -> None:
        """Take a grant. Of one that was given at once nothing else is to be noted: it has not waited."""
        self.answer = self.grant = grant
        if self.limit is not None:
            self._timer = asyncio.get_running_loop().call_later(self.limit / SECOND, self.run_over)

    def left(self, *, cold_start: bool) -> None:
        """Note that the client leaves before the core's answer, and whether it waited for a load."""
        self.waited = Duration(self._gate.now() - self.arrived)
        self.cold_start = self.cold_start or cold_start

    def cut(self) -> None:
        """Take the order to break off."""
        self.is_cut = True
        self._break()

    def run_over(self) -> None:
        """Take it that the time limit has passed."""
        self.is_overdue = True
        self._break()

    def _break(self) -> None:
        if self.on_break is not None:
            self.on_break()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Gate:
    """All open leases; the command executor calls ``granted``, ``rejected`` and ``cut``.

    These never post, so they may be called from inside a post. A request that has ended meanwhile is ignored.
    """

    def __init__(
        self,
        *,
        post: Callable[[Event], None],
        admit: Callable[[RequestArrived], Grant | None],
        now: Callable[[], Instant],
        next_request_id: Callable[[], RequestId],
    ) -> None:
        """See ``Services``."""
        self.post: Final = post
        self._admit = admit
        self.now: Final = now
        self._next_request_id = next_request_id
        #: of the requests that arrived and have not ended
        self.leases: Final[dict[RequestId, Lease]] = {}

    @property
    def open_requests(self) -> int:
        """Number of requests that arrived and have not ended."""
        return len(self.leases)

    def open(
        self,
        model: ModelName,
        priority: Priority = Priority.HIGH,
        body_bytes: int = 0,
        limit: Duration | None = None,
        at: Instant | None = None,
    ) -> Lease:
        """Announce a complete request, granted for at most ``limit``; the caller must bring its lease to an end.

        It is complete since ``at``, and nothing has been posted since then; ``None``: now.
        """
        request = self._next_request_id()
        arrived = self.now() if at is None else at
        lease = self.leases[request] = Lease(self, request, model, arrived, limit)
        try:
            grant = self._admit(RequestArrived(arrived, request, model, priority, Bytes(body_bytes)))
        except BaseException:
            # the caller gets no lease that it could end
            del self.leases[request]
            raise
        if grant is not None:
            if limit is None:
                # as ``take`` does
                lease.answer = lease.grant = grant
            else:
                lease.take(grant)
        return lease

    def granted(self, command: Grant) -> None:
        """Carry out a Grant."""
        lease = self.leases.get(command.request)
        if lease is not None:
            lease.settle(command)

    def rejected(self, command: Reject) -> None:
        """Carry out a Reject."""
        lease = self.leases.get(command.request)
        if lease is not None:
            lease.settle(command)

    def cut(self, command: Cut) -> None:
        """Carry out a Cut."""
        lease = self.leases.get(command.request)
        if lease is not None:
            lease.cut()
