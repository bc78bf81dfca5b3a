"""Orders victims by the time it takes to load them again, shortest first; the sum over a set is the time to restore it.

It forgets how often a model is asked for: cheap models are loaded again and again. Kept as a yardstick.
"""

from swapd.core.ids import SECOND
from swapd.core.policies.base import Resident


class CheapestReload:
    """Shortest load time first."""

    def value(self, resident: Resident) -> float:
        """Return the expected load time in seconds, per GPU."""
        return resident.load_time / SECOND / resident.gpus
