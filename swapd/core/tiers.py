"""Decides which tier of the platform a week of demand makes of a model: hot, warm or cold.

* Counted are requests per hour, as the mean over the hours in which the model was observed; up to 168 of them.
* A model is promoted at once; it is demoted only below seven tenths of the limit, so that it does not go to and fro.
* With less than a day observed the answer is provisional: the previous tier stays, if there was one.
* Beside the fixed limit of *warm* stands the one that its load time asks for: so many requests per hour, each after a
  cold start, are half an hour of loading in an hour.

A tier is advice to whoever places models on nodes. Nothing on the node acts on it, and nothing here knows a clock.
"""

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from swapd.core.accounts import HOUR_S, NO_COSTS, Costs
from swapd.core.ids import SECOND, Duration, ModelName

WEEK_HOURS: Final = 168
HOT_PER_HOUR: Final = 5000.0
WARM_PER_HOUR: Final = 50.0
#: of a limit, below which a model loses its tier
DEMOTION: Final = 0.7
SETTLED_HOURS: Final = 24
#: the load ratio at which a model should stay resident
WARM_LOAD_RATIO: Final = 0.5
_P99: Final = 0.99


class Tier(enum.StrEnum):
    """The platform's classes of models by demand."""

    #: its own GPUs
    HOT = "hot"
    #: the shared pool, resident as a rule
    WARM = "warm"
    #: the shared pool, loaded on demand
    COLD = "cold"


_LIMITS: Final[Mapping[Tier, float]] = {Tier.HOT: HOT_PER_HOUR, Tier.WARM: WARM_PER_HOUR}
_RANKS: Final[Mapping[Tier, int]] = {tier: rank for rank, tier in enumerate(reversed(Tier))}


class Hour(NamedTuple):
    """One hour of one model."""

    requests: int
    #: how much of it the model was observed; more than 3600 when the wall clock was set back
    observed_s: float = HOUR_S


@dataclass(frozen=True, slots=True)
class Week:
    """What the last 168 hours say of one model."""

    tier: Tier
    #: less than a day was observed
    provisional: bool
    observed_hours: float
    #: mean over the observed hours
    requests_per_hour: float
    #: of all hours but the busiest hundredth, the busiest
    p99_per_hour: float
    #: share of all requests of the node's models, 0–1
    share: float = 0.0
    #: of the whole observed time
    costs: Costs = NO_COSTS

    def hourly(self) -> Costs:
        """Return the mean costs of an observed hour."""
        hours = self.observed_hours
        return Costs(*(value / hours for value in self.costs)) if hours else NO_COSTS


def tier_of(requests_per_hour: float, previous: Tier | None = None) -> Tier:
    """Return the tier for a mean demand, taking the present tier into account."""
    for tier, limit in _LIMITS.items():
        holds = previous is not None and _RANKS[previous] >= _RANKS[tier]
        if requests_per_hour >= (DEMOTION * limit if holds else limit):
            return tier
    return Tier.COLD


def weigh(hours: Iterable[Hour], previous: Tier | None = None, *, costs: Costs = NO_COSTS) -> Week:
    """Return what the hourly counts of a model say; hours that were not observed at all are left out by the caller."""
    counted = list(hours)
    observed = sum(hour.observed_s for hour in counted) / HOUR_S
    mean = sum(hour.requests for hour in counted) / observed if observed else 0.0
    provisional = observed < SETTLED_HOURS
    tier = previous if provisional and previous is not None else tier_of(mean, previous)
    return Week(tier, provisional, observed, mean, p99(counted), costs=costs)


def p99(hours: Iterable[Hour]) -> float:
    """Return the requests of the hour at the 99th percentile (nearest rank); an hour observed twice counts half."""
    counts = sorted(hour.requests * HOUR_S / max(hour.observed_s, HOUR_S) for hour in hours)
    return counts[math.ceil(_P99 * len(counts)) - 1] if counts else 0.0


def shares(means: Mapping[ModelName, float]) -> dict[ModelName, float]:
    """Return each model's share of the traffic, 0–1."""
    everything = sum(means.values())
    return {name: mean / everything if everything else 0.0 for name, mean in means.items()}


def warm_limit(load_time: Duration) -> float:
    """Return the load-aware limit of *warm*: requests per hour at which the load ratio would be a half."""
    return WARM_LOAD_RATIO * HOUR_S * SECOND / load_time if load_time else math.inf
