"""Decides when the memory of a stopped instance is free, GPU by GPU.

Rules that hold here:

* The end of a process frees nothing. Once nothing of the engine is left, and a reading was taken after its last process
  was gone, either of two words of the driver frees it: there is as much free memory as there should be, and the process
  list, if it can be trusted, does not say that the instance still holds some; or the list has shown the instance before
  and shows it no more. A list that never showed it proves nothing.
* Where no driver tells (virtual devices, memory that cannot be measured, GPUs that are lost, failed or partitioned) the
  end of the engine frees it. If such a GPU comes back, what is taken there counts as foreign.
* What is not free by the deadline is leaked: charged as much as is still missing, at most what was charged before, and
  looked at again with every reading. Where the GPU's memory is a NUMA node, pages may stay counted although nobody has
  them any more: there the accounts are trusted from the deadline on.
* An instance leaves each GPU as soon as its memory there is free, and is gone with the last one. What is still shown
  as taken then is expected to come back within the time of a release.
"""

from typing import Final

from swapd.core.asking import hurry
from swapd.core.foreign import linger
from swapd.core.ids import Bytes, Instant
from swapd.core.moves import leak, released
from swapd.core.node import GpuRecord, Node
from swapd.core.reasons import ReleaseEvidence, State
from swapd.core.state import Instance

#: so much less than there should be is as good as free: an absolute amount, or a share of what the instance is charged
LEAST_SLACK: Final = Bytes(512 << 20)
SLACK_SHARE: Final = 8

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


def confirm_all(node: Node) -> None:
    """Let go whatever is free by what is known now."""
    for instance in list(node.instances.values()):
        if instance.state in (State.UNLOADING, State.LEAKED):
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
            if gpu.measured:
                missing, most = _missing(gpu, instance), instance.bytes_per_gpu
                shown = most if missing is None else min(missing, most)
                linger(gpu, shown, Instant(node.at + node.settings.release_timeout))
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
        if missing <= slack and _told(gpu, instance) <= slack:
            return ReleaseEvidence.FREE
        if _has_left_the_list(gpu, instance):
            return ReleaseEvidence.PROCESSES
    late = instance.state is State.LEAKED or (stopping.leak_at is not None and node.at >= stopping.leak_at)
    return ReleaseEvidence.ACCOUNTS if gpu.gpu.lingers and late else None


def _missing(gpu: GpuRecord, instance: Instance) -> int | None:
    """Return how much less than there should be is free on a GPU, bytes; ``None``: not known since the processes ended.

    There should be everything but what others of our instances are charged and what is foreign. As one that loads does
    not hold all of its charge yet, the answer may be too large then, but not too small.
    """
    stopping = instance.stopping
    assert stopping is not None
    if gpu.free_bytes is None or stopping.gone_at is None or gpu.taken < stopping.gone_at:
        return None
    others = sum(_surely_held(gpu, other) for other in gpu.instances.values() if other is not instance)
    return gpu.memory_bytes - gpu.foreign_bytes - gpu.lingering_bytes - others - gpu.free_bytes


def _surely_held(gpu: GpuRecord, instance: Instance) -> int:
    """Return what another instance accounts for; of several that have ended the process list tells who still counts."""
    if not instance.holds or _has_left_the_list(gpu, instance):
        return 0
    loading = instance.state is State.LOADING or gpu.taken < instance.ready_at
    return _told(gpu, instance) if loading else instance.charge(gpu.index)


def _told(gpu: GpuRecord, instance: Instance) -> int:
    """Return what the processes of an instance hold on a GPU by the driver's list, bytes; 0 also if it says nothing."""
    return (gpu.processes or {}).get(instance.id) or 0


def _has_left_the_list(gpu: GpuRecord, instance: Instance) -> bool:
    """Say whether a list taken after the end of an instance does not show it any more, as one did before."""
    stopping = instance.stopping
    if stopping is None or stopping.gone_at is None or gpu.taken < stopping.gone_at or gpu.processes is None:
        return False
    return bool(instance.listed >> gpu.index & 1) and instance.id not in gpu.processes


def _charge_what_is_missing(node: Node, gpu: GpuRecord, instance: Instance) -> None:
    missing = _missing(gpu, instance)
    loading = any(other.state is State.LOADING for other in gpu.instances.values())
    most = instance.charge(gpu.index) if loading else instance.bytes_per_gpu
    charge = Bytes(most if missing is None else min(missing, most))
    if charge != instance.charge(gpu.index):
        instance.leaked[gpu.index] = charge
        node.changes += 1
