"""Describes GPUs that do not exist, for a fake of NVML: what each is, and what a test may change while it is watched.

A machine comes from the topology matrix of a real one. What the matrix does not say (product, memory, addresses, other
ends of the links) is made up here, by two rules: a GPU has at most 18 NVLinks, so a row with more of them can only lead
to a switch; and every link that is not used is there, switched off.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pynvml

from swapd.core.topology import PcieLevel
from swapd.gpus.fixture import TopologyMatrix

GIB: Final = 1 << 30
MAX_DIRECT: Final = 18
"""NVLinks that a GPU has at most (generation 4 and 5)."""
UNKNOWN_REMOTE: Final = "FFFFFFFF:FF:FF.0"
"""What virtual machines see at the other end of a link."""
_SWITCHES: Final = 6


@dataclass(frozen=True, slots=True)
class Product:
    """What the matrix does not say of a GPU."""

    name: str = "GPU of a topology matrix"
    total_bytes: int = 80 * GIB
    reserved_bytes: int = GIB // 2
    #: of one link, one way, MB/s
    link_mbps: int = 26_562
    compute_capability: tuple[int, int] = (9, 0)
    #: registers with a fabric manager (Hopper and later, with a switch)
    fabric: bool = False


@dataclass(eq=False, slots=True)
class FakeLink:
    """One NVLink."""

    active: bool = False
    #: the GPU at the other end; ``None``: a switch, or nobody
    peer: "FakeGpu | None" = None
    #: PCI address and kind of the other end as told
    remote: str = UNKNOWN_REMOTE
    kind: int = pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN


@dataclass(frozen=True, slots=True)
class FakeProcess:
    """An entry of a process list; any value can be told, true or not."""

    pid: int
    used_bytes: int | None = None


@dataclass(slots=True)
class FakeFabric:
    """What a GPU tells of its fabric; the numbers are NVML's."""

    state: int = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    status: int = 0
    cluster: bytes = bytes(16)
    clique: int = 0
    health_mask: int = 0x1AA
    summary: int = pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY


@dataclass(eq=False, slots=True)
class FakeGpu:
    """One GPU; every attribute may be set while it is watched."""

    product: Product
    uuid: str
    minor: int
    #: canonical PCI address
    bdf: str
    #: as many as can be asked for; beyond the last one it is an invalid argument. Empty: NVLink is not supported
    links: list[FakeLink] = field(default_factory=list)
    #: how it meets the others on PCIe, by their address; not there: SYS
    levels: dict[str, PcieLevel] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    #: what sysfs says
    numa: int = -1
    #: what NVML says: the NUMA nodes near it, with CPUs or without
    memory_nodes: tuple[int, ...] = ()
    #: the NUMA node that is its own memory
    own_numa: int | None = None
    #: ``None``: memory is not supported
    total_bytes: int | None = 0
    #: by processes
    used_bytes: int = 0
    compute: list[FakeProcess] = field(default_factory=list)
    graphics: list[FakeProcess] = field(default_factory=list)
    utilization: int = 0
    #: ``None``: there is no such mode
    mig: bool | None = False
    fabric: FakeFabric | None = None
    #: off the bus: some calls fail, others go on looking healthy
    lost: bool = False
    #: lost, and not even uuid, name and links answer
    mute: bool = False
    #: uncorrectable ECC errors since the last reset
    ecc_errors: int = 0
    recovery_action: int = 0
    #: correctable, uncorrectable, pending, failed
    remapped_rows: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def free_bytes(self) -> int:
        """What version 2 of the memory call says."""
        return max((self.total_bytes or 0) - self.product.reserved_bytes - self.used_bytes, 0)

    @property
    def active_links(self) -> list[FakeLink]:
        """The links that are up."""
        return [link for link in self.links if link.active]


def gpus_of(matrix: TopologyMatrix, product: Product | None = None) -> list[FakeGpu]:
    """Build the GPUs of a machine, all of one product."""
    product = product or Product()
    gpus = [_gpu(matrix, index, product) for index in range(len(matrix.links))]
    if any(any(row) for row in matrix.links):
        for gpu, row in zip(gpus, matrix.links, strict=True):
            used = list(_links(gpus, row))
            gpu.links = used + [FakeLink() for _ in range(MAX_DIRECT - len(used))]
    for gpu, levels in zip(gpus, matrix.levels, strict=True):
        gpu.levels = {other.bdf: level for other, level in zip(gpus, levels, strict=True)}
    return gpus


def take_down(gpu: FakeGpu, count: int, *, peer: FakeGpu | None = None, one_sided: bool = False) -> None:
    """Switch off links of a GPU, at most ``count`` and only those to ``peer`` if given.

    The other end of a direct link goes with it, unless ``one_sided``: then the two GPUs disagree.
    """
    for link in [link for link in gpu.active_links if peer is None or link.peer is peer][:count]:
        link.active = False
        other = next((end for end in link.peer.active_links if end.peer is gpu), None) if link.peer else None
        if other is not None and not one_sided:
            other.active = False


def hide_remotes(gpu: FakeGpu) -> None:
    """Make the other ends of all links unknown, as in a virtual machine."""
    for link in gpu.links:
        link.remote, link.kind = UNKNOWN_REMOTE, pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN


def nvml_bdf(bdf: str) -> str:
    """Spell a canonical PCI address as NVML does: eight digits, upper case."""
    domain, _, rest = bdf.partition(":")
    return f"{int(domain, 16):08X}:{rest.upper()}"


def _gpu(matrix: TopologyMatrix, index: int, product: Product) -> FakeGpu:
    numa = matrix.numa[index]
    return FakeGpu(
        product=product,
        uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'swapd fixture {index}')}",
        minor=index,
        bdf=f"0000:{0x1A + index:02x}:00.0",
        cpus=matrix.cpus[index],
        numa=numa,
        memory_nodes=(numa,) if numa >= 0 else (),
        own_numa=matrix.gpu_numa[index],
        total_bytes=product.total_bytes,
        fabric=FakeFabric() if product.fabric else None,
    )


def _links(gpus: list[FakeGpu], row: tuple[int, ...]) -> Iterator[FakeLink]:
    """Yield the links of a GPU that are in use."""
    if sum(row) > MAX_DIRECT:
        for number in range(max(row)):
            remote = f"{0:08X}:{0xC4 + number % _SWITCHES:02X}:00.0"
            yield FakeLink(True, None, remote, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)  # noqa: FBT003
        return
    for peer, count in zip(gpus, row, strict=True):
        for _ in range(count):
            yield FakeLink(True, peer, nvml_bdf(peer.bdf), pynvml.NVML_NVLINK_DEVICE_TYPE_GPU)  # noqa: FBT003
