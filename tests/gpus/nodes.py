"""Machines without GPUs: a fixture's matrix, the fake of NVML over it, and a tree of files in the place of /sys."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from swapd.core.topology import Gpu, GpuHealth, NodeTopology, PcieLevel
from swapd.gpus.discover import Discovery, discover
from swapd.gpus.fake import FakeLibrary
from swapd.gpus.fake_gpu import FakeGpu, Product, gpus_of
from swapd.gpus.fake_sysfs import write_sysfs
from swapd.gpus.fixture import parse_matrix
from swapd.gpus.nvml import Nvml
from swapd.gpus.settings import GpuSettings

FIXTURES = Path(__file__).parent.parent / "data" / "topologies"
H100 = Product("NVIDIA H100 80GB HBM3", fabric=True)
A100 = Product("NVIDIA A100-SXM4-80GB", link_mbps=25_781, compute_capability=(8, 0))


def fixture(prefix: str) -> str:
    """Return the text of the fixture whose name begins so."""
    (path,) = FIXTURES.glob(f"{prefix}_*.txt")
    return path.read_text()


class FakeNode:
    """One machine; ``discover`` keeps what it found as known, as the room does."""

    def __init__(self, root: Path, text: str, product: Product | None = None, **settings: Any) -> None:
        self.gpus: list[FakeGpu] = gpus_of(parse_matrix(text), product)
        self.library = FakeLibrary(self.gpus)
        self.nvml = Nvml(self.library)
        self.root = root
        self.settings = GpuSettings(host_root=root, **settings)
        self.known: tuple[Gpu, ...] = ()
        write_sysfs(root, self.gpus)
        self.nvml.init()

    def set(self, **settings: Any) -> None:
        self.settings = replace(self.settings, **settings)

    def discover(self) -> Discovery:
        found = discover(self.nvml, self.settings, self.known)
        self.known = found.topology.gpus
        return found

    def topology(self) -> NodeTopology:
        return self.discover().topology

    def begin_again(self) -> None:
        self.nvml.shutdown()
        self.nvml.init()


def healths(topology: NodeTopology) -> list[GpuHealth]:
    return [gpu.health for gpu in topology.gpus]


def cliques(topology: NodeTopology, *, least: int = 1) -> list[str]:
    """Return the greatest sets of GPUs that are pairwise linked, as ``0123``; a lone GPU is one, too."""
    size = len(topology.gpus)
    links = topology.links or tuple((0,) * size for _ in range(size))
    sets = [
        members
        for count in range(1, size + 1)
        for members in combinations(range(size), count)
        if all(links[one][two] >= least for one, two in combinations(members, 2))
    ]
    greatest = [members for members in sets if not any(set(members) < set(other) for other in sets)]
    return sorted("".join(map(str, members)) for members in greatest)


def pairs(topology: NodeTopology, links: int) -> list[str]:
    """Return the pairs with exactly so many links, as ``03``."""
    return [
        f"{one}{two}"
        for one, two in combinations(range(len(topology.gpus)), 2)
        if topology.links and topology.links[one][two] == links
    ]


def met(topology: NodeTopology, level: PcieLevel) -> list[str]:
    """Return the pairs that meet at this level."""
    return [
        f"{one}{two}" for one, two in combinations(range(len(topology.gpus)), 2) if topology.levels[one][two] is level
    ]


def by(values: Sequence[object]) -> list[str]:
    """Return the positions that share a value, as ``0123``, in order of the first."""
    groups: dict[object, str] = {}
    for place, value in enumerate(values):
        groups[value] = groups.get(value, "") + str(place)
    return list(groups.values())
