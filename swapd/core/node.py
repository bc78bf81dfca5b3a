"""Holds the state of the whole node, and the lists by which the core finds what to look at next.

Rules that hold here: the agendas are brought up to date by ``refresh``, which everybody calls who changes a model's
waiters, orders or instance; nothing else in the core keeps lists of its own.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from swapd.core.agenda import Agenda
from swapd.core.boards import Boards
from swapd.core.catalog import Mode, SchedulingSettings
from swapd.core.commands import Command, StaleFact
from swapd.core.copies import Bandwidth
from swapd.core.ids import Bytes, Duration, GpuSet, InstanceId, Instant, ModelName, RequestId
from swapd.core.policies.base import EvictionPolicy
from swapd.core.state import Instance, Model, Need, Request
from swapd.core.story import Story
from swapd.core.topology import DriverState, Gpu, NodeTopology
from swapd.core.viability import NodeLoad

#: before anything
NEVER: Final = Instant(-(1 << 62))


@dataclass(slots=True, eq=False)
class GpuRecord:
    """One GPU, who is on it, by id, and what the driver last said of its memory."""

    gpu: Gpu
    #: its place on the node and its bit in every GPU set
    index: int = field(init=False)
    #: usable memory, by the driver's last word
    memory_bytes: Bytes
    instances: dict[InstanceId, Instance] = field(default_factory=dict)
    #: ``None``: not measured, or not known now
    free_bytes: Bytes | None = None
    #: taken by others than our instances, as it was when that could be told last
    foreign_bytes: Bytes = Bytes(0)
    #: what released instances may still be shown to hold: it counts as free in plans, and is not foreign …
    lingering_bytes: Bytes = Bytes(0)
    #: … until then; ``None``: for good, as the GPU's memory is a NUMA node
    lingering_until: Instant | None = None
    #: when the last reading of it began
    taken: Instant = NEVER
    #: a reading begun before this shows an instance half loaded, or one that has begun to leave since
    settled: Instant = NEVER
    #: the process list of the last reading; ``None``: there was none that could be trusted
    processes: Mapping[InstanceId, Bytes | None] | None = None
    #: it was found to be smaller than what is booked on it
    shrunk: bool = False

    def __post_init__(self) -> None:
        self.index = self.gpu.index

    @property
    def measured(self) -> bool:
        """Whether the driver's word counts here; else the accounts alone do."""
        return self.gpu.measured and self.gpu.placeable

    @property
    def startable_bytes(self) -> int | None:
        """What a load that begins now may take, by the driver's last word; ``None``: not known."""
        return (
            self.free_bytes
            if self.free_bytes is None or not self.gpu.lingers
            else self.free_bytes + self.lingering_bytes
        )

    def charged(self) -> int:
        """Return what the instances that may hold memory here are charged, bytes."""
        return sum(instance.charge(self.index) for instance in self.instances.values() if instance.holds)


@dataclass(slots=True, eq=False)
class Asking:
    """When the driver is asked next for a reading that somebody waits for."""

    #: when the unanswered order was given; ``None``: there is none
    since: Instant | None = None
    #: the pause before the next order, growing while waiting goes on
    pause: Duration = Duration(0)
    #: not before
    due: Instant = NEVER
    #: when somebody began to wait last: a reading begun before is of no use to them
    wanted: Instant = NEVER


@dataclass(slots=True, eq=False)
class Reservation:
    """GPUs kept for one model, whose residents drain once no load is in the way any more."""

    model: Model
    gpus: GpuSet
    since: Instant
    #: who has to leave for it; empty while loads are in the way …
    victims: tuple[Instance, ...]
    #: … namely of these
    awaited: tuple[Instance, ...] = ()


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
    boards: Boards
    models: dict[ModelName, Model] = field(default_factory=dict)
    instances: dict[InstanceId, Instance] = field(default_factory=dict)
    #: queued, granted and cut requests
    requests: dict[RequestId, Request] = field(default_factory=dict)
    #: refused requests whose end is still to be reported
    refused: dict[RequestId, None] = field(default_factory=dict)
    #: models somebody waits for that have no instance, by (class, age)
    pending: Agenda[tuple[int, int]] = field(default_factory=Agenda)
    #: how many of them have which footprint, and which of them have not been told yet what stands in their way
    needs: dict[Need, int] = field(default_factory=dict)
    unexplained: dict[ModelName, None] = field(default_factory=dict)
    #: the same models by age, and by the age at which ``max_wait`` minus the load itself is used up
    ages: Agenda[int] = field(default_factory=Agenda)
    limits: Agenda[int] = field(default_factory=Agenda)
    #: models with waiters, by the first deadline
    deadlines: Agenda[int] = field(default_factory=Agenda)
    #: pinned models, and those that come back after a change
    pins: dict[ModelName, Model] = field(default_factory=dict)
    wishes: dict[ModelName, Model] = field(default_factory=dict)
    #: models no longer configured of which an instance is left
    removed: dict[ModelName, None] = field(default_factory=dict)
    #: size of the copies in the cache, as told last, also of models that are not known yet
    cached: Mapping[ModelName, Bytes] = field(default_factory=dict)
    #: models whose weights are, or may be, missing and wanted; those with a fetch, and those read into the page cache
    hungry: dict[ModelName, Model] = field(default_factory=dict)
    fetching: dict[ModelName, Model] = field(default_factory=dict)
    warming: dict[ModelName, Model] = field(default_factory=dict)
    #: models of which the weight cache may have to be told anew whether they are held and pinned
    unkept: dict[ModelName, Model] = field(default_factory=dict)
    #: how fast fetches have been
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    reservation: Reservation | None = None
    drain: NodeDrain | None = None
    asking: Asking = field(default_factory=Asking)
    #: GPUs that suit by their nature and health, by what a need asks of them; for the present topology and settings
    suited: dict[tuple[str, tuple[int, int] | None, bool], GpuSet] = field(default_factory=dict)
    #: GDSF clock
    clock: float = 0.0
    #: instances in RESERVED or LOADING
    loads_running: int = 0
    #: last times from stop to released memory, and their median; ``None``: none was measured
    release_times: deque[Duration] = field(default_factory=lambda: deque(maxlen=5))
    usual_release: Duration | None = None
    #: what that takes with the models that take longest, by the median of each; 0: none was measured
    longest_release: Duration = Duration(0)
    #: feasibility may have changed for those who already wait
    recheck: bool = False
    #: number of events handled, and of transitions and bookings made
    step: int = 0
    changes: int = 0
    stale_facts: int = 0
    wake: Instant | None = None
    out: list[Command] = field(default_factory=list)
    story: Story = field(default_factory=Story)
    #: what the topology says, at hand: new loads may begin (the devices are virtual, or their driver can be asked) …
    may_load: bool = field(init=False)
    #: … the driver is in trouble: who needs a load is refused …
    degraded: bool = field(init=False)
    #: … GPUs that models may not be placed on …
    cordoned: GpuSet = field(init=False)
    #: … and GPUs on which the driver's word on memory counts
    measured: GpuSet = field(init=False)

    def __post_init__(self) -> None:
        self.set_topology(self.topology)

    def set_topology(self, topology: NodeTopology) -> None:
        """Take over a topology, and what follows from it; the records of the GPUs are the caller's."""
        self.topology = topology
        self.may_load = topology.driver in (DriverState.VIRTUAL, DriverState.UP)
        self.degraded = not self.may_load and topology.driver is not DriverState.STARTING
        self.cordoned = GpuSet(topology.all_gpus & ~topology.placeable)
        self.measured = GpuSet(sum(1 << gpu.index for gpu in topology.gpus if gpu.measured and gpu.placeable))
        self.suited.clear()

    def refresh(self, model: Model) -> None:
        """Enter a model in the agendas as its waiters, orders and instance now are."""
        since = model.since = model.oldest()
        name, limit, instance = model.spec.name, model.spec.max_wait, model.instance
        if model.spec.fetched:
            waited_for = since is not None and model.weights.given_to is None
            if (waited_for or instance is not None) is not model.weights.kept[0]:
                self.unkept[name] = model
            if since is not None and model.weights.cached is None:
                self.hungry[name] = model
        if since is not None and instance is None:
            if name not in self.pending:
                self.needs[model.need] = self.needs.get(model.need, 0) + 1
                self.unexplained[name] = None
            self.pending.put(name, model.queue.rank() if model.queue else (model.spec.priority, since))
            self.ages.put(name, since)
            self.limits.put(name, since + limit - model.lhat)
        elif name in self.pending:
            self.pending.drop(name)
            self._one_less(model.need)
            self.ages.drop(name)
            self.limits.drop(name)
        if since is None:
            self.deadlines.drop(name)
            model.noted.clear()
        elif not model.placed:
            self.deadlines.put(name, since + limit)
        elif model.queue:
            self.deadlines.put(name, model.queue.oldest().arrived + limit)
        else:
            self.deadlines.drop(name)

    def change_need(self, model: Model, need: Need) -> None:
        """Give a model another footprint."""
        if model.spec.name in self.pending:
            self._one_less(model.need)
            self.needs[need] = self.needs.get(need, 0) + 1
        model.need = need

    def _one_less(self, need: Need) -> None:
        count = self.needs.pop(need) - 1
        if count:
            self.needs[need] = count

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
    def host_booked(self) -> int:
        """Host memory charged to instances, bytes; a victim and its successor count both."""
        return sum(instance.host_bytes for instance in self.instances.values())

    @property
    def lacks_pins(self) -> bool:
        """Some pinned model has no instance, or one waits to come back after a change."""
        return bool(self.wishes) or any(model.instance is None for model in self.pins.values())

    @property
    def manual(self) -> bool:
        """Nothing loads or unloads unless an operator says so."""
        return self.settings.mode is Mode.MANUAL
