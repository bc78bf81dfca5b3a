"""The room: the node's GPUs as the core wants to hear of them, and NVML's only owner in this process.

Orders are synchronous and report nothing themselves; the facts follow through ``post``: ``TopologyChanged`` whenever
the GPUs or the driver are other than before, ``GpuMemoryRead`` at every poll and once for each order. The event loop
never waits for NVML.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from swapd.aio.supervise import Tasks
from swapd.core.events import Event
from swapd.core.ids import SECOND, InstanceId, Instant
from swapd.core.topology import DriverState, NodeTopology
from swapd.gpus.driver import Errors
from swapd.gpus.life import Life
from swapd.gpus.line import Line
from swapd.gpus.memory import Memory
from swapd.gpus.nvml import Nvml
from swapd.gpus.orders import MemoryOrders
from swapd.gpus.picture import Picture
from swapd.gpus.rounds import Parts, Rounds
from swapd.gpus.settings import GpuSettings, GpuStats
from swapd.gpus.standing import Standing

_log = structlog.get_logger(__name__)

_OWN_DESCRIPTORS: Final = Path("/proc/self/fd")
_HANGING: Final = "a call to NVML has not come back, and nothing can be released before it does: try again then"


class Gpus:
    """All GPUs of the node; made and used on one event loop."""

    def __init__(
        self,
        *,
        post: Callable[[Event], None],
        now: Callable[[], Instant],
        tasks: Tasks,
        settings: GpuSettings,
        library: Any = None,
        owners: Callable[[], Mapping[int, InstanceId]] | None = None,
        seen: Callable[[int], None] | None = None,
    ) -> None:
        """``library`` stands for the bindings; ``owners`` tells the processes of all instances, children included.

        ``seen`` is told of each number of GPUs that is the most ever seen. ``tasks`` may be shared; it must be closed
        after this. Nothing is asked before ``start``.
        """
        self._errors = Errors()
        self._tasks = tasks
        self._settings = settings
        nvml = Nvml(on_error=self._errors.note) if library is None else Nvml(library, on_error=self._errors.note)
        self._picture = Picture(settings, post=post, now=now)
        self._orders = MemoryOrders(post=post, now=now, deadline=settings.poll_deadline)
        self._standing = Standing(patience=settings.patience, now=now, publish=self._publish)
        self._line = line = Line(late=self._late)
        memory = Memory(owners if settings.trust_pids else None)
        parts = Parts(settings, now, nvml, line, self._standing, self._picture, memory, self._orders)
        self._rounds = Rounds(parts)
        self._life = Life(nvml, settings, line=line, standing=self._standing, rounds=self._rounds)
        self._task: asyncio.Task[None] | None = None
        self._seen = seen
        self._most_seen = settings.most_seen
        #: a call to NVML is overdue
        self._hanging = asyncio.Event()
        self._closing = False

    @property
    def topology(self) -> NodeTopology:
        """The GPUs as last published; none, and STARTING, before the first discovery."""
        return self._picture.topology

    def start(self) -> None:
        """Begin to look for GPUs; returns at once."""
        self._task = self._tasks.start(self._life.run(), name="gpus")

    def read_memory(self) -> None:
        """Ask the driver now; answered by one ``GpuMemoryRead``, an empty one if it cannot be asked in time."""
        self._orders.add()
        if self._standing.state is not DriverState.UP or self._standing.late_since is not None:
            self._orders.give_up()
        else:
            self._rounds.wake()

    async def release(self) -> str:
        """Let go of NVML; return why that could not be done, or an empty string."""
        if not self._hanging.is_set():
            self._life.want(wanted=False)
        await self._first(self._life.let_go, self._hanging)
        if not self._life.let_go.is_set() or self._life.begun:
            refused = self._life.let_go.is_set()
            self._life.want(wanted=True)
            return "NVML refused to be shut down, see the log" if refused else _HANGING
        held = device_files()
        return f"NVML is shut down, but this process still has {', '.join(held)} open: restart swapd" if held else ""

    async def acquire(self) -> str:
        """Take NVML back and discover anew, with nothing held against any GPU; return why not, or an empty string."""
        if not self._life.wanted:
            self._picture.forgive()
            self._life.want(wanted=True)
        await self._first(self._life.tried, self._hanging)
        return self._standing.sentence

    async def _first(self, *events: asyncio.Event, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait for one of these; one of them comes, since every call has a deadline."""
        waits = [self._tasks.start(event.wait(), name="gpus wait") for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=timeout)
        finally:
            for wait in waits:
                wait.cancel()

    def _publish(self, state: DriverState, sentence: str) -> None:
        if self._closing:
            return  # that nothing is asked any more is no news
        self._picture.publish(state, sentence)
        count = len(self._picture.found.gpus)
        if count > self._most_seen:
            self._most_seen = count
            if self._seen is not None:
                self._seen(count)

    def _late(self, overdue: bool) -> None:  # noqa: FBT001 - passed on
        self._standing.late(overdue)
        if overdue:
            self._hanging.set()
            _log.warning("nvml_stalled")
        else:
            self._hanging.clear()
            _log.info("nvml_answered_late")

    def stats(self) -> GpuStats:
        """Return what metrics show of the driver."""
        tally = self._rounds.tally
        return GpuStats(
            state=self._picture.topology.driver,
            stalled_since=self._standing.late_since,
            polls=tally.polls,
            last_good_poll=tally.last_good_poll,
            discoveries=tally.discoveries,
            errors=self._errors.counts(),
            xids=dict(tally.xids),
        )

    async def aclose(self) -> None:
        """Shut NVML down, within the deadline of one call; a call that hangs is left to the end of the process."""
        self._closing = True
        limit = self._settings.poll_deadline / SECOND
        if self._task is not None:
            self._life.want(wanted=False)
            await self._first(self._life.let_go, self._hanging, timeout=limit)
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._rounds.part()
        self._orders.give_up()
        if not await self._line.aclose(timeout=0.0 if self._hanging.is_set() else limit):
            _log.warning("nvml_left_hanging")


def device_files(descriptors: Path = _OWN_DESCRIPTORS) -> tuple[str, ...]:
    """Return the device files of GPUs that this process has open."""
    found = set()
    for entry in descriptors.iterdir():
        with contextlib.suppress(OSError):  # closed since it was listed
            found.add(str(entry.readlink()))
    return tuple(sorted(name for name in found if name.startswith("/dev/nvidia")))
