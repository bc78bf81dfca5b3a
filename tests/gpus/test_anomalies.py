"""The Nth call of a discovery fails, for N = 1, 2, 3 … until none does: the other GPUs are found each time."""

from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from swapd.core.topology import GpuHealth, NodeTopology
from swapd.gpus.discover import Discovery
from swapd.gpus.errors import DriverError
from tests.gpus.nodes import H100, FakeNode

MATRIX = """\
\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV1\tNV1\t0-3\t0
GPU1\tNV1\t X \tNV1\t0-3\t0
GPU2\tNV1\tNV1\t X \t4-7\t1
"""
#: one of each class that is told apart, one that is not, one without a class, and the one that is no NVMLError
ERRORS: list[Callable[[], Exception]] = [
    pynvml.NVMLError_Uninitialized,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_DriverNotLoaded,
    pynvml.NVMLError_Timeout,
    pynvml.NVMLError_LibraryNotFound,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_GpuIsLost,
    pynvml.NVMLError_LibRmVersionMismatch,
    pynvml.NVMLError_Unknown,
    pynvml.NVMLLibraryMismatchError,
    lambda: pynvml.NVMLError(4711),
]
NAMES = [type(error()).__name__.removeprefix("NVMLError_") for error in ERRORS]


def attempt(node: FakeNode) -> Discovery | DriverError:
    try:
        return node.discover()
    except DriverError as error:
        return error


def check(topology: NodeTopology, node: FakeNode) -> None:
    """Check what must hold however little could be read."""
    size = len(topology.gpus)
    assert [gpu.index for gpu in topology.gpus] == list(range(size))
    for gpu in topology.gpus:
        assert gpu.uuid in ("", *(fake.uuid for fake in node.gpus))
        assert (gpu.health is GpuHealth.HEALTHY) == (gpu.why == "")
    assert topology.links == tuple(zip(*topology.links, strict=True))
    assert topology.levels == tuple(zip(*topology.levels, strict=True))
    for row in topology.links or ():
        assert len(row) == size


@pytest.mark.parametrize("error", ERRORS, ids=NAMES)
def test_one_call_that_fails_costs_at_most_its_own_gpu(tmp_path: Path, error: Callable[[], Exception]) -> None:
    node = FakeNode(tmp_path, MATRIX, H100)
    whole = node.topology()
    assert [gpu.health for gpu in whole.gpus] == [GpuHealth.HEALTHY] * 3
    dead = 0
    for number in range(10_000):
        struck: list[int] = []
        node.known = whole.gpus
        node.library.faults.block(None, lambda struck=struck: struck.append(1), skip=number, times=1)
        node.library.faults.fail(None, error, skip=number, times=1)
        found = attempt(node)
        node.library.faults.clear()
        if not struck:
            break
        if isinstance(found, DriverError):
            dead += 1
            continue
        check(found.topology, node)
        gpus = found.topology.gpus
        assert [gpu.uuid for gpu in gpus] == [gpu.uuid for gpu in whole.gpus]
        # a pair that disagrees degrades both
        assert sum(gpu.health is GpuHealth.LOST for gpu in gpus) <= 1
        assert sum(gpu.placeable for gpu in gpus) >= 2
    else:
        pytest.fail("discovery never came to its end")
    assert dead == 1  # the count
    assert node.topology() == whole


@pytest.mark.parametrize("error", ERRORS, ids=NAMES)
def test_everything_that_fails_from_some_call_on_ends_in_a_topology_or_one_error(
    tmp_path: Path, error: Callable[[], Exception]
) -> None:
    node = FakeNode(tmp_path, MATRIX, H100)
    for number in range(10_000):
        node.known = ()
        struck: list[int] = []
        node.library.faults.block(None, lambda struck=struck: struck.append(1), skip=number)
        node.library.faults.fail(None, error, skip=number)
        found = attempt(node)
        node.library.faults.clear()
        if isinstance(found, Discovery):
            check(found.topology, node)
            assert len(found.topology.gpus) == 3
        if not struck:
            assert isinstance(found, Discovery)
            return
    pytest.fail("discovery never came to its end")
