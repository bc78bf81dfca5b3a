"""Orders victims by their next request, furthest first: the yardstick. It knows the arrivals and nothing else.

The core takes the set with the least sum of worths. Whoever is next is worth more here than all who come later
together, so the least sum belongs to the victims that the order alone would take, less those that need not leave.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from swapd.core.ids import Instant, ModelName
from swapd.core.policies.base import Resident
from swapd.sim.workload import Arrival


class Clairvoyant:
    """An eviction policy for workloads that are known beforehand."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._times: dict[ModelName, list[Instant]] = defaultdict(list)
        for arrival in arrivals:
            self._times[arrival.model].append(arrival.at)
        self._at = Instant(-1)
        self._worths: dict[ModelName, float] = {}

    def value(self, resident: Resident) -> float:
        """Return 1/2 for the model whose next request comes first, half as much for the next one …, per GPU; 0: none.

        Beyond a thousand models the last of them are worth nothing, too.
        """
        if resident.at != self._at:
            self._look_ahead(resident.at)
        return self._worths.get(resident.model, 0.0) / resident.gpus

    def _look_ahead(self, at: Instant) -> None:
        ahead = []
        for model, times in self._times.items():
            place = bisect_right(times, at)
            if place < len(times):
                ahead.append((times[place], model))
        self._at = at
        self._worths = {model: 2.0**-place for place, (_, model) in enumerate(sorted(ahead), start=1)}
