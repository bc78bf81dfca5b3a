"""Holds what a page says of this moment: the snapshot of the node, and what others than the core know of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swapd.core.ids import Bytes, Duration
from swapd.core.view import NodeView
from swapd.metrics.slots import NO_LABELS, Labels

Samples = Mapping[Labels, float]


@dataclass(frozen=True, slots=True)
class DriverStats:
    """How asking the driver goes, as the room that asks it says."""

    #: its last call was answered
    up: bool
    #: how long a call has been overdue, seconds; 0: none is
    stalled_s: float = 0.0
    #: calls that failed, by function and error; a copy, because the page is rendered on another thread
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: time since memory was last read, seconds; ``None``: never
    last_read_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class CacheNow:
    """How the weight cache stands, as the room that keeps it says."""

    #: on the disk or promised to a fetch
    used: Bytes
    limit: Bytes
    #: thereof what is not the cache's own
    foreign: Bytes
    #: complete copies
    copies: int
    fetches_running: int
    fetches_queued: int
    #: since the start
    fetched_bytes: int
    evicted_copies: int
    evicted_bytes: int


@dataclass(frozen=True, slots=True)
class Now:
    """What the page says of this moment."""

    view: NodeView
    ready: bool
    version: str
    revision: str
    #: the configuration file as it is now is in force
    config_ok: bool
    #: unix time of the last applied configuration; 0 before the first
    config_applied_s: float
    loop_lag: Duration
    #: ``None``: there is no driver, the devices are virtual
    driver: DriverStats | None
    #: ``None``: there is no weight cache
    cache: CacheNow | None = None


def one(read: Callable[[Now], float | None]) -> Callable[[Now], Samples]:
    """Return a reader of a metric without labels; ``None`` leaves the series out."""

    def samples(now: Now) -> Samples:
        value = read(now)
        return {} if value is None else {NO_LABELS: value}

    return samples
