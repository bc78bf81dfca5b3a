"""Names what the room tells: the core's facts about weights, and what concerns operators and figures alone."""

from dataclasses import dataclass

from swapd.core.events import (
    FetchFailed,
    FetchProgressed,
    FetchStarted,
    FetchWaits,
    WeightsCached,
    WeightsFetched,
    WeightsVerified,
    WeightsWarmed,
)
from swapd.core.ids import Bytes, Instant, ModelName


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
    """A copy has left to make room for another; a ``WeightsCached`` went before if a model has lost it."""

    at: Instant
    #: the models it was for; none: nobody wanted it any more
    models: tuple[ModelName, ...]
    freed: Bytes


Fact = (
    WeightsCached
    | FetchStarted
    | FetchWaits
    | FetchProgressed
    | WeightsFetched
    | FetchFailed
    | WeightsWarmed
    | WeightsVerified
    | Removed
    | Evicted
)
