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
    told = [
        tuple(fact for facts in of_all for fact in facts)
        for models in weights.flights()
        for of_all in zip(*(_of_fetch(books, model, now, how) for model in _next(books, models)), strict=True)
    ]
    told += [
        (WeightsWarmed(now, model, SIZE, Bytes(0), whole=how % 3 > 0 and not stopped),)
        for model, stopped in sorted(weights.readings.items())
    ]
    for model in sorted(weights.checks):
        intact = how % 2 == 0 and model in weights.cached
        verified = WeightsVerified(now, model, intact, "" if intact else "a checksum differs")
        told.append((verified,) if intact else (without(books, model, now), verified))
    return told


def wants_of_room(books: Books, now: Instant, how: int) -> list[Told]:
    """Return what the cache may tell of each fetch that would need more room on the disk than there is."""
    fetches = books.weights.fetches
    return [
        (
            *(FetchStarted(now, model) for model in models if not fetches[model].begun),
            *(_wait(model, now, 1 + (how >> 4) % 4) for model in models),
        )
        for models in books.weights.flights()
    ]


def healthy(books: Books, now: Instant) -> list[Told]:
    """Return the good answer to each order that is not answered."""
    weights = books.weights
    told = [tuple(fact for model in models for fact in _good_end(books, model, now)) for models in weights.flights()]
    told += [(WeightsWarmed(now, model, SIZE, Bytes(0), whole=True),) for model in sorted(weights.readings)]
    told += [
        (WeightsVerified(now, model, model in weights.cached, "" if model in weights.cached else "not cached"),)
        for model in sorted(weights.checks)
    ]
    return told


def with_copy(books: Books, model: ModelName, now: Instant) -> WeightsCached:
    """Tell that a model has a copy, and who shares it, however it came there."""
    return WeightsCached(now, {**books.weights.cached, **dict.fromkeys(books.weights.sharers(model), SIZE)})


def without(books: Books, model: ModelName, now: Instant) -> WeightsCached:
    """Tell that a model has no copy any more, nor who shared it."""
    gone = books.weights.sharers(model)
    return WeightsCached(now, {name: size for name, size in books.weights.cached.items() if name not in gone})


def _next(books: Books, models: list[ModelName]) -> list[ModelName]:
    """Return who of those that share a fetch hears of it next: whoever has joined it, else all."""
    joined = [model for model in models if not books.weights.fetches[model].begun]
    return joined or models


def _good_end(books: Books, model: ModelName, now: Instant) -> Told:
    return (_cancelled(model, now),) if books.weights.fetches[model].cancelled else _arrival(books, model, now)


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
        yield (_wait(model, now, how % 5),)
    if how % 2:
        yield _arrival(books, model, now)
    if how % 3 == 0:
        yield (FetchFailed(now, model, _FAILURES[how % len(_FAILURES)], "the source says so"),)
    if how % 8 == 7:
        yield (WeightsFetched(now, model, SIZE, seconds(3)),)


def _arrival(books: Books, model: ModelName, now: Instant) -> Told:
    return with_copy(books, model, now), WeightsFetched(now, model, SIZE, seconds(3))


def _wait(model: ModelName, now: Instant, halves: int) -> FetchWaits:
    return FetchWaits(now, model, "the disk is full", Bytes(SIZE * halves // 2))


def _cancelled(model: ModelName, now: Instant) -> FetchFailed:
    return FetchFailed(now, model, FetchFailure.CANCELLED, "it was cancelled")
