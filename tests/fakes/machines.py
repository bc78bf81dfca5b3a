"""Finds the fixtures' machines, and makes nodes whose wiring a test writes down."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from swapd.core.ids import Bytes, GpuSet
from swapd.core.topology import Gpu, GpuHealth, NodeTopology, PcieLevel
from swapd.gpus.fixture_node import topology_of

FIXTURES = Path(__file__).parents[1] / "data" / "topologies"
NUMBERS = tuple(sorted(path.name[:2] for path in FIXTURES.glob("*.txt")))
BYTES = Bytes(80 << 30)


def matrix_text(number: str) -> str:
    """Return the text of the fixture with this number."""
    (path,) = FIXTURES.glob(f"{number}_*.txt")
    return path.read_text()


@cache
def machine(number: str) -> NodeTopology:
    """Return the machine of a fixture, as discovery sees it."""
    return topology_of(matrix_text(number))


def node(
    count: int,
    links: Mapping[tuple[int, int], int] | None = None,
    *,
    numa: Iterable[int] = (),
    names: Iterable[str] = (),
    degraded: Iterable[int] = (),
) -> NodeTopology:
    """Make a node of so many GPUs; pairs meet at NODE level inside a NUMA node (by default there is one)."""
    nodes = list(numa) or [0] * count
    kinds = list(names) or ["H100"] * count
    ill = list(degraded)
    known = {frozenset(pair): number for pair, number in (links or {}).items()}

    def level(one: int, two: int) -> PcieLevel:
        if one == two:
            return PcieLevel.BOARD
        return PcieLevel.NODE if nodes[one] == nodes[two] else PcieLevel.SYS

    return NodeTopology(
        tuple(
            Gpu(
                index,
                f"GPU-{index}",
                BYTES,
                name=kinds[index],
                numa=nodes[index],
                health=GpuHealth.DEGRADED if index in ill else GpuHealth.HEALTHY,
            )
            for index in range(count)
        ),
        links=tuple(tuple(known.get(frozenset((one, two)), 0) for two in range(count)) for one in range(count)),
        levels=tuple(tuple(level(one, two) for two in range(count)) for one in range(count)),
    )


def clique(gpus: Iterable[int], links: int) -> dict[tuple[int, int], int]:
    """Join every two of these GPUs."""
    some = list(gpus)
    return {(one, two): links for place, one in enumerate(some) for two in some[place + 1 :]}


def two_hgx() -> NodeTopology:
    """Sixteen GPUs on two boards, each with a switch of its own and two NUMA nodes."""
    wires = clique(range(8), 18) | clique(range(8, 16), 18)
    return node(16, wires, numa=[index // 4 for index in range(16)])


def one_fabric() -> NodeTopology:
    """Sixteen GPUs that all reach each other over switches."""
    return node(16, clique(range(16), 6), numa=[index // 8 for index in range(16)])


def virtual(count: int) -> NodeTopology:
    """Make a node of virtual devices."""
    return NodeTopology(tuple(Gpu(index, f"virtual-{index}", BYTES) for index in range(count)))


def gpus(*indices: int) -> GpuSet:
    """Return the set of these GPUs."""
    return GpuSet(sum(1 << index for index in indices))


def names(mask: int) -> str:
    """Write a set as the fixtures do: ``{0123}``."""
    return "{" + "".join(str(index) for index in range(mask.bit_length()) if mask >> index & 1) + "}"


def mask(text: str) -> GpuSet:
    """Read a set as the fixtures write it."""
    return gpus(*map(int, text.strip("{}")))
