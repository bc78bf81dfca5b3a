"""Counts demand by the hour and says what a week of it comes to; in memory, pure but for what it remembers.

* Fed with running totals about once a minute, so that counting costs a request nothing. What was added since the last
  time counts for the hour in which that was.
* An hour is observed as far as the daemon ran in it and knew the model. While it was down, or stood still, nothing was
  observed: the mean is taken over the rest.
* The wall clock may jump. Counts go to the hour that it shows; a week is what lies behind that hour. Hours are dropped
  only when there are too many, and then those farthest from now: a clock that is wrong for a while loses little.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from swapd.core.accounts import HOUR_S, NO_COSTS, Costs
from swapd.core.ids import SECOND, Instant, ModelName
from swapd.core.tiers import WEEK_HOURS, Hour, Tier, Week, shares, weigh

KEPT_HOURS: Final = 2 * WEEK_HOURS
"""Different hours that are kept."""
MOST_ELAPSED_S: Final = 300.0
"""A longer time between two feedings was not observed: the process stood still."""


class Row(NamedTuple):
    """One hour of one model."""

    #: of it, in which the model was observed
    observed_s: float = 0.0
    costs: Costs = NO_COSTS

    def plus(self, observed_s: float, costs: Costs) -> "Row":
        """Return the row with more observed."""
        return Row(self.observed_s + observed_s, Costs(*(a + b for a, b in zip(self.costs, costs, strict=True))))


#: hours since 1970 -> model -> row
Rows = dict[int, dict[ModelName, Row]]


class Hours:
    """The hourly counts of one node."""

    def __init__(self, rows: Rows, tiers: Mapping[ModelName, Tier], *, at: Instant, wall_s: float) -> None:
        """Begin with what is known, at a moment of the monotonic and of the wall clock."""
        self._rows = rows
        self._tiers = dict(tiers)
        self._totals: Mapping[ModelName, Costs] = {}
        self._at = at
        self._hour = int(wall_s // HOUR_S)

    def observe(self, totals: Mapping[ModelName, Costs], *, at: Instant, wall_s: float) -> dict[ModelName, Row]:
        """Take in the totals since the daemon's start; return the rows of the hour they count for."""
        hour, elapsed_s = self._hour, (at - self._at) / SECOND
        observed_s = elapsed_s if elapsed_s <= MOST_ELAPSED_S else 0.0
        rows = self._rows.setdefault(hour, {})
        for model, now in totals.items():
            before = self._totals.get(model, NO_COSTS)
            # a model that was removed and has come back counts from 0 again
            added = Costs(*(b - a if b >= a else b for a, b in zip(before, now, strict=True)))
            rows[model] = rows.get(model, Row()).plus(observed_s, added)
        self._totals, self._at, self._hour = dict(totals), at, int(wall_s // HOUR_S)
        return dict(rows)

    @property
    def hour(self) -> int:
        """The hour that the next counts are for, since 1970."""
        return self._hour

    def drop(self) -> tuple[int, ...]:
        """Forget hours beyond the limit; return which."""
        by_distance = sorted(self._rows, key=lambda hour: (abs(hour - self._hour), hour))
        dropped = tuple(by_distance[KEPT_HOURS:])
        for hour in dropped:
            del self._rows[hour]
        return dropped

    def weeks(self, models: Iterable[ModelName]) -> dict[ModelName, Week]:
        """Return what the last 168 hours say of these models; their tiers are remembered for the next time."""
        window = [self._rows[hour] for hour in sorted(self._rows) if self._hour - WEEK_HOURS < hour <= self._hour]
        weeks = {model: self._week(model, window) for model in models}
        share = shares({model: week.requests_per_hour for model, week in weeks.items()})
        return {model: _with_share(week, share[model]) for model, week in weeks.items()}

    def tiers(self) -> Mapping[ModelName, Tier]:
        """Return the tiers that are settled."""
        return dict(self._tiers)

    def _week(self, model: ModelName, window: Iterable[Mapping[ModelName, Row]]) -> Week:
        rows = [hour[model] for hour in window if model in hour and hour[model].observed_s]
        costs = Costs(*map(sum, zip(*(row.costs for row in rows), strict=True))) if rows else NO_COSTS
        counts = (Hour(round(row.costs.requests), row.observed_s) for row in rows)
        week = weigh(counts, self._tiers.get(model), costs=costs)
        if not week.provisional:
            self._tiers[model] = week.tier
        return week


def _with_share(week: Week, share: float) -> Week:
    return Week(
        week.tier,
        week.provisional,
        week.observed_hours,
        week.requests_per_hour,
        week.p99_per_hour,
        share,
        week.costs,
    )
