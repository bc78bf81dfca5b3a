"""Keeps models sorted by a key that may change: the pending ones by urgency, the waiting ones by deadline.

A sorted list and bisection: with a few hundred models this beats a heap, and it leaves no garbage behind.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

from swapd.core.ids import ModelName

K = TypeVar("K", int, tuple[int, int])


class Agenda(Generic[K]):
    """Models ordered by key, ties by name."""

    __slots__ = ("_keys", "_order")

    def __init__(self) -> None:
        self._keys: dict[ModelName, K] = {}
        self._order: list[tuple[K, ModelName]] = []

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, model: ModelName) -> bool:
        return model in self._keys

    def __iter__(self) -> Iterator[ModelName]:
        """Yield the models as they stand now, first key first; the agenda may change meanwhile."""
        return iter([model for _, model in self._order])

    def put(self, model: ModelName, key: K) -> None:
        """Enter a model, or move it to its new place."""
        before = self._keys.get(model)
        if before is not None:
            if before == key:
                return
            del self._order[bisect_left(self._order, (before, model))]
        self._keys[model] = key
        insort(self._order, (key, model))

    def drop(self, model: ModelName) -> None:
        """Take a model out; nothing happens if it is not in."""
        before = self._keys.pop(model, None)
        if before is not None:
            del self._order[bisect_left(self._order, (before, model))]

    def first(self) -> K | None:
        """Return the first key."""
        return self._order[0][0] if self._order else None

    def first_model(self) -> ModelName:
        """Return the model with the first key; there must be one."""
        return self._order[0][1]

    def after(self, key: K) -> K | None:
        """Return the first key above ``key``."""
        place = bisect_right(self._order, key, key=_key)
        return self._order[place][0] if place < len(self._order) else None


def _key(entry: tuple[K, ModelName]) -> K:
    return entry[0]
