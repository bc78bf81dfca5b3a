"""Holds everything the core knows, as mutable records; private to the core, others read ``view``.

Rules that hold here:

* Only the functions of this package that take a ``Node`` change these records, within one call of
  ``Scheduler.handle``.
* Instances stand in ``Node.instances`` from RESERVED until GONE, and on each of their GPUs from RESERVED until its
  memory there is confirmed free. ``Model.instance`` is the one that serves or will serve; an instance that is unloading
  or leaked is nobody's any more.
* Dictionaries keep insertion order, and ids grow, so walking them is deterministic. There are no sets.
* A request stands in exactly one place, told by its phase.
"""

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from swapd.core.catalog import ModelSpec, NvlinkUse, Priority, Source
from swapd.core.copies import Weights
from swapd.core.ids import NO_GPUS, Bytes, Duration, GpuSet, InstanceId, Instant, ModelName, RequestId
from swapd.core.queue import ModelQueue
from swapd.core.reasons import EvictionBlock, Move, PinnedBy, ReleaseEvidence, Stage, State, UnloadCause
from swapd.core.story import Story
from swapd.core.tiers import Week
from swapd.core.viability import Demand

#: this many breakdowns of a ready instance in a row count like a failed load
BREAKDOWNS: Final = 3


class Need(NamedTuple):
    """What a model needs of the node, as a key: models with equal needs find room, or none, at the same places."""

    #: number of GPUs, at least 1
    gpus: int
    #: memory on each of these GPUs, bytes: as measured last, else as configured
    bytes_per_gpu: Bytes
    #: no other model on the same GPUs
    exclusive: bool
    #: host memory, bytes
    host_bytes: Bytes
    nvlink: NvlinkUse
    #: pattern of the product name; empty: any
    gpu_name: str
    min_compute_capability: tuple[int, int] | None

    @classmethod
    def of(cls, spec: ModelSpec, measured: Bytes | None = None) -> "Need":
        """Return the need of a model, with what was ``measured`` per GPU in place of the configured figure."""
        footprint = spec.footprint
        return cls(
            footprint.gpus,
            footprint.bytes_per_gpu if measured is None else measured,
            footprint.exclusive,
            footprint.host_bytes,
            spec.nvlink,
            spec.gpu_name,
            spec.min_compute_capability,
        )


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
    #: when its last process was reported gone: what a reading taken before tells is not the end
    gone_at: Instant | None = None
    #: nothing of the engine is left: from now on the driver's word frees its memory
    engine_gone: bool = False
    #: what told that the memory is free, so far
    by: ReleaseEvidence = ReleaseEvidence.ACCOUNTS

    @property
    def processes_gone(self) -> bool:
        """Whether nothing is left to wait for but its memory."""
        return self.gone_at is not None


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
    #: what it is charged on each of its GPUs: as booked, and as measured once it is ready
    bytes_per_gpu: Bytes
    exclusive: bool
    #: host memory it is charged; 0 once nothing of its engine is left
    host_bytes: Bytes = Bytes(0)
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
    #: in RESERVED: since when nothing but a reading that shows its room free is wanting
    gated_since: Instant | None = None
    #: ready, but what it really takes was not measured yet: how many readings may still be taken for it
    unmeasured: int = 0
    #: GPUs on which the driver's process list has shown it
    listed: GpuSet = NO_GPUS
    stopping: Stopping | None = None
    #: in LEAKED: what it is charged on a GPU instead of ``bytes_per_gpu``
    leaked: dict[int, Bytes] = field(default_factory=dict)
    cause: UnloadCause | None = None
    eviction: Eviction | None = None
    #: loads although nobody waits: a request was refused for its ETA, but room was free
    ahead: bool = False
    #: since when somebody has waited for it, or when it was booked
    waited_from: Instant = Instant(0)
    #: from when to when nothing but its weights had kept it from being booked
    starved: tuple[Instant, Instant] | None = None
    #: in RESERVED: since when nothing but its weights is wanting
    weights_wanting: Instant | None = None
    #: all of its weights were read into memory before its engine was started
    warm: bool = False
    #: operators who wait for it to be gone
    unload_orders: list[RequestId] = field(default_factory=list)
    story: Story = field(default_factory=Story)

    def charge(self, gpu: int) -> Bytes:
        """Return what it is charged on one of its GPUs, bytes."""
        return self.leaked.get(gpu, self.bytes_per_gpu)

    @property
    def holds(self) -> bool:
        """Whether it may hold memory already, or still."""
        return self.state is not State.RESERVED


@dataclass(slots=True, eq=False)
class Model:
    """One model, configured or on its way out."""

    spec: ModelSpec
    need: Need
    configured: bool = True
    queue: ModelQueue[Request] = field(default_factory=ModelQueue)
    #: serves or will serve: RESERVED to DRAINING
    instance: Instance | None = None
    #: since when the longest waiter waits, request or operator; kept by ``Node.refresh``
    since: Instant | None = None
    #: operators who wait for it to be ready, and since when
    orders: dict[RequestId, Instant] = field(default_factory=dict)
    #: an operator's word on pinning, over the configuration's
    pin_override: bool | None = None
    #: since when it is pinned by ``on_thrash``, and why it was not; an operator's word counts over both
    thrash_pin: Instant | None = None
    thrash_pin_refused: str = ""
    #: bytes per GPU as measured when it was ready last, with its present revision; ``None``: never
    measured: Bytes | None = None
    #: measured load times per source, the last five …
    load_times: dict[Source, deque[Duration]] = field(default_factory=dict)
    #: … and their medians, by source; replaced and never changed, for views hold it
    typical: Mapping[Source, Duration] = field(default_factory=dict)
    #: expected load time: one of these medians, or the configured estimate
    lhat: Duration = Duration(0)
    #: last times from stop to released memory, and their median; ``None``: none was measured
    release_times: deque[Duration] = field(default_factory=lambda: deque(maxlen=5))
    release: Duration | None = None
    #: mean time from grant to end, decaying by request; 0 before the first
    service: float = 0.0
    #: GDSF: decayed number of requests, and when it was decayed last
    frequency: float = 0.0
    frequency_at: Instant = Instant(0)
    #: GDSF: worth of keeping it, as of its last request
    worth: float = 0.0
    #: GDSF: the clock that is in its worth
    clock: float = 0.0
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
    weights: Weights = field(default_factory=Weights)
    #: what the hourly counts of a week say; ``None``: not told yet
    week: Week | None = None
    #: where it had better be, as last said
    move: Move = Move.STAY
    story: Story = field(default_factory=Story)

    @property
    def name(self) -> ModelName:
        """Its name."""
        return self.spec.name

    @property
    def pinned(self) -> bool:
        """Whether it is pinned now."""
        return self.pinned_by is not None

    @property
    def pinned_by(self) -> PinnedBy | None:
        """Who has pinned it: an operator's word counts over the configuration's, and both over ``on_thrash``."""
        if not self.configured or self.pin_override is False:
            return None
        if self.pin_override:
            return PinnedBy.OPERATOR
        if self.spec.pinned:
            return PinnedBy.CONFIG
        return None if self.thrash_pin is None else PinnedBy.ON_THRASH

    @property
    def claimed(self) -> bool:
        """Somebody waits for it or it is pinned: its load is not aborted."""
        return bool(self.queue) or bool(self.orders) or self.pinned

    @property
    def placed(self) -> bool:
        """Its load has begun or is done: operators need not fear for room any more."""
        return self.instance is not None and self.instance.state in (State.LOADING, State.READY)

    def oldest(self) -> Instant | None:
        """Return since when the longest waiter (request or operator) waits."""
        queued = self.queue.oldest().arrived if self.queue else None
        if not self.orders:
            return queued
        ordered = next(iter(self.orders.values()))
        return ordered if queued is None else min(queued, ordered)
