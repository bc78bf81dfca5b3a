"""Lists the orders the core gives to the shell, and the notes it leaves for metrics, logs and history.

Each order names the events of which exactly one will answer it, sooner or later. Notes have no answer. The orders about
weights stand in ``weight_orders``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from swapd.core.catalog import ModelSpec, Source
from swapd.core.ids import Bytes, Duration, GpuSet, InstanceId, Instant, ModelName, RequestId
from swapd.core.reasons import (
    EvictionBlock,
    LoadFailure,
    LoadResult,
    Move,
    PlacementQuality,
    Rejection,
    ReleaseEvidence,
    Stage,
    State,
    ThrashPin,
    UnloadCause,
    Verdict,
)
from swapd.core.topology import DriverState, GpuHealth
from swapd.core.weight_orders import CancelFetch as CancelFetch
from swapd.core.weight_orders import FetchEnded as FetchEnded
from swapd.core.weight_orders import FetchWeights as FetchWeights
from swapd.core.weight_orders import KeepWeights as KeepWeights
from swapd.core.weight_orders import RefetchWeights as RefetchWeights
from swapd.core.weight_orders import StopWarming as StopWarming
from swapd.core.weight_orders import VerifyWeights as VerifyWeights
from swapd.core.weight_orders import WarmWeights as WarmWeights
from swapd.core.weight_orders import WeightOrder as WeightOrder


# not frozen: there is one for every request, and a frozen one costs a microsecond more
@dataclass(slots=True)
class Grant:
    """Forward the request to the instance; it counts as in flight. Answer: RequestEnded or UpstreamFailed."""

    request: RequestId
    instance: InstanceId
    model: ModelName
    #: the request had to wait for a load (header ``x-swapd-cold-start``, label ``start``)
    cold_start: bool
    #: time since arrival
    waited: Duration
    #: the parts of ``waited`` that were a load's stages, for ``server-timing``; empty when resident. All but
    #: ``page_cache``, which runs beside the others, add up to it
    stages: Mapping[Stage, Duration]


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer the request with an error. Answer: RequestEnded (rejected)."""

    request: RequestId
    model: ModelName
    reason: Rejection
    #: when trying again makes sense; ``None``: never with this configuration. Not yet clamped for HTTP
    retry_after: Duration | None
    #: one sentence: what stands in the way and what to do
    detail: str
    #: trying the same again cannot help before the configuration changes (``x-should-retry: false``)
    permanent: bool = False
    #: the request had waited for a load; ``False`` for one that was refused at once
    cold_start: bool = False
    #: time since arrival, if it stood in the queue; 0 for one that was refused at once
    waited: Duration = Duration(0)


@dataclass(frozen=True, slots=True)
class Cut:
    """Break off a granted request visibly: its drain deadline has passed. Answer: RequestEnded (cut)."""

    request: RequestId
    model: ModelName
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class Start:
    """Start the engine, probe it, warm it up.

    Answers: StageEntered and LoadProgressed on the way; then InstanceReady, LoadFailed or (unordered) InstanceExited.
    The load's deadlines are the core's: it orders Stop when one has passed.
    """

    instance: InstanceId
    spec: ModelSpec
    gpus: GpuSet
    #: uuids of the GPUs, in the order of the best ring of NVLinks through them
    devices: tuple[str, ...] = ()
    #: NUMA nodes near these GPUs, ascending, and the CPUs there; empty: not known
    numa: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """Find out whether the instance still answers. Answer: InstanceHealthy, InstanceUnhealthy or InstanceExited."""

    instance: InstanceId
    model: ModelName


@dataclass(frozen=True, slots=True)
class Stop:
    """Run the stop hook, then send the stop signal. Answers: StopSignalled, then ProcessesGone and EngineGone."""

    instance: InstanceId
    model: ModelName
    cause: UnloadCause


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill every process of the instance, at once and once. Answers: ProcessesGone and EngineGone."""

    instance: InstanceId
    model: ModelName


@dataclass(frozen=True, slots=True)
class ReadMemory:
    """Ask the driver now how much memory is free. Answer: one GpuMemoryRead, without readings if it cannot be asked.

    At most one is unanswered at a time; the regular readings of the shell go on beside it.
    """


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell the operator how an order ended. No answer."""

    request: RequestId
    ok: bool
    #: one sentence
    detail: str
    #: why not, in the words of HTTP and metrics; ``None`` when ``ok``
    reason: Rejection | None = None


@dataclass(frozen=True, slots=True)
class Transitioned:
    """Note: an instance changed state."""

    instance: InstanceId
    model: ModelName
    gpus: GpuSet
    #: ``None``: it did not exist before
    before: State | None
    after: State
    #: one sentence: why
    why: str


@dataclass(frozen=True, slots=True)
class StageSpan:
    """One bar of a cold start's timeline; no command of its own, part of ``LoadFinished``."""

    stage: Stage
    #: from the first waiter's arrival (or the booking, if nobody waited)
    begin: Duration
    end: Duration


@dataclass(frozen=True, slots=True)
class LoadFinished:
    """Note: a load ended. ``duration`` is the whole swap: drain, stop, release, load, warm-up."""

    instance: InstanceId
    model: ModelName
    result: LoadResult
    source: Source
    #: from the start of the engine to ready (or to the failure); what Lhat is made of
    load_time: Duration
    #: the whole swap, from the reservation
    duration: Duration
    stages: Mapping[Stage, Duration]
    #: models evicted for it
    victims: tuple[ModelName, ...]
    failure: LoadFailure | None = None
    detail: str = ""
    #: ready again soon after its own eviction (see ``viability``)
    relapse: bool = False
    #: everything that went on from the first waiter to the end, in order of beginning. Stages that ran beside others
    #: (fetch, page cache) overlap them; ``stages`` has only what the load had to wait for
    timeline: tuple[StageSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class Evicted:
    """Note: a resident model was chosen as victim (or left for another reason than shutdown)."""

    instance: InstanceId
    model: ModelName
    cause: UnloadCause
    #: the model that needed the room, for ``evicted``
    successor: ModelName | None


@dataclass(frozen=True, slots=True)
class EvictionBlocked:
    """Note: a pending model could not be placed because this resident may not leave now (once per cause and waiter)."""

    model: ModelName
    block: EvictionBlock
    #: the model that needs the room
    successor: ModelName


@dataclass(frozen=True, slots=True)
class VerdictChanged:
    """Note: the viability verdict of a model changed."""

    model: ModelName
    before: Verdict
    after: Verdict
    #: the model it alternates with, if one stands out
    partner: ModelName | None
    #: load time × rate of episodes; may exceed 1
    load_ratio: float
    #: measured share of time spent loading, 0–1
    load_fraction: float


@dataclass(frozen=True, slots=True)
class NodeLoadChanged:
    """Note: the share of its time that the node as a whole spends loading has passed a limit (see ``viability``)."""

    before: Verdict
    after: Verdict
    #: weighted by GPUs, 0–1
    load_fraction: float
    #: one sentence
    detail: str


@dataclass(frozen=True, slots=True)
class ThrashPinChanged:
    """Note: ``on_thrash: pin`` has pinned a model, could not, or has taken its pin away."""

    model: ModelName
    action: ThrashPin
    #: one sentence
    detail: str


@dataclass(frozen=True, slots=True)
class PromotionAdvised:
    """Note: where a model had better be is another place than before (see ``promotion``)."""

    model: ModelName
    before: Move
    after: Move
    #: GPU-seconds of loading that it would save an hour, at most
    saves_gpu_seconds: float
    #: one sentence that an operator can act on
    detail: str


@dataclass(frozen=True, slots=True)
class CoolingDown:
    """Note: a model failed to load and is not tried again before ``until``."""

    model: ModelName
    failures: int
    until: Instant


@dataclass(frozen=True, slots=True)
class StaleFact:
    """Note: a fact about an instance or request that no longer exists was ignored."""

    event: str


@dataclass(frozen=True, slots=True)
class Placed:
    """Note: GPUs were chosen for a model."""

    instance: InstanceId
    model: ModelName
    gpus: GpuSet
    quality: PlacementQuality


@dataclass(frozen=True, slots=True)
class FootprintMeasured:
    """Note: what a model really takes was measured when it became ready; later plans reckon with it."""

    instance: InstanceId
    model: ModelName
    #: revision of the model it was measured with
    revision: str
    #: bytes per GPU, as configured and as measured (the most of its GPUs)
    declared: Bytes
    measured: Bytes
    #: they differ by more than a tenth: the configuration wants correcting
    differs: bool


@dataclass(frozen=True, slots=True)
class GpuChanged:
    """Note: the health of a GPU is another one."""

    gpu: int
    uuid: str
    before: GpuHealth
    after: GpuHealth
    #: one sentence
    why: str


@dataclass(frozen=True, slots=True)
class DriverChanged:
    """Note: the driver can be asked, or can no longer."""

    before: DriverState
    after: DriverState
    #: one sentence: what is wrong and what to do; empty: nothing
    detail: str


@dataclass(frozen=True, slots=True)
class ReleaseConfirmed:
    """Note: the memory of a stopped instance is free."""

    instance: InstanceId
    model: ModelName
    #: from the end of its processes until then
    after: Duration
    #: what told so: the driver's figure, the driver's process list, or the accounts alone
    by: ReleaseEvidence


Order = Grant | Reject | Cut | Start | Check | Stop | Kill | ReadMemory | WeightOrder | Answer
Note = (
    Transitioned
    | LoadFinished
    | FetchEnded
    | Evicted
    | EvictionBlocked
    | VerdictChanged
    | NodeLoadChanged
    | ThrashPinChanged
    | PromotionAdvised
    | CoolingDown
    | StaleFact
    | Placed
    | FootprintMeasured
    | GpuChanged
    | DriverChanged
    | ReleaseConfirmed
)
Command = Order | Note
