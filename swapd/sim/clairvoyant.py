"""Orders victims by their next request, furthest first: the yardstick. It knows the arrivals and nothing else."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from swapd.core.ids import SECOND, Instant, ModelName
from swapd.core.policies.base import Resident
from swapd.sim.workload import Arrival


class Clairvoyant:
    """An eviction policy for workloads that are known beforehand."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._times: dict[ModelName, list[Instant]] = defaultdict(list)
        for arrival in arrivals:
            self._times[arrival.model].append(arrival.at)

    def value(self, resident: Resident) -> float:
        """Return 1 / (seconds to its next request), per GPU; 0 if there is none."""
        times = self._times.get(resident.model, [])
        place = bisect_right(times, resident.at)
        return SECOND / (times[place] - resident.at) / resident.gpus if place < len(times) else 0.0
