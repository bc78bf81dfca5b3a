"""Tells what others than our instances hold on a GPU, from what the driver shows and what our instances are charged.

Rules that hold here:

* Foreign is what is taken and charged to none of our instances. It is told where no coming or going instance can blur
  it: nothing loads, unloads or has leaked, and nothing waits to be measured. In between the last word stands.
* Where the driver tells what the processes of each of our instances hold, it is corrected in between as far as these
  figures prove it wrong.
* What a released instance may still be shown to hold is given the time of a release to come back before it counts as
  foreign, and all the time where the GPU's memory is a NUMA node.
"""

from collections.abc import Sequence
from typing import Final

from swapd.core.ids import Bytes, Instant
from swapd.core.node import GpuRecord
from swapd.core.reasons import State
from swapd.core.state import Instance

#: states in which an instance's memory is coming or going
UNSETTLED: Final = (State.LOADING, State.UNLOADING, State.LEAKED)


def reckon(gpu: GpuRecord) -> Bytes:
    """Return what others hold on a GPU that was just read, as far as that can be told."""
    holding = [instance for instance in gpu.instances.values() if instance.holds]
    if not any(_blurs(instance) for instance in holding):
        _keep_lingering(gpu, unexplained(gpu))
        return Bytes(unexplained(gpu) - gpu.lingering_bytes)
    figures = _figures(gpu, holding)
    if figures is None:
        return gpu.foreign_bytes
    assert gpu.free_bytes is not None
    used = gpu.memory_bytes - gpu.free_bytes
    _keep_lingering(gpu, max(0, used - sum(figures)))
    used -= gpu.lingering_bytes
    at_most = used - sum(figures)
    at_least = used - sum(max(f, i.charge(gpu.index)) for i, f in zip(holding, figures, strict=True))
    return Bytes(max(0, min(max(gpu.foreign_bytes, at_least), at_most)))


def unexplained(gpu: GpuRecord) -> Bytes:
    """Return what is taken on a GPU beyond what our instances are charged; 0 if it was not read."""
    used = 0 if gpu.free_bytes is None else gpu.memory_bytes - gpu.free_bytes
    return Bytes(max(0, used - gpu.charged()))


def _keep_lingering(gpu: GpuRecord, most: int) -> None:
    """Let no more linger than is unexplained."""
    gpu.lingering_bytes = Bytes(min(gpu.lingering_bytes, most))
    if not gpu.lingering_bytes:
        gpu.lingering_until = None


def linger(gpu: GpuRecord, missing: int, until: Instant) -> None:
    """Note that so much is not shown free although it was released; it should be until then."""
    if missing > 0:
        gpu.lingering_bytes = Bytes(gpu.lingering_bytes + missing)
        gpu.lingering_until = None if gpu.gpu.lingers else until


def wait_no_longer(gpu: GpuRecord) -> None:
    """Take what should have come back, and is still shown as taken, for somebody else's."""
    if gpu.lingering_until is None:
        return
    still = max(0, unexplained(gpu) - gpu.foreign_bytes)
    gpu.foreign_bytes = Bytes(gpu.foreign_bytes + min(gpu.lingering_bytes, still))
    gpu.lingering_bytes, gpu.lingering_until = Bytes(0), None


def _blurs(instance: Instance) -> bool:
    return instance.unmeasured > 0 or instance.state in UNSETTLED


def _figures(gpu: GpuRecord, holding: Sequence[Instance]) -> list[int] | None:
    """Return what the processes of each of these instances hold; ``None``: the driver does not tell of all."""
    figures: list[int] = []
    for instance in holding:
        figure = (gpu.processes or {}).get(instance.id)
        if figure is None:
            return None
        figures.append(figure)
    return figures
