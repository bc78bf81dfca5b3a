"""Names what the room is told at its start and what it shows of the cache."""

from dataclasses import dataclass
from pathlib import Path

from swapd.core.ids import SECOND, Bytes, Duration, Instant, ModelName


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the disk the cache may take."""

    #: all files below the cache's folder together; ``None``: a share of the disk
    max_size: Bytes | None
    #: share of the disk that is left free, 0 to below 1
    keep_free: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Where weights are kept on this node, and within which limits."""

    #: created if absent; its files belong to the cache alone
    path: Path
    #: at the start, see ``Limits``
    max_size: Bytes | None = None
    keep_free: float = 0.1
    #: fetches that run at the same time; others queue
    max_parallel_fetches: int = 2
    #: for all fetches together, bytes a second; ``None``: no limit
    bandwidth: Bytes | None = None
    #: most connections of one fetch, see ``ramp``
    connections: int = 4
    #: a source that says nothing for this long has broken off
    source_timeout: Duration = Duration(30 * SECOND)
    #: how often a fetch that has come no further tries again before it fails; the pauses are doubled from …
    retries: int = 5
    retry_first: Duration = SECOND
    #: how often the progress of a fetch is told
    progress_period: Duration = SECOND
    #: how often a fetch that waits for room looks at the disk again, beside every change that swapd knows of
    space_period: Duration = Duration(5 * SECOND)
    #: how often the folder is read again without a sign that it has changed
    look_period: Duration = Duration(30 * SECOND)
    #: threads that read one model into the page cache
    readers: int = 4
    #: memory that reading into the page cache leaves available
    spare_memory: Bytes = Bytes(2 * 2**30)


@dataclass(frozen=True, slots=True)
class Weights:
    """Where the weights of a model come from; equal ones share one copy."""

    #: ``file:///…``, ``https://…``, ``hf://organisation/name@revision``, ``s3://bucket/prefix``
    source: str
    #: patterns of the names that are wanted, as in ``fnmatch``; none: all
    include: tuple[str, ...] = ()
    #: of the only file; in hexadecimal digits
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What the core says of a model: whether its copy may go, and what losing it would cost."""

    #: an instance of it loads, serves, sleeps or is about to: its files stay
    held: bool = False
    pinned: bool = False
    #: decayed count of its requests, as the eviction from GPUs uses it
    frequency: float = 0.0
    #: how long it takes to fetch it again; ``None``: reckoned from its size and the last fetches
    refetch: Duration | None = None
    #: of its last request; decides between equals. ``None``: never
    last_used: Instant | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a fetch has come."""

    #: bytes that are here, of those that the copy has
    done: Bytes
    total: Bytes
    #: bytes a second, of late
    rate: float


@dataclass(frozen=True, slots=True)
class CopyView:
    """One complete copy in the cache."""

    path: Path
    #: without credentials
    source: str
    revision: str
    files: int
    size: Bytes
    #: models it is for; none: nobody wants it any more
    models: tuple[ModelName, ...]
    #: a check found it damaged: it is not used
    damaged: bool


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What metrics show of the cache."""

    #: what is on the disk or promised to a fetch
    used: Bytes
    limit: Bytes
    #: thereof what is not the cache's own; it is never touched
    foreign: Bytes
    fetches_running: int
    fetches_queued: int
    #: since the start
    fetched_bytes: int
    evicted_copies: int
    evicted_bytes: int
