"""Names what the room tells: a snapshot of what is cached, and one answer to every order."""

from collections.abc import Mapping
from dataclasses import dataclass

from swapd.core.ids import Bytes, Duration, Instant, ModelName
from swapd.core.reasons import FetchFailure
from swapd.weights.settings import Progress


@dataclass(frozen=True, slots=True)
class CacheRead:
    """Which of the models that have a source are cached; told when that changes, before any answer that rests on it."""

    at: Instant
    #: size of the copy by model
    cached: Mapping[ModelName, Bytes]


@dataclass(frozen=True, slots=True)
class FetchStarted:
    """A fetch has left the queue: bytes are about to come, or room for them is made."""

    at: Instant
    model: ModelName


@dataclass(frozen=True, slots=True)
class FetchWaits:
    """A fetch waits for room on the disk.

    Told when the reason changes, and again after every look at the disk while copies would have to leave.
    """

    at: Instant
    model: ModelName
    #: one sentence for the operator
    detail: str
    #: bytes that are lacking when all copies have left that may; 0: copies are not to blame
    lacking: Bytes


@dataclass(frozen=True, slots=True)
class FetchProgressed:
    """A fetch has come further."""

    at: Instant
    model: ModelName
    progress: Progress


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a fetch: the copy is complete and verified."""

    at: Instant
    model: ModelName
    #: bytes that came from the source; 0: it was here
    fetched: Bytes
    #: without the time for which it waited for room
    took: Duration


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """The other answer to a fetch; what has come stays, and the next fetch goes on from there."""

    at: Instant
    model: ModelName
    failure: FetchFailure
    #: one sentence for the operator and the waiting clients
    detail: str


@dataclass(frozen=True, slots=True)
class Warmed:
    """The answer to an order to read a model into the page cache, also when that was ended early."""

    at: Instant
    model: ModelName
    #: bytes that were read, and bytes that were in memory already
    read: Bytes
    present: Bytes
    #: all of the copy is in memory now, as far as the kernel keeps it
    whole: bool


@dataclass(frozen=True, slots=True)
class Verified:
    """The answer to an order to check a copy; a damaged one is not cached any more."""

    at: Instant
    model: ModelName
    intact: bool
    #: one sentence; empty: nothing is wrong
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Removed:
    """The answer to an order to remove a copy."""

    at: Instant
    model: ModelName
    #: bytes that the disk got back
    freed: Bytes
    #: why it is still there; empty: it is gone
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Evicted:
    """A copy has left to make room for another; a ``CacheRead`` went before if a model has lost it."""

    at: Instant
    #: the models it was for; none: nobody wanted it any more
    models: tuple[ModelName, ...]
    freed: Bytes


Fact = (
    CacheRead
    | FetchStarted
    | FetchWaits
    | FetchProgressed
    | Fetched
    | FetchFailed
    | Warmed
    | Verified
    | Removed
    | Evicted
)
