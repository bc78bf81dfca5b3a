"""Talks to a core like an adversarial weight cache: every answer the contract allows, early, late, or another one."""

from collections.abc import Iterator

from swapd.core.events import (
    Event,
    FetchFailed,
    FetchProgressed,
    FetchStarted,
    FetchWaits,
    WeightsCached,
    WeightsFetched,
    WeightsVerified,
    WeightsWarmed,
)
from swapd.core.ids import Bytes, Instant, ModelName, seconds
from swapd.core.reasons import FetchFailure
from tests.properties.books import Books

SIZE = Bytes(1_000)
_FAILURES = (
    FetchFailure.UNREACHABLE,
    FetchFailure.REFUSED,
    FetchFailure.CORRUPT,
    FetchFailure.TOO_LARGE,
    FetchFailure.DISK,
)

#: facts that are told one after the other
Told = tuple[Event, ...]


def answers(books: Books, now: Instant, how: int) -> list[Told]:
    """Return what the cache may tell next of each order that is not answered, and of fetches that get on."""
    weights = books.weights
    told = [facts for model in sorted(weights.fetches) for facts in _of_fetch(books, model, now, how)]
    told += [
        (WeightsWarmed(now, model, SIZE, Bytes(0), whole=how % 3 > 0 and not stopped),)
        for model, stopped in sorted(weights.readings.items())
    ]
    for model in sorted(weights.checks):
        intact = how % 2 == 0 and model in weights.cached
        verified = WeightsVerified(now, model, intact, "" if intact else "a checksum differs")
        told.append((verified,) if intact else (without(books, model, now), verified))
    return told


def healthy(books: Books, now: Instant) -> list[Told]:
    """Return the good answer to each order that is not answered."""
    weights = books.weights
    told = [
        (_cancelled(model, now),) if fetch.cancelled else _arrival(books, model, now)
        for model, fetch in sorted(weights.fetches.items())
    ]
    told += [(WeightsWarmed(now, model, SIZE, Bytes(0), whole=True),) for model in sorted(weights.readings)]
    told += [
        (WeightsVerified(now, model, model in weights.cached, "" if model in weights.cached else "not cached"),)
        for model in sorted(weights.checks)
    ]
    return told


def with_copy(books: Books, model: ModelName, now: Instant) -> WeightsCached:
    """Tell that a model has a copy, however it came there."""
    return WeightsCached(now, {**books.weights.cached, model: SIZE})


def without(books: Books, model: ModelName, now: Instant) -> WeightsCached:
    """Tell that a model has no copy any more."""
    return WeightsCached(now, {name: size for name, size in books.weights.cached.items() if name != model})


def _of_fetch(books: Books, model: ModelName, now: Instant, how: int) -> Iterator[Told]:
    fetch = books.weights.fetches[model]
    if fetch.cancelled and how % 4:
        yield (_cancelled(model, now),)
        return
    if not fetch.begun:
        yield (FetchStarted(now, model),)
    else:
        done = Bytes(SIZE * (how % 9) // 8)
        yield (FetchProgressed(now, model, done, SIZE, rate=float((0, 20, 200, 2_000)[how % 4])),)
        yield (FetchWaits(now, model, "the disk is full", Bytes(SIZE * (how % 5) // 2)),)
    if how % 2:
        yield _arrival(books, model, now)
    if how % 3 == 0:
        yield (FetchFailed(now, model, _FAILURES[how % len(_FAILURES)], "the source says so"),)
    if how % 8 == 7:
        yield (WeightsFetched(now, model, SIZE, seconds(3)),)


def _arrival(books: Books, model: ModelName, now: Instant) -> Told:
    return with_copy(books, model, now), WeightsFetched(now, model, SIZE, seconds(3))


def _cancelled(model: ModelName, now: Instant) -> FetchFailed:
    return FetchFailed(now, model, FetchFailure.CANCELLED, "it was cancelled")
