"""Runs `swapd serve` where the GPUs are the fake driver's. Usage: ``gpu_node.py DIRECTORY serve CONFIG``.

DIRECTORY holds ``matrix.txt`` (what the vendor's command prints of the machine) and ``script.json``, which a test may
replace at any moment. All its keys are optional:

* ``foreign``: bytes on each GPU, by index, that belong to nobody of ours;  ``late_s``: a dead process's memory stays
  counted for so long;  ``unlisted``: the driver lists no process
* ``lost``: indices of GPUs off the bus;  ``xids``: list of [index, number], each reported once
* ``absent``: there is no driver;  ``hang``: every call waits until this is taken back

Memory is held by the living processes that were given GPUs by ``CUDA_VISIBLE_DEVICES`` and say with ``FAKE_GPU_BYTES``
how much they take on each. If a GPU ever holds more than it has, DIRECTORY/overcommit says so.
"""

import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pynvml

from swapd.agent import app, daemon, gpus
from swapd.cli import main
from swapd.core.ids import seconds
from swapd.gpus.fake import FakeLibrary
from swapd.gpus.fake_gpu import FakeGpu, FakeProcess, Product, gpus_of
from swapd.gpus.fixture import parse_matrix

PRODUCT = Product(name="NVIDIA H100 80GB HBM3")
_PAUSE_S = 0.02


class Holding:
    """What one process holds; read once, since neither changes while it lives."""

    def __init__(self, process: psutil.Process) -> None:
        environ = process.environ()
        self.uuids = tuple(environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
        self.each = int(environ.get("FAKE_GPU_BYTES", "0"))
        self.pid = process.pid
        self.died_at: float | None = None


class LiveLibrary(FakeLibrary):
    """A driver that counts the memory of this machine's processes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(gpus_of(parse_matrix((directory / "matrix.txt").read_text()), PRODUCT))
        self._directory = directory
        self._holdings: dict[int, Holding] = {}
        self._reported: set[str] = set()

    def nvmlInit(self) -> None:  # noqa: N802 - a name of the bindings
        if self._script().get("absent"):
            raise pynvml.NVMLError_LibraryNotFound
        super().nvmlInit()

    def enter(self, name: str, *handles: Any) -> list[FakeGpu]:
        """Bring everything up to date before each call."""
        while (script := self._script()).get("hang"):
            time.sleep(_PAUSE_S)
        if name.startswith(("DeviceGetMemoryInfo", "DeviceGetComputeRunning")):
            self._look(script)
        for index, gpu in enumerate(self.gpus):
            gpu.lost = index in script.get("lost", ())
        return super().enter(name, *handles)

    def nvmlEventSetWait_v2(self, eventSet: Any, timeoutms: int) -> Any:  # noqa: N802, N803 - see above
        for index, number in self._script().get("xids", ()):
            if (key := f"{index}:{number}") not in self._reported:
                self._reported.add(key)
                self.xid(self.gpus[index], number)
        return super().nvmlEventSetWait_v2(eventSet, min(timeoutms, 100))

    def _script(self) -> dict[str, Any]:
        script: dict[str, Any] = json.loads((self._directory / "script.json").read_text())
        return script

    def _look(self, script: dict[str, Any]) -> None:
        living = self._living()
        now = time.monotonic()
        for pid, holding in list(self._holdings.items()):
            if pid not in living:
                holding.died_at = holding.died_at or now
                if now >= holding.died_at + script.get("late_s", 0):
                    del self._holdings[pid]
        foreign = script.get("foreign", {})
        for index, gpu in enumerate(self.gpus):
            here = [holding for holding in self._holdings.values() if gpu.uuid in holding.uuids]
            gpu.used_bytes = int(foreign.get(str(index), 0)) + sum(holding.each for holding in here)
            gpu.compute = [FakeProcess(h.pid, h.each) for h in here if h.died_at is None and not script.get("unlisted")]
            if gpu.used_bytes > PRODUCT.total_bytes - PRODUCT.reserved_bytes:
                (self._directory / "overcommit").write_text(f"{gpu.used_bytes} on GPU {index}\n")

    def _living(self) -> set[int]:
        living = set()
        for process in psutil.Process(os.getpid()).children(recursive=True):
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                living.add(process.pid)
                if process.pid not in self._holdings and (holding := Holding(process)).each:
                    self._holdings[process.pid] = holding
            except psutil.Error:
                continue
        return living


if __name__ == "__main__":
    place = Path(sys.argv.pop(1))
    quick = {
        "poll_period": 0.2,
        "hurry": 0.05,
        "search_period": 0.5,
        "retry_first": 0.1,
        "retry_cap": 0.5,
        "poll_deadline": 2,
    }
    gpus.GpuSettings = functools.partial(  # type: ignore[misc, assignment]
        gpus.GpuSettings, **{name: seconds(value) for name, value in quick.items()}
    )
    app.Daemon = functools.partial(daemon.Daemon, library=LiveLibrary(place))  # type: ignore[misc, assignment]
    main()
