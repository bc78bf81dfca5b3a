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
    gpus = [one.gpu for one in found]
    joined = join([gpu.bdf for gpu in gpus], [one.links for one in found])
    paths = [host.pcie_path(gpu.bdf)[1] for gpu in gpus]
    gpus = [
        replace(gpu, pcie_switch=switch or (gpu.pcie_switch if gpu.health is GpuHealth.LOST else ""))
        for gpu, switch in zip(gpus, shared_switches(paths), strict=True)
    ]
    gpus = _judged(found, gpus, joined)
    expected = settings.expected or max(settings.most_seen, len(gpus))
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


def _judged(found: Sequence[Found], gpus: Sequence[Gpu], joined: Joined) -> list[Gpu]:
    """Return the GPUs with what their links and fabric say of them."""
    uneven = {place: pair for pair in joined.uneven for place in pair[:2]}
    judged = []
    for place, (one, gpu) in enumerate(zip(found, gpus, strict=True)):
        if one.links is None:
            judged.append(gpu)
            continue
        like = [len(other.links.remotes) for other in found if other.links is not None and other.gpu.name == gpu.name]
        expected = most_common(like)
        why = ""
        if gpu.nvlinks < expected:
            why = f"{gpu.nvlinks} of its NVLinks are up, {expected} of most GPUs of its kind"
        elif place in uneven:
            first, second = uneven[place][:2]
            why = f"it and GPU {second if place == first else first} disagree about the NVLinks between them"
        elif gpu.fabric is not None:
            why = fabric_trouble(gpu.fabric)
        judged.append(
            replace(
                gpu,
                switched=joined.switch[place] > 0,
                nvlinks_expected=expected,
                health=GpuHealth.DEGRADED if why else gpu.health,
                why=why or gpu.why,
            )
        )
    return judged


def _driver_version(nvml: Nvml) -> str:
    try:
        return nvml.driver_version()
    except NvmlError:
        return ""
