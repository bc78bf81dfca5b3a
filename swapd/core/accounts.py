"""Keeps account of what a model's loads cost the node, whom they were charged to, and what its requests waited.

* Own: GPU-seconds of the model's own loads, whole swaps, however they ended.
* Charged: GPU-seconds of the reloads of models that its loads had evicted.
* Waited: what its requests waited because the model had to be loaded; not the wait for a slot of a busy engine.

Totals count from the daemon's start; rates fade like all others (``decay``). Who was evicted fades within about a day.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from swapd.core.decay import Decayed
from swapd.core.ids import SECOND, Duration, Instant, ModelName

HOUR_S: Final = 3600
COLLATERAL_TAU: Final = Duration(86_400 * SECOND)
#: models remembered as evicted by one model
MOST_EVICTED: Final = 32


class Costs(NamedTuple):
    """What one model has cost: since the start, within a week, or per hour."""

    requests: float = 0.0
    #: loads that became ready
    loads: float = 0.0
    own_gpu_seconds: float = 0.0
    charged_gpu_seconds: float = 0.0
    #: by requests that waited for a load, seconds
    waited_seconds: float = 0.0

    @property
    def caused_gpu_seconds(self) -> float:
        """GPU-seconds of loading in all, own and charged."""
        return self.own_gpu_seconds + self.charged_gpu_seconds

    @property
    def wait_per_request(self) -> float:
        """Mean wait for loads over all requests, resident ones included, seconds; 0 without requests."""
        return self.waited_seconds / self.requests if self.requests else 0.0


NO_COSTS: Final = Costs()


@dataclass(slots=True)
class Sum:
    """One kind of cost: all of it, and what has not faded."""

    total: float = 0.0
    recent: Decayed = field(default_factory=Decayed)

    def add(self, at: Instant, amount: float) -> None:
        """Add an amount now."""
        self.total += amount
        self.recent.add(at, amount)

    def per_hour(self, at: Instant, since: Instant) -> float:
        """Return the present amount per hour, for a sum that began at ``since``."""
        return HOUR_S * self.recent.rate(at, since)


@dataclass(slots=True)
class Account:
    """What one model's loads cost."""

    loads: int = 0
    own: Sum = field(default_factory=Sum)
    charged: Sum = field(default_factory=Sum)
    waited: Sum = field(default_factory=Sum)
    #: GPU-seconds charged, by the model that had been evicted
    evicts: dict[ModelName, Decayed] = field(default_factory=dict)

    def charge(self, at: Instant, victim: ModelName, gpu_seconds: float) -> None:
        """Charge the reload of a model that it had evicted."""
        self.charged.add(at, gpu_seconds)
        self.remember_victim(at, victim, gpu_seconds)

    def remember_victim(self, at: Instant, victim: ModelName, gpu_seconds: float) -> None:
        """Note whom it evicted; the most faded one is forgotten when there are too many."""
        if victim not in self.evicts:
            if len(self.evicts) >= MOST_EVICTED:
                del self.evicts[min(self.evicts, key=lambda name: (self.evicts[name].faded(at), name))]
            self.evicts[victim] = Decayed(tau=COLLATERAL_TAU)
        self.evicts[victim].add(at, gpu_seconds)

    def collateral(self, at: Instant) -> tuple[tuple[ModelName, float], ...]:
        """Return whom it evicted within about a day and what their reloads cost in GPU-seconds, the most first."""
        left = [(name, evicted.faded(at)) for name, evicted in self.evicts.items()]
        return tuple(sorted(left, key=lambda item: (-item[1], item[0])))
