"""Takes turns at what is asked while NVML is up: polls, readings that the core wants now, discoveries; hears events.

Rules that hold here:

* One question after the other. A poll that is due comes first, then the core's orders, then a discovery.
* Whatever calls for a poll or a discovery gets it soon, but not sooner than ``hurry`` after the last one: a storm of
  events costs a fixed number of calls.
* A discovery that fails decides nothing; the polls do.
* An event is attributed by the address of its handle. One of a GPU that is not known marks nobody and has everything
  looked at.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from swapd.core.ids import SECOND, Duration, Instant
from swapd.core.topology import GpuHealth
from swapd.gpus.discover import discover
from swapd.gpus.errors import DriverError
from swapd.gpus.line import Line
from swapd.gpus.memory import Memory
from swapd.gpus.nvml import Nvml
from swapd.gpus.orders import MemoryOrders
from swapd.gpus.picture import Picture
from swapd.gpus.poll import Poll, Questions, poll
from swapd.gpus.readings import DriverEvent
from swapd.gpus.settings import GpuSettings
from swapd.gpus.standing import Standing
from swapd.gpus.watch import Watches
from swapd.gpus.xid import XidKind, kind_of

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the rounds work with."""

    settings: GpuSettings
    now: Callable[[], Instant]
    nvml: Nvml
    line: Line
    standing: Standing
    picture: Picture
    memory: Memory
    orders: MemoryOrders


@dataclass(slots=True)
class Tally:
    """What was done so far."""

    polls: int = 0
    discoveries: int = 0
    last_good_poll: Instant | None = None
    xids: dict[tuple[int | None, int], int] = field(default_factory=dict)


class Rounds:
    """The questions to a driver that is up; on the event loop, driven by one task."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.tally = Tally()
        self._watches = Watches(parts.nvml, wait=parts.settings.event_wait, report=self._event)
        self._nudge = asyncio.Event()
        self._count = 0
        self._last_poll = self._last_discovery = 0.0
        self._next_poll = self._next_discovery = 0.0

    async def begin(self) -> None:
        """Discover, after NVML was begun; raises ``DriverError``."""
        await self._discover()
        self._next_poll = 0.0

    async def end(self) -> None:
        """Forget every handle and end the event threads, before NVML is shut down."""
        self.part()
        await self._watches.end()

    def part(self) -> None:
        """Forget every handle and let the event threads end when they can."""
        self._parts.picture.devices = {}
        self._watches.tell_to_end()

    async def next(self) -> None:
        """Do the next thing that is due, or sleep until something is."""
        now = _clock()
        if self._next_poll <= now:
            await self._poll()
        elif self._parts.orders.waiting():
            await self._glimpse()
        elif self._next_discovery <= now:
            await self._rediscover()
        else:
            await self.sleep(min(self._next_poll, self._next_discovery) - now)

    async def sleep(self, seconds: float | None) -> None:
        """Sleep until something wants doing, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudge.wait()
        self._nudge.clear()

    def wake(self) -> None:
        """End the sleep, or the next one."""
        self._nudge.set()

    def hush(self) -> None:
        """Forget what would end the next sleep."""
        self._nudge.clear()

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _poll(self) -> None:
        """Ask everything: memory, processes, health."""
        picture, standing = self._parts.picture, self._parts.standing
        stalls = standing.stalls
        found = await self._ask(health=True)
        self.tally.polls += 1
        error = picture.failure(found)
        if error is None:
            self.tally.last_good_poll = self._parts.now()
            other_count = isinstance(found.count, int) and found.count != self._count
            if picture.polled(found) or other_count:
                self._discover_soon()
        standing.polled(error, in_time=stalls == standing.stalls)
        settings = self._parts.settings
        self._last_poll = _clock()
        self._next_poll = self._last_poll + _s(settings.hurry if standing.unsettled else settings.poll_period)

    async def _glimpse(self) -> None:
        """Ask for memory and processes only, because the core wants to know now."""
        if self._parts.picture.glimpsed(await self._ask(health=False)):
            self._poll_soon()

    async def _ask(self, *, health: bool) -> Poll:
        parts = self._parts
        orders = parts.orders.waiting()
        parts.memory.before_poll()
        questions = Questions(health=health, processes=parts.memory.wants_processes)
        devices = dict(parts.picture.devices)
        found = await parts.line.ask(
            partial(poll, parts.nvml, devices, questions, parts.now), deadline=parts.settings.poll_deadline
        )
        reading = parts.memory.after_poll(parts.now(), found, parts.picture.topology.gpus)
        parts.orders.publish(orders, reading)
        return found

    async def _rediscover(self) -> None:
        try:
            await self._discover()
        except DriverError as error:
            _log.warning("gpus_not_discovered", error=str(error))
            self._look_again()
        self._parts.standing.show()

    async def _discover(self) -> None:
        parts = self._parts
        try:
            found = await parts.line.ask(
                partial(discover, parts.nvml, parts.settings, parts.picture.found.gpus),
                deadline=parts.settings.discovery_deadline,
            )
        finally:
            self._last_discovery = _clock()
        self.tally.discoveries += 1
        self._count = found.count
        lost = any(gpu.health is GpuHealth.LOST for gpu in found.topology.gpus)
        period = parts.settings.search_period if lost else parts.settings.discovery_period
        self._next_discovery = self._last_discovery + _s(period)
        settled = parts.picture.discovered(found)
        self._watches.cover(parts.picture.devices.values())
        if not settled:
            self._look_again()

    # ── what calls for more ──────────────────────────────────────────────────────────────────────────────────────

    def _look_again(self) -> None:
        """Let a poll have its say, then discover once more."""
        self._next_discovery = self._last_discovery + _s(self._parts.settings.poll_period)
        self._poll_soon()

    def _discover_soon(self) -> None:
        self._next_discovery = min(self._next_discovery, self._last_discovery + _s(self._parts.settings.hurry))
        self.wake()

    def _poll_soon(self) -> None:
        self._next_poll = min(self._next_poll, self._last_poll + _s(self._parts.settings.hurry))
        self.wake()

    def _event(self, event: DriverEvent) -> None:
        """Hear of an Xid; other events are not asked for."""
        picture = self._parts.picture
        if event.xid is None or not picture.devices:
            return
        gpu = next((index for index, device in picture.devices.items() if device == event.device), None)
        key = (gpu, event.xid)
        self.tally.xids[key] = self.tally.xids.get(key, 0) + 1
        kind = kind_of(event.xid)
        _log.warning("xid", gpu=gpu, xid=event.xid, kind=kind.value)
        if gpu is not None:
            picture.xid(gpu, event.xid)
            self._parts.standing.show()
        if gpu is None or kind is XidKind.HARDWARE:
            self._discover_soon()
        if gpu is None or kind is not XidKind.APPLICATION:
            self._poll_soon()


def _clock() -> float:
    """Return the loop's own time, by which it sleeps."""
    return asyncio.get_running_loop().time()


def _s(duration: Duration) -> float:
    return duration / SECOND
