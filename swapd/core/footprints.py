"""Measures what models really take, charges it, and plans with it.

Rules that hold here:

* What an instance takes is measured by the first reading after it became ready that can tell, as the most that it takes
  on any of its GPUs. From then on it is charged that, and its model is planned with it.
* A reading can tell where no neighbour comes or goes. What the processes of the instance hold by the driver's list
  counts, if it explains at least half of what is configured, or of what is not anybody else's: figures of processes
  leave out memory that the driver does not list by process. Otherwise all that is not anybody else's does, and what
  others took during the load is charged to the instance at first.
* Whoever has GPUs alone takes at most what is shown as taken there. Where a later reading shows notably less than was
  measured, that counts instead, but no less than what is configured.
* What makes no sense shows that others hold other than what was known of them; it is tried again a few times. In the
  end the configured figure stands.
* What was measured holds for one revision of a model.
"""

from typing import Final

from swapd.core.asking import hurry, is_tellable
from swapd.core.commands import FootprintMeasured
from swapd.core.events import FootprintsKnown
from swapd.core.foreign import unexplained
from swapd.core.ids import Bytes
from swapd.core.node import GpuRecord, Node
from swapd.core.reasons import State
from swapd.core.sentences import size
from swapd.core.state import Instance, Model, Need

#: nothing that serves takes less on a GPU: such a figure is an error
LEAST_FOOTPRINT: Final = Bytes(64 << 20)
#: the part of the configured figure by which a measured one may differ without a warning: one in …
TOLERATED_PART: Final = 10

#: readings that may make no sense before the configured figure is left standing
TRIES: Final = 3

_SERVING: Final = (State.READY, State.DRAINING)


def await_measurement(node: Node, instance: Instance) -> None:
    """Have a ready instance measured by a reading that begins from now on."""
    measured = [gpu for gpu in node.on(instance.gpus) if gpu.measured]
    for gpu in measured:
        gpu.settled = node.at
    if measured:
        instance.unmeasured = TRIES
        hurry(node)


def measure_all(node: Node) -> None:
    """Measure every ready instance that waits for it and of which the last readings can tell; correct the others."""
    for instance in node.instances.values():
        if instance.state not in _SERVING:
            continue
        if instance.unmeasured:
            _measure(node, instance)
        else:
            _correct(node, instance)


def _measure(node: Node, instance: Instance) -> None:
    gpus = [gpu for gpu in node.on(instance.gpus) if gpu.measured]
    if not gpus:
        instance.unmeasured = 0
        return
    if not is_tellable(node, instance) or any(gpu.free_bytes is None or gpu.taken < instance.ready_at for gpu in gpus):
        return
    taken = [_taken_by(gpu, instance) for gpu in gpus]
    if None in taken and any(gpu.lingering_until is not None for gpu in gpus):
        return
    known = [figure for figure in taken if figure is not None and figure >= LEAST_FOOTPRINT]
    if len(known) < len(taken) or max(known) > min(gpu.memory_bytes for gpu in gpus):
        told = ", ".join("unknown" if figure is None else f"{figure} B" for figure in taken)
        instance.story.add(node.at, f"what the driver tells of its memory makes no sense: {told}")
        instance.unmeasured -= 1
        for gpu in gpus:
            gpu.foreign_bytes = unexplained(gpu)
        return
    instance.unmeasured = 0
    _charge(node, instance, Bytes(max(known)))


def _taken_by(gpu: GpuRecord, instance: Instance) -> int | None:
    """Return what an instance takes on a GPU on which no neighbour comes or goes, bytes; ``None``: cannot be told."""
    assert gpu.free_bytes is not None
    others = gpu.charged() - instance.charge(gpu.index)
    rest = gpu.memory_bytes - gpu.free_bytes - gpu.foreign_bytes - others
    figure = (gpu.processes or {}).get(instance.id)
    configured = instance.spec.footprint.bytes_per_gpu
    if figure is not None and 2 * figure >= min(rest - gpu.lingering_bytes, configured):
        return figure
    return None if gpu.lingering_bytes else rest


def _correct(node: Node, instance: Instance) -> None:
    """Charge an instance less if its GPUs, on which nobody else is, show that it cannot take what was measured."""
    declared = instance.spec.footprint.bytes_per_gpu
    if instance.bytes_per_gpu - declared <= declared // TOLERATED_PART:
        return
    gpus = node.on(instance.gpus)
    if not all(gpu.measured and len(gpu.instances) == 1 and gpu.taken >= gpu.settled for gpu in gpus):
        return
    most = declared
    for gpu in gpus:
        if gpu.free_bytes is None:
            return
        most = max(most, Bytes(gpu.memory_bytes - gpu.free_bytes))
    if (instance.bytes_per_gpu - most) * TOLERATED_PART > declared:
        _charge(node, instance, most)


def _charge(node: Node, instance: Instance, measured: Bytes) -> None:
    """Charge an instance what it takes, and plan its model with it."""
    model, declared = instance.model, instance.spec.footprint.bytes_per_gpu
    differs = abs(measured - declared) * TOLERATED_PART > declared
    if measured != instance.bytes_per_gpu:
        instance.bytes_per_gpu = measured
        node.changes += 1
        node.recheck = True
    if model.spec.revision == instance.spec.revision:
        plan_with(node, model, measured)
    model.story.add(node.at, f"takes {size(measured)} per GPU, configured are {size(declared)}")
    revision = instance.spec.revision
    node.out.append(FootprintMeasured(instance.id, model.name, revision, declared, measured, differs))


def plan_with(node: Node, model: Model, measured: Bytes | None) -> None:
    """Plan a model with what was measured, or with what is configured again."""
    model.measured = measured
    node.change_need(model, Need.of(model.spec, measured))


def footprints_known(node: Node, event: FootprintsKnown) -> bool:
    """Plan models with what they took in earlier runs; what was measured in this run counts more.

    What is booked already stays as it is: this fact belongs to the start of a run.
    """
    for name, measured in event.bytes_per_gpu.items():
        model = node.models.get(name)
        if model is not None and model.measured is None and measured >= LEAST_FOOTPRINT:
            plan_with(node, model, measured)
            node.recheck = True
    return True
