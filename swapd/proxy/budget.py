"""Counts the bytes of all buffered bodies against one limit; pure and synchronous."""


class Budget:
    """``0 <= used``, and ``used <= limit`` unless the limit was lowered meanwhile."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def free(self) -> int:
        """Return the bytes that may still be taken."""
        return max(0, self.limit - self.used)

    def take(self, count: int) -> bool:
        """Book ``count`` bytes, all or nothing; ``False`` if they do not fit."""
        if count and self.used + count > self.limit:
            return False
        self.used += count
        return True

    def give(self, count: int) -> None:
        """Return booked bytes."""
        assert 0 <= count <= self.used, f"{count} bytes returned, {self.used} booked"
        self.used -= count
