"""Decides whose GPUs on a board are the cheapest to take, when a model needs whole GPUs and others are on them.

Rules that hold here:

* The least sum of the owners' costs wins, then the better class of sets, then the lowest mask. A set that costs nothing
  ends the search. Models that ignore NVLink take the worse class of equals.
* A model that lies on several GPUs is paid once.
* Tables of 16 entries hold what belongs to each part of the lower and of the upper half of a board, so that a set costs
  two look-ups, and four where somebody has several of the GPUs.
* GPUs have equal owners or none in common, as whole GPUs have. Others are priced set by set, which takes long.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from swapd.core.catalog import NvlinkUse
from swapd.core.ids import NO_GPUS, GpuSet, gpu_indices
from swapd.core.quality import Quality, judge_set
from swapd.core.tables import HALF, Board, SetClass
from swapd.core.wiring import Wiring

_HALF_MASK: Final = (1 << HALF) - 1
_NEVER: Final = float("inf")
#: whoever is on a blocked GPU, above the bits of all owners of a board
_BLOCKED: Final = 1 << 2 * HALF
#: sums of the same costs may differ by this much
_ROUNDING: Final = 1 + 1e-9


class Occupancy(NamedTuple):
    """Who is on the GPUs of the node, and what it costs to lose them."""

    #: by GPU: the models on it, as a mask
    owner: Sequence[int]
    #: by model: what losing it costs, at least 0
    cost: Sequence[float]
    #: GPUs that cannot be had
    blocked: int
    #: by owner mask: the sum of the costs
    price: dict[int, float]
    #: two GPUs have one owner
    several: bool
    #: owners of two GPUs are neither equal nor apart
    mixed: bool


def occupancy(owner: Sequence[int], cost: Sequence[float], blocked: int) -> Occupancy:
    """Take stock of the owners."""
    price = {models: cost[models.bit_length() - 1] for models in owner if models}
    mixed = False
    groups = [models for models in price if models & (models - 1)]
    if groups:  # the masks of one model each are equal or apart anyway
        price |= {models: sum(cost[model] for model in gpu_indices(GpuSet(models))) for models in groups}
        mixed = sum(price).bit_count() != sum(map(int.bit_count, price))
    price[0] = 0
    several = len(price) <= len(owner) - owner.count(0)
    return Occupancy(owner, cost, blocked, price, several, mixed)


class Taking(NamedTuple):
    """A set of GPUs that can be taken from their owners."""

    gpus: GpuSet
    #: sum of the owners' costs
    cost: float
    quality: Quality


def shares(board: Board, now: Occupancy) -> list[float]:
    """Return by place an equal part of what its owner costs, beyond all costs if blocked; 0 where owners are mixed."""
    price = now.price
    owners = [now.owner[gpu] for gpu in board.gpus]
    if now.mixed:
        return [0] * len(owners)
    if now.several:
        found = [price[owner] / owners.count(owner) for owner in owners]
    else:
        found = [price[owner] for owner in owners]
    if now.blocked & board.mask:
        found = [_NEVER if now.blocked >> gpu & 1 else share for gpu, share in zip(board.gpus, found, strict=True)]
    return found


def least_of(prices: Iterable[float], size: int) -> float:
    """Return what a set costs at least, when its places have these shares."""
    return sum(sorted(prices)[:size]) / _ROUNDING


def cheapest(board: Board, size: int, now: Occupancy, use: NvlinkUse) -> Taking | None:
    """Return the cheapest set on a board; ``None``: each has a blocked GPU, or there is none of use."""
    classes = useful(board.classes(size), use)
    if now.mixed:
        return _walk_mixed(classes, now)
    if now.several:
        return _walk_owners(classes, *_owners(board, now))
    alone = shares(board, now)
    return _walk(classes, _sums(*alone[:HALF]), _sums(*alone[HALF:]))


def useful(classes: Sequence[SetClass], use: NvlinkUse) -> Sequence[SetClass]:
    """Return the classes a model may have, those to be taken first at equal costs first."""
    if use is NvlinkUse.IGNORE:
        return classes[::-1]
    if use is NvlinkUse.REQUIRED:
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


def _owners(board: Board, now: Occupancy) -> tuple[list[int], list[float]]:
    """Return by place the owner as a bit, and by bit what the owner costs."""
    known: dict[int, int] = {0: 0}
    owners: list[int] = []
    costs: list[float] = []
    for gpu in board.gpus:
        models = now.owner[gpu]
        owner = known.get(models)
        if owner is None:
            owner = known[models] = 1 << len(costs)
            costs.append(now.price[models])
        owners.append(owner)
    if now.blocked & board.mask:
        owners = [_BLOCKED if now.blocked >> gpu & 1 else owner for gpu, owner in zip(board.gpus, owners, strict=True)]
    return owners, costs


def _walk_owners(classes: Iterable[SetClass], owners: Sequence[int], costs: Sequence[float]) -> Taking | None:
    """Return the first of the cheapest sets, where somebody has several GPUs."""
    lower, upper = _unions(*owners[:HALF]), _unions(*owners[HALF:])
    some, others = _sums(*costs[:HALF]), _sums(*costs[HALF:])
    others += (_NEVER,) * len(others)  # with the bit of those on blocked GPUs
    best, chosen, found = _NEVER, NO_GPUS, None
    for quality, _, halves in classes:
        for gpus, below, above in halves:
            who = lower[below] | upper[above]
            price = some[who & _HALF_MASK] + others[who >> HALF]
            if price < best:
                best, chosen, found = price, gpus, quality
                if not price:
                    return Taking(gpus, price, quality)
    return None if found is None else Taking(chosen, best, found)


def _walk_mixed(classes: Iterable[SetClass], now: Occupancy) -> Taking | None:
    """Return the first of the cheapest sets, where models share some of their GPUs only."""
    best: Taking | None = None
    for quality, sets, _ in classes:
        for gpus in sets:
            if not gpus & now.blocked:
                price = price_of(gpus, now)
                if best is None or price < best.cost:
                    best = Taking(gpus, price, quality)
    return best


def _sums(one: float = 0, two: float = 0, three: float = 0, four: float = 0) -> tuple[float, ...]:
    """Return the sum of each part of four numbers, by mask."""
    low, high = one + two, three + four
    below = (0, one, two, low, three, one + three, two + three, low + three)
    return (*below, four, one + four, two + four, low + four, high, one + high, two + high, low + high)


def _unions(one: int = 0, two: int = 0, three: int = 0, four: int = 0) -> tuple[int, ...]:
    """Return the union of each part of four masks, by mask."""
    low, high = one | two, three | four
    below = (0, one, two, low, three, one | three, two | three, low | three)
    return (*below, four, one | four, two | four, low | four, high, one | high, two | high, low | high)


def taking(wiring: Wiring, gpus: GpuSet, now: Occupancy) -> Taking:
    """Return what taking one set costs."""
    return Taking(gpus, price_of(gpus, now), judge_set(wiring, gpus))


def price_of(gpus: int, now: Occupancy) -> float:
    """Return the sum of the costs of all owners of a set."""
    return sum(now.cost[model] for model in gpu_indices(GpuSet(victims(gpus, now.owner))))


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
