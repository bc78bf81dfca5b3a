"""Applies what the driver says of memory: what is free, whose it is, what an instance really takes.

Rules that hold here:

* Only GPUs count whose memory is measured, and of each only the latest reading. A GPU that is missing in a reading is
  not known now.
* Foreign is what is taken and charged to none of our instances. It is told from a reading that no coming or going
  instance can blur: nothing loads, unloads or has leaked there, nothing waits to be measured, and the reading began
  after the last of that. In between the last word stands; where the driver tells what each of our instances' processes
  hold, it is corrected as far as these figures prove it wrong.
* What an instance takes is measured once, by the first reading after it became ready that can tell, as the most that it
  takes on any of its GPUs. From then on it is charged that, and its model is planned with it.
* Figures of single processes miss memory that the driver does not list by process. They are taken only where they
  explain at least half of what the GPU as a whole shows.
"""

from collections.abc import Sequence
from typing import Final

from swapd.core.asking import UNSETTLED, answered, hurry, is_tellable
from swapd.core.commands import FootprintMeasured
from swapd.core.events import FootprintsKnown, GpuMemory, GpuMemoryRead
from swapd.core.ids import Bytes, GpuSet
from swapd.core.node import GpuRecord, Node
from swapd.core.reasons import State
from swapd.core.release import confirm
from swapd.core.sentences import size
from swapd.core.state import Instance, Model, Need

#: nothing that serves takes less on a GPU: such a figure is an error
LEAST_FOOTPRINT: Final = Bytes(64 << 20)
#: the share of the configured figure by which a measured one may differ without a warning
TOLERATED_SHARE: Final = 10

_SERVING: Final = (State.READY, State.DRAINING)


def memory_read(node: Node, event: GpuMemoryRead) -> bool:
    """Take in a reading, and everything that can be told from it."""
    answered(node, event.taken)
    read = _note(node, event)
    for instance in list(node.instances.values()):
        if instance.state in (State.UNLOADING, State.LEAKED):
            confirm(node, instance)
    for instance in node.instances.values():
        if instance.unmeasured and instance.state in _SERVING:
            _measure(node, instance)
    for gpu in read:
        foreign = _foreign(gpu)
        if foreign != gpu.foreign_bytes:
            gpu.foreign_bytes = foreign
            node.recheck = True
    return True


def _note(node: Node, event: GpuMemoryRead) -> list[GpuRecord]:
    """Keep what was read; return the GPUs that the reading tells of."""
    found: dict[int, GpuMemory] = {reading.gpu: reading for reading in event.readings}
    read = []
    for gpu in node.gpus:
        if not gpu.measured or event.taken < gpu.taken:
            continue
        reading = found.get(gpu.index)
        if reading is None:
            gpu.free_bytes = None
            continue
        gpu.taken = event.taken
        gpu.memory_bytes = reading.capacity_bytes
        gpu.free_bytes = Bytes(min(reading.free_bytes, reading.capacity_bytes))
        gpu.processes = reading.processes
        for number in reading.processes or ():
            instance = gpu.instances.get(number)
            if instance is not None:
                instance.listed = GpuSet(instance.listed | 1 << gpu.index)
        read.append(gpu)
    return read


def await_measurement(node: Node, instance: Instance) -> None:
    """Have a ready instance measured by a reading that begins from now on."""
    measured = [gpu for gpu in node.on(instance.gpus) if gpu.measured]
    for gpu in measured:
        gpu.settled = node.at
    if measured:
        instance.unmeasured = True
        hurry(node)


def _measure(node: Node, instance: Instance) -> None:
    """Measure what a ready instance takes, if this can be told now."""
    gpus = [gpu for gpu in node.on(instance.gpus) if gpu.measured]
    if not is_tellable(node, instance) or any(
        gpu.free_bytes is None or gpu.lingering_bytes or gpu.taken < instance.ready_at for gpu in gpus
    ):
        return
    instance.unmeasured = False
    taken = [_taken_by(gpu, instance) for gpu in gpus]
    most = max(taken, default=0)
    if not taken or min(taken) < LEAST_FOOTPRINT or most > min(gpu.memory_bytes for gpu in gpus):
        instance.story.add(node.at, f"the figures of the driver make no sense for it: {', '.join(map(str, taken))} B")
        return
    _charge(node, instance, Bytes(most))


def _taken_by(gpu: GpuRecord, instance: Instance) -> int:
    """Return what an instance takes on a GPU on which nothing comes or goes, bytes."""
    assert gpu.free_bytes is not None
    others = gpu.charged() - instance.charge(gpu.index)
    rest = gpu.memory_bytes - gpu.free_bytes - gpu.foreign_bytes - others
    figure = (gpu.processes or {}).get(instance.id)
    return rest if figure is None or 2 * figure < rest else figure


def _charge(node: Node, instance: Instance, measured: Bytes) -> None:
    """Charge an instance what it takes, and plan its model with it."""
    model, declared = instance.model, instance.spec.footprint.bytes_per_gpu
    differs = abs(measured - declared) * TOLERATED_SHARE > declared
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
    """Plan models with what they took in earlier runs; what was measured in this run counts more."""
    for name, measured in event.bytes_per_gpu.items():
        model = node.models.get(name)
        if model is not None and model.measured is None and measured >= LEAST_FOOTPRINT:
            plan_with(node, model, measured)
            node.recheck = True
    return True


def _foreign(gpu: GpuRecord) -> Bytes:
    """Return what others hold on a GPU that was just read, as far as that can be told."""
    assert gpu.free_bytes is not None
    used = gpu.memory_bytes - gpu.free_bytes
    holding = [instance for instance in gpu.instances.values() if instance.holds]
    if gpu.taken >= gpu.settled and not any(_blurs(instance) for instance in holding):
        unexplained = max(0, used - gpu.charged())
        gpu.lingering_bytes = Bytes(min(gpu.lingering_bytes, unexplained))
        return Bytes(unexplained - gpu.lingering_bytes)
    figures = _figures(gpu, holding)
    if figures is None:
        return gpu.foreign_bytes
    at_most = used - sum(figures)
    at_least = used - sum(max(f, i.charge(gpu.index)) for i, f in zip(holding, figures, strict=True))
    return Bytes(max(0, min(max(gpu.foreign_bytes, at_least), at_most)))


def _blurs(instance: Instance) -> bool:
    return instance.unmeasured or instance.state in UNSETTLED


def _figures(gpu: GpuRecord, holding: Sequence[Instance]) -> list[int] | None:
    """Return what the processes of each of these instances hold; ``None``: the driver does not tell of all."""
    figures: list[int] = []
    for instance in holding:
        figure = (gpu.processes or {}).get(instance.id)
        if figure is None:
            return None
        figures.append(figure)
    return figures
