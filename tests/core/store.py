"""Plays the weight cache around a Scheduler: fetches, readings and verifications in fixed times, on virtual time.

Models that share a copy share a fetch; whoever joins one is told that it runs and how it ends, not how it gets on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swapd.core import events as ev
from swapd.core.commands import (
    CancelFetch,
    Command,
    FetchWeights,
    KeepWeights,
    RefetchWeights,
    StopWarming,
    VerifyWeights,
    WarmWeights,
)
from swapd.core.ids import SECOND, Bytes, ModelName, seconds
from swapd.core.reasons import FetchFailure

if TYPE_CHECKING:
    from tests.core.driver import World

SIZE = 1_000_000


@dataclass
class Remote:
    """How the weights of one model come, and what is true of its copy."""

    fetch: float = 30.0
    #: before it leaves the queue of fetches
    queued: float = 0.0
    #: tells how it gets on every second
    progress: bool = True
    #: fails after ``fetch`` instead
    fails: FetchFailure | None = None
    #: falls silent after so many seconds, and ends only by ``finish`` or a cancellation
    silent_after: float | None = None
    #: time to read it into the page cache, and whether all of it gets there
    read: float = 2.0
    whole: bool = True
    #: time to verify it, and what comes out
    verify: float = 5.0
    intact: bool = True
    size: int = SIZE


class Store:
    """What lies in the cache, and what is under way."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.remotes: dict[str, Remote] = {}
        self.cached: dict[ModelName, Bytes] = {}
        #: how much fits, with fetches that have begun
        self.limit: int | None = None
        self._tickets: dict[tuple[str, str], int] = {}
        self._count = 0
        self._begun: dict[str, int] = {}
        self._waiting: dict[str, Callable[[], bool]] = {}
        #: models that have joined a fetch, by the one it was ordered for first
        self._joined: dict[str, list[ModelName]] = {}

    def remote(self, model: str, **how: object) -> Remote:
        """Say how the weights of a model come."""
        self.remotes[model] = Remote(**how)  # type: ignore[arg-type]
        return self.remotes[model]

    def put(self, *models: str, at: float | None = None) -> None:
        """Let copies lie in the cache."""
        self._tell(at, lambda: [self._put(model) for model in models])

    def delete(self, model: str, at: float | None = None) -> None:
        """Let somebody delete a copy by hand."""
        self._tell(at, lambda: self._drop(model))

    def finish(self, model: str, at: float) -> None:
        """End a silent fetch."""
        self._fetched(model, at, 0.0)

    def carry_out(self, command: Command, now: float) -> None:
        match command:
            case FetchWeights() if ("fetch", str(command.model)) not in self._tickets:
                self._fetch(str(command.model), now)
            case RefetchWeights():
                self.delete(str(command.model), now)
                self._fetch(str(command.model), now)
            case CancelFetch():
                self._end(command.model, now, FetchFailure.CANCELLED)
            case WarmWeights():
                remote = self._of(command.model)
                self._warmed(command.model, now + remote.read, whole=remote.whole, again=True)
            case StopWarming():
                self._warmed(command.model, now, whole=False, again=False)
            case VerifyWeights():
                self._verify(str(command.model), now)
            case KeepWeights():
                self._look_soon(now)
            case FetchWeights() | _:
                pass

    def _of(self, model: str) -> Remote:
        return self.remotes.setdefault(str(model), Remote())

    def _sharing(self, model: str) -> list[ModelName]:
        """Return the models that have the same copy."""
        copy = self.world.specs[ModelName(model)].copy if model in self.world.specs else ""
        return [name for name, spec in self.world.specs.items() if copy and spec.copy == copy] or [ModelName(model)]

    def _put(self, model: str) -> None:
        self.cached.update({one: Bytes(self._of(model).size) for one in self._sharing(model)})

    def _drop(self, model: str) -> None:
        for one in self._sharing(model):
            self.cached.pop(one, None)

    def _tell(self, at: float | None, change: Callable[[], object]) -> None:
        def make() -> ev.Event:
            change()
            return ev.WeightsCached(self.world.now, dict(self.cached))

        self.world.plan(self.world.now / SECOND if at is None else at, make)

    def _ticket(self, kind: str, model: str) -> Callable[[], bool]:
        """Begin a job; the result says whether it is still the one under way."""
        self._count += 1
        number = self._tickets[kind, model] = self._count
        return lambda: self._tickets.get((kind, model)) == number

    def _fetch(self, model: str, now: float) -> None:
        remote, name, world = self._of(model), ModelName(model), self.world
        first = next((one for one in self._sharing(model) if ("fetch", one) in self._tickets), None)
        if first is not None:
            self._joined.setdefault(first, []).append(name)
            world.plan(now, lambda: ev.FetchStarted(world.now, name))
            return
        current = self._ticket("fetch", model)
        begun = now + remote.queued
        world.plan(begun, lambda: ev.FetchStarted(world.now, name) if current() else None)
        if self.limit is None:
            self._run(model, begun, current)
        else:
            self._waiting[model] = current
            self._look_soon(begun)

    @property
    def used(self) -> int:
        """What is on the disk or promised."""
        return sum(self._sizes(self.cached).values()) + sum(self._begun.values())

    def _sizes(self, models: Iterable[ModelName]) -> dict[ModelName, Bytes]:
        """Return the sizes of the copies of models, each by the first model that has it."""
        return {self._sharing(name)[0]: self.cached[name] for name in models}

    def _look_soon(self, at: float) -> None:
        for model in self._waiting:
            self.world.plan(at, lambda model=model: self._look(model))

    def _look(self, model: str) -> ev.Event | None:
        """Let a fetch begin if there is room, evict the oldest copies for it, or say what is lacking."""
        current = self._waiting.get(model)
        if current is None or not current() or self.limit is None:
            self._waiting.pop(model, None)
            return None
        world, now = self.world, self.world.now / SECOND
        lacking = self.used + self._of(model).size - self.limit
        told = world.core.standings(world.now)
        kept = {name for name, how in told.items() if how.held or how.pinned}
        able = list(self._sizes(name for name in self.cached if not kept.intersection(self._sharing(name))))
        if sum(self.cached[name] for name in able) < lacking:
            lacking -= sum(self.cached[name] for name in able)
            world.plan(now + 5, lambda: self._look(model))
            return ev.FetchWaits(world.now, ModelName(model), "the cache is full", Bytes(lacking))
        if lacking <= 0:
            del self._waiting[model]
            self._begun[model] = self._of(model).size
            self._run(model, now, current)
            return None
        while self.used + self._of(model).size > self.limit:
            self._drop(able.pop(0))
        world.plan(now, lambda: self._look(model))
        return ev.WeightsCached(world.now, dict(self.cached))

    def _run(self, model: str, begun: float, current: Callable[[], bool]) -> None:
        """Plan the facts of a fetch that begins to bring bytes."""
        remote, name, world = self._of(model), ModelName(model), self.world
        last = remote.fetch if remote.silent_after is None else remote.silent_after
        rate = remote.size / remote.fetch if remote.fetch else 0.0
        for second in range(1, int(last) + 1 if remote.progress else 0):
            done = Bytes(int(remote.size * second / remote.fetch))
            world.plan(
                begun + second,
                lambda done=done: (
                    ev.FetchProgressed(world.now, name, done, Bytes(remote.size), rate) if current() else None
                ),
            )
        if remote.silent_after is not None:
            return
        if remote.fails is not None:
            failure = remote.fails
            world.plan(begun + remote.fetch, lambda: self._failed(model, failure) if current() else None)
        else:
            self._fetched(model, begun + remote.fetch, remote.fetch, current)

    def _fetched(self, model: str, at: float, took: float, current: Callable[[], bool] = lambda: True) -> None:
        name, size = ModelName(model), Bytes(self._of(model).size)

        def cached() -> ev.Event | None:
            if not current():
                return None
            self._put(model)
            self._begun.pop(model, None)
            return ev.WeightsCached(self.world.now, dict(self.cached))

        def fetched() -> ev.Event | None:
            if not current() or self._tickets.pop(("fetch", model), None) is None:
                return None
            for one in self._joined.pop(model, []):
                self.world.plan(
                    self.world.now / SECOND,
                    lambda one=one: ev.WeightsFetched(self.world.now, one, size, seconds(took)),
                )
            return ev.WeightsFetched(self.world.now, name, size, seconds(took))

        self.world.plan(at, cached)
        self.world.plan(at, fetched)

    def _failed(self, model: str, failure: FetchFailure) -> ev.Event:
        del self._tickets["fetch", model]
        self._begun.pop(model, None)
        self._look_soon(self.world.now / SECOND)
        return ev.FetchFailed(self.world.now, ModelName(model), failure, f"the source of {model} says: {failure}")

    def _end(self, model: str, now: float, failure: FetchFailure) -> None:
        if ("fetch", str(model)) in self._tickets:
            current = self._ticket("fetch", str(model))
            self.world.plan(now, lambda: self._failed(str(model), failure) if current() else None)

    def _warmed(self, model: str, at: float, *, whole: bool, again: bool) -> None:
        if not again and ("warm", str(model)) not in self._tickets:
            return
        current = self._ticket("warm", str(model))

        def make() -> ev.Event | None:
            if not current():
                return None
            del self._tickets["warm", str(model)]
            read = Bytes(self._of(model).size if whole else 0)
            return ev.WeightsWarmed(self.world.now, ModelName(model), read, Bytes(0), whole)

        self.world.plan(at, make)

    def _verify(self, model: str, now: float) -> None:
        remote, name = self._of(model), ModelName(model)
        if not remote.intact:
            self.delete(model, now + remote.verify)
        detail = "" if remote.intact else "a checksum differs"
        intact = remote.intact
        self.world.plan(
            now + remote.verify, lambda: ev.WeightsVerified(self.world.now, name, intact=intact, detail=detail)
        )
