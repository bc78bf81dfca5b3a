"""Freezes what the node looks like at one moment; everything outside the core reads this and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from swapd.core.accounts import Costs
from swapd.core.catalog import Mode, OnThrash, Priority, Source
from swapd.core.ids import Bytes, Duration, GpuSet, InstanceId, Instant, ModelName
from swapd.core.reasons import Move, PinnedBy, Stage, State, Verdict, WaitingFor
from swapd.core.tiers import Week
from swapd.core.topology import GpuHealth, NodeTopology


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One instance that is not gone."""

    instance: InstanceId
    model: ModelName
    state: State
    #: since when it is in this state
    since: Instant
    gpus: GpuSet
    bytes_per_gpu: Bytes
    #: the load's stage, in LOADING
    stage: Stage | None
    in_flight: int
    #: last arrival or end of a request
    last_used: Instant
    #: the configuration has moved on; it leaves when idle
    outdated: bool


@dataclass(frozen=True, slots=True)
class FetchView:
    """A fetch of weights that is under way."""

    #: since when it was ordered
    since: Instant
    #: it has left the queue of fetches
    running: bool
    #: bytes that are here, of those that the copy has (0: not known yet)
    done: Bytes
    total: Bytes
    #: bytes a second, of late
    rate: float
    #: expected time until its end
    remaining: Duration
    #: why it waits for room on the disk, one sentence; empty: it does not
    waits: str


@dataclass(frozen=True, slots=True)
class WeightStanding:
    """What the weight cache has to know of a model when it needs room: whether its copy may go, at what cost."""

    #: an instance of it exists, or somebody waits for it: its files stay
    held: bool
    pinned: bool
    #: GDSF frequency, decayed to now
    frequency: float
    #: expected time to fetch it again
    refetch: Duration
    #: of its last request; ``None``: never
    last_used: Instant | None


@dataclass(frozen=True, slots=True)
class ModelView:
    """One configured model (or one removed from the configuration that still has an instance)."""

    model: ModelName
    #: the instance that serves or will serve it; ``None``: absent
    instance: InstanceView | None
    configured: bool
    #: who has pinned it; ``None``: it is not pinned
    pinned_by: PinnedBy | None
    priority: Priority
    queued: Mapping[WaitingFor, int]
    #: since when the oldest waiter waits
    oldest_waiter: Instant | None
    in_flight: int
    #: expected load time (median of the last five, or the estimate)
    load_estimate: Duration
    #: median of the last five load times by source, where there are any
    load_times: Mapping[Source, Duration]
    #: the published cold-start promise
    max_wait: Duration
    #: its weights come through the node's cache
    fetched: bool
    #: size of its copy in the cache; ``None``: it is not there, or the cache does not keep it
    cached_bytes: Bytes | None
    fetch: FetchView | None
    #: number of GPUs it needs
    gpus: int
    #: memory per GPU as configured, bytes
    declared_bytes: Bytes
    #: memory per GPU as measured when it was ready last, bytes; ``None``: never, the configured figure counts
    measured_bytes: Bytes | None
    #: GDSF frequency, decayed to ``at``
    frequency: float
    verdict: Verdict
    load_ratio: float
    load_fraction: float
    #: model it alternates with when thrashing
    partner: ModelName | None
    #: mean time between requests; ``None`` before two requests
    inter_arrival: Duration | None
    #: what it has cost since the daemon's start, and what it costs an hour at present
    totals: Costs
    hourly: Costs
    #: whom its loads have evicted within about a day, and the GPU-seconds of their reloads; the most first
    evicts: tuple[tuple[ModelName, float], ...]
    #: what the hourly counts of a week say; ``None``: not told yet
    week: Week | None
    #: where it had better be, as last said
    move: Move
    consecutive_failures: int
    #: not tried again before this; ``None``: no cool-down
    cooling_until: Instant | None
    last_error: str
    #: the latest decisions about this model, oldest first: (when, one sentence)
    story: tuple[tuple[Instant, str], ...]

    @property
    def pinned(self) -> bool:
        """Whether it is never evicted, and loaded whenever absent."""
        return self.pinned_by is not None

    @property
    def caused_gpu_seconds(self) -> float:
        """GPU-seconds of loading it has caused since the daemon's start, own and charged."""
        return self.totals.caused_gpu_seconds


class Offer(NamedTuple):
    """What clients are told of a model: where it is, and how long a cold start takes.

    It is asked for all models at once and for each of a crowd that leaves, so it has little in it and costs little.
    """

    #: the instance that serves or will serve it; ``None``: absent
    instance: InstanceView | None
    #: its loads have failed, and none is tried for now
    cooling: bool
    #: its copy is in the node's weight cache
    cached: bool
    #: the published cold-start promise
    max_wait: Duration
    #: median of the last five load times by source, where there are any
    load_times: Mapping[Source, Duration]

    @property
    def ready_since(self) -> Instant | None:
        """Since when it is ready; ``None``: it is not."""
        instance = self.instance
        return instance.since if instance is not None and instance.state is State.READY else None


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU."""

    index: int
    uuid: str
    memory_bytes: Bytes
    health: GpuHealth
    #: free by the driver's last word; ``None``: not measured, or not known now
    free_bytes: Bytes | None
    #: taken by others than our instances, as far as can be told; no eviction frees it
    foreign_bytes: Bytes
    #: promised to instances, leaked ones included
    reserved_bytes: Bytes
    #: held by instances that did not confirm their release
    quarantined_bytes: Bytes
    #: models with an instance on it, by instance id
    models: tuple[ModelName, ...]


@dataclass(frozen=True, slots=True)
class ReservationView:
    """GPUs kept for a model that waited longer than ``drain_after``."""

    model: ModelName
    gpus: GpuSet
    since: Instant
    draining: tuple[ModelName, ...]


@dataclass(frozen=True, slots=True)
class FreeView:
    """What the node could still take without evicting anybody."""

    #: placeable GPUs with no instance on them and no foreign memory of weight
    gpus: GpuSet
    #: most GPUs through which an NVLink ring passes, all free (1: only single GPUs, 0: none), and one such set
    largest_nvlink_block: int
    largest_nvlink_set: GpuSet
    #: most free GPUs that are pairwise linked
    largest_clique: GpuSet
    #: NVLink domains (GPUs joined by links, two or more) all free or all taken, and those partly taken
    whole_domains: tuple[GpuSet, ...]
    fragmented_domains: tuple[GpuSet, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """The whole node."""

    at: Instant
    mode: Mode
    draining: bool
    #: draining and nothing is left to wait for
    drained: bool
    #: by name
    models: tuple[ModelView, ...]
    #: by id; every instance that is not gone, leaked ones included
    instances: tuple[InstanceView, ...]
    gpus: tuple[GpuView, ...]
    topology: NodeTopology
    free: FreeView
    #: host memory booked by instances, bytes
    host_booked_bytes: Bytes
    reservation: ReservationView | None
    loads_running: int
    #: GPU-weighted share of the node's time spent loading, 0–1
    load_fraction: float
    #: the verdict on that share; unknown for the first quarter of an hour
    load_verdict: Verdict
    #: ``None``: no limit
    max_pinned_gpus: int | None
    on_thrash: OnThrash
    stale_facts: int
    #: the latest decisions of the node as a whole, oldest first
    story: tuple[tuple[Instant, str], ...]
