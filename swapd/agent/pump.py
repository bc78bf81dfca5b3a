"""Moves facts into the core and its orders out, one at a time, on the loop thread.

Rules:
* ``post`` is synchronous: when it returns, the fact is applied and every order it led to has been handed to its room.
* It is not re-entrant: a fact that a room reports while it carries out an order waits until that order is done.
* There is exactly one timer, armed for the core's next wake-up.
* A broken law is not survived: the flight recorder is dumped and the daemon is told to stop.

It knows of no event or command what it means, only that most requests come and go by a shorter way through the core.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from swapd.agent.recorder import FlightRecorder
from swapd.core.commands import Command, Grant
from swapd.core.events import Event, RequestArrived, RequestEnded, Tick
from swapd.core.ids import SECOND, Instant
from swapd.core.scheduler import Scheduler

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("swapd")

_EARLY_TICK_S = 0.001
"""Loops round timers to milliseconds; a tick that came early is simply armed again this much later."""


class Pump:
    """Owns the scheduler's queue of facts and its one timer."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        now: Callable[[], Instant],
        execute: Callable[[Command], None],
        recorder: FlightRecorder,
        broken: Callable[[BaseException], None],
    ) -> None:
        """``broken`` is called once, with the error, when the core refuses to go on."""
        self._scheduler = scheduler
        self._now = now
        self._execute = execute
        self._record = recorder.record
        self._broken = broken
        self._facts: deque[Event] = deque()
        self._running = False
        self._dead = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: Instant | None = None

    def post(self, event: Event) -> None:
        """Apply a fact and carry out what follows from it."""
        if self._running:
            self._facts.append(event)
        elif not self._dead:
            self._record(event)
            if type(event) is RequestEnded:
                # of most nothing follows
                try:
                    if self._scheduler.end(event):
                        return
                except Exception as error:  # noqa: BLE001 - as in _handle
                    self._die(error)
                    return
            self._handle(event)

    def admit(self, event: RequestArrived) -> Grant | None:
        """Post a request's arrival; return its grant if it was granted at once, which is not executed then.

        ``None``: whatever followed was carried out as ever.
        """
        if self._running or self._dead:
            self.post(event)
            return None
        self._record(event)
        try:
            grant = self._scheduler.admit(event)
        except Exception as error:  # noqa: BLE001 - as in _handle
            self._die(error)
            return None
        if grant is None:
            self._handle(event)
        return grant

    def close(self) -> None:
        """Disarm the timer; facts posted from now on are dropped."""
        self._dead = True
        self._facts.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _handle(self, event: Event) -> None:
        """Apply a fact that is recorded, and those that come of it."""
        facts = self._facts
        self._running = True
        try:
            commands = self._scheduler.handle(event)
            if commands:
                self._carry_out(commands)
            while facts:
                event = facts.popleft()
                self._record(event)
                self._carry_out(self._scheduler.handle(event))
        except Exception as error:  # noqa: BLE001 - whatever it is, the core can no longer be trusted
            self._die(error)
        finally:
            self._running = False
        if self._dead or self._scheduler.next_wakeup != self._armed_for:
            self._arm()

    def _carry_out(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            try:
                self._execute(command)
            except Exception:  # noqa: BLE001 - the others must still be carried out
                # what this one owes an answer to has a deadline in the core
                _log.exception("order_failed", order=type(command).__name__)

    def _die(self, error: Exception) -> None:
        self._dead = True
        self._facts.clear()
        self._broken(error)

    def _arm(self) -> None:
        wakeup = None if self._dead else self._scheduler.next_wakeup
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = wakeup
        if wakeup is not None:
            delay_s = max((wakeup - self._now()) / SECOND, 0.0) + _EARLY_TICK_S
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._armed_for = None
        self.post(Tick(at=self._now()))
