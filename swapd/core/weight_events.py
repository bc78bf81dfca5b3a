"""Lists the facts the shell reports about weights: what lies in the cache, and how fetches, readings and checks end."""

from collections.abc import Mapping
from dataclasses import dataclass

from swapd.core.ids import Bytes, Duration, Instant, ModelName, RequestId
from swapd.core.reasons import FetchFailure


@dataclass(frozen=True, slots=True)
class WeightsCached:
    """Which models lie complete in the node's cache; told at the start and whenever that changes.

    A change is told before any answer that rests on it.
    """

    at: Instant
    #: size of the copy by model; only models whose weights are fetched
    cached: Mapping[ModelName, Bytes]
    #: fetches of earlier runs, the latest one last: bytes that came, and how long that took; told once
    earlier: tuple[tuple[Bytes, Duration], ...] = ()


@dataclass(frozen=True, slots=True)
class FetchStarted:
    """A fetch has left the queue of fetches."""

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
    #: bytes that are lacking when all have left that may by the last KeepWeights; 0: copies are not to blame
    lacking: Bytes


@dataclass(frozen=True, slots=True)
class FetchProgressed:
    """A fetch has come further (at most about one such fact a second and fetch)."""

    at: Instant
    model: ModelName
    #: bytes that are here, of those that the copy has
    done: Bytes
    total: Bytes
    #: bytes a second, of late
    rate: float


@dataclass(frozen=True, slots=True)
class WeightsFetched:
    """A FetchWeights or RefetchWeights has ended well: the copy is complete and verified."""

    at: Instant
    model: ModelName
    #: bytes that came from the source; 0: the copy was here already
    fetched: Bytes
    took: Duration


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A FetchWeights or RefetchWeights has failed; what has come stays, and the next fetch goes on from there."""

    at: Instant
    model: ModelName
    failure: FetchFailure
    #: one sentence for the operator and the waiting clients
    detail: str


@dataclass(frozen=True, slots=True)
class WeightsWarmed:
    """A WarmWeights has ended, also when it was ended early."""

    at: Instant
    model: ModelName
    #: bytes that were read, and bytes that were in memory already
    read: Bytes
    present: Bytes
    #: all of the copy is in memory now, as far as the kernel keeps it
    whole: bool


@dataclass(frozen=True, slots=True)
class WeightsVerified:
    """A VerifyWeights, or an operator's look, has ended; a copy that is not intact is not cached any more."""

    at: Instant
    model: ModelName
    intact: bool
    #: one sentence; empty: nothing is wrong
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PrefetchOrdered:
    """An operator or a placer wants a model's weights on this node. Answered by one Answer, once they are."""

    at: Instant
    request: RequestId
    model: ModelName


WeightEvent = (
    WeightsCached
    | FetchStarted
    | FetchWaits
    | FetchProgressed
    | WeightsFetched
    | FetchFailed
    | WeightsWarmed
    | WeightsVerified
    | PrefetchOrdered
)
