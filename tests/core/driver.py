"""Plays the world around a Scheduler: engines that load, stop and serve in fixed times, on a virtual clock.

Tests read as a conversation: ``node.request("a", at=5, service=10)``, ``node.run(until=80)``, and then what happened.
At equal times the order is: facts of engines, arrivals and ends in the order they were planned, then the wake-up.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from swapd.core import events as ev
from swapd.core.catalog import Catalog, Footprint, ModelSpec, SchedulingSettings
from swapd.core.commands import (
    Answer,
    Check,
    Command,
    Cut,
    Evicted,
    EvictionBlocked,
    Grant,
    Kill,
    LoadFinished,
    Reject,
    Start,
    Stop,
    VerdictChanged,
)
from swapd.core.ids import SECOND, Bytes, InstanceId, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import LoadFailure, Outcome, Stage
from swapd.core.scheduler import Scheduler
from swapd.core.topology import Gpu, NodeTopology
from swapd.core.view import ModelView
from tests.core.store import Store

GIB = 1 << 30


def topology(gpus: int = 8, gib: float = 80) -> NodeTopology:
    return NodeTopology(tuple(Gpu(i, f"virtual-{i}", Bytes(int(gib * GIB))) for i in range(gpus)))


def spec(name: str, gpus: int = 1, *, gib: float = 1, load: float = 60, shares: bool = False, **more: Any) -> ModelSpec:
    footprint = Footprint(gpus, Bytes(int(gib * GIB)), exclusive=not shares)
    return ModelSpec(ModelName(name), footprint, load_estimate=seconds(load), **more)


def catalog(specs: Iterable[ModelSpec], **settings: Any) -> Catalog:
    return Catalog({s.name: s for s in specs}, SchedulingSettings(**settings))


@dataclass
class Engine:
    """How instances of one model behave."""

    load: float = 60.0
    unload: float = 3.0
    #: the load fails after ``load`` instead
    fails: LoadFailure | None = None
    #: never becomes ready and says nothing
    hangs: bool = False
    #: between the order to stop and the signal (a hook)
    hook: float = 0.0
    #: never ends by the signal; a kill takes ``unload``
    ignores_stop: bool = False
    #: memory comes back this long after the processes are gone; ``None``: never
    release: float | None = 0.0
    #: reports progress this often while loading
    progress: float | None = None
    #: what it really takes on each GPU once it is ready, GiB; ``None``: what is configured
    size: float | None = None
    #: the driver shows its memory free this long after its processes are gone; ``None``: never
    lag: float | None = 0.0


@dataclass
class Asked:
    """One request and what became of it."""

    number: int
    model: str
    arrived: float
    #: time from grant to end; ``None``: never ends by itself
    service: float | None
    granted: list[tuple[float, Grant]] = field(default_factory=list)
    rejected: tuple[float, Reject] | None = None
    cut: float | None = None
    ended: bool = False

    @property
    def waited(self) -> float:
        return round(self.granted[0][0] - self.arrived, 6)


class World:
    """A Scheduler and everything around it; every law is checked after every event."""

    def __init__(
        self,
        specs: Iterable[ModelSpec] = (),
        *,
        gpus: int = 8,
        gib: float = 80,
        devices: NodeTopology | None = None,
        **settings: Any,
    ) -> None:
        self.specs = {s.name: s for s in specs}
        self.settings = SchedulingSettings(**settings)
        self.devices = topology(gpus, gib) if devices is None else devices
        self.core = Scheduler(self.devices, Catalog(self.specs, self.settings), Instant(0))
        self.engines: dict[str, Engine] = {s.name: Engine(load=s.load_estimate / SECOND) for s in self.specs.values()}
        self.now = Instant(0)
        self.log: list[tuple[float, Command]] = []
        self.asked: dict[int, Asked] = {}
        self.answers: dict[int, tuple[float, Answer]] = {}
        self.alive: dict[InstanceId, str] = {}
        self._plan: list[tuple[int, int, Callable[[], ev.Event | None]]] = []
        self._count = 0
        self._ids = 0
        self.store = Store(self)

    # planning

    def plan(self, at: float, make: Callable[[], ev.Event | None]) -> None:
        self._count += 1
        heapq.heappush(self._plan, (seconds(at), self._count, make))

    def request(self, model: str, at: float | None = None, service: float | None = 0.0, **more: Any) -> Asked:
        self._ids += 1
        number = self._ids
        when = self.now / SECOND if at is None else at
        asked = self.asked[number] = Asked(number, model, when, service)
        self.plan(when, lambda: ev.RequestArrived(self.now, RequestId(number), ModelName(model), **more))
        return asked

    def leave(self, asked: Asked, at: float) -> None:
        self.plan(at, lambda: self._end(asked, Outcome.CANCELLED))

    def _end(self, asked: Asked, outcome: Outcome) -> ev.Event | None:
        if asked.ended:
            return None
        asked.ended = True
        return ev.RequestEnded(self.now, RequestId(asked.number), outcome)

    def order(self, kind: type, at: float | None = None, **more: Any) -> int:
        """Give an operator's order; return its number in ``answers``."""
        self._ids += 1
        number = self._ids
        self.plan(self.now / SECOND if at is None else at, lambda: kind(self.now, RequestId(number), **more))
        return number

    def fact(self, kind: type, model: str, at: float | None = None, **more: Any) -> None:
        """Report something of the living instance of a model."""
        when = self.now / SECOND if at is None else at
        self.plan(when, lambda: kind(self.now, self.instance(model), **more))

    def reconfigure(
        self, *specs: ModelSpec, at: float | None = None, remove: Iterable[str] = (), **settings: Any
    ) -> None:
        def make() -> ev.Event:
            for s in specs:
                self.specs[s.name] = s
                self.engines.setdefault(s.name, Engine(load=s.load_estimate / SECOND))
            for name in remove:
                self.specs.pop(ModelName(name), None)
            self.settings = replace(self.settings, **settings)
            return ev.CatalogChanged(self.now, Catalog(dict(self.specs), self.settings))

        self.plan(self.now / SECOND if at is None else at, make)

    # running

    def run(self, until: float = 1e9) -> "World":
        """Play everything up to and including ``until``."""
        limit = seconds(until)
        for _ in range(200_000):
            planned = self._plan[0][0] if self._plan else None
            wake = self.core.next_wakeup
            if planned is not None and planned <= limit and (wake is None or planned <= wake):
                _, _, make = heapq.heappop(self._plan)
                self.now = max(self.now, Instant(planned))
                event = make()
                if event is not None:
                    self.post(event)
            elif wake is not None and wake <= limit:
                self.now = max(self.now, wake)
                self.post(ev.Tick(self.now))
            else:
                self.now = max(self.now, Instant(limit)) if until < 1e9 else self.now
                return self
        raise AssertionError("the node never comes to rest")

    def post(self, event: ev.Event) -> tuple[Command, ...]:
        commands = self.core.handle(event)
        self.core.check()
        wake = self.core.next_wakeup
        assert wake is None or wake > event.at, f"{event} leaves a wake-up at {wake}"
        for command in commands:
            self.log.append((self.now / SECOND, command))
            self._carry_out(command)
        return commands

    def _carry_out(self, command: Command) -> None:
        now = self.now / SECOND
        match command:
            case Grant():
                asked = self.asked[command.request]
                asked.granted.append((now, command))
                if asked.service is not None:
                    self.plan(now + asked.service, lambda: self._end(asked, Outcome.SERVED))
            case Reject():
                asked = self.asked[command.request]
                assert asked.rejected is None
                asked.rejected = (now, command)
                self.plan(now, lambda: self._end(asked, Outcome.REJECTED))
            case Cut():
                asked = self.asked[command.request]
                asked.cut = now
                self.plan(now, lambda: self._end(asked, Outcome.CUT))
            case Start():
                self._load(command, now)
            case Stop():
                self._stop(command.instance, now)
            case Kill():
                engine = self.engines[self.alive[command.instance]]
                self._go(command.instance, now + engine.unload, engine)
            case Answer():
                assert command.request not in self.answers
                self.answers[command.request] = (now, command)
            case _:
                self.store.carry_out(command, now)

    def _load(self, command: Start, now: float) -> None:
        instance, name = command.instance, str(command.spec.name)
        engine = self.engines[name]
        self.alive[instance] = name
        for index, stage in enumerate((Stage.LOAD, Stage.WARMUP)):
            if not engine.hangs and engine.fails is None:
                self.plan(
                    now + engine.load * (0.25 + 0.5 * index),
                    lambda stage=stage: self._if_loading(instance, ev.StageEntered(self.now, instance, stage)),
                )
        if engine.progress is not None:
            for count in range(1, int(engine.load / engine.progress)):
                moment = now + count * engine.progress
                self.plan(moment, lambda: self._if_loading(instance, ev.LoadProgressed(self.now, instance)))
        if engine.hangs:
            return
        if engine.fails is not None:
            failure = engine.fails
            detail = f"{name} says: boom"
            self.plan(now + engine.load, lambda: ev.LoadFailed(self.now, instance, failure, detail))
            return
        self.plan(now + engine.load, lambda: self._if_loading(instance, ev.InstanceReady(self.now, instance)))

    def _if_loading(self, instance: InstanceId, event: ev.Event) -> ev.Event | None:
        return event if self.state(instance) == "loading" else None

    def _stop(self, instance: InstanceId, now: float) -> None:
        engine = self.engines[self.alive[instance]]
        self.plan(now + engine.hook, lambda: ev.StopSignalled(self.now, instance))
        if not engine.ignores_stop:
            self._go(instance, now + engine.hook + engine.unload, engine)

    def _go(self, instance: InstanceId, moment: float, engine: Engine) -> None:
        self.plan(moment, lambda: ev.ProcessesGone(self.now, instance))
        if engine.release is not None:
            self.plan(moment + engine.release, lambda: ev.EngineGone(self.now, instance))

    # looking

    def state(self, instance: InstanceId) -> str:
        record = self.core._node.instances.get(instance)
        return "gone" if record is None else str(record.state)

    def instance(self, model: str) -> InstanceId:
        instance = self.model(model).instance
        assert instance is not None, f"{model} has no instance"
        return instance.instance

    def model(self, name: str) -> ModelView:
        return next(m for m in self.core.view().models if m.model == name)

    def residents(self) -> list[str]:
        """Names of the ready models, sorted."""
        return sorted(str(i.model) for i in self.core.view().instances if i.state == "ready")

    def of(self, kind: type, model: str | None = None) -> list[Any]:
        """All commands of a kind, in order; for one model if named."""
        return [c for _, c in self.log if isinstance(c, kind) and (model is None or _model_of(self, c) == model)]

    def loads(self, model: str | None = None) -> int:
        return len(self.of(Start, model))

    def evictions(self) -> list[tuple[float, str]]:
        return [(at, str(c.model)) for at, c in self.log if isinstance(c, Evicted)]


def _model_of(world: World, command: Command) -> str:
    if isinstance(command, Start):
        return str(command.spec.name)
    if isinstance(command, Stop | Kill | Check):
        return world.alive[command.instance]
    assert isinstance(command, Grant | Reject | Evicted | EvictionBlocked | LoadFinished | VerdictChanged)
    return str(command.model)
