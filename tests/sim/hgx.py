"""Builds a node of eight NVLinked GPUs from what the vendor's tool prints there, and models of every size for it."""

from dataclasses import replace
from pathlib import Path

from swapd.core.catalog import Catalog, Footprint, ModelSpec, SchedulingSettings
from swapd.core.ids import Bytes, ModelName, seconds
from swapd.core.topology import Gpu, NodeTopology
from swapd.gpus.fixture import parse_matrix
from swapd.sim.world import Timings

FIXTURES = Path(__file__).parents[1] / "data" / "topologies"
GIB = 1 << 30
GPU_BYTES = Bytes(79 * GIB)
#: what the models may take of the host's memory
HOST_BYTES = Bytes(900 * GIB)


def hgx() -> NodeTopology:
    """Return the node."""
    matrix = parse_matrix((FIXTURES / "03_hgx_h100_8gpu_nvswitch.txt").read_text())
    gpus = tuple(
        Gpu(
            index,
            f"GPU-{index:08d}-0000-0000-0000-000000000000",
            GPU_BYTES,
            name="NVIDIA H100 80GB HBM3",
            numa=matrix.numa[index],
            cpus=matrix.cpus[index],
            compute_capability=(9, 0),
            measured=True,
            switched=True,
            nvlinks=18,
            nvlinks_expected=18,
            nvlink_mbps=26_562,
        )
        for index in range(len(matrix.links))
    )
    return NodeTopology(gpus, matrix.agreed_links, matrix.levels, host_bytes=HOST_BYTES, expected=8)


def _model(name: str, gpus: int, gib: int, load_s: float, *, exclusive: bool = True) -> ModelSpec:
    return ModelSpec(
        ModelName(name),
        Footprint(gpus, Bytes(gib * GIB), exclusive=exclusive, host_bytes=Bytes(gpus * 20 * GIB)),
        max_wait=seconds(600),
        load_estimate=seconds(load_s),
    )


MODELS = (
    _model("chat-8b", 1, 70, 20),
    _model("code-14b", 1, 70, 25),
    _model("embed", 1, 10, 8, exclusive=False),
    _model("rerank", 1, 12, 8, exclusive=False),
    _model("guard", 1, 30, 12, exclusive=False),
    _model("speech", 1, 20, 10, exclusive=False),
    _model("mixture-47b", 2, 72, 40),
    _model("vision-34b", 2, 60, 35),
    _model("chat-70b", 4, 72, 60),
    _model("code-70b", 4, 72, 60),
    _model("chat-405b", 8, 74, 120),
)

#: three models take other than they declare
SIZES = {
    ModelName("guard"): Bytes(41 * GIB),
    ModelName("speech"): Bytes(14 * GIB),
    ModelName("vision-34b"): Bytes(66 * GIB),
}


def catalog(settings: SchedulingSettings | None = None) -> Catalog:
    """Return the models; half of the load comes without a wish for NVLink."""
    return Catalog({spec.name: spec for spec in MODELS}, settings or SchedulingSettings())


def timings() -> Timings:
    """Return how long things take."""
    load = {spec.name: spec.load_estimate for spec in MODELS}
    return replace(Timings(), load=load, stop=seconds(3), release=seconds(0.2), give_back=seconds(2))
