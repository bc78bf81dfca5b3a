"""Reads the machines that placement is measured on; shared by the benchmarks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from swapd.core.topology import NodeTopology, PcieLevel
from swapd.gpus.fixture_node import topology_of

Cell = TypeVar("Cell")
FIXTURES = Path(__file__).parent.parent / "tests" / "data" / "topologies"


def machines() -> dict[str, NodeTopology]:
    """Return every fixture's machine as discovery sees it, by name."""
    return {path.stem: topology_of(path.read_text()) for path in sorted(FIXTURES.glob("*.txt"))}


def twice(one: NodeTopology) -> NodeTopology:
    """Return a machine with two of these boards, which no link joins."""
    count = len(one.gpus)
    nodes = 1 + max(gpu.numa for gpu in one.gpus)
    more = tuple(replace(gpu, index=gpu.index + count, numa=gpu.numa + nodes) for gpu in one.gpus)
    links = _diagonal(one.links or ((0,) * count,) * count, 0)
    return replace(one, gpus=one.gpus + more, links=links, levels=_diagonal(one.levels, PcieLevel.SYS))


def _diagonal(block: Sequence[tuple[Cell, ...]], between: Cell) -> tuple[tuple[Cell, ...], ...]:
    far = (between,) * len(block)
    return tuple(row + far for row in block) + tuple(far + row for row in block)
