"""Says what an eviction policy is: an order of victims, given as the worth of keeping each.

A policy orders; it does not guard (who may leave at all is decided before) and it does not place (which set of
victims makes room is decided after, by the least sum of worth × GPUs). It keeps no state of its own.
"""

from dataclasses import dataclass
from typing import Protocol

from swapd.core.ids import Duration, Instant, ModelName


@dataclass(frozen=True, slots=True)
class Resident:
    """One candidate, as policies see it."""

    model: ModelName
    #: number of GPUs it would free
    gpus: int
    #: expected time to load it again
    load_time: Duration
    #: last arrival or end of a request
    last_used: Instant
    #: GDSF worth: clock + frequency × load seconds / GPUs, as of its last request
    worth: float
    #: now
    at: Instant
    #: part of the GDSF clock that every resident's worth contains
    floor: float = 0.0


class EvictionPolicy(Protocol):
    """Order of victims."""

    def value(self, resident: Resident) -> float:
        """Return the worth of keeping this model, per GPU; the least sum over a set of victims leaves."""
        ...
