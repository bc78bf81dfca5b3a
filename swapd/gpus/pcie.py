"""Finds which GPUs share a PCIe switch, and how each pair meets on PCIe."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from swapd.core.topology import PcieLevel
from swapd.gpus.errors import NvmlError
from swapd.gpus.nvml import Nvml
from swapd.gpus.readings import Device


def shared_switches(paths: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return for each GPU the bridge nearest to it that another one is below too; empty: there is none.

    ``paths`` are the bridges above each GPU, outermost first.
    """
    below = Counter(bridge for path in paths for bridge in path)
    return tuple(next((bridge for bridge in reversed(path) if below[bridge] > 1), "") for path in paths)


def pcie_levels(nvml: Nvml, devices: Sequence[Device | None]) -> tuple[tuple[PcieLevel, ...], ...]:
    """Ask for every pair; a level that cannot be read is the worst. Raises nothing."""
    levels = [[PcieLevel.SYS] * len(devices) for _ in devices]
    for place in range(len(devices)):
        levels[place][place] = PcieLevel.BOARD
    for one, two in combinations(range(len(devices)), 2):
        levels[one][two] = levels[two][one] = _level(nvml, devices[one], devices[two])
    return tuple(map(tuple, levels))


def _level(nvml: Nvml, one: Device | None, other: Device | None) -> PcieLevel:
    if one is None or other is None:
        return PcieLevel.SYS
    try:
        return nvml.common_ancestor(one, other)
    except NvmlError:
        return PcieLevel.SYS
