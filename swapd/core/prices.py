"""Decides whose GPUs on a board are the cheapest to take, when a model needs whole GPUs and others are on them.

Rules that hold here:

* The least sum of the owners' costs wins, then the better class of sets, then the lowest mask. A set that costs nothing
  ends the search. Models that ignore NVLink take the worse class of equals.
* A model that lies on several GPUs is paid once.
* Tables of 16 entries hold what each part of the lower and of the upper half of a board costs, so that a set costs two
  look-ups. Only models that lie on both halves are added set by set.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from swapd.core.catalog import NvlinkUse
from swapd.core.ids import NO_GPUS, GpuSet, gpu_indices
from swapd.core.quality import Quality, judge_set
from swapd.core.tables import HALF, Board, SetClass
from swapd.core.wiring import Wiring

_PARTS: Final = 1 << HALF
#: by part of a half: the parts it meets
_MEETS: Final = tuple(tuple(other for other in range(_PARTS) if other & part) for part in range(_PARTS))
_NEVER: Final = float("inf")


class Occupancy(NamedTuple):
    """Who is on the GPUs of the node, and what it costs to lose them."""

    #: by GPU: the models on it, as a mask
    owner: Sequence[int]
    #: by model: what losing it costs, at least 0
    cost: Sequence[float]
    #: GPUs that cannot be had
    blocked: int


class Taking(NamedTuple):
    """A set of GPUs that can be taken from their owners."""

    gpus: GpuSet
    #: sum of the owners' costs
    cost: float
    quality: Quality


class Prices(NamedTuple):
    """What the places of one board cost."""

    board: Board
    #: by place: the models there
    owners: list[int]
    #: models that lie on several places
    several: int
    #: by place: the cost of the models that lie nowhere else; beyond all costs if the place is blocked
    alone: list[float]
    cost: Sequence[float]

    def least(self, size: int) -> float:
        """Return what a set costs at least."""
        return sum(sorted(self.alone)[:size])


def prices_of(board: Board, now: Occupancy) -> Prices:
    """Work out what the places of a board cost."""
    owners = [now.owner[gpu] for gpu in board.gpus]
    seen = several = 0
    for models in owners:
        several |= seen & models
        seen |= models
    alone = _alone([models & ~several for models in owners] if several else owners, now.cost)
    if now.blocked & board.mask:
        for place, gpu in enumerate(board.gpus):
            if now.blocked >> gpu & 1:
                alone[place] = _NEVER
    return Prices(board, owners, several, alone, now.cost)


def least_of(offers: Iterable[Prices], size: int) -> float:
    """Return what a set over these boards costs at least."""
    return sum(sorted(price for prices in offers for price in prices.alone)[:size])


def cheapest(prices: Prices, size: int, use: NvlinkUse) -> Taking | None:
    """Return the cheapest set on a board; ``None``: each has a blocked GPU, or there is none of use."""
    board, owners, several, alone, cost = prices
    classes = useful(board.classes(size), size, use)
    lower, upper = _sums(*alone[:HALF]), _sums(*alone[HALF:])
    both = _add_several(several, owners, cost, (lower, upper)) if several else None
    return _walk(classes, lower, upper) if both is None else _walk_with_both(classes, (lower, upper), both)


def useful(classes: Sequence[SetClass], size: int, use: NvlinkUse) -> Sequence[SetClass]:
    """Return the classes a model may have, those to be taken first at equal costs first."""
    if use is NvlinkUse.IGNORE:
        return classes[::-1]
    if use is NvlinkUse.REQUIRED and size > 1:
        return [found for found in classes if found.quality.linked]
    return classes


def _walk(classes: Iterable[SetClass], lower: Sequence[float], upper: Sequence[float]) -> Taking | None:
    """Return the first of the cheapest sets."""
    best, chosen, found = _NEVER, NO_GPUS, None
    for quality, _, halves in classes:
        for gpus, below, above in halves:
            price = lower[below] + upper[above]
            if price < best:
                best, chosen, found = price, gpus, quality
                if not price:
                    return Taking(gpus, price, quality)
    return None if found is None else Taking(chosen, best, found)


class _Sums(dict[int, float]):
    """Sums of the costs of some models, by mask; those not asked for at first are worked out when they are."""

    def __init__(self, models: Sequence[int], cost: Sequence[float]) -> None:
        super().__init__({0: 0})
        self._cost = cost
        for model in models[:HALF]:  # more are on both halves only where GPUs are shared
            price = cost[model.bit_length() - 1]
            self.update([(mask | model, price + other) for mask, other in self.items()])

    def __missing__(self, models: int) -> float:
        low = models & -models
        found = self[models] = self[models ^ low] + self._cost[low.bit_length() - 1]
        return found


class _Both(NamedTuple):
    """The models that lie on both halves of a board."""

    #: by part of the lower and of the upper half: which of these models it meets, as a mask
    below: tuple[int, ...]
    above: tuple[int, ...]
    sums: _Sums


def _walk_with_both(
    classes: Iterable[SetClass], costs: tuple[Sequence[float], Sequence[float]], both: _Both
) -> Taking | None:
    """Return the first of the cheapest sets, where models lie on both halves."""
    lower, upper = costs
    on_below, on_above, sums = both
    best, chosen, found = _NEVER, NO_GPUS, None
    for quality, _, halves in classes:
        for gpus, below, above in halves:
            price = lower[below] + upper[above]
            if price < best:
                price += sums[on_below[below] | on_above[above]]
                if price < best:
                    best, chosen, found = price, gpus, quality
                    if not price:
                        return Taking(gpus, price, quality)
    return None if found is None else Taking(chosen, best, found)


def _alone(owners: Sequence[int], cost: Sequence[float]) -> list[float]:
    """Return for each place the sum of the costs of the models there."""
    return [
        0
        if not models
        else cost[models.bit_length() - 1]
        if not models & (models - 1)
        else sum(cost[model] for model in gpu_indices(GpuSet(models)))
        for models in owners
    ]


def _add_several(
    several: int, owners: Sequence[int], cost: Sequence[float], tables: tuple[list[float], list[float]]
) -> _Both | None:
    """Add the models that lie on several places to the table of their half; return those that lie on both halves."""
    where: dict[int, int] = {}
    for place, models in enumerate(owners):
        rest = models & several
        while rest:
            model = rest & -rest
            rest ^= model
            where[model] = where.get(model, 0) | 1 << place
    both: list[int] = []
    for model, places in where.items():
        below, above = places & _PARTS - 1, places >> HALF
        if below and above:
            both.append(model)
            continue
        table = tables[bool(above)]
        price = cost[model.bit_length() - 1]
        for part in _MEETS[below or above]:
            table[part] += price
    if not both:
        return None
    among = sum(both)
    on = [models & among for models in owners]
    return _Both(_unions(*on[:HALF]), _unions(*on[HALF:]), _Sums(both, cost))


def _sums(one: float = 0, two: float = 0, three: float = 0, four: float = 0) -> list[float]:
    """Return the sum of each part of four numbers, by mask."""
    low, high = one + two, three + four
    below = (0, one, two, low, three, one + three, two + three, low + three)
    return [*below, four, one + four, two + four, low + four, high, one + high, two + high, low + high]


def _unions(one: int = 0, two: int = 0, three: int = 0, four: int = 0) -> tuple[int, ...]:
    """Return the union of each part of four masks, by mask."""
    low, high = one | two, three | four
    below = (0, one, two, low, three, one | three, two | three, low | three)
    return (*below, four, one | four, two | four, low | four, high, one | high, two | high, low | high)


def taking(wiring: Wiring, gpus: GpuSet, now: Occupancy) -> Taking:
    """Return what taking one set costs."""
    cost = sum(now.cost[model] for model in gpu_indices(GpuSet(victims(gpus, now.owner))))
    return Taking(gpus, cost, judge_set(wiring, gpus))


def cheaper(one: Taking, two: Taking, use: NvlinkUse) -> bool:
    """Say whether the first is to be preferred."""
    if one.cost != two.cost or one.quality == two.quality:
        return (one.cost, one.gpus) < (two.cost, two.gpus)
    return (one.quality < two.quality) is (use is NvlinkUse.IGNORE)


def victims(gpus: int, owner: Sequence[int]) -> int:
    """Return the models on any of these GPUs, as a mask."""
    found = 0
    while gpus:
        low = gpus & -gpus
        found |= owner[low.bit_length() - 1]
        gpus ^= low
    return found
