"""Keeps what is known of the node's GPUs and says when the core must hear of it.

Rules that hold here:

* What the GPUs are and how they are joined comes from the last discovery; what is known against each of them from polls
  and Xids. The published topology is the first, marked with the second.
* The core hears of a topology only if it differs from the last one in more than its generation.
* Once a GPU has been in service, one discovery that cannot read it does not take it out, because a single bad call
  must cost nobody a model: it takes a poll that says so, or a second such discovery.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from swapd.core.events import TopologyChanged
from swapd.core.ids import Instant
from swapd.core.topology import DriverState, Gpu, GpuHealth, NodeTopology
from swapd.gpus.discover import Discovery
from swapd.gpus.errors import NvmlError
from swapd.gpus.health import Answer, Condition, after_discovery, after_poll, after_xid, driver_failed, with_condition
from swapd.gpus.poll import Poll
from swapd.gpus.readings import Device
from swapd.gpus.settings import GpuSettings


class Picture:
    """The node's GPUs as far as they are known; on the event loop."""

    def __init__(
        self, settings: GpuSettings, *, post: Callable[[TopologyChanged], None], now: Callable[[], Instant]
    ) -> None:
        self._post = post
        self._now = now
        self._patience = settings.patience
        self._conditions: dict[int, Condition] = {}
        self._doubted = False
        #: as last discovered
        self.found = NodeTopology((), host_bytes=settings.host_bytes, expected=settings.expected or settings.most_seen)
        #: handles by index of the GPU; none after NVML was shut down
        self.devices: Mapping[int, Device] = {}
        #: as last published
        self.topology = replace(self.found, driver=DriverState.STARTING)

    def publish(self, state: DriverState, sentence: str) -> None:
        """Tell the core, if anything is other than it was last told."""
        gpus = tuple(with_condition(gpu, self._condition(gpu.index)) for gpu in self.found.gpus)
        marked = [gpu for gpu, found in zip(gpus, self.found.gpus, strict=True) if gpu is not found]
        topology = replace(
            self.found,
            gpus=gpus,
            driver=state,
            trouble=sentence,
            generation=self.topology.generation,
            complaints=(*self.found.complaints, *(f"GPU {gpu.index} ({gpu.uuid}): {gpu.why}" for gpu in marked)),
        )
        if topology == self.topology:
            return
        self.topology = replace(topology, generation=topology.generation + 1)
        self._post(TopologyChanged(at=self._now(), topology=self.topology))

    def discovered(self, discovery: Discovery) -> bool:
        """Take what a discovery found; ``False``: it is in doubt, and a poll should have its say first."""
        missed = [gpu for gpu in discovery.topology.gpus if gpu.health is GpuHealth.LOST and self._in_service(gpu)]
        if missed and not self._doubted:
            self._doubted = True
            known = len(self.found.gpus)
            self._handles({index: device for index, device in discovery.devices.items() if index < known})
            return False
        self._doubted = False
        self._handles(discovery.devices)
        self.found = discovery.topology
        for gpu in self.found.gpus:
            self._conditions[gpu.index] = after_discovery(self._condition(gpu.index), gpu, self._patience)
        return True

    def _handles(self, devices: Mapping[int, Device]) -> None:
        """Take new handles; a lost GPU keeps its old one, by which it is still polled and its events are attributed."""
        self.devices = {**self.devices, **devices}

    def _in_service(self, gpu: Gpu) -> bool:
        known = gpu.index < len(self.found.gpus) and self.found.gpus[gpu.index].health is not GpuHealth.LOST
        return known and not self._condition(gpu.index).lost

    def polled(self, poll: Poll) -> bool:
        """Take what a regular poll found; ``True``: it calls for a discovery."""
        calls = False
        for index, polled in poll.gpus.items():
            before = self._condition(index)
            after = after_poll(before, polled.signs, self._patience)
            self._conditions[index] = after
            calls = calls or bool(after.lost) is not bool(before.lost) or after.ripe(self._patience)
        return calls

    def glimpsed(self, poll: Poll) -> bool:
        """Look at an extra poll, which counts for nobody's health; ``True``: it calls for a regular one."""
        return any(
            polled.signs.answer is not Answer.READ and not self._condition(index).lost
            for index, polled in poll.gpus.items()
        )

    def xid(self, index: int, number: int) -> None:
        """Take a GPU's Xid."""
        self._conditions[index] = after_xid(self._condition(index), number, self.found.gpus[index])

    def forgive(self) -> None:
        """Forget everything known against the GPUs: an operator has had them, and they are discovered anew."""
        self._conditions = {}

    def failure(self, poll: Poll) -> NvmlError | None:
        """Return why the driver as a whole has failed; ``None``: it has not."""
        asked = [(self._condition(index), polled) for index, polled in poll.gpus.items()]
        if driver_failed([condition for condition, _ in asked], [polled.signs for _, polled in asked]):
            return next(polled.error for condition, polled in asked if not condition.lost)
        out_of_reach = all(condition.lost for condition, _ in asked)
        return poll.count if out_of_reach and isinstance(poll.count, NvmlError) else None

    def _condition(self, index: int) -> Condition:
        return self._conditions.get(index, Condition())
