"""Discovers the node's GPUs: what they are, how they are joined, and what is not as it should be.

Rules that hold here:

* One GPU that fails at any step hides no other: it keeps its place as a placeholder. Only what concerns the driver as
  a whole is an error.
* A place keeps its GPU for the life of the process (``slots``); every index in the result is a place.
* Links and fabric never keep a GPU from being used: they make it DEGRADED, and the complaints say why.

It blocks, for seconds on a slow driver: call it on NVML's own thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from swapd.core.topology import DriverState, Gpu, GpuHealth, NodeTopology
from swapd.gpus.complaints import complaints
from swapd.gpus.errors import DriverError, LostError, NoGpuError, NvmlError
from swapd.gpus.fabric import fabric_trouble
from swapd.gpus.hostpath import HostPath
from swapd.gpus.links import Joined, join, most_common
from swapd.gpus.nvml import Nvml
from swapd.gpus.pcie import pcie_levels, shared_switches
from swapd.gpus.readings import Device
from swapd.gpus.scan import Found, Scanner
from swapd.gpus.settings import GpuSettings
from swapd.gpus.slots import placed


@dataclass(frozen=True, slots=True)
class Discovery:
    """The outcome of one discovery."""

    #: driver UP, generation 0
    topology: NodeTopology
    #: handles by index of the GPU; a lost one may have none
    devices: Mapping[int, Device]
    #: GPUs that NVML lists, lost ones included
    count: int


def discover(nvml: Nvml, settings: GpuSettings, known: Sequence[Gpu] = ()) -> Discovery:
    """Look at every GPU; ``known`` are those of the last topology. Raises ``DriverError``."""
    host = HostPath(settings.host_root)
    listed = _read_all(nvml, host, settings, known)
    found = placed(listed, known)
    gpus = _with_switches(host, [one.gpu for one in found])
    joined = join([gpu.bdf for gpu in gpus], [one.links for one in found])
    gpus = _judged(found, gpus, joined)
    expected = settings.expected or max(settings.most_seen, sum(not _exchanged(gpu, gpus) for gpu in gpus))
    topology = NodeTopology(
        gpus=tuple(gpus),
        links=joined.links if any(map(any, joined.links)) else (),
        levels=pcie_levels(nvml, [one.device for one in found]),
        host_bytes=settings.host_bytes,
        expected=expected,
        driver=DriverState.UP,
        driver_version=_driver_version(nvml),
        complaints=complaints(gpus, found, joined, listed=len(listed), expected=expected),
    )
    devices = {place: one.device for place, one in enumerate(found) if one.device is not None}
    return Discovery(topology, devices, len(listed))


def _read_all(nvml: Nvml, host: HostPath, settings: GpuSettings, known: Sequence[Gpu]) -> list[Found]:
    """Read every position of NVML's order; raises what concerns them all."""
    try:
        count = nvml.count()
    except NvmlError as error:
        raise DriverError(error) from error
    if count == 0:
        raise DriverError(NoGpuError("DeviceGetCount", 0, "CountIsZero"))
    scanner = Scanner(nvml, host, {gpu.uuid: gpu for gpu in known if gpu.uuid}, settings.memory_bytes)
    found = [scanner.read(index) for index in range(count)]
    failures = [one.error for one in found if not isinstance(one.error, LostError)]
    if failures and all(failures):
        assert failures[0] is not None
        raise DriverError(failures[0])
    return found


def _with_switches(host: HostPath, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs with the switches they share; one that has left the bus keeps its own."""
    paths = [() if _exchanged(gpu, gpus) else host.pcie_path(gpu.bdf)[1] for gpu in gpus]
    return [
        replace(gpu, pcie_switch=gpu.pcie_switch if gpu.health is GpuHealth.LOST else switch)
        for gpu, switch in zip(gpus, shared_switches(paths), strict=True)
    ]


def _exchanged(gpu: Gpu, gpus: Sequence[Gpu]) -> bool:
    """Tell whether another GPU has come in the place of one that is lost."""
    return gpu.health is GpuHealth.LOST and any(
        other.bdf == gpu.bdf and other.health is not GpuHealth.LOST for other in gpus if gpu.bdf
    )


def _judged(found: Sequence[Found], gpus: Sequence[Gpu], joined: Joined) -> list[Gpu]:
    """Return the GPUs with what their links and fabric say of them."""
    likes: dict[str, list[int]] = {}
    for one in found:
        if one.links is not None:
            likes.setdefault(one.gpu.name, []).append(one.gpu.nvlinks)
    judged = []
    for place, (one, gpu) in enumerate(zip(found, gpus, strict=True)):
        if one.links is None:
            judged.append(gpu)
            continue
        expected = most_common(likes[gpu.name])
        why = _trouble(gpu, expected, joined)
        health = GpuHealth.DEGRADED if why else gpu.health
        switched = joined.switch[place] > 0
        judged.append(replace(gpu, switched=switched, nvlinks_expected=expected, health=health, why=why or gpu.why))
    return judged


def _trouble(gpu: Gpu, expected: int, joined: Joined) -> str:
    """Say what keeps a GPU from being as good as its like; empty: nothing."""
    if gpu.nvlinks < expected:
        return (
            f"{gpu.nvlinks} NVLinks are up where most of its kind have {expected}: look for Xid 74 in the kernel log, "
            "see that its bridge or board is seated, and reset it"
        )
    for one, two, _, _ in joined.uneven:
        if gpu.index in (one, two):
            return f"it and GPU {two if gpu.index == one else one} disagree about the NVLinks between them"
    return fabric_trouble(gpu.fabric) if gpu.fabric is not None else ""


def _driver_version(nvml: Nvml) -> str:
    try:
        return nvml.driver_version()
    except NvmlError:
        return ""
