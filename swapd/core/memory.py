"""Applies what the driver says of memory, and everything that can be told from it.

Rules that hold here:

* Only GPUs count whose memory is measured, and of each only the latest reading. A GPU that is missing in a reading is
  not known now.
* From one reading releases are told first, then what ready instances take, and last what is left to others.
"""

from swapd.core.asking import answered
from swapd.core.events import GpuMemoryRead
from swapd.core.footprints import measure_all
from swapd.core.foreign import reckon, wait_no_longer
from swapd.core.ids import Bytes, GpuSet
from swapd.core.node import GpuRecord, Node
from swapd.core.release import confirm_all


def memory_read(node: Node, event: GpuMemoryRead) -> bool:
    """Take in a reading."""
    answered(node, event.taken)
    read = _note(node, event)
    confirm_all(node)
    measure_all(node)
    for gpu in read:
        foreign = reckon(gpu)
        if foreign != gpu.foreign_bytes:
            gpu.foreign_bytes = foreign
            node.recheck = True
    return True


def _note(node: Node, event: GpuMemoryRead) -> list[GpuRecord]:
    """Keep what was read; return the GPUs that the reading tells of."""
    found = {reading.gpu: reading for reading in event.readings}
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
        if gpu.lingering_until is not None and event.taken >= gpu.lingering_until:
            wait_no_longer(gpu)
        read.append(gpu)
    return read
