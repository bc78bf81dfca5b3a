"""Each cause for which a model cannot be placed on an empty node has its sentence; passing ones are told as such."""

from typing import Any

import pytest

from swapd.core.boards import boards_for
from swapd.core.catalog import NvlinkUse, SchedulingSettings
from swapd.core.state import Need
from swapd.core.topology import Fabric, FabricState, GpuHealth, NodeTopology
from swapd.core.unplaceable import obstacle, why_unplaceable
from tests.core.driver import spec
from tests.core.gpus import gib, linked, node, with_gpu

MIXED = with_gpu(with_gpu(node(4), 2, name="NVIDIA A100", compute_capability=(8, 0)), 3, name="NVIDIA A100")
LOST = with_gpu(node(2), 1, health=GpuHealth.LOST, why="it has left the bus")
UNKNOWN = with_gpu(node(2), 1, health=GpuHealth.LOST, memory_bytes=0, name="", compute_capability=None)
NEVER_READ = with_gpu(node(1), 0, health=GpuHealth.LOST, memory_bytes=0, name="", compute_capability=None)


@pytest.mark.parametrize(
    ("devices", "wants", "detail", "passing"),
    [
        (NodeTopology(()), {}, "this node has no GPU", True),
        (node(2), {"gpu_name": "*h200*"}, "no GPU here matches '*h200*' (there are: NVIDIA H100 80GB HBM3)", False),
        (
            MIXED,
            {"gpus": 4, "gpu_name": "*a100"},
            "only 2 GPUs here match '*a100' (there are: NVIDIA H100 80GB HBM3, NVIDIA A100)",
            False,
        ),
        (
            with_gpu(MIXED, 3, name=""),
            {"gpus": 2, "gpu_name": "*a100"},
            "only 1 GPU here matches '*a100' (there are: NVIDIA H100 80GB HBM3, NVIDIA A100, one without a name)",
            False,
        ),
        (
            node(1),
            {"min_compute_capability": (10, 0)},
            "no GPU here has compute capability 10.0 or more (there are: 9.0)",
            False,
        ),
        (
            with_gpu(MIXED, 0, compute_capability=None),
            {"gpus": 3, "min_compute_capability": (9, 0)},
            "only 2 GPUs here have compute capability 9.0 or more (there are: one that is not known, 9.0, 8.0)",
            False,
        ),
        (
            with_gpu(node(2), 0, compute_capability=(8, 0)),
            {"gpus": 2, "min_compute_capability": (9, 0)},
            "only 1 GPU here has compute capability 9.0 or more (there are: 8.0, 9.0)",
            False,
        ),
        (node(2), {"gib": 90}, "this node can never hold that: the largest GPU for it has 80 GiB", False),
        (node(2), {"gpus": 3}, "this node can never hold that: it has 2 GPUs", False),
        (
            with_gpu(node(2), 1, memory_bytes=gib(40)),
            {"gib": 60, "gpus": 2},
            "this node can never hold that: only 1 GPU here has so much memory",
            False,
        ),
        (
            with_gpu(node(3), 1, memory_bytes=gib(40)),
            {"gib": 60, "gpus": 3},
            "this node can never hold that: only 2 GPUs here have so much memory",
            False,
        ),
        (
            MIXED,
            {"gpus": 3},
            "its GPUs must be of one product, and there are 2 × NVIDIA H100 80GB HBM3 and 2 × NVIDIA A100",
            False,
        ),
        (
            node(4, links=linked(4, (0, 1), (2, 3))),
            {"gpus": 4, "nvlink": NvlinkUse.REQUIRED},
            "no NVLink ring passes through 4 of the GPUs here",
            False,
        ),
        (
            with_gpu(node(2), 1, health=GpuHealth.LOST),
            {"gpus": 2, "nvlink": NvlinkUse.REQUIRED},
            "no NVLink ring passes through 2 of the GPUs here",
            True,
        ),
        (LOST, {"gpus": 2}, "GPU 1 is lost (it has left the bus)", True),
        (UNKNOWN, {"gpus": 2, "gpu_name": "*H100*"}, "GPU 1 is lost", True),
        (NEVER_READ, {"gib": 10}, "GPU 0 is lost", True),
        (
            with_gpu(node(2, fabric=Fabric(FabricState.COMPLETED)), 1, fabric=Fabric(FabricState.NOT_STARTED)),
            {"gpus": 2},
            "the NVLink fabric is not registered on GPU 1, and require_fabric is set",
            True,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_stands_in_the_way_is_said(
    devices: NodeTopology, wants: dict[str, Any], detail: str, passing: bool
) -> None:
    model = spec("m", wants.pop("gpus", 1), gib=wants.pop("gib", 60), **wants)
    need = Need.of(model)
    found = obstacle(devices, boards_for(devices, ()), need, require_fabric=True)
    assert found is not None
    assert (found.detail, found.passing) == (detail, passing)
    told = why_unplaceable(devices, model, SchedulingSettings(require_fabric=True))
    assert told is not None
    assert told.startswith("m needs ")
    assert told.endswith(f" each; {detail}")


@pytest.mark.parametrize("count", [1, 2, 4])
def test_what_can_be_placed_has_nothing_in_its_way(count: int) -> None:
    for nvlink in NvlinkUse:
        model = spec("m", count, gib=60, nvlink=nvlink, gpu_name="*H100*", min_compute_capability=(9, 0))
        settings = SchedulingSettings(require_fabric=True)
        assert why_unplaceable(node(4, links=linked(4, range(4))), model, settings) is None


def test_gpus_on_two_boards_that_are_linked_within_only_make_no_set() -> None:
    devices = node(16, links=linked(16, range(8), range(8, 16)))
    for index in (0, 1, 2, 8, 9, 10):
        devices = with_gpu(devices, index, memory_bytes=gib(10))
    told = why_unplaceable(devices, spec("m", 8, gib=60), SchedulingSettings())
    assert told == "m needs 8 GPUs with 60 GiB each; no 8 of the GPUs here are close enough to each other"


def test_more_host_memory_than_models_may_take_is_said() -> None:
    devices = node(1, host=64)
    big = spec("m", gib=10)
    footprint = type(big.footprint)(1, gib(10), host_bytes=gib(100))
    model = type(big)(big.name, footprint)
    told = why_unplaceable(devices, model, SchedulingSettings())
    assert told == (
        "m needs 1 GPU with 10 GiB each; it also needs 100 GiB of host memory, and models may take 64 GiB here"
    )
