"""Applies what becomes of the devices: GPUs appear, fail, are lost and come back; the driver is in trouble, or is well.

Rules that hold here:

* A GPU that models may not be placed on is cordoned: what was booked there is forgotten, what loads there is broken
  off, what serves there finishes its requests and leaves for good, also if the GPU recovers meanwhile: nobody knows
  what the fault has left in it. Whoever waits for these models keeps waiting, and gets another place. Other GPUs are
  not touched.
* A GPU that is back is used again. What it holds is not known before the next reading.
* While the driver cannot be asked, no load begins, and whoever needs one is refused; what is resident goes on serving,
  and no GPU is cordoned, as nobody can tell how it is. Afterwards all goes on by itself.
* Before the driver was heard of for the first time requests wait, as for anything else.
"""

from typing import Final

from swapd.core.boards import boards_for
from swapd.core.commands import DriverChanged, GpuChanged
from swapd.core.events import TopologyChanged
from swapd.core.grants import refuse_all
from swapd.core.ids import SECOND, Bytes, Duration
from swapd.core.lifecycle import Cause
from swapd.core.moves import abort_load, drain, forget
from swapd.core.node import NEVER, GpuRecord, Node
from swapd.core.reasons import Rejection, State, UnloadCause
from swapd.core.release import confirm_all
from swapd.core.sentences import gpu_condition
from swapd.core.state import Instance, Model
from swapd.core.topology import DriverState, Gpu, NodeTopology

#: when to ask again while the driver is in trouble
RETRY_AFTER: Final = Duration(10 * SECOND)

_TROUBLES: Final = {
    DriverState.ABSENT: "there is no NVIDIA driver library or no GPU",
    DriverState.NOT_LOADED: "the NVIDIA kernel driver is not loaded",
    DriverState.MISMATCH: "the NVIDIA driver and its library are of different versions",
    DriverState.STALLED: "the NVIDIA driver does not answer",
    DriverState.FAILED: "every GPU answers with an error",
    DriverState.RELEASED: "an operator has the GPUs released",
}


def trouble(node: Node) -> str:
    """Return the sentence for whoever is refused while the driver is in trouble."""
    what = node.topology.trouble or _TROUBLES[node.topology.driver]
    return f"no model can be loaded now: {what}"


def topology_changed(node: Node, event: TopologyChanged) -> bool:
    """Make the node's GPUs those of the topology."""
    before, topology = node.topology, event.topology
    assert len(topology.gpus) >= len(before.gpus), "GPUs were taken out of the topology"
    node.set_topology(topology)
    for gpu, record in zip(topology.gpus, node.gpus, strict=False):
        _update(node, record, gpu)
    node.gpus += [GpuRecord(gpu, memory_bytes=gpu.memory_bytes) for gpu in topology.gpus[len(node.gpus) :]]
    node.load.gpus = counted(topology)
    set_boards(node)
    if topology.driver is not before.driver:
        _tell_driver(node, before.driver)
    confirm_all(node)
    node.recheck = True
    return True


def counted(topology: NodeTopology) -> int:
    """Return the number of GPUs that the node's load is reckoned over, at least 1."""
    return max(1, topology.placeable.bit_count())


def set_boards(node: Node) -> None:
    """Have the placement tables fit the devices, and the GPU counts of the configured models."""
    node.boards = boards_for(node.topology, [model.need.gpus for model in node.models.values() if model.configured])


def _update(node: Node, record: GpuRecord, gpu: Gpu) -> None:
    before = record.gpu
    was_measured = record.measured
    record.gpu = gpu
    if gpu.memory_bytes != before.memory_bytes and gpu.memory_bytes:
        record.memory_bytes = gpu.memory_bytes
        record.shrunk = record.charged() > gpu.memory_bytes
    if was_measured and not record.measured:
        record.free_bytes = record.processes = None
        record.foreign_bytes = record.lingering_bytes = Bytes(0)
        record.lingering_until = None
        record.taken = NEVER
    if gpu.health is not before.health:
        node.story.add(node.at, gpu_condition(gpu))
        node.out.append(GpuChanged(gpu.index, gpu.uuid, before.health, gpu.health, gpu.why))


def _tell_driver(node: Node, before: DriverState) -> None:
    topology = node.topology
    detail = topology.trouble or _TROUBLES.get(topology.driver, "")
    node.story.add(node.at, f"the driver is {topology.driver.value}" + (f": {detail}" if detail else ""))
    node.out.append(DriverChanged(before, topology.driver, detail))


def attend(node: Node) -> None:
    """Clear cordoned GPUs, and refuse whoever needs a load while the driver is in trouble."""
    if node.degraded:
        for name in node.pending:
            _refuse(node, node.models[name])
        for instance in list(node.instances.values()):
            _hold_back(node, instance)
    elif node.cordoned and node.may_load:
        for gpu in node.on(node.cordoned):
            for instance in list(gpu.instances.values()):
                _leave(node, instance, gpu.gpu)


def _refuse(node: Node, model: Model) -> None:
    refuse_all(node, model, Rejection.DEGRADED, trouble(node), retry_after=RETRY_AFTER)


def _hold_back(node: Node, instance: Instance) -> None:
    """Refuse whoever waits for an instance that cannot be loaded, or not again."""
    if instance.state is State.RESERVED:
        _refuse(node, instance.model)
        forget(node, instance, Cause.ROOM_LOST, trouble(node))
    elif instance.state is State.DRAINING and instance.drain is not None and instance.drain.cause is not None:
        _refuse(node, instance.model)


def _leave(node: Node, instance: Instance, gpu: Gpu) -> None:
    why = gpu_condition(gpu)
    match instance.state:
        case State.RESERVED:
            forget(node, instance, Cause.ROOM_LOST, why)
        case State.LOADING:
            abort_load(node, instance, Cause.GPU_FAILED, why, UnloadCause.GPU_FAILED)
        case State.READY:
            drain(node, instance, UnloadCause.GPU_FAILED, why, node.settings.drain_timeout)
        case State.DRAINING if instance.drain is not None and instance.drain.cause is None:
            drain(node, instance, UnloadCause.GPU_FAILED, why, node.settings.drain_timeout)
        case _:
            pass
