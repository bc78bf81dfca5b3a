"""Records what the core knows of one model's weights: its copy in the cache, the fetch, the reading, the doubts.

Rules that hold here:

* What lies in the cache is what the last ``WeightsCached`` said, and nothing else.
* At most one fetch, one reading into the page cache and one verification are unanswered for each model.
"""

from collections import deque
from dataclasses import dataclass, field

from swapd.core.catalog import CopyKey, Source
from swapd.core.ids import Bytes, Duration, Instant, ModelName, RequestId
from swapd.core.reasons import Stage


@dataclass(slots=True, eq=False)
class Fetch:
    """A fetch that was ordered and is not answered."""

    since: Instant
    #: nobody waits for it yet
    ahead: bool
    #: its end was ordered
    cancelled: bool = False
    #: since when it is out of the queue of fetches; ``None``: it is not
    running: Instant | None = None
    #: when its progress was told last; ``None``: not yet
    told: Instant | None = None
    #: bytes that were here when its progress was told first, and that are here now, of those that the copy has
    first: Bytes = Bytes(0)
    done: Bytes = Bytes(0)
    total: Bytes = Bytes(0)
    #: bytes a second, of late
    rate: float = 0.0
    #: why it waits for room on the disk, one sentence; empty: it does not
    waits: str = ""
    #: bytes that copies of residents have to make free before it goes on, as told last; 0: none would help
    lacking: Bytes = Bytes(0)
    #: copies that are given up for it, and how many of the bytes that are lacking each of them makes free
    given: dict[CopyKey, Bytes] = field(default_factory=dict)
    #: since when the copy is here
    here: Instant | None = None
    #: how long before its end those would leave who are to leave for it, as was seen last
    lead: Duration = Duration(0)
    #: room was booked for its last stretch and given back: no room is booked before it ends
    late: bool = False


@dataclass(slots=True, eq=False)
class Warming:
    """A reading into the page cache that is not answered."""

    since: Instant
    #: its end was ordered
    stopped: bool = False


@dataclass(slots=True, eq=False)
class Weights:
    """What is known of one model's weights."""

    #: size of its copy in the cache; ``None``: it is not there, or the cache does not keep it
    cached: Bytes | None = None
    #: size of its copy as known last, bytes; 0: never
    size: Bytes = Bytes(0)
    fetch: Fetch | None = None
    #: its copy is given up for the fetch of this model, and is not loaded any more
    given_to: ModelName | None = None
    #: when the fetch that brought its copy was ordered, and when it ended; ``None``: no fetch of this run did
    came: tuple[Instant, Instant] | None = None
    #: a request was refused for its ETA: the next one is to find a copy
    ahead: bool = False
    #: operators who wait for a copy
    prefetches: dict[RequestId, None] = field(default_factory=dict)
    #: since when nothing but its weights keeps it from being placed, and until when that was so
    starved: Instant | None = None
    fed: Instant | None = None
    warming: Warming | None = None
    #: fetches and readings that have ended: stage, begin, end
    ended: deque[tuple[Stage, Instant, Instant]] = field(default_factory=lambda: deque(maxlen=8))
    #: which of the local sources its last local load had
    local: Source = Source.CACHE
    #: its copy was fetched or verified since its last success
    verified: bool = False
    #: a verification is not answered
    verifying: bool = False
    #: what its load failed with, while it is in doubt whether the copy is to blame; empty: no doubt
    doubt: str = ""
    #: its copy was damaged and is fetched anew, or was: the next failure counts
    renewed: bool = False
    #: what the weight cache was told last: held, pinned
    kept: tuple[bool, bool] = (False, False)

    @property
    def busy(self) -> bool:
        """An order about them is unanswered."""
        return self.fetch is not None or self.warming is not None or self.verifying


@dataclass(slots=True, eq=False)
class Bandwidth:
    """How fast fetches have been, the latest ones above all."""

    fetched: float = 0.0
    seconds: float = 0.0

    def add(self, fetched: Bytes, took: Duration) -> None:
        """Count a fetch; what was before counts half."""
        if fetched > 0 and took > 0:
            self.fetched = self.fetched / 2 + fetched
            self.seconds = self.seconds / 2 + took / 1e9

    def time_of(self, size: Bytes) -> Duration | None:
        """Return how long so many bytes are expected to take; ``None``: nothing was fetched yet."""
        return Duration(round(size * self.seconds / self.fetched * 1e9)) if self.fetched else None
