"""Turns a poll into the fact ``GpuMemoryRead``: how much is free on each GPU, and which instances still hold some.

Rules that hold here:

* A GPU that could not be read, or whose driver does not tell how much is free, is left out; nothing is ever 0 for lack
  of knowledge.
* Processes are told only where the driver's process ids mean the same here and its list is plausible. A size that the
  driver does not tell never enters a sum.
* A process that belonged to an instance belongs to it for as long as the driver lists it, also when it has ended: the
  driver may give its memory back later.
"""

from collections.abc import Callable, Iterable, Mapping

import structlog

from swapd.core.events import GpuMemory, GpuMemoryRead
from swapd.core.ids import Bytes, InstanceId, Instant
from swapd.core.topology import Gpu, GpuHealth
from swapd.gpus.poll import Poll
from swapd.gpus.readings import GpuProcess

_log = structlog.get_logger(__name__)

Held = Mapping[InstanceId, Bytes | None]


class Owners:
    """Remembers which instance a process belongs to."""

    def __init__(self) -> None:
        self._known: dict[int, InstanceId] = {}

    def learn(self, owners: Mapping[int, InstanceId]) -> None:
        """Take who owns which process now, children included; to be called before the driver is asked."""
        self._known.update(owners)

    def forget(self, owners: Mapping[int, InstanceId], lists: Iterable[tuple[GpuProcess, ...] | None]) -> None:
        """Forget the processes that neither live nor are listed by any GPU; keep all if a list is missing."""
        listed: set[int] = set()
        for processes in lists:
            if processes is None:
                return
            listed.update(process.pid for process in processes)
        self._known = {pid: owner for pid, owner in self._known.items() if pid in owners or pid in listed}

    def held(self, processes: Iterable[GpuProcess]) -> Held:
        """Return the bytes of each instance with a process in the list; ``None``: not all of them are told."""
        sizes: dict[int, Bytes | None] = {}
        for process in processes:
            if process.pid in self._known:
                sizes[process.pid] = _larger(sizes.get(process.pid), process.used_bytes)
        held: dict[InstanceId, Bytes | None] = {}
        for pid, size in sizes.items():
            owner = self._known[pid]
            before = held.get(owner, Bytes(0))
            held[owner] = None if size is None or before is None else Bytes(before + size)
        return held


def _larger(one: Bytes | None, other: Bytes | None) -> Bytes | None:
    """Return one size of a process that stands in both lists with all its memory."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


def readings(poll: Poll, gpus: Iterable[Gpu], owners: Owners) -> tuple[GpuMemory, ...]:
    """Return what the driver says of each GPU that can be measured, by index."""
    found = []
    for gpu in gpus:
        polled = poll.gpus.get(gpu.index)
        if polled is None or polled.memory is None or not gpu.measured or gpu.health is GpuHealth.LOST:
            continue
        held = None if polled.processes is None else owners.held(polled.processes)
        found.append(GpuMemory(gpu.index, polled.memory.capacity_bytes, polled.memory.free_bytes, held))
    return tuple(found)


class Memory:
    """Makes the facts of one node."""

    def __init__(self, owners: Callable[[], Mapping[int, InstanceId]] | None) -> None:
        """``owners`` says which instance each process belongs to; ``None``: process ids mean nothing here."""
        self._ask = owners
        self._living: Mapping[int, InstanceId] = {}
        self._owners = Owners()
        self._warned = False

    @property
    def wants_processes(self) -> bool:
        """Whether a poll should list processes."""
        return self._ask is not None

    def before_poll(self) -> None:
        """Find out who owns which process; one that ends during the poll is still attributed."""
        if self._ask is not None:
            self._living = self._ask()
            self._owners.learn(self._living)

    def after_poll(self, at: Instant, poll: Poll, gpus: Iterable[Gpu]) -> GpuMemoryRead:
        """Return the fact; warns once if processes were asked for and could not be told."""
        untold = [index for index, polled in poll.gpus.items() if polled.memory and polled.processes is None]
        if self.wants_processes and untold and not self._warned:
            self._warned = True
            _log.warning("gpu_processes_not_trusted", gpus=untold)
        fact = GpuMemoryRead(at=at, taken=poll.taken, readings=readings(poll, gpus, self._owners))
        self._owners.forget(self._living, (polled.processes for polled in poll.gpus.values()))
        return fact
