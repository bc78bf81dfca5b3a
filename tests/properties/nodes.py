"""Small nodes on which everything is scarce: the places where the properties are tested."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from swapd.core.catalog import (
    Catalog,
    CopyKey,
    Footprint,
    Mode,
    ModelSpec,
    NvlinkUse,
    OnThrash,
    PolicyName,
    SchedulingSettings,
)
from swapd.core.ids import Bytes, Duration, ModelName, seconds
from swapd.core.topology import DriverState, Gpu, NodeTopology
from swapd.sim.driver import VirtualDriver
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
    on_thrash=OnThrash.PIN,
    max_pinned_gpus=100,  # no limit: the suite takes every operator's pin for granted
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
    other = replace(specs[first].footprint, gpus=2, bytes_per_gpu=Bytes(specs[first].footprint.bytes_per_gpu * 3 // 4))
    return (
        Catalog({name: spec for name, spec in specs.items() if name != first}, settings),
        Catalog({**specs, second: replace(specs[second], revision="2")}, settings),
        Catalog({**specs, first: replace(specs[first], pinned=True)}, settings),
        Catalog({**specs, first: replace(specs[first], concurrency=1, max_queue=1, max_wait=seconds(15))}, settings),
        Catalog(specs, replace(settings, protect=None, policy=PolicyName.LRU, max_concurrent_loads=1)),
        Catalog(specs, replace(settings, protect=Duration(0), idle_unload=seconds(12), drain_timeout=seconds(5))),
        Catalog(specs, replace(settings, mode=Mode.MANUAL)),
        Catalog(specs, replace(settings, min_residency=seconds(6), policy=PolicyName.CHEAPEST_RELOAD)),
        Catalog({**specs, first: replace(specs[first], footprint=other, revision="2")}, settings),
        *_of_weights(base),
    )


def _of_weights(base: Catalog) -> tuple[Catalog, ...]:
    """Return the ways in which a user may change where weights come from, if any come from elsewhere."""
    first, second, *_ = sorted(base.models)
    specs = base.models
    if not specs[first].fetched:
        return ()
    here = replace(specs[first], fetched=False, copy=CopyKey(""), local_weights=True, revision="3")
    other = {name: replace(spec, revision="4") if spec.fetched else spec for name, spec in specs.items()}
    without = {name: spec for name, spec in specs.items() if name != second}
    return (
        Catalog({**specs, first: here}, base.settings),
        Catalog(other, base.settings),
        Catalog(without, base.settings),
    )


ORIGINS = (
    Origin(topology(3), EXCLUSIVE),
    Origin(topology(4), SHARED),
    Origin(topology(1), TINY),
    Origin(topology(2), SETTLED),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A node for a talk, and what is true there but not told."""

    origin: Origin
    #: what models really take on each GPU, where that is not what they declare
    sizes: Mapping[ModelName, Bytes] = field(default_factory=dict)
    #: the driver lists an engine until its memory is back, not only until its processes end
    ghosts: bool = True
    #: its process lists can be trusted at first
    trusted: bool = True

    def driver(self) -> VirtualDriver | None:
        """Return a fresh driver; ``None``: the devices are virtual."""
        topology = self.origin.topology
        if topology.driver is DriverState.VIRTUAL:
            return None
        return VirtualDriver(topology, sizes=self.sizes, ghosts=self.ghosts, trusted=self.trusted)


GIB = 1 << 30


def card(index: int, name: str, gib: int, capability: tuple[int, int], *, measured: bool = True) -> Gpu:
    """Return a real GPU."""
    return Gpu(
        index, f"GPU-{index}", Bytes(gib * GIB), name=name, compute_capability=capability, numa=0, measured=measured
    )


def real(*gpus: Gpu, pairs: tuple[tuple[int, int], ...] = (), host_gib: int | None = None) -> NodeTopology:
    """Return a node of these GPUs of which these pairs are joined by twelve links."""
    joined = {*pairs, *((two, one) for one, two in pairs)}
    links = tuple(tuple(12 * ((one.index, two.index) in joined) for two in gpus) for one in gpus)
    host = None if host_gib is None else Bytes(host_gib * GIB)
    return NodeTopology(gpus, links, host_bytes=host, driver=DriverState.UP)


def big(spec: ModelSpec, *, host_gib: int = 0, **what: object) -> ModelSpec:
    """Return a model whose need was given in GiB."""
    footprint = replace(
        spec.footprint, bytes_per_gpu=Bytes(spec.footprint.bytes_per_gpu * GIB), host_bytes=Bytes(host_gib * GIB)
    )
    return replace(spec, footprint=footprint, **what)  # type: ignore[arg-type]


def fetched(spec: ModelSpec, **what: object) -> ModelSpec:
    """Return a model whose weights come from elsewhere."""
    return replace(spec, fetched=True, **{"fetch_estimate": seconds(8), **what})  # type: ignore[arg-type]


#: links that close a ring in another order than the numbers have, and host memory for three models or so
RINGED = Place(
    Origin(
        real(
            *(card(index, "H100", 80, (9, 0)) for index in range(4)),
            pairs=((0, 2), (2, 1), (1, 3), (3, 0)),
            host_gib=100,
        ),
        catalog(
            big(model("a", need=70), host_gib=10),
            big(model("b", need=30, exclusive=False), host_gib=10),
            big(model("c", need=30, exclusive=False), host_gib=60),
            big(model("p", 2, need=60), host_gib=30, nvlink=NvlinkUse.REQUIRED),
            big(model("q", 2, need=40, exclusive=False), host_gib=30, nvlink=NvlinkUse.IGNORE),
            big(model("ring", 4, need=40), nvlink=NvlinkUse.REQUIRED),
            big(model("w", 4, need=70), host_gib=60),
        ),
    ),
    sizes={ModelName("b"): Bytes(38 * GIB), ModelName("c"): Bytes(22 * GIB), ModelName("p"): Bytes(66 * GIB)},
)

#: two products
MIXED = Place(
    Origin(
        real(
            card(0, "L40S", 48, (8, 9)),
            card(1, "H100", 80, (9, 0)),
            card(2, "L40S", 48, (8, 9)),
            card(3, "H100", 80, (9, 0)),
            pairs=((1, 3),),
        ),
        catalog(
            big(model("able", 2, need=30, exclusive=False), min_compute_capability=(9, 0)),
            big(model("h", need=70), gpu_name="*h100*"),
            big(model("l", 2, need=30), gpu_name="L40?"),
            big(model("three", 3, need=30)),
            big(model("y", need=40)),
            big(model("z", 2, need=40, exclusive=False), nvlink=NvlinkUse.REQUIRED),
        ),
    ),
    ghosts=False,
)

#: one GPU whose driver does not tell how much is free
HALF_TOLD = Place(
    Origin(
        real(card(0, "GB10", 80, (12, 1)), card(1, "GB10", 80, (12, 1), measured=False)),
        catalog(
            big(model("s1", need=30, exclusive=False)),
            big(model("s2", need=30, exclusive=False)),
            big(model("t", 2, need=40, exclusive=False)),
            big(model("x", need=80)),
        ),
    ),
    sizes={ModelName("s2"): Bytes(44 * GIB)},
)

#: one GPU for many, whose process lists mean nothing
TIGHT = Place(
    Origin(
        real(card(0, "A100", 80, (8, 0))),
        catalog(
            big(model("s1", need=30, exclusive=False)),
            big(model("s2", need=30, exclusive=False)),
            big(model("s3", need=20, exclusive=False)),
            big(model("x", need=70)),
        ),
    ),
    sizes={ModelName("s2"): Bytes(37 * GIB)},
    trusted=False,
)

#: models whose weights come from elsewhere, beside others; little room, so that a fetch meets busy residents
FETCHED = Place(
    Origin(
        topology(2),
        catalog(
            fetched(model("a"), local_weights=True),
            fetched(model("b"), fetch_estimate=seconds(2)),
            fetched(model("c", 2)),
            model("d"),
            fetched(model("p", need=30, exclusive=False, pinned=True), fetch_estimate=seconds(20)),
            fetched(model("s", need=30, exclusive=False), max_wait=seconds(25)),
        ),
    )
)

#: models of which most share a copy with another one
TWINS = Place(
    Origin(
        topology(4),
        catalog(
            fetched(model("a"), copy=CopyKey("ab")),
            fetched(model("b"), copy=CopyKey("ab")),
            fetched(model("c")),
            fetched(model("d"), copy=CopyKey("de")),
            fetched(model("e"), copy=CopyKey("de")),
            settings=replace(SETTINGS, protect=Duration(0)),
        ),
    )
)

#: one GPU, whose memory is measured
MEASURED = Place(
    Origin(
        real(card(0, "A100", 80, (8, 0))),
        catalog(
            fetched(big(model("a", need=70))),
            fetched(big(model("b", need=70)), fetch_estimate=seconds(1)),
            big(model("c", need=70), local_weights=True),
        ),
    )
)

WEIGHTY = (FETCHED, MEASURED, TWINS)
VIRTUAL = tuple(Place(origin) for origin in ORIGINS)
REAL = (RINGED, MIXED, HALF_TOLD, TIGHT)
PLACES = VIRTUAL + REAL + WEIGHTY
