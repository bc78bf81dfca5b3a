"""Plays the shell under virtual time: carries out the core's orders and delivers the facts that answer them.

Rules: time jumps from fact to fact; at equal times facts come before the wake-up, in the order they were posted.
A request ends once, whatever is still scheduled for it; after a Stop the load has nothing more to say. The node
never looks into the core: it knows what it posted and what it was ordered.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from swapd.core.commands import Answer, Check, Command, Cut, Grant, Kill, Note, ReadMemory, Reject, Start, Stop
from swapd.core.events import (
    EngineGone,
    Event,
    InstanceExited,
    InstanceReady,
    InstanceUnhealthy,
    LoadFailed,
    LoadProgressed,
    ProcessesGone,
    RequestArrived,
    RequestEnded,
    StageEntered,
    StopSignalled,
    Tick,
    UpstreamFailed,
)
from swapd.core.ids import InstanceId, Instant, RequestId
from swapd.core.reasons import Outcome
from swapd.sim.world import World

Observer = Callable[[Event, tuple[Command, ...]], None]

#: wake-ups at one instant after which the core counts as spinning
MAX_TICKS_AT_ONCE = 100

_LOADING_FACTS = (StageEntered, LoadProgressed, InstanceReady, LoadFailed, InstanceExited, InstanceUnhealthy)
_STOPPING_FACTS = (StopSignalled, ProcessesGone, EngineGone)


class Core(Protocol):
    """The part of the scheduler the node talks to."""

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Take one fact, return the orders."""
        ...

    @property
    def next_wakeup(self) -> Instant | None:
        """When it wants to be woken."""
        ...


class SpinningError(RuntimeError):
    """The core asks to be woken again and again without time going on."""


@dataclass(slots=True)
class _Scheduled:
    """One fact on its way; ``dropped`` once it cannot happen any more."""

    event: Event
    dropped: bool = False


@dataclass(slots=True)
class _Open:
    """One request the shell holds."""

    #: what will be heard of it next
    facts: list[_Scheduled] = field(default_factory=list)
    #: where it is being served
    instance: InstanceId | None = None


class VirtualNode:
    """A node whose engines, processes and clients exist only as scheduled facts."""

    def __init__(self, scheduler: Core, world: World, *, observers: Iterable[Observer] = ()) -> None:
        self.scheduler = scheduler
        #: may be exchanged between runs: the node goes on under new rules
        self.world = world
        self.now = Instant(0)
        #: requests that arrived and have not ended
        self.open: dict[RequestId, _Open] = {}
        #: instances ordered to start whose memory is not released
        self.alive: dict[InstanceId, Start] = {}
        #: … of these, the ones ordered to stop or dead
        self.stopping: set[InstanceId] = set()
        self._observers = tuple(observers)
        self._heap: list[tuple[Instant, int, _Scheduled]] = []
        self._posted = 0
        self._by_instance: dict[InstanceId, list[_Scheduled]] = {}
        self._ticks_at_once = 0

    def post(self, *events: Event) -> None:
        """Schedule facts from outside (arrivals, orders, configurations, departures)."""
        for event in events:
            self._schedule(event)

    def heal(self) -> None:
        """Let everything that hangs come to its end now: dead processes, held memory, endless answers.

        Loads that hang are left alone: their deadline is the core's.
        """
        for instance in sorted(self.stopping & self.alive.keys()):
            self._drop_facts(instance, _STOPPING_FACTS)
            self._await(instance, (ProcessesGone(self.now, instance), EngineGone(self.now, instance)))
        for identity, request in self.open.items():
            if request.instance is not None and all(entry.event.at < self.now for entry in request.facts):
                self._end(identity, Outcome.SERVED)

    def run(self, until: Instant | None = None) -> None:
        """Let time pass to ``until``, or to the point where nothing is left to happen."""
        while self.step(until):
            pass
        if until is not None:
            self.now = max(self.now, until)

    def step(self, until: Instant | None = None) -> bool:
        """Deliver the next fact or wake-up, if one is due by ``until``."""
        event = self._next(until)
        if event is None:
            return False
        self.now = event.at
        if self._happens(event):
            commands = self.scheduler.handle(event)
            for observe in self._observers:
                observe(event, commands)
            for command in commands:
                self._carry_out(command)
            self._follow_up(event)
        return True

    def _next(self, until: Instant | None) -> Event | None:
        while self._heap and self._heap[0][2].dropped:
            heapq.heappop(self._heap)
        wakeup = self.scheduler.next_wakeup
        fact_at = self._heap[0][0] if self._heap else None
        if wakeup is not None and (fact_at is None or wakeup < fact_at):
            at = max(self.now, wakeup)
            if until is not None and at > until:
                return None
            self._count_tick(at)
            return Tick(at)
        if fact_at is None or (until is not None and fact_at > until):
            return None
        return heapq.heappop(self._heap)[2].event

    def _count_tick(self, at: Instant) -> None:
        self._ticks_at_once = self._ticks_at_once + 1 if at == self.now else 0
        if self._ticks_at_once > MAX_TICKS_AT_ONCE:
            raise SpinningError(f"{MAX_TICKS_AT_ONCE} wake-ups at {at} ns without effect on next_wakeup")

    def _happens(self, event: Event) -> bool:
        """Whether a fact is still true when its time has come; books what the shell itself knows."""
        match event:
            case RequestArrived():
                self.open[event.request] = _Open()
            case RequestEnded():
                request = self.open.pop(event.request, None)
                if request is None:
                    return False
                _drop(request.facts)
            case UpstreamFailed():
                self.open[event.request].instance = None
                _drop(self.open[event.request].facts)
            case InstanceExited():
                self.stopping.add(event.instance)
                self._drop_facts(event.instance, _LOADING_FACTS)
            case EngineGone():
                self.alive.pop(event.instance, None)
                self._by_instance.pop(event.instance, None)
            case _:
                pass
        return True

    def _follow_up(self, event: Event) -> None:
        """Lose the requests at an engine whose processes have ended."""
        if isinstance(event, InstanceExited | ProcessesGone):
            for identity, request in tuple(self.open.items()):
                if request.instance == event.instance:
                    _drop(request.facts)
                    self._expect(request, self.world.lose(identity, event.instance, self.now))

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Note):
            return
        match command:
            case Grant():
                self._grant(command)
            case Reject():
                self._end(command.request, Outcome.REJECTED)
            case Cut():
                self._end(command.request, Outcome.CUT)
            case Start():
                self.alive[command.instance] = command
                self._await(command.instance, self.world.load(command, self.now))
            case Check():
                self._await(command.instance, self.world.check(command, self.now))
            case Stop():
                self.stopping.add(command.instance)
                self._drop_facts(command.instance, _LOADING_FACTS)
                self._await(command.instance, self.world.stop(command, self.now))
            case Kill():
                self.stopping.add(command.instance)
                self._drop_facts(command.instance, _LOADING_FACTS + _STOPPING_FACTS)
                self._await(command.instance, self.world.kill(command, self.now))
            case ReadMemory():
                pass
            case Answer():
                pass
            case _:
                assert_never(command)

    def _grant(self, order: Grant) -> None:
        request = self.open[order.request]
        request.instance = order.instance
        self._expect(request, self.world.serve(order, self.now))

    def _end(self, identity: RequestId, outcome: Outcome) -> None:
        self._expect(self.open[identity], (RequestEnded(self.now, identity, outcome),))

    def _expect(self, request: _Open, facts: tuple[Event, ...]) -> None:
        request.facts.extend(self._schedule(fact) for fact in facts)

    def _await(self, instance: InstanceId, facts: tuple[Event, ...]) -> None:
        self._by_instance.setdefault(instance, []).extend(self._schedule(fact) for fact in facts)

    def _schedule(self, event: Event) -> _Scheduled:
        entry = _Scheduled(event)
        self._posted += 1
        heapq.heappush(self._heap, (event.at, self._posted, entry))
        return entry

    def _drop_facts(self, instance: InstanceId, kinds: tuple[type, ...]) -> None:
        _drop(entry for entry in self._by_instance.get(instance, ()) if isinstance(entry.event, kinds))


def _drop(entries: Iterable[_Scheduled]) -> None:
    for entry in entries:
        entry.dropped = True
