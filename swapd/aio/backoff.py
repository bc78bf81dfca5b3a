"""Computes how long to wait before the next try; pure, so that the caller keeps clock and counter."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that grow by a factor up to a cap; in the unit of ``first``."""

    #: the delay before the first repetition, above 0
    first: float
    #: no delay is longer, jitter included
    cap: float
    #: growth per repetition, at least 1
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not (0 < self.first <= self.cap and self.factor >= 1):
            raise ValueError(f"a backoff needs 0 < first <= cap and factor >= 1: {self}")

    def delay(self, repetition: int, *, random: Callable[[], float] | None = None) -> float:
        """Return the delay before repetition 0, 1, …; ``random`` in [0, 1) takes up to half of it away."""
        grown = self.first
        for _ in range(repetition):
            grown *= self.factor
            if grown >= self.cap:  # also keeps a large repetition from overflowing
                grown = self.cap
                break
        return grown if random is None else grown * (1 - random() / 2)
