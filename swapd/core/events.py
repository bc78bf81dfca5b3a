"""Lists the facts the shell reports to the core.

Each carries ``at``, which never goes back. Late facts about an instance that is gone are allowed: the core counts
them as stale and ignores them. A fact never asks for anything and has no answer; orders come out as commands. The
facts about weights stand in ``weight_events``.

Nobody changes a fact. Two are not frozen: there is one of each for every request, and frozen ones cost a microsecond
more.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from swapd.core.catalog import Catalog, Priority, Source
from swapd.core.ids import Bytes, Duration, InstanceId, Instant, ModelName, RequestId
from swapd.core.reasons import LoadFailure, Outcome, Stage
from swapd.core.records import DemandRecord
from swapd.core.tiers import Week
from swapd.core.topology import NodeTopology
from swapd.core.weight_events import FetchFailed as FetchFailed
from swapd.core.weight_events import FetchProgressed as FetchProgressed
from swapd.core.weight_events import FetchStarted as FetchStarted
from swapd.core.weight_events import FetchWaits as FetchWaits
from swapd.core.weight_events import PrefetchOrdered as PrefetchOrdered
from swapd.core.weight_events import WeightEvent as WeightEvent
from swapd.core.weight_events import WeightsCached as WeightsCached
from swapd.core.weight_events import WeightsFetched as WeightsFetched
from swapd.core.weight_events import WeightsVerified as WeightsVerified
from swapd.core.weight_events import WeightsWarmed as WeightsWarmed


@dataclass(slots=True, unsafe_hash=True)
class RequestArrived:
    """A complete request is in; answered by exactly one Grant or Reject (unless it ends first)."""

    at: Instant
    request: RequestId
    model: ModelName
    #: asked for by header; the effective class is the lower of this and the model's
    priority: Priority = Priority.HIGH
    #: size of the buffered body
    body_bytes: Bytes = Bytes(0)


@dataclass(slots=True, unsafe_hash=True)
class RequestEnded:
    """The one ending of a request, whatever it was doing: queued, granted, streaming, rejected, cancelled."""

    at: Instant
    request: RequestId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class UpstreamFailed:
    """A granted request got no byte of an answer: connection refused, reset or closed.

    The core puts it back at the head of its queue, once, and orders a Check of the instance, which gets no further
    request until the check is answered. The second time the request is rejected with ``upstream_failed``.
    """

    at: Instant
    request: RequestId
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class StageEntered:
    """A load has come to its next stage (spawn, load, warmup)."""

    at: Instant
    instance: InstanceId
    stage: Stage


@dataclass(frozen=True, slots=True)
class LoadProgressed:
    """The loading engine wrote to its log or did I/O since the last such fact (at most about one a second)."""

    at: Instant
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class InstanceReady:
    """The engine is ready and has answered its warm-up request."""

    at: Instant
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The load ended without success; the core orders the stop."""

    at: Instant
    instance: InstanceId
    failure: LoadFailure
    #: one sentence for the operator and the waiting clients, with the last lines of the engine's log
    detail: str
    #: the same configuration cannot succeed by trying again (for example: executable not found)
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class InstanceExited:
    """The engine's leading process has ended although nobody ordered it."""

    at: Instant
    instance: InstanceId
    #: exit status as from ``waitpid``: negative for a signal, ``None`` when unknown
    status: int | None
    #: one sentence, with the last lines of the engine's log
    detail: str = ""


@dataclass(frozen=True, slots=True)
class InstanceHealthy:
    """A Check found the instance alive and answering."""

    at: Instant
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class InstanceUnhealthy:
    """A Check, or the periodic watch over ready instances, found that the engine does not answer."""

    at: Instant
    instance: InstanceId
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StopSignalled:
    """The stop hook, if any, is done and the stop signal has gone out: the grace counts from here."""

    at: Instant
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class ProcessesGone:
    """No process of the instance's group is left; its memory may still be held by the driver."""

    at: Instant
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class EngineGone:
    """Nothing of the instance is left: no process, nothing that listens on its port.

    Frees its host memory, and its GPU memory where no driver tells otherwise (virtual devices, lost GPUs, memory that
    cannot be measured); elsewhere the driver's word does, in a ``GpuMemoryRead`` taken after its processes had ended.
    """

    at: Instant
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What the driver says of one GPU's memory; no fact of its own, part of ``GpuMemoryRead``."""

    #: index of the GPU
    gpu: int
    #: usable memory, bytes: the driver's total less its own reserve
    capacity_bytes: Bytes
    free_bytes: Bytes
    #: the instances with a process in the driver's list, and the bytes of these processes (``None``: not told);
    #: ``None``: the list cannot be trusted (foreign process namespace, implausible entries, error)
    processes: Mapping[InstanceId, Bytes | None] | None = None


@dataclass(frozen=True, slots=True)
class GpuMemoryRead:
    """The driver was asked how much memory is free; posted regularly, and once in answer to each ReadMemory."""

    at: Instant
    #: when the first call of this reading began: what happened later is not in it
    taken: Instant
    #: a GPU that is not in it could not be read; none: the driver could not be asked
    readings: tuple[GpuMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyChanged:
    """Devices, their health, their links or the state of the driver are other than before.

    Every index means the GPU it meant before (see ``topology``); GPUs may be appended, none is removed.
    """

    at: Instant
    topology: NodeTopology


@dataclass(frozen=True, slots=True)
class FootprintsKnown:
    """Memory measured in earlier runs, bytes per GPU, by model; left out where the model's revision has changed."""

    at: Instant
    bytes_per_gpu: Mapping[ModelName, Bytes]


@dataclass(frozen=True, slots=True)
class CatalogChanged:
    """A new valid configuration; the core applies the difference."""

    at: Instant
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class LoadTimesKnown:
    """Load times measured in earlier runs, oldest first."""

    at: Instant
    load_times: Mapping[tuple[ModelName, Source], tuple[Duration, ...]]


@dataclass(frozen=True, slots=True)
class DemandKnown:
    """Demand and verdicts as an earlier run has left them; ``Scheduler.demand`` makes it, history keeps it."""

    at: Instant
    models: Mapping[ModelName, DemandRecord]
    #: since when the node's own load fraction was reckoned, and what had not faded of its GPU-seconds of loading
    node_age: Duration
    node_gpu_seconds: float
    #: time between the record and now, by the wall clock
    away: Duration = Duration(0)


@dataclass(frozen=True, slots=True)
class WeekKnown:
    """What the hourly counts of the last week say of each model; told again whenever they are weighed."""

    at: Instant
    weeks: Mapping[ModelName, Week]


@dataclass(frozen=True, slots=True)
class LoadOrdered:
    """An operator wants a model resident; answered by one Answer. Clears a cool-down; allowed in manual mode."""

    at: Instant
    request: RequestId
    model: ModelName


@dataclass(frozen=True, slots=True)
class UnloadOrdered:
    """An operator wants a model off the GPUs; in-flight requests finish first. Answered by one Answer.

    New requests for it queue meanwhile, as for any draining model.
    """

    at: Instant
    request: RequestId
    model: ModelName
    #: after this the remaining in-flight requests are cut; ``None``: the configured drain timeout
    drain_timeout: Duration | None = None


@dataclass(frozen=True, slots=True)
class PinOrdered:
    """An operator pins or unpins a model until the next such order. Answered by one Answer."""

    at: Instant
    request: RequestId
    model: ModelName
    pinned: bool


@dataclass(frozen=True, slots=True)
class NodeDrainOrdered:
    """The node leaves service: no new loads, waiting requests that need one are rejected, in-flight ones finish.

    With ``stop_engines`` every instance is stopped once idle (daemon exit with ``on_exit: stop``, ``swapd drain``);
    without it the engines stay. Answered by one Answer when nothing is in flight (and nothing is left running).
    """

    at: Instant
    request: RequestId
    #: the remaining in-flight requests are cut after this; ``None``: never
    timeout: Duration | None
    #: requests for ready models are still served for this long, until the placer has noticed
    linger: Duration = Duration(0)
    stop_engines: bool = True
    #: the drain cannot be undone: the daemon exits
    final: bool = False


@dataclass(frozen=True, slots=True)
class NodeUndrainOrdered:
    """The node is back in service. Answered by one Answer."""

    at: Instant
    request: RequestId


@dataclass(frozen=True, slots=True)
class Tick:
    """The moment named by ``next_wakeup`` has come (or passed)."""

    at: Instant


Event = (
    RequestArrived
    | RequestEnded
    | UpstreamFailed
    | StageEntered
    | LoadProgressed
    | InstanceReady
    | LoadFailed
    | InstanceExited
    | InstanceHealthy
    | InstanceUnhealthy
    | StopSignalled
    | ProcessesGone
    | EngineGone
    | GpuMemoryRead
    | TopologyChanged
    | FootprintsKnown
    | CatalogChanged
    | LoadTimesKnown
    | DemandKnown
    | WeekKnown
    | WeightEvent
    | LoadOrdered
    | UnloadOrdered
    | PinOrdered
    | NodeDrainOrdered
    | NodeUndrainOrdered
    | Tick
)
