"""Waits for the driver's events on a thread of its own, because the wait blocks in C for the whole of its timeout.

Rules that hold here:

* The thread makes the event set, registers every GPU, and gives the set back when told to end; NVML may be shut down
  only once the thread has ended.
* An event is passed on with the handle it came with. No call is made on that handle: the GPU may be gone.
* A GPU that cannot be registered is watched by polls alone. A wait that fails is said once and tried again.
"""

import threading
from collections.abc import Callable, Sequence

import structlog

from swapd.core.ids import MILLISECOND, SECOND, Duration
from swapd.gpus.errors import NvmlError
from swapd.gpus.nvml import Nvml
from swapd.gpus.readings import Device, DriverEvent, EventSet

_log = structlog.get_logger(__name__)


class Watch:
    """One thread that waits for events of these GPUs; started at once."""

    def __init__(
        self, nvml: Nvml, devices: Sequence[Device], *, wait: Duration, report: Callable[[DriverEvent], None]
    ) -> None:
        """``report`` is called on the watch's own thread."""
        self._nvml = nvml
        self._devices = tuple(devices)
        self._wait = wait
        self._report = report
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
        self._thread.start()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The GPUs that are watched."""
        return self._devices

    @property
    def ended(self) -> bool:
        """Whether the thread has ended and its event set is given back."""
        return not self._thread.is_alive()

    def end(self) -> None:
        """Tell the thread to end; it does after one more wait at most."""
        self._end.set()

    def _run(self) -> None:
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
        for device in self._devices:
            if self._end.is_set():
                return 0
            try:
                self._nvml.register(device, events)
            except NvmlError as error:
                _log.info("gpu_without_events", error=str(error))
            else:
                registered += 1
        return registered

    def _watch(self, events: EventSet) -> None:
        failing = False
        while not self._end.is_set():
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
                self._report(event)

    def _give_back(self, events: EventSet) -> None:
        try:
            self._nvml.free(events)
        except NvmlError as error:
            _log.info("gpu_events_not_freed", error=str(error))
