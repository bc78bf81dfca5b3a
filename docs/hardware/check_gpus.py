"""Checks swapd's view of a machine's GPUs against `nvidia-smi` and against memory that a process really takes.

    python3 -m docs.hardware.check_gpus [--gib 2] [--nvidia-smi PATH] [--host-root /] > record.md

Prints a record in Markdown with the date, what was found, every check, and how NVML behaved: each function with its
answers and its slowest call. Ends with 0 if all checks passed. It reads, takes `--gib` of one GPU's memory for some
seconds, and changes nothing. Needs this repository, nvidia-ml-py and structlog, and a driver; no CUDA toolkit.
"""

import argparse
import asyncio
import contextlib
import functools
import os
import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pynvml
import structlog
from docs.hardware.compare import Report, SmiError, compare_devices, compare_matrix, smi_devices
from swapd.aio.clock import monotonic_now
from swapd.aio.supervise import Tasks
from swapd.core.events import Event, GpuMemory, GpuMemoryRead
from swapd.core.ids import InstanceId, Instant
from swapd.core.topology import DriverState, Gpu, NodeTopology
from swapd.gpus.room import Gpus, device_files
from swapd.gpus.settings import GpuSettings, sees_host_pids

GIB: Final = 1 << 30
#: what else may come and go on an idle GPU
SLACK_BYTES: Final = 128 << 20
DEADLINE_S: Final = 120.0
HOLDER: Final = InstanceId(1)

Hold = Callable[[str, int], AbstractAsyncContextManager[int]]


class Recorded:
    """The bindings, with a note of each call: what it answered and how long it took."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.answers: dict[tuple[str, str], int] = {}
        self.slowest_s: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            began, answer = time.monotonic(), "ok"
            try:
                return function(*arguments)
            except Exception as error:
                answer = type(error).__name__.removeprefix("NVMLError_")
                raise
            finally:
                took = time.monotonic() - began
                self.slowest_s[name] = max(took, self.slowest_s.get(name, 0.0))
                self.answers[name, answer] = self.answers.get((name, answer), 0) + 1

        return call


@dataclass
class Node:
    """The room, and what it has told last."""

    room: Gpus = field(init=False)
    owners: dict[int, InstanceId] = field(default_factory=dict)
    reading: GpuMemoryRead | None = None
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def post(self, event: Event) -> None:
        """Hear a fact."""
        if isinstance(event, GpuMemoryRead):
            self.reading = event
        self.told.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for facts until a condition holds; raises TimeoutError."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await self.told.wait()
                self.told.clear()

    async def read(self, gpu: int) -> GpuMemory | None:
        """Ask for memory now and return what was said of one GPU."""
        asked = monotonic_now()
        self.room.read_memory()
        await self.until(lambda: self.reading is not None and self.reading.taken >= asked)
        assert self.reading is not None
        return next((one for one in self.reading.readings if one.gpu == gpu), None)


@contextlib.asynccontextmanager
async def real_hold(uuid: str, size: int) -> AsyncIterator[int]:
    """Start a process that holds memory of a GPU; yields its id, and ends it."""
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("hold_memory.py")),
        str(size),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        line = (await asyncio.wait_for(holder.stdout.readline(), DEADLINE_S)).decode().strip()
        if line != "held":
            raise RuntimeError(f"the process that should hold memory did not: {line}")
        yield holder.pid
    finally:
        holder.stdin.close()
        await holder.wait()


@dataclass(frozen=True)
class Machine:
    """What is checked, and with what; everything but `size` is other than real in a test."""

    #: the vendor's tool
    smi: str = "nvidia-smi"
    #: memory that a process takes, bytes
    size: int = 2 * GIB
    #: where the host's `/sys` is found
    root: Path = Path("/")
    library: Any = pynvml
    hold: Hold = real_hold


async def check(report: Report, machine: Machine) -> None:
    """Run every check and fill the report."""
    recorded = Recorded(machine.library)
    node = Node()
    tasks = Tasks()
    node.room = Gpus(
        post=node.post,
        now=lambda: Instant(monotonic_now()),
        tasks=tasks,
        settings=GpuSettings(host_root=machine.root, trust_pids=sees_host_pids()),
        library=recorded,
        owners=lambda: node.owners,
    )
    report.section("Checks")
    node.room.start()
    try:
        await node.until(lambda: node.room.topology.driver is not DriverState.STARTING)
        topology = node.room.topology
        report.check("NVML can be asked", topology.driver is DriverState.UP, topology.trouble)
        if topology.driver is DriverState.UP:
            compare_devices(report, topology, smi_devices(machine.smi))
            compare_matrix(report, topology, machine.smi)
            await check_memory(report, node, machine)
            await check_release(report, node)
    finally:
        await node.room.aclose()
        await tasks.aclose()
    report.check("nothing is left open", not device_files(), ", ".join(device_files()))
    describe(report, topology)
    describe_calls(report, recorded)


async def check_memory(report: Report, node: Node, machine: Machine) -> None:
    """Take memory in another process, and see it come and go."""
    size = machine.size
    gpu = next((gpu for gpu in node.room.topology.gpus if gpu.placeable and gpu.measured), None)
    before = None if gpu is None else await node.read(gpu.index)
    if gpu is None or before is None:
        report.skip("memory taken by a process is seen", "no GPU is free to take and measured")
        return
    async with machine.hold(gpu.uuid, size) as pid:
        node.owners[pid] = HOLDER
        during = await node.read(gpu.index)
        taken = before.free_bytes - during.free_bytes if during else 0
        report.check("memory taken by a process is seen", taken >= size, f"{_gib(size)} taken, {_gib(taken)} gone")
        processes = None if during is None else during.processes
        if processes is None:
            report.skip("the process is in the driver's list", "process ids mean nothing here, or the list is not told")
        else:
            report.check("the process is in the driver's list", HOLDER in processes, f"listed: {processes}")
        node.owners.clear()
    await check_given_back(report, node, gpu, before)


async def check_given_back(report: Report, node: Node, gpu: Gpu, before: GpuMemory) -> None:
    """See the memory come back, and say how long that took after the process had ended."""
    ended = time.monotonic()
    after = await node.read(gpu.index)
    while (after is None or after.free_bytes < before.free_bytes - SLACK_BYTES) and time.monotonic() < ended + 60:
        await asyncio.sleep(0.05)
        after = await node.read(gpu.index)
    took = time.monotonic() - ended
    free = after.free_bytes if after else 0
    back = free >= before.free_bytes - SLACK_BYTES
    report.check("its memory comes back", back, f"{_gib(free)} free again {took:.2f} s after the process had ended")
    listed = after.processes if after else None
    if listed is not None:
        report.check("the process has left the driver's list", HOLDER not in listed, f"listed: {listed}")


async def check_release(report: Report, node: Node) -> None:
    """Let go of NVML and take it back."""
    before = node.room.topology
    trouble = await node.room.release()
    held = device_files()
    report.check("released, no device file is open", not trouble and not held, trouble or ", ".join(held))
    trouble = await node.room.acquire()
    uuids = [gpu.uuid for gpu in node.room.topology.gpus]
    same = uuids == [gpu.uuid for gpu in before.gpus]
    report.check("taken back, every GPU has its place", not trouble and same, trouble)


def describe(report: Report, topology: NodeTopology) -> None:
    """Write down what was found."""
    report.section("Found")
    report.say(f"Driver {topology.driver_version}, nvidia-ml-py {version('nvidia-ml-py')}, {platform.platform()}.")
    report.say(
        f"Process ids are {'the host' if sees_host_pids() else 'a container'}'s. NVLinks: {topology.links or 'none'}."
    )
    report.say(f"PCIe: {'; '.join(' '.join(level.name for level in row) for row in topology.levels)}.")
    report.say("")
    names = [one.name for one in fields(Gpu) if one.name != "cpus"]
    report.say(f"| {' | '.join(names)} | CPUs |")
    report.say(f"|{'---|' * (len(names) + 1)}")
    for gpu in topology.gpus:
        report.say(f"| {' | '.join(str(getattr(gpu, name)) for name in names)} | {len(gpu.cpus)} |")
    report.say("")
    for complaint in topology.complaints:
        report.say(f"* complaint: {complaint}")


def describe_calls(report: Report, recorded: Recorded) -> None:
    """Write down how NVML behaved."""
    report.section("Calls")
    report.say("| function | answer | calls | slowest call of the function, ms |")
    report.say("|---|---|---|---|")
    for (name, answer), count in sorted(recorded.answers.items()):
        report.say(f"| {name} | {answer} | {count} | {1000 * recorded.slowest_s[name]:.2f} |")


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def record(machine: Machine) -> Report:
    """Run all checks and return the record."""
    report = Report()
    report.say(f"# GPUs checked on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    try:
        asyncio.run(check(report, machine))
    except (SmiError, RuntimeError, TimeoutError) as error:
        report.check("the checks came to their end", False, f"{type(error).__name__}: {error}")  # noqa: FBT003
    return report


def main() -> int:
    """Print the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0, help="memory that a process takes for the check, GiB")
    parser.add_argument("--nvidia-smi", default="nvidia-smi", help="the vendor's tool")
    parser.add_argument("--host-root", type=Path, default=Path("/"), help="where the host's /sys is found")
    arguments = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    report = record(Machine(smi=arguments.nvidia_smi, size=int(arguments.gib * GIB), root=arguments.host_root))
    print(report.text())
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
