"""Holds everything the core knows, as mutable records; private to the core, others read ``view``.

Rules that hold here:

* Only the functions of this package that take a ``Node`` change these records, within one call of
  ``Scheduler.handle``.
* Instances stand in ``Node.instances`` and on their GPUs from RESERVED until GONE. ``Model.instance`` is the one that
  serves or will serve; an instance that is unloading or leaked is nobody's any more.
* Dictionaries keep insertion order, and ids grow, so walking them is deterministic. There are no sets.
* A request stands in exactly one place, told by its phase.
"""

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from swapd.core.agenda import Agenda
from swapd.core.catalog import Mode, ModelSpec, Priority, SchedulingSettings, Source
from swapd.core.commands import Command, StaleFact
from swapd.core.ids import Bytes, Duration, GpuSet, InstanceId, Instant, ModelName, RequestId
from swapd.core.policies.base import EvictionPolicy
from swapd.core.queue import ModelQueue
from swapd.core.reasons import EvictionBlock, Stage, State, UnloadCause
from swapd.core.story import Story
from swapd.core.topology import NodeTopology
from swapd.core.viability import Demand, NodeLoad

#: this many breakdowns of a ready instance in a row count like a failed load
BREAKDOWNS: Final = 3


class Phase(enum.Enum):
    """Where a request is."""

    QUEUED = "queued"
    GRANTED = "granted"
    #: broken off by a drain deadline; its end is still to be reported
    CUT = "cut"


@dataclass(slots=True, eq=False)
class Request:
    """One request that has not ended and was not refused."""

    id: RequestId
    model: "Model"
    arrived: Instant
    #: the effective class: the lower of the request's and the model's
    priority: Priority
    phase: Phase = Phase.QUEUED
    #: where it was granted
    instance: "Instance | None" = None
    granted_at: Instant = Instant(0)
    #: it was granted once and got no answer
    retried: bool = False
    #: it had to wait for a load
    cold: bool = False


@dataclass(slots=True, eq=False)
class Drain:
    """Why and until when an instance lets its requests finish."""

    since: Instant
    #: ``None``: in favour of the reservation, and lifted with it
    cause: UnloadCause | None
    #: what is in flight then is cut; ``None``: never
    deadline: Instant | None


@dataclass(slots=True, eq=False)
class Stopping:
    """The deadlines of an instance that is leaving."""

    ordered_at: Instant
    #: from the stop signal to the kill
    grace: Duration
    #: ``None``: killed already, or its processes are gone
    kill_at: Instant | None
    #: memory not confirmed free by then is leaked; ``None``: the processes still live
    leak_at: Instant | None = None
    processes_gone: bool = False


@dataclass(frozen=True, slots=True)
class Eviction:
    """Under which circumstances an instance was evicted; kept for the laws."""

    successor: ModelName
    #: how long the successor's oldest waiter had waited
    waited: Duration
    #: until when the victim was protected
    protected_until: Instant
    was_pinned: bool


@dataclass(slots=True, eq=False)
class Instance:
    """One load of one model."""

    id: InstanceId
    model: "Model"
    #: as it was when the room was booked
    spec: ModelSpec
    gpus: GpuSet
    state: State
    since: Instant
    #: number of the step in which it came into its state
    step: int
    reserved_at: Instant
    bytes_per_gpu: Bytes
    exclusive: bool
    #: ids of the requests it serves
    in_flight: dict[RequestId, Request] = field(default_factory=dict)
    #: models evicted for it
    victims: tuple[ModelName, ...] = ()
    #: when each stage of its load began
    timeline: list[tuple[Stage, Instant]] = field(default_factory=list)
    started_at: Instant = Instant(0)
    progress_at: Instant = Instant(0)
    ready_at: Instant = Instant(0)
    #: last arrival or end of a request, or ready
    last_used: Instant = Instant(0)
    last_grant: Instant = Instant(0)
    #: a check is under way, no request is sent there
    suspect: bool = False
    #: since when the configuration has moved on
    outdated_since: Instant | None = None
    drain: Drain | None = None
    stopping: Stopping | None = None
    cause: UnloadCause | None = None
    eviction: Eviction | None = None
    #: loads although nobody waits: a request was refused for its ETA, but room was free
    ahead: bool = False
    #: operators who wait for it to be gone
    unload_orders: list[RequestId] = field(default_factory=list)
    story: Story = field(default_factory=Story)


@dataclass(slots=True, eq=False)
class Model:
    """One model, configured or on its way out."""

    spec: ModelSpec
    configured: bool = True
    queue: ModelQueue[Request] = field(default_factory=ModelQueue)
    #: serves or will serve: RESERVED to DRAINING
    instance: Instance | None = None
    #: operators who wait for it to be ready, and since when
    orders: dict[RequestId, Instant] = field(default_factory=dict)
    #: an operator's word on pinning, over the configuration's
    pin_override: bool | None = None
    #: measured load times per source, the last five
    load_times: dict[Source, deque[Duration]] = field(default_factory=dict)
    #: expected load time: the median of ``load_times``, or the configured estimate
    lhat: Duration = Duration(0)
    #: mean time from grant to end, decaying by request; 0 before the first
    service: float = 0.0
    #: GDSF: decayed number of requests, and when it was decayed last
    frequency: float = 0.0
    frequency_at: Instant = Instant(0)
    #: GDSF: worth of keeping it, as of its last request
    worth: float = 0.0
    failures: int = 0
    cooling_until: Instant | None = None
    #: the last failure cannot be cured by trying again
    permanent: bool = False
    last_error: str = ""
    #: the last times a ready instance broke down
    breakdowns: deque[Instant] = field(default_factory=lambda: deque(maxlen=BREAKDOWNS))
    #: EvictionBlocked notes already given for its present wait
    noted: dict[tuple[InstanceId, EvictionBlock], None] = field(default_factory=dict)
    demand: Demand = field(default_factory=Demand)
    story: Story = field(default_factory=Story)

    @property
    def name(self) -> ModelName:
        """Its name."""
        return self.spec.name

    @property
    def pinned(self) -> bool:
        """Whether it is pinned now: an operator's word counts over the configuration's."""
        return self.configured and (self.spec.pinned if self.pin_override is None else self.pin_override)

    @property
    def claimed(self) -> bool:
        """Somebody waits for it or it is pinned: its load is not aborted."""
        return bool(self.queue) or bool(self.orders) or self.pinned

    @property
    def waiting_since(self) -> Instant | None:
        """Since when the longest waiter (request or operator) waits."""
        oldest = [self.queue.oldest().arrived] if self.queue else []
        if self.orders:
            oldest.append(next(iter(self.orders.values())))
        return min(oldest, default=None)


@dataclass(slots=True, eq=False)
class GpuRecord:
    """One GPU and who is on it, by id."""

    index: int
    memory_bytes: Bytes
    instances: dict[InstanceId, Instance] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Reservation:
    """GPUs kept for one model, whose residents drain."""

    model: Model
    gpus: GpuSet
    since: Instant
    #: who has to leave for it
    victims: tuple[Instance, ...]


@dataclass(slots=True, eq=False)
class NodeDrain:
    """The node is leaving service."""

    orders: list[RequestId]
    linger_until: Instant
    deadline: Instant | None
    stop_engines: bool
    final: bool
    cut: int = 0


@dataclass(slots=True, eq=False)
class Node:
    """The whole state of one node."""

    topology: NodeTopology
    settings: SchedulingSettings
    policy: EvictionPolicy
    #: a policy given from outside stays, whatever the configuration says
    policy_fixed: bool
    at: Instant
    next_instance: InstanceId
    gpus: list[GpuRecord]
    load: NodeLoad
    models: dict[ModelName, Model] = field(default_factory=dict)
    instances: dict[InstanceId, Instance] = field(default_factory=dict)
    #: queued, granted and cut requests
    requests: dict[RequestId, Request] = field(default_factory=dict)
    #: refused requests whose end is still to be reported
    refused: dict[RequestId, None] = field(default_factory=dict)
    #: models somebody waits for that have no instance, by (class, age)
    pending: Agenda[tuple[int, int]] = field(default_factory=Agenda)
    #: models with waiters, by the first deadline
    deadlines: Agenda[int] = field(default_factory=Agenda)
    #: pinned models, and those that come back after a change
    pins: dict[ModelName, Model] = field(default_factory=dict)
    wishes: dict[ModelName, Model] = field(default_factory=dict)
    #: models no longer configured of which an instance is left
    removed: dict[ModelName, None] = field(default_factory=dict)
    reservation: Reservation | None = None
    drain: NodeDrain | None = None
    #: GDSF clock
    clock: float = 0.0
    #: instances in RESERVED or LOADING
    loads_running: int = 0
    #: last times from stop to released memory
    release_times: deque[Duration] = field(default_factory=lambda: deque(maxlen=5))
    #: feasibility may have changed for those who already wait
    recheck: bool = False
    #: number of events handled, and of transitions and bookings made
    step: int = 0
    changes: int = 0
    stale_facts: int = 0
    wake: Instant | None = None
    out: list[Command] = field(default_factory=list)
    story: Story = field(default_factory=Story)

    def refresh(self, model: Model) -> None:
        """Enter a model in the agendas as its waiters, orders and instance now are."""
        since = model.waiting_since
        name = model.spec.name
        if since is None:
            self.pending.drop(name)
            self.deadlines.drop(name)
            model.noted.clear()
            return
        instance = model.instance
        if instance is None:
            rank = model.queue.rank() if model.queue else (model.spec.priority, since)
            self.pending.put(name, rank)
        else:
            self.pending.drop(name)
        if model.queue:
            first = model.queue.oldest().arrived if instance and instance.state is not State.RESERVED else since
            self.deadlines.put(name, first + model.spec.max_wait)
        elif instance is None or instance.state is State.RESERVED:
            self.deadlines.put(name, since + model.spec.max_wait)
        else:
            self.deadlines.drop(name)

    def wake_by(self, moment: Instant) -> None:
        """Have the next wake-up no later than this; for steps that settle nothing."""
        if self.wake is None or moment < self.wake:
            self.wake = moment

    def stale(self, what: str) -> None:
        """Count a fact about something that is gone."""
        self.stale_facts += 1
        self.out.append(StaleFact(what))

    def on(self, gpus: GpuSet) -> list[GpuRecord]:
        """Return the records of a GPU set, lowest index first."""
        return [gpu for gpu in self.gpus if gpus >> gpu.index & 1]

    def neighbours(self, instance: Instance) -> list[Instance]:
        """Return the other instances on the same GPUs, by GPU and id; one on several GPUs comes several times."""
        return [other for gpu in self.on(instance.gpus) for other in gpu.instances.values() if other is not instance]

    @property
    def lacks_pins(self) -> bool:
        """Some pinned model has no instance, or one waits to come back after a change."""
        return bool(self.wishes) or any(model.instance is None for model in self.pins.values())

    @property
    def manual(self) -> bool:
        """Nothing loads or unloads unless an operator says so."""
        return self.settings.mode is Mode.MANUAL
