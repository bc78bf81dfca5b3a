"""Orders victims by frequency and cost of reloading, with ageing (GreedyDual-Size-Frequency).

H = clock + F × load seconds / GPUs, taken at each request; the clock is the highest H ever evicted, so what is not
asked for any more falls behind, however often it once was. The clock only ever grows: were all of it counted, then
after a while the sum over a set of victims would say how many GPUs they have and nothing else, and a large model that
nobody asks for would never leave for a small one. So what all residents have of it in common is left out.
Source: Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP
Laboratories, 1998; there a victim is a single object, and the common part plays no role.
"""

from swapd.core.policies.base import Resident


class Gdsf:
    """Least H first."""

    def value(self, resident: Resident) -> float:
        """Return H as of the last request, less the clock that all residents share."""
        return resident.worth - resident.floor
