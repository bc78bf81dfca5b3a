"""Builds node snapshots for the rooms that read them; every field has a quiet default."""

from collections.abc import Generator
from typing import Any

from swapd.core.accounts import Costs
from swapd.core.catalog import Mode, OnThrash, Priority
from swapd.core.ids import SECOND, Bytes, Duration, GpuSet, InstanceId, Instant, ModelName
from swapd.core.reasons import Move, PinnedBy, State, Verdict
from swapd.core.topology import Gpu, GpuHealth, NodeTopology
from swapd.core.view import FreeView, GpuView, InstanceView, ModelView, NodeView, Offer

GIB = 1 << 30


def at(seconds: float) -> Instant:
    return Instant(round(seconds * SECOND))


def instance_view(name: str, number: int = 1, **changes: Any) -> InstanceView:
    fields: dict[str, Any] = {
        "instance": InstanceId(number),
        "model": ModelName(name),
        "state": State.READY,
        "since": at(10),
        "gpus": GpuSet(0b1),
        "bytes_per_gpu": Bytes(GIB),
        "stage": None,
        "in_flight": 0,
        "last_used": at(90),
        "outdated": False,
    }
    return InstanceView(**(fields | changes))


def model_view(name: str, *, pinned: bool = False, **changes: Any) -> ModelView:
    fields: dict[str, Any] = {
        "model": ModelName(name),
        "instance": None,
        "configured": True,
        "pinned_by": PinnedBy.CONFIG if pinned else None,
        "priority": Priority.NORMAL,
        "queued": {},
        "oldest_waiter": None,
        "in_flight": 0,
        "load_estimate": Duration(2 * SECOND),
        "load_times": {},
        "max_wait": Duration(300 * SECOND),
        "fetched": False,
        "cached_bytes": None,
        "fetch": None,
        "gpus": 1,
        "declared_bytes": Bytes(GIB),
        "measured_bytes": None,
        "frequency": 0.0,
        "verdict": Verdict.UNKNOWN,
        "load_ratio": 0.0,
        "load_fraction": 0.0,
        "partner": None,
        "inter_arrival": None,
        "totals": Costs(),
        "hourly": Costs(),
        "evicts": (),
        "week": None,
        "move": Move.STAY,
        "consecutive_failures": 0,
        "cooling_until": None,
        "last_error": "",
        "story": (),
    }
    return ModelView(**(fields | changes))


def in_steps(view: NodeView) -> Generator[None, None, NodeView]:
    """Return the snapshot as the core builds it for who must not hold up the node."""
    yield
    return view


def offer_of(model: ModelView) -> Offer:
    """Return what clients are told of a model that is shown like this."""
    return Offer(
        instance=model.instance,
        cooling=model.cooling_until is not None,
        cached=model.cached_bytes is not None,
        max_wait=model.max_wait,
        load_times=model.load_times,
    )


def gpu_view(index: int = 0, **changes: Any) -> GpuView:
    fields: dict[str, Any] = {
        "index": index,
        "uuid": f"virtual-{index}",
        "memory_bytes": Bytes(2 * GIB),
        "health": GpuHealth.HEALTHY,
        "free_bytes": None,
        "foreign_bytes": Bytes(0),
        "reserved_bytes": Bytes(0),
        "quarantined_bytes": Bytes(0),
        "models": (),
    }
    return GpuView(**(fields | changes))


def node_view(*models: ModelView, **changes: Any) -> NodeView:
    """Build a node at second 100; its instances are those of its models unless given."""
    fields: dict[str, Any] = {
        "at": at(100),
        "mode": Mode.AUTO,
        "draining": False,
        "drained": False,
        "models": models,
        "instances": tuple(model.instance for model in models if model.instance is not None),
        "gpus": (gpu_view(0), gpu_view(1)),
        "topology": NodeTopology((Gpu(0, "virtual-0", Bytes(2 * GIB)), Gpu(1, "virtual-1", Bytes(2 * GIB)))),
        "free": FreeView(GpuSet(0b11), 1, GpuSet(0b1), GpuSet(0b1), (), ()),
        "host_booked_bytes": Bytes(0),
        "reservation": None,
        "loads_running": 0,
        "load_fraction": 0.0,
        "load_verdict": Verdict.OK,
        "max_pinned_gpus": None,
        "on_thrash": OnThrash.REPORT,
        "stale_facts": 0,
        "story": (),
    }
    return NodeView(**(fields | changes))
