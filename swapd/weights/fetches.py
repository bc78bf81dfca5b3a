"""Queues fetches, starts as many as may run, and answers for each.

Models that want the same weights share one fetch. Fetches that somebody waits for go before those that are made ahead.
One that waits for room does not run: others that find room go on meanwhile, and it gets a turn again when it has some.
Each order is answered once for each model, from a task and never inside the order.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from swapd.aio.supervise import Tasks
from swapd.core.events import FetchFailed, FetchProgressed, FetchStarted, FetchWaits, WeightsFetched
from swapd.core.ids import SECOND, Bytes, Duration, ModelName
from swapd.core.reasons import FetchFailure
from swapd.weights.facts import Fact
from swapd.weights.flight import Flight, Tools
from swapd.weights.inventory import wanted
from swapd.weights.room import TooLargeError
from swapd.weights.settings import Progress, Weights
from swapd.weights.sources.base import SourceError
from swapd.weights.sources.http import shown
from swapd.weights.transfer import CorruptError

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Entry:
    flight: Flight
    #: ``None``: queued
    task: asyncio.Task[None] | None = None
    #: it is one of those that may run
    runs: bool = False
    #: set when it has room again and may run; ``None``: it does not wait for its turn
    turn: asyncio.Future[None] | None = None
    #: it waits for room, and what was told last of why
    waits: bool = False
    told: str = ""

    @property
    def waits_for_turn(self) -> bool:
        return self.task is None or (self.turn is not None and not self.runs)


class Fetches:
    """All fetches of the node; on the event loop."""

    def __init__(
        self, tools: Tools, *, post: Callable[[Fact], None], later: Callable[[Callable[[], Fact]], None], tasks: Tasks
    ) -> None:
        """``later`` makes and posts a fact when the order that caused it is over."""
        self._tools = tools
        self._post = post
        self._later = later
        self._tasks = tasks
        #: by weights, in the order of their first order
        self._entries: dict[str, _Entry] = {}
        #: those that have begun and not ended, also when nobody wants them any more
        self._flying: list[_Entry] = []
        self._closed = False
        self.fetched_bytes = 0

    @property
    def running(self) -> int:
        """Return how many run; those that wait for room do not."""
        return sum(entry.runs for entry in self._flying)

    @property
    def queued(self) -> int:
        """Return how many wait for their turn, or for room."""
        return sum(not entry.runs for entry in self._entries.values())

    def order(self, model: ModelName, weights: Weights, *, ahead: bool, fresh: bool = False) -> None:
        """Fetch for a model; joins a fetch of the same weights."""
        if self._closed:
            return
        name = wanted(weights)
        entry = self._entries.get(name)
        if entry is None:

            def waits(detail: str, lacking: int = 0) -> None:
                self._waits(entry, detail, lacking)

            async def turn() -> None:
                await self._turn(entry)

            flight = Flight(weights, self._tools, ahead, waits=waits, turn=turn, fresh=fresh)
            entry = self._entries[name] = _Entry(flight)
        elif entry.task is not None and model not in entry.flight.models:
            self._later(lambda: FetchStarted(self._tools.now(), model))
        if model not in entry.flight.models:
            entry.flight.models.append(model)
        entry.flight.ahead = entry.flight.ahead and ahead
        self._start()

    def cancel(self, model: ModelName) -> None:
        """End the wish of a model; a fetch that nobody wants any more ends, and leaves what has come."""
        detail = f"the fetch for {model} was cancelled"
        for name, entry in tuple(self._entries.items()):
            if model in entry.flight.models:
                entry.flight.models.remove(model)
                self._later(lambda: FetchFailed(self._tools.now(), model, FetchFailure.CANCELLED, detail))
                if not entry.flight.models:
                    del self._entries[name]  # whoever orders it again must not join one that ends
                    if entry.task is not None:
                        entry.task.cancel()

    def progress(self) -> dict[ModelName, Progress]:
        """Return how far the running fetches have come."""
        return {
            model: entry.flight.progress()
            for entry in self._entries.values()
            if entry.task is not None
            for model in entry.flight.models
        }

    def close(self) -> None:
        """Start nothing and answer nothing any more."""
        self._closed = True

    def _start(self) -> None:
        while not self._closed and self.running < self._tools.settings.max_parallel_fetches:
            waiting = [item for item in self._entries.items() if item[1].waits_for_turn]
            if not waiting:
                return
            # of equals who has room, then the first
            name, entry = min(waiting, key=lambda item: (item[1].flight.ahead, item[1].turn is None))
            entry.runs = True
            if entry.turn is not None:
                entry.turn.set_result(None)
            else:
                self._flying.append(entry)
                entry.task = self._tasks.start(self._fly(name, entry), name="fetch weights")

    async def _fly(self, name: str, entry: _Entry) -> None:
        flight = entry.flight
        for model in tuple(flight.models):
            self._post(FetchStarted(self._tools.now(), model))
        ticker = self._tasks.start(self._tick(entry), name="progress of a fetch")
        try:
            answer = await self._answer(flight)
        finally:
            ticker.cancel()
            self._flying.remove(entry)
            self.fetched_bytes += flight.came
            if self._entries.get(name) is entry:
                del self._entries[name]
            self._start()
        for model in tuple(flight.models):
            self._post(answer(model))

    async def _answer(self, flight: Flight) -> Callable[[ModelName], Fact]:
        """Carry a fetch out; return what to tell each model."""
        began, source = self._tools.now(), shown(flight.weights.source)
        try:
            await flight.run()
        except SourceError as error:
            failure = FetchFailure.REFUSED if error.permanent else FetchFailure.UNREACHABLE
            detail = str(error)
        except CorruptError as error:
            failure, detail = FetchFailure.CORRUPT, f"{error}, twice"
        except TooLargeError as error:
            failure, detail = FetchFailure.TOO_LARGE, str(error)
        except OSError as error:
            failure, detail = FetchFailure.DISK, f"the disk of the cache refuses: {error}"
        except Exception as error:  # noqa: BLE001 - drivers of sources have errors of their own; each order is answered
            _log.exception("fetch_failed_unexpectedly", models=flight.models, source=source)
            failure, detail = FetchFailure.UNREACHABLE, f"{type(error).__name__}: {error}"
        else:
            took = Duration(self._tools.now() - began - flight.waited)
            _ = self._tasks.start(self._tools.room.clear(wanted(flight.weights)), name="remove damaged copies")
            _log.debug("weights_fetched", models=flight.models, bytes=flight.came, seconds=took / SECOND)
            return lambda model: WeightsFetched(self._tools.now(), model, Bytes(flight.came), took)
        _log.debug("weights_not_fetched", models=flight.models, source=source, failure=failure, detail=detail)
        return lambda model: FetchFailed(self._tools.now(), model, failure, f"the weights of {model}: {detail}")

    async def _tick(self, entry: _Entry) -> None:
        known = -1
        while True:
            await asyncio.sleep(self._tools.settings.progress_period / SECOND)
            progress = entry.flight.progress()
            entry.flight.tick()
            if progress.done != known and not entry.waits:
                known = progress.done
                for model in tuple(entry.flight.models):
                    come = FetchProgressed(self._tools.now(), model, progress.done, progress.total, progress.rate)
                    self._post(come)

    def _waits(self, entry: _Entry | None, detail: str, lacking: int) -> None:
        if entry is None:
            return
        entry.waits = bool(detail)
        if entry.waits:
            entry.runs = False
            self._start()
        if entry.waits and (lacking > 0 or entry.told != detail):
            entry.told = detail
            for model in tuple(entry.flight.models):
                self._post(FetchWaits(self._tools.now(), model, detail, Bytes(lacking)))

    async def _turn(self, entry: _Entry | None) -> None:
        """Let a fetch that has waited for room go on as soon as it may run."""
        if entry is None or entry.runs:
            return
        entry.turn = asyncio.get_running_loop().create_future()
        try:
            self._start()
            await entry.turn
        finally:
            entry.turn = None
