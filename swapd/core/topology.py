"""Describes the node's GPUs as the core sees them: identity, size, links, health, and whether the driver can be asked.

Rules that hold here:

* A GPU's index is its place on the node and its bit in every ``GpuSet``. It never changes while the daemon runs: a GPU
  that is lost keeps its place, a new one is appended. Only the ``uuid`` of a place whose GPU was never readable (it is
  empty then) may still become known.
* What cannot be read is absent (empty, ``-1``, ``None``), never 0 and never a guess that looks like a fact.
* Health is the discovery's verdict. Who may be placed where is decided elsewhere.
"""

import enum
from dataclasses import dataclass, field

from swapd.core.ids import Bytes, GpuSet


class PcieLevel(enum.IntEnum):
    """How two GPUs meet on PCIe, worst first; the numbers are go-gpuallocator's scores."""

    #: across NUMA nodes, or not known
    SYS = 10
    #: between the host bridges of a NUMA node
    NODE = 20
    #: at one host bridge
    PHB = 30
    #: over several PCIe bridges
    PXB = 40
    #: over at most one PCIe bridge
    PIX = 50
    #: on one board
    BOARD = 60


class GpuHealth(enum.StrEnum):
    """What a GPU is good for."""

    HEALTHY = "healthy"
    #: works, with fewer or unequal links than its like, or with a fabric that is not sound: placed after intact ones
    DEGRADED = "degraded"
    #: reported a hardware fault: nothing is placed there
    FAILED = "failed"
    #: cannot be read or has left the bus: nothing is placed there
    LOST = "lost"
    #: partitioned by MIG: nothing is placed there
    MIG = "mig"


class FabricState(enum.StrEnum):
    """How far NVLink fabric registration has come (``nvmlGpuFabricState_t``)."""

    UNSUPPORTED = "unsupported"
    NOT_STARTED = "not_started"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


class FabricHealth(enum.StrEnum):
    """The fabric's own summary of a GPU's health."""

    UNSUPPORTED = "unsupported"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    LIMITED = "limited"


@dataclass(frozen=True, slots=True)
class Fabric:
    """A GPU's place in an NVLink fabric."""

    state: FabricState
    #: NVML status of the registration; 0 is success
    status: int = 0
    #: ``<cluster uuid>.<clique id>``; empty: attached to none
    clique: str = ""
    #: 2-bit fields, see ``nvmlGpuFabricInfo_v3_t.healthMask``
    health_mask: int = 0
    health: FabricHealth = FabricHealth.UNSUPPORTED


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU (or virtual device)."""

    #: position on the node and bit in every GpuSet; dense from 0
    index: int
    #: stable identity: the full NVML UUID, or ``virtual-<index>``; empty: never readable so far
    uuid: str
    #: usable memory, bytes: the driver's total less its own reserve
    memory_bytes: Bytes
    #: product name
    name: str = ""
    #: canonical PCI address, ``0000:1a:00.0``
    bdf: str = ""
    #: minor number of its device file
    minor: int | None = None
    #: NUMA node of the host that is near it and has CPUs; -1: not known
    numa: int = -1
    #: ids of the CPUs near it, ascending
    cpus: tuple[int, ...] = ()
    #: name of the PCIe root in sysfs, ``pci0000:17``
    pcie_root: str = ""
    #: PCI address of the switch above it, shared with its neighbours; empty: none
    pcie_switch: str = ""
    compute_capability: tuple[int, int] | None = None
    health: GpuHealth = GpuHealth.HEALTHY
    #: one sentence: why it is not healthy
    why: str = ""
    #: the driver tells how much memory is free; else only the accounts count
    measured: bool = False
    #: its memory is a NUMA node: pages may stay counted after a process has ended
    lingers: bool = False
    #: its links lead to a switch, not to single peers
    switched: bool = False
    #: active NVLinks, and how many its like has
    nvlinks: int = 0
    nvlinks_expected: int = 0
    #: of one link, one way, MB/s; 0: not known
    nvlink_mbps: int = 0
    fabric: Fabric | None = None

    @property
    def placeable(self) -> bool:
        """Whether models may be placed on it."""
        return self.health in (GpuHealth.HEALTHY, GpuHealth.DEGRADED)


class DriverState(enum.StrEnum):
    """Whether NVML can be asked; all but UP and VIRTUAL mean that nothing new is loaded."""

    #: the devices are virtual: there is no driver
    VIRTUAL = "virtual"
    #: nothing is known yet; requests wait
    STARTING = "starting"
    UP = "up"
    #: there is no library, or no GPU at all
    ABSENT = "absent"
    #: library without a kernel driver
    NOT_LOADED = "not_loaded"
    #: library and kernel driver are of different versions, or the bindings are newer than both
    MISMATCH = "mismatch"
    #: a call has not come back in time
    STALLED = "stalled"
    #: every GPU answers with an error
    FAILED = "failed"
    #: let go for an operator
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """All GPUs of the node, ordered by index, and how they are joined."""

    gpus: tuple[Gpu, ...]
    #: NVLinks between GPU i and GPU j, symmetric; empty: none anywhere
    links: tuple[tuple[int, ...], ...] = ()
    #: how GPU i and GPU j meet on PCIe, symmetric; empty: not known, as for virtual devices
    levels: tuple[tuple[PcieLevel, ...], ...] = ()
    #: host memory that models may take; ``None``: not accounted
    host_bytes: Bytes | None = None
    #: GPUs the node should have (configured, or the most ever seen); 0: no expectation
    expected: int = 0
    driver: DriverState = DriverState.VIRTUAL
    #: one sentence: what is wrong with the driver and what to do; empty: nothing
    trouble: str = ""
    driver_version: str = ""
    #: grows with every change of anything above
    generation: int = 0
    #: one sentence for each thing that is not as it should be (missing GPU, asymmetric link, fabric …)
    complaints: tuple[str, ...] = field(default=())

    @property
    def all_gpus(self) -> GpuSet:
        """Every GPU of the node."""
        return GpuSet((1 << len(self.gpus)) - 1)

    @property
    def placeable(self) -> GpuSet:
        """Every GPU that models may be placed on."""
        return GpuSet(sum(1 << gpu.index for gpu in self.gpus if gpu.placeable))
