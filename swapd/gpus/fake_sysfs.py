"""Writes the part of ``/sys`` that discovery reads, for GPUs that do not exist.

GPUs that meet at a PCIe bridge are put below one switch, those that meet over several below one switch each, and these
below a common one; so are GPUs that a NIC near both joins, where the matrix hides how they meet themselves.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from swapd.core.topology import PcieLevel
from swapd.gpus.fake_gpu import FakeGpu


def write_sysfs(root: Path, gpus: Sequence[FakeGpu], *, numa: bool = True) -> None:
    """Write ``root/sys`` anew; without ``numa`` the kernel knows no node of any device (virtual machines)."""
    _write_lists(root / "sys/devices/system", gpus)
    near = _groups(gpus, PcieLevel.PIX)
    for number, host_bridge in enumerate(_groups(gpus, PcieLevel.PXB)):
        port = root / f"sys/devices/pci0000:{number:02x}/0000:{number:02x}:01.0"
        top = port / f"0000:{0xA0 + number:02x}:00.0"
        for gpu in host_bridge:
            leaf = next(group for group in near if gpu in group)
            device = gpu.bdf.replace(":00.0", ":10.0")
            if len(host_bridge) == 1:
                place = port
            elif len(leaf) in (1, len(host_bridge)):
                place = top / device
            else:
                place = top / f"0000:{0xC0 + near.index(leaf):02x}:00.0" / device
            _write_device(root, place / gpu.bdf, gpu.numa if numa else -1)


def _write_device(root: Path, device: Path, numa: int) -> None:
    device.mkdir(parents=True, exist_ok=True)
    (device / "numa_node").write_text(f"{numa}\n")
    _link(root / "sys/bus/pci/devices" / device.name, device)


def _link(name: Path, target: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.unlink(missing_ok=True)
    name.symlink_to(os.path.relpath(target, name.parent))


def _groups(gpus: Sequence[FakeGpu], level: PcieLevel) -> list[list[FakeGpu]]:
    """Put together what meets at this level or nearer; a GPU that meets nobody is a group of its own."""
    groups: list[list[FakeGpu]] = []
    for gpu in gpus:
        met = [group for group in groups if any(gpu.levels.get(other.bdf, PcieLevel.SYS) >= level for other in group)]
        groups = [group for group in groups if group not in met]
        groups.append([other for group in met for other in group] + [gpu])
    return groups


def _write_lists(system: Path, gpus: Sequence[FakeGpu]) -> None:
    cpus: dict[int, set[int]] = {}
    for gpu in gpus:
        for node in gpu.memory_nodes:
            cpus.setdefault(node, set())
        if gpu.numa >= 0:
            cpus.setdefault(gpu.numa, set()).update(gpu.cpus)
        if gpu.own_numa is not None:
            cpus.setdefault(gpu.own_numa, set())
    last_cpu = max((cpu for gpu in gpus for cpu in gpu.cpus), default=0)
    for path, text in (
        ("cpu/possible", f"0-{last_cpu}"),
        ("node/possible", f"0-{max(cpus, default=0)}"),
        *((f"node/node{node}/cpulist", ",".join(map(str, sorted(ids)))) for node, ids in cpus.items()),
    ):
        file = system / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
