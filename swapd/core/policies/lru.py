"""Orders victims by the time of their last use, longest ago first.

The worth of a victim is the reciprocal of its idle time, so that sums over sets stay meaningful, shared out over its
GPUs, so that the number of GPUs plays no part in the order.
"""

from swapd.core.ids import SECOND
from swapd.core.policies.base import Resident


class Lru:
    """Longest unused first."""

    def value(self, resident: Resident) -> float:
        """Return 1 / (seconds since the last use), per GPU; an idle time under a nanosecond counts as one."""
        idle = max(1, resident.at - resident.last_used)
        return SECOND / idle / resident.gpus
