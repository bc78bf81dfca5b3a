"""Sums whose terms fade, and the rates they give: what happens often lately, without a list of when."""

import math
from dataclasses import dataclass
from typing import Final

from swapd.core.ids import SECOND, Duration, Instant

TAU: Final = Duration(1800 * SECOND)


@dataclass(slots=True)
class Decayed:
    """A sum whose terms fade with ``tau``."""

    value: float = 0.0
    at: Instant = Instant(0)
    tau: Duration = TAU

    def add(self, at: Instant, amount: float) -> None:
        """Add an amount now."""
        self.value = self.value * math.exp((self.at - at) / self.tau) + amount
        self.at = at

    def faded(self, at: Instant) -> float:
        """Return what is left of the sum."""
        return self.value * math.exp((self.at - at) / self.tau)

    def rate(self, at: Instant, since: Instant) -> float:
        """Return the amount per second, for a sum that began at ``since``."""
        if at <= since or not self.value:
            return 0.0
        window_s = self.tau / SECOND * -math.expm1((since - at) / self.tau)
        return self.faded(at) / window_s
