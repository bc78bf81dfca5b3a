"""Says what a model is and needs, and by which rules the node schedules; made by config, read by the core."""

import enum
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NewType

from swapd.core.ids import SECOND, Bytes, Duration, ModelName

CopyKey = NewType("CopyKey", str)
"""Names a copy of weights in the node's cache."""


def copy_key(source: str, *, include: Iterable[str], sha256: str | None) -> CopyKey:
    """Name the copy of weights from a source, as it is written: models that ask for the same share one."""
    return CopyKey(hashlib.sha256("\0".join((source, sha256 or "", *sorted(include))).encode()).hexdigest())


class Priority(enum.IntEnum):
    """Order in which pending models are considered; a lower number goes first, age decides within a class."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class Source(enum.StrEnum):
    """Where the weights of a load come from; load times are kept per source."""

    #: from this node's disk
    CACHE = "cache"
    #: they had to be fetched first
    REMOTE = "remote"
    #: they were in memory already when the engine started
    PAGE_CACHE = "page_cache"
    WAKE = "wake"


class Mode(enum.StrEnum):
    """Whether the node loads and unloads by itself."""

    AUTO = "auto"
    MANUAL = "manual"


class NvlinkUse(enum.StrEnum):
    """What NVLink means to a model on more than one GPU."""

    #: only a set with an NVLink ring through all of its GPUs will do
    REQUIRED = "required"
    #: the best set that can be had
    PREFERRED = "preferred"
    #: any set will do: the one whose loss hurts the others least
    IGNORE = "ignore"


class PolicyName(enum.StrEnum):
    """Which order victims are taken in."""

    GDSF = "gdsf"
    LRU = "lru"
    CHEAPEST_RELOAD = "cheapest-reload"


class OnThrash(enum.StrEnum):
    """What the node does about a model that thrashes."""

    #: says so, and what would help
    REPORT = "report"
    #: also pins it, within ``max_pinned_gpus``, until its demand is gone
    PIN = "pin"


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one instance of a model takes."""

    #: number of GPUs, at least 1
    gpus: int
    #: memory on each of these GPUs, bytes
    bytes_per_gpu: Bytes
    #: no other model on the same GPUs; sharing needs ``False`` on every model of a GPU
    exclusive: bool = True
    #: host memory, bytes (0: not accounted)
    host_bytes: Bytes = Bytes(0)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything the core knows of one configured model."""

    name: ModelName
    footprint: Footprint
    #: pinned by configuration: never evicted, restored whenever absent; an operator may pin and unpin on top
    pinned: bool = False
    #: requests sent to the engine at once; the rest wait for a slot
    concurrency: int = 16
    #: requests that may wait, whatever they wait for
    max_queue: int = 512
    #: the published cold-start promise: a request is answered or refused within it while it waits
    max_wait: Duration = Duration(300 * SECOND)
    #: a load that has taken this long has failed (config already grew it with the size of the weights)
    load_timeout: Duration = Duration(600 * SECOND)
    #: a load without progress (log or I/O) for this long has failed
    load_stall: Duration = Duration(120 * SECOND)
    #: from the stop signal to the kill
    stop_grace: Duration = Duration(10 * SECOND)
    #: a stop command runs before the signal; no signal is sent while it runs
    has_stop_command: bool = False
    priority: Priority = Priority.NORMAL
    nvlink: NvlinkUse = NvlinkUse.PREFERRED
    #: only GPUs whose product name matches this pattern (``*``, ``?``, either case); empty: any
    gpu_name: str = ""
    #: only GPUs of at least this compute capability; ``None``: any
    min_compute_capability: tuple[int, int] | None = None
    #: expected load time before any was measured
    load_estimate: Duration = Duration(40 * SECOND)
    #: its weights come from elsewhere, through the node's cache: no instance starts before they are there
    fetched: bool = False
    #: names its copy in that cache; empty: no other model has the same
    copy: CopyKey = CopyKey("")
    #: its weights are files of this node outside the cache: they are there, and can be read into the page cache
    local_weights: bool = False
    #: expected time to fetch them, before size and speed are known
    fetch_estimate: Duration = Duration(120 * SECOND)
    #: changes whenever a running instance no longer matches the configuration (argv, env, weights, footprint …)
    revision: str = ""


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    """The node's scheduling rules; the meaning and the default of each stand in the configuration reference."""

    policy: PolicyName = PolicyName.GDSF
    #: ``None`` is ``auto``: 1.0 × measured load time, at most 120 s
    protect: Duration | None = None
    #: ``None`` is ``never``: protection is absolute
    protect_max_wait: Duration | None = Duration(15 * SECOND)
    #: least time from ready to eviction, as a multiple of the model's load time …
    min_residency_load_times: float = 0.0
    #: … or absolute; the larger one counts
    min_residency: Duration = Duration(0)
    drain_after: Duration = Duration(120 * SECOND)
    #: ``None``: in-flight requests of a draining model are never cut
    drain_timeout: Duration | None = None
    max_concurrent_loads: int = 2
    frequency_half_life: Duration = Duration(86_400 * SECOND)
    release_timeout: Duration = Duration(30 * SECOND)
    #: ``None``: never
    idle_unload: Duration | None = None
    mode: Mode = Mode.AUTO
    #: ``None``: no limit
    max_pinned_gpus: int | None = None
    on_thrash: OnThrash = OnThrash.REPORT
    #: no model on more than one GPU is placed where the NVLink fabric is not registered
    require_fabric: bool = False


@dataclass(frozen=True, slots=True)
class Catalog:
    """The configured models and rules at one moment."""

    models: Mapping[ModelName, ModelSpec] = field(default_factory=dict)
    settings: SchedulingSettings = SchedulingSettings()
