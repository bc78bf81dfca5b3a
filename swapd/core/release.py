"""Decides when the memory of a stopped instance is free, GPU by GPU.

Rules that hold here:

* The end of a process frees nothing. Once nothing of the engine is left, and a reading was taken after its last process
  was gone, either of two words of the driver frees it: there is as much free memory as there should be; or the process
  list has shown the instance before and, trusted, shows it no more. A list that never showed it proves nothing.
* A neighbour that loads is not yet there for certain: what is free beside it is not taken for the stopped instance's.
  Where several have ended, what is free is not taken for the one that a trusted list still shows; without a list any of
  them is as good as the other, as together they are charged enough.
* Where no driver tells (virtual devices, memory that cannot be measured, GPUs that are lost, failed or partitioned) the
  end of the engine frees it. If such a GPU comes back, what is taken there counts as foreign.
* What is not free by the deadline is leaked: charged as much as is still missing, at most what was charged before, and
  looked at again with every reading. Where the GPU's memory is a NUMA node, pages may stay counted although nobody has
  them any more: there the accounts are trusted from the deadline on.
* An instance leaves each GPU as soon as its memory there is free, and is gone with the last one.
"""

from typing import Final

from swapd.core.asking import hurry
from swapd.core.ids import Bytes
from swapd.core.moves import leak, released
from swapd.core.node import GpuRecord, Node
from swapd.core.reasons import ReleaseEvidence, State
from swapd.core.state import Instance

#: so much less than there should be is as good as free: an absolute amount, or a share of what the instance is charged
LEAST_SLACK: Final = Bytes(512 << 20)
SLACK_SHARE: Final = 8

_ENDED: Final = (State.UNLOADING, State.LEAKED)

#: the word that counts for the whole instance when several GPUs gave different ones, the first one
_ORDER: Final = (ReleaseEvidence.PROCESSES, ReleaseEvidence.FREE, ReleaseEvidence.ACCOUNTS)


def nothing_left(node: Node, instance: Instance) -> None:
    """Let the driver's word count from now on: no process of the instance is left, and nothing listens on its port."""
    stopping = instance.stopping
    assert stopping is not None
    stopping.gone_at = stopping.gone_at or node.at
    stopping.engine_gone = True
    instance.host_bytes = Bytes(0)
    confirm(node, instance)
    if instance.state is State.UNLOADING:
        hurry(node)


def overdue(node: Node, instance: Instance) -> None:
    """Trust the accounts where they are to be trusted, and quarantine the rest: the release deadline has passed."""
    confirm(node, instance)
    if instance.state is State.UNLOADING:
        leak(node, instance)
        confirm(node, instance)


def confirm(node: Node, instance: Instance) -> None:
    """Take an unloading or leaked instance off every GPU where its memory is free; let it go with the last one."""
    stopping = instance.stopping
    assert stopping is not None
    if not stopping.engine_gone:
        return
    for gpu in node.on(instance.gpus):
        if instance.id not in gpu.instances:
            continue
        evidence = _evidence(node, gpu, instance)
        if evidence is not None:
            del gpu.instances[instance.id]
            node.changes += 1
            stopping.by = min(stopping.by, evidence, key=_ORDER.index)
        elif instance.state is State.LEAKED:
            _charge_what_is_missing(node, gpu, instance)
    if not any(instance.id in gpu.instances for gpu in node.on(instance.gpus)):
        released(node, instance)


def _evidence(node: Node, gpu: GpuRecord, instance: Instance) -> ReleaseEvidence | None:
    """Return what tells that the memory of an instance on a GPU is free; ``None``: nothing does."""
    if not gpu.measured:
        return ReleaseEvidence.ACCOUNTS
    stopping = instance.stopping
    assert stopping is not None
    missing = _missing(gpu, instance)
    if missing is not None:
        slack = max(LEAST_SLACK, instance.bytes_per_gpu // SLACK_SHARE)
        if missing <= slack and not _is_anothers(gpu, instance):
            return ReleaseEvidence.FREE
        if gpu.processes is not None and instance.listed >> gpu.index & 1 and instance.id not in gpu.processes:
            return ReleaseEvidence.PROCESSES
    late = instance.state is State.LEAKED or (stopping.leak_at is not None and node.at >= stopping.leak_at)
    if gpu.gpu.lingers and late:
        gpu.lingering_bytes = Bytes(gpu.lingering_bytes + max(0, missing or 0))
        return ReleaseEvidence.ACCOUNTS
    return None


def _missing(gpu: GpuRecord, instance: Instance) -> int | None:
    """Return how much less than there should be is free on a GPU, bytes; ``None``: not known since the processes ended.

    There should be everything but what others of our instances are charged and what is foreign. Those that load count
    for nothing, as they may not have taken their memory yet: at most so much is missing.
    """
    stopping = instance.stopping
    assert stopping is not None
    if gpu.free_bytes is None or stopping.gone_at is None or gpu.taken < stopping.gone_at:
        return None
    others = gpu.charged() - instance.charge(gpu.index)
    others -= sum(i.charge(gpu.index) for i in gpu.instances.values() if i.state is State.LOADING)
    return gpu.memory_bytes - gpu.foreign_bytes - gpu.lingering_bytes - others - gpu.free_bytes


def _is_anothers(gpu: GpuRecord, instance: Instance) -> bool:
    """Say whether free memory on a GPU is that of a neighbour that has ended: the list still shows this instance."""
    listed = gpu.processes is not None and instance.id in gpu.processes
    return listed and any(other.state in _ENDED for other in gpu.instances.values() if other is not instance)


def _charge_what_is_missing(node: Node, gpu: GpuRecord, instance: Instance) -> None:
    if _is_anothers(gpu, instance):
        return
    missing = _missing(gpu, instance)
    charge = Bytes(instance.bytes_per_gpu if missing is None else min(missing, instance.bytes_per_gpu))
    if charge != instance.charge(gpu.index):
        instance.leaked[gpu.index] = charge
        node.changes += 1
