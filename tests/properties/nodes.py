"""Small nodes on which everything is scarce: the places where the properties are tested."""

from dataclasses import replace

from swapd.core.catalog import Catalog, Footprint, Mode, ModelSpec, PolicyName, SchedulingSettings
from swapd.core.ids import Bytes, Duration, ModelName, seconds
from swapd.core.topology import Gpu, NodeTopology
from swapd.sim.replay import Origin

#: memory of each GPU
GPU_BYTES = Bytes(80)


def topology(gpus: int) -> NodeTopology:
    """Return a node of equal GPUs."""
    return NodeTopology(tuple(Gpu(index, f"virtual-{index}", GPU_BYTES) for index in range(gpus)))


def model(name: str, gpus: int = 1, need: int = 80, *, exclusive: bool = True, pinned: bool = False) -> ModelSpec:
    """Return a model with short limits, so that a short talk reaches each of them."""
    return ModelSpec(
        name=ModelName(name),
        footprint=Footprint(gpus, Bytes(need), exclusive=exclusive),
        pinned=pinned,
        concurrency=2,
        max_queue=3,
        max_wait=seconds(60),
        load_timeout=seconds(40),
        load_stall=seconds(15),
        stop_grace=seconds(5),
        load_estimate=seconds(8),
    )


def catalog(*models: ModelSpec, settings: SchedulingSettings | None = None) -> Catalog:
    """Return a catalog of these models."""
    return Catalog({spec.name: spec for spec in models}, settings or SETTINGS)


SETTINGS = SchedulingSettings(
    protect=seconds(10),
    protect_max_wait=seconds(4),
    drain_after=seconds(20),
    release_timeout=seconds(6),
)

EXCLUSIVE = catalog(model("a"), model("b"), model("c", 2), model("d", 2), model("e", 3), model("huge", 5))
SHARED = catalog(
    model("s1", need=30, exclusive=False),
    model("s2", need=30, exclusive=False),
    model("s3", need=50, exclusive=False),
    model("t", 2, need=40, exclusive=False),
    model("x"),
    model("y", 3, need=10),
)
TINY = catalog(model("a"), model("b"), model("c"))
SETTLED = catalog(
    model("a"),
    model("b", need=20, exclusive=False),
    model("c", need=20, exclusive=False),
    model("d", 2),
    settings=replace(SETTINGS, protect=Duration(0), min_residency=seconds(7), policy=PolicyName.LRU),
)


def variants(base: Catalog) -> tuple[Catalog, ...]:
    """Return the ways in which a user may change a catalog during a talk."""
    first, second, *_ = sorted(base.models)
    specs, settings = base.models, base.settings
    return (
        Catalog({name: spec for name, spec in specs.items() if name != first}, settings),
        Catalog({**specs, second: replace(specs[second], revision="2")}, settings),
        Catalog({**specs, first: replace(specs[first], pinned=True)}, settings),
        Catalog({**specs, first: replace(specs[first], concurrency=1, max_queue=1, max_wait=seconds(15))}, settings),
        Catalog(specs, replace(settings, protect=None, policy=PolicyName.LRU, max_concurrent_loads=1)),
        Catalog(specs, replace(settings, protect=Duration(0), idle_unload=seconds(12), drain_timeout=seconds(5))),
        Catalog(specs, replace(settings, mode=Mode.MANUAL)),
        Catalog(specs, replace(settings, min_residency=seconds(6), policy=PolicyName.CHEAPEST_RELOAD)),
        Catalog({**specs, first: replace(specs[first], footprint=Footprint(2, Bytes(60)), revision="2")}, settings),
    )


ORIGINS = (
    Origin(topology(3), EXCLUSIVE),
    Origin(topology(4), SHARED),
    Origin(topology(1), TINY),
    Origin(topology(2), SETTLED),
)
