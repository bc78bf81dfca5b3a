"""Waits for the driver's events on a thread of its own, because the wait blocks in C for the whole of its timeout.

Rules that hold here:

* The thread makes the event set, registers every GPU, and gives the set back when told to end; NVML may be shut down
  only once the thread has ended.
* An event is passed on with the handle it came with. No call is made on that handle: the GPU may be gone.
* A GPU that cannot be registered is watched by polls alone. A wait that fails is said once and tried again.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable

import structlog

from swapd.core.ids import MILLISECOND, SECOND, Duration
from swapd.gpus.errors import NvmlError
from swapd.gpus.nvml import Nvml
from swapd.gpus.readings import Device, DriverEvent, EventSet

_log = structlog.get_logger(__name__)


class Watches:
    """The threads that wait for events: one, or two for the moment in which another set of GPUs takes over."""

    def __init__(self, nvml: Nvml, *, wait: Duration, report: Callable[[DriverEvent], None]) -> None:
        """``report`` is called on the event loop."""
        self._nvml = nvml
        self._wait = wait
        self._report = report
        self._watches: list[_Watch] = []

    def cover(self, devices: Iterable[Device]) -> None:
        """See to it that these GPUs, and no others, are watched."""
        wanted = tuple(devices)
        self._watches = [watch for watch in self._watches if not watch.ended.is_set()]
        if any(watch.devices == wanted for watch in self._watches if not watch.ending):
            return
        for watch in self._watches:
            watch.end()
        if wanted:
            self._watches.append(_Watch(self._nvml, wanted, self._wait, self._report))

    def tell_to_end(self) -> None:
        """Let the threads end when they can."""
        for watch in self._watches:
            watch.end()

    async def end(self) -> None:
        """End the threads; each takes one more wait at most, unless the driver hangs."""
        self.tell_to_end()
        for watch in self._watches:
            await watch.ended.wait()
        self._watches.clear()


class _Watch:
    """One thread, started at once."""

    def __init__(
        self, nvml: Nvml, devices: tuple[Device, ...], wait: Duration, report: Callable[[DriverEvent], None]
    ) -> None:
        self.devices = devices
        #: set once the event set is given back
        self.ended = asyncio.Event()
        self._nvml = nvml
        self._wait = wait
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._end = threading.Event()
        threading.Thread(target=self._run, name="nvml-events", daemon=True).start()

    @property
    def ending(self) -> bool:
        return self._end.is_set()

    def end(self) -> None:
        self._end.set()

    def _run(self) -> None:
        try:
            self._live()
        finally:
            self._tell(self.ended.set)

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(function, *arguments)

    def _live(self) -> None:
        try:
            events = self._nvml.event_set()
        except NvmlError as error:
            _log.warning("gpu_events_unavailable", error=str(error))
            return
        try:
            if self._register(events):
                self._watch(events)
        finally:
            self._give_back(events)

    def _register(self, events: EventSet) -> int:
        registered = 0
        for device in self.devices:
            try:
                self._nvml.register(device, events)
            except NvmlError as error:
                _log.info("gpu_without_events", error=str(error))
            else:
                registered += 1
        return registered

    def _watch(self, events: EventSet) -> None:
        failing = False
        while not self.ending:
            try:
                event = self._nvml.wait(events, self._wait // MILLISECOND)
            except NvmlError as error:
                if not failing:
                    _log.warning("gpu_events_failing", error=str(error))
                failing = True
                self._end.wait(self._wait / SECOND)  # it fails at once: without this the thread would spin
                continue
            failing = False
            if event is not None:
                self._tell(self._report, event)

    def _give_back(self, events: EventSet) -> None:
        try:
            self._nvml.free(events)
        except NvmlError as error:
            _log.info("gpu_events_not_freed", error=str(error))
