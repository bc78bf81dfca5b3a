"""Orders victims by frequency and cost of reloading, with ageing (GreedyDual-Size-Frequency).

H = clock + F × load seconds / GPUs, taken at each request; the clock is the highest H ever evicted, so what is not
asked for any more falls behind, however often it once was. Source: Cherkasova, "Improving WWW Proxies Performance
with Greedy-Dual-Size-Frequency Caching Policy", HP Laboratories, 1998.
"""

from swapd.core.policies.base import Resident


class Gdsf:
    """Least H first."""

    def value(self, resident: Resident) -> float:
        """Return H as of the last request."""
        return resident.worth
