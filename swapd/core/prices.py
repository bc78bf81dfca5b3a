"""Decides whose GPUs are the cheapest to take, when a model needs whole GPUs and others are on them.

Rules that hold here:

* The least sum of the victims' costs wins, then the better class of sets, then the lowest mask. A set that costs
  nothing ends the search.
* A model that lies on several GPUs is paid once.
* Every set costs two look-ups: tables of 16 entries hold what each part of the lower and of the upper half of a board
  costs. Only models that lie on both halves are added set by set.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from swapd.core.ids import NO_GPUS, GpuSet
from swapd.core.quality import Quality
from swapd.core.tables import HALF, Board, SetClass

_PARTS: Final = 1 << HALF
#: by part of a half: the parts it meets
_MEETS: Final = tuple(tuple(other for other in range(_PARTS) if other & part) for part in range(_PARTS))
_NEVER: Final = float("inf")


class Taking(NamedTuple):
    """A set of GPUs that can be taken from their owners."""

    gpus: GpuSet
    #: sum of the owners' costs
    cost: float
    quality: Quality


class Prices:
    """What it costs to take sets of one board's GPUs."""

    __slots__ = ("_both", "_both_prices", "_lower", "_lower_both", "_upper", "_upper_both")

    def __init__(self, board: Board, owner: Sequence[int], cost: Sequence[float], blocked: int) -> None:
        """Fill the tables. ``owner``: by GPU of the node, the mask of models on it; ``cost``: by model."""
        where: dict[int, int] = {}
        never = 0
        for place, gpu in enumerate(board.gpus):
            if blocked >> gpu & 1:
                never |= 1 << place
            rest = owner[gpu]
            while rest:
                model = rest & -rest
                rest ^= model
                where[model] = where.get(model, 0) | 1 << place
        self._lower: list[float] = [0] * _PARTS
        self._upper: list[float] = [0] * _PARTS
        #: models on both halves: their costs, and by part of a half which of them it meets
        self._both: list[float] = []
        self._lower_both = [0] * _PARTS
        self._upper_both = [0] * _PARTS
        self._both_prices: dict[int, float] = {}
        for model, places in where.items():
            self._add(places, cost[model.bit_length() - 1])
        self._add_never(never)

    def _add(self, places: int, price: float) -> None:
        below, above = places & _PARTS - 1, places >> HALF
        if not above:
            for part in _MEETS[below]:
                self._lower[part] += price
        elif not below:
            for part in _MEETS[above]:
                self._upper[part] += price
        else:
            bit = 1 << len(self._both)
            self._both.append(price)
            for part in _MEETS[below]:
                self._lower_both[part] |= bit
            for part in _MEETS[above]:
                self._upper_both[part] |= bit

    def _add_never(self, places: int) -> None:
        for part in _MEETS[places & _PARTS - 1]:
            self._lower[part] = _NEVER
        for part in _MEETS[places >> HALF]:
            self._upper[part] = _NEVER

    def cheapest(self, classes: Iterable[SetClass]) -> Taking | None:
        """Return the cheapest set of these classes, the first of equals; ``None``: each has a blocked GPU."""
        lower, upper = self._lower, self._upper
        best, chosen, found = _NEVER, NO_GPUS, None
        for quality, _, halves in classes:
            for gpus, below, above in halves:
                price = lower[below] + upper[above]
                if price < best:
                    if self._both:
                        price += self._price_of_both(below, above)
                        if price >= best:
                            continue
                    best, chosen, found = price, gpus, quality
                    if not price:
                        return Taking(gpus, price, quality)
        return Taking(chosen, best, found) if found is not None else None

    def _price_of_both(self, below: int, above: int) -> float:
        """Return what the models on both halves add to a set."""
        met = self._lower_both[below] | self._upper_both[above]
        price = self._both_prices.get(met)
        if price is None:
            price = sum(cost for place, cost in enumerate(self._both) if met >> place & 1)
            self._both_prices[met] = price
        return price
