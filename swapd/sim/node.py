"""Plays the shell under virtual time: carries out the core's orders and delivers the facts that answer them.

Rules: time jumps from fact to fact; at equal times facts come before the wake-up, in the order they were posted.
A request ends once, whatever is still scheduled for it; after a Stop the load has nothing more to say. The node
never looks into the core: it knows what it posted and what it was ordered.

With a ``Reader`` the node has a driver: engines hold memory in truth, one that does not get what it wants fails to
load, and what befalls the devices is heard of later. Without one the devices are virtual.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

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
from swapd.core.reasons import LoadFailure, Outcome
from swapd.core.topology import GpuHealth
from swapd.sim.driver import HealthTurns, Incident
from swapd.sim.reader import Reader, ReadingBegins
from swapd.sim.shelf import Shelf
from swapd.sim.timeline import Happening, Scheduled, Timeline, drop
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
class _Open:
    """One request the shell holds."""

    #: what will be heard of it next
    facts: list[Scheduled] = field(default_factory=list)
    #: where it is being served
    instance: InstanceId | None = None


class VirtualNode:
    """A node whose engines, processes and clients exist only as scheduled facts."""

    def __init__(
        self, scheduler: Core, world: World, *, observers: Iterable[Observer] = (), reader: Reader | None = None
    ) -> None:
        self.scheduler = scheduler
        #: ``None``: the devices are virtual
        self.reader = reader
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
        self._ahead = Timeline()
        self.shelf = Shelf(self._ahead)
        self._by_instance: dict[InstanceId, list[Scheduled]] = {}
        self._ticks_at_once = 0

    def post(self, *events: Happening) -> None:
        """Schedule what comes from outside: arrivals, orders, configurations, departures, mishaps of the devices."""
        for event in events:
            self._ahead.schedule(event)

    def heal(self) -> None:
        """Let everything that hangs come to its end now: dead processes, held memory, lost GPUs, endless answers.

        Loads that hang are left alone: their deadline is the core's.
        """
        for instance in sorted(self.stopping & self.alive.keys()):
            self._drop_facts(instance, _STOPPING_FACTS)
            self._await(instance, (ProcessesGone(self.now, instance), EngineGone(self.now, instance)))
        for identity, request in self.open.items():
            if request.instance is not None and all(entry.event.at < self.now for entry in request.facts):
                self._end(identity, Outcome.SERVED)
        if self.reader is not None:
            self.reader.driver.heal(self.now)
            self._ahead.schedule(self.reader.news(self.now))

    def run(self, until: Instant | None = None) -> None:
        """Let time pass to ``until``, or to the point where nothing is left to happen."""
        while self.step(until):
            pass
        if until is not None:
            self.now = max(self.now, until)

    def step(self, until: Instant | None = None) -> bool:
        """Deliver the next fact or wake-up, if one is due by ``until``."""
        self._begin_readings(until)
        event = self._next(until)
        if event is None:
            return False
        self.now = event.at
        if isinstance(event, Incident | ReadingBegins):
            self._behind_the_scenes(event)
            return True
        for fact in self.shelf.told(event):
            if self._happens(fact):
                self._tell(fact)
        return True

    def _tell(self, event: Event) -> None:
        commands = self.scheduler.handle(event)
        for observe in self._observers:
            observe(event, commands)
        for command in commands:
            self._carry_out(command)
        self._follow_up(event)

    def _begin_readings(self, until: Instant | None) -> None:
        """Begin the regular readings that are due before anything else happens; they alone keep no run going."""
        while self.reader is not None:
            moments = (self._ahead.first(), self.scheduler.next_wakeup, until)
            first = min((moment for moment in moments if moment is not None), default=None)
            if first is None or self.reader.due > first:
                break
            for reading in self.reader.regular():
                self._ahead.schedule(reading)

    def _next(self, until: Instant | None) -> Happening | None:
        wakeup, fact_at = self.scheduler.next_wakeup, self._ahead.first()
        if wakeup is not None and (fact_at is None or wakeup < fact_at):
            at = max(self.now, wakeup)
            if until is not None and at > until:
                return None
            self._count_tick(at)
            return Tick(at)
        if fact_at is None or (until is not None and fact_at > until):
            return None
        return self._ahead.pop()

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
                drop(request.facts)
            case UpstreamFailed():
                self.open[event.request].instance = None
                drop(self.open[event.request].facts)
            case InstanceExited():
                self.stopping.add(event.instance)
                self._drop_facts(event.instance, _LOADING_FACTS)
            case InstanceReady() if self.reader is not None:
                return self._gets_memory(self.reader, event.instance)
            case ProcessesGone() if self.reader is not None:
                self.reader.driver.end(event.instance, self.now, self.world.release(self.now))
            case EngineGone():
                self.alive.pop(event.instance, None)
                self._by_instance.pop(event.instance, None)
            case _:
                pass
        return True

    def _gets_memory(self, reader: Reader, instance: InstanceId) -> bool:
        """Say whether an engine has all the memory it wants; if not, it fails now instead of being ready."""
        if instance in reader.driver.engines:
            if not reader.driver.fits(instance, self.now):
                self._await(instance, (LoadFailed(self.now, instance, LoadFailure.EXITED, "out of memory"),))
                return False
            reader.driver.ready(instance)
        return True

    def _behind_the_scenes(self, happening: Incident | ReadingBegins) -> None:
        """Let something happen that the core hears of later, if at all."""
        assert self.reader is not None, f"{happening} befalls virtual devices"
        if isinstance(happening, ReadingBegins):
            self._ahead.schedule(self.reader.begin(self.now))
        else:
            self._befall(self.reader, happening)

    def _befall(self, reader: Reader, incident: Incident) -> None:
        """Let something happen to the devices, and to the engines on a GPU that leaves the bus."""
        driver = reader.driver
        if driver.befall(incident):
            self._ahead.schedule(reader.news(self.now))
        if isinstance(incident, HealthTurns) and incident.health is GpuHealth.LOST:
            for instance in driver.on(incident.gpu):
                if instance not in self.stopping:
                    self._await(instance, self.world.strand(instance, self.now))

    def _follow_up(self, event: Event) -> None:
        """Lose the requests at an engine whose processes have ended."""
        if isinstance(event, InstanceExited | ProcessesGone):
            for identity, request in tuple(self.open.items()):
                if request.instance == event.instance:
                    drop(request.facts)
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
                self._start(command)
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
                assert self.reader is not None, "there is no driver to ask"
                self._ahead.schedule(self.reader.ordered(self.now))
            case Answer():
                pass
            case _:
                self.shelf.carry_out(command, self.world, self.now)

    def _start(self, order: Start) -> None:
        self.alive[order.instance] = order
        facts = self.world.load(order, self.now)
        self._await(order.instance, facts)
        if self.reader is not None:
            ends = [fact.at for fact in facts if isinstance(fact, InstanceReady)] or [fact.at for fact in facts[-1:]]
            self.reader.driver.start(order, self.now, max(ends, default=self.now))

    def _grant(self, order: Grant) -> None:
        request = self.open[order.request]
        request.instance = order.instance
        self._expect(request, self.world.serve(order, self.now))

    def _end(self, identity: RequestId, outcome: Outcome) -> None:
        self._expect(self.open[identity], (RequestEnded(self.now, identity, outcome),))

    def _expect(self, request: _Open, facts: tuple[Event, ...]) -> None:
        request.facts.extend(self._ahead.schedule(fact) for fact in facts)

    def _await(self, instance: InstanceId, facts: tuple[Event, ...]) -> None:
        self._by_instance.setdefault(instance, []).extend(self._ahead.schedule(fact) for fact in facts)

    def _drop_facts(self, instance: InstanceId, kinds: tuple[type, ...]) -> None:
        drop(entry for entry in self._by_instance.get(instance, ()) if isinstance(entry.event, kinds))
