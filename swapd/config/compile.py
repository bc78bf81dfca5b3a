"""Turns settings into the core's words: the catalog of models, the rules, the node's devices.

Reads the disk for the size and age of the weights, and what the system says of its memory, nothing else. A model's
revision covers exactly what needs a new process when it changes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from swapd.config.cache import WeightsSource
from swapd.config.devices import Devices
from swapd.config.files import TooManyFilesError, Weights, weigh
from swapd.config.host import available_memory
from swapd.config.model import Model
from swapd.config.ports import reserved_ports
from swapd.config.schema import Settings
from swapd.core.catalog import Catalog, CopyKey, Footprint, ModelSpec, NvlinkUse, SchedulingSettings, copy_key
from swapd.core.ids import SECOND, Bytes, Duration, ModelName
from swapd.core.topology import DriverState, Gpu, NodeTopology

__all__ = [
    "compile_catalog",
    "compile_topology",
    "host_bytes",
    "load_estimate",
    "model_weights",
    "reserved_ports",
    "with_sizes",
]

#: a load's first guess: a fixed part, and the speed at which weights come in
ESTIMATE_BASE: Final = Duration(2 * SECOND)
ESTIMATE_BYTES_PER_SECOND: Final = 2_000_000_000
#: every so many bytes of weights lengthen the load timeout by a second
TIMEOUT_BYTES_PER_SECOND: Final = 100_000_000

#: the keys whose change needs a new process; ``weights`` is added with the files' sizes and times.
#:
#: What an instance takes (``gpus``, ``memory``, ``host_memory``) is booked for its whole life. Which GPUs will do
#: (``gpu_name`` and the like) is not known here of those it sits on: they may no longer, so it has to be placed anew.
_REVISION_KEYS: Final = frozenset(
    {
        *("engine", "command", "args", "url", "gpus", "memory", "exclusive", "env", "health", "warmup", "stop"),
        *("host_memory", "gpu_name", "min_compute_capability"),
    }
)


def compile_catalog(settings: Settings) -> Catalog:
    """Return the models and rules as the core knows them."""
    models = {ModelName(name): _spec(ModelName(name), model) for name, model in settings.models.items()}
    return Catalog(models, _rules(settings))


def compile_topology(settings: Settings) -> NodeTopology:
    """Return the node's devices as far as the configuration knows them: the virtual ones, or no GPU yet."""
    devices = settings.devices
    if devices.virtual is None:
        return NodeTopology(
            (), driver=DriverState.STARTING, expected=devices.expected or 0, host_bytes=host_bytes(devices)
        )
    virtual = devices.virtual
    return NodeTopology(
        tuple(Gpu(index, f"virtual-{index}", virtual.memory) for index in range(virtual.count)),
        host_bytes=host_bytes(devices),
    )


def host_bytes(devices: Devices) -> Bytes | None:
    """Return the host memory that models may take; ``None``: it is not accounted, or the system does not tell it."""
    if devices.host_memory == "auto":
        return available_memory()
    return devices.host_memory


def with_sizes(catalog: Catalog, settings: Settings, sizes: Mapping[ModelName, Bytes]) -> Catalog:
    """Return the catalog with what follows from the sizes of fetched weights, as far as they are known by now."""
    models = dict(catalog.models)
    for name, spec in catalog.models.items():
        if spec.fetched and name in sizes:
            model, size = settings.models[name], sizes[name]
            models[name] = replace(spec, load_timeout=_timeout(model, size), load_estimate=_estimate(model, size))
    return replace(catalog, models=models)


def model_weights(model: Model) -> Weights | None:
    """Return size and fingerprint of weights that lie here; ``None``: there are none, or they are gone meanwhile."""
    if model.local_weights is None:
        return None
    try:
        return weigh(model.local_weights)
    except (OSError, TooManyFilesError):
        return None


def load_estimate(model: Model) -> Duration:
    """Return the expected load time before any was measured."""
    return _estimate(model, _size(model_weights(model)))


def _estimate(model: Model, size: Bytes) -> Duration:
    if model.load_estimate is not None:
        return model.load_estimate
    return Duration(ESTIMATE_BASE + size * SECOND // ESTIMATE_BYTES_PER_SECOND)


def _timeout(model: Model, size: Bytes) -> Duration:
    return Duration(model.load_timeout + size * SECOND // TIMEOUT_BYTES_PER_SECOND)


def _size(weights: Weights | None) -> Bytes:
    return Bytes(0) if weights is None else weights.size


def _spec(name: ModelName, model: Model) -> ModelSpec:
    weights = model_weights(model)
    return ModelSpec(
        name=name,
        footprint=Footprint(
            gpus=model.gpus, bytes_per_gpu=model.memory, exclusive=model.exclusive, host_bytes=model.host_memory
        ),
        pinned=model.pin,
        concurrency=model.concurrency,
        max_queue=model.max_queue,
        max_wait=model.max_wait,
        load_timeout=_timeout(model, _size(weights)),
        load_stall=model.load_stall,
        stop_grace=model.stop.grace,
        has_stop_command=model.stop.command is not None,
        priority=model.priority,
        nvlink=model.nvlink,
        gpu_name=model.gpu_name or "",
        min_compute_capability=model.min_compute_capability,
        load_estimate=_estimate(model, _size(weights)),
        fetched=model.source is not None,
        copy=_copy(model.source),
        local_weights=weights is not None,
        revision=_revision(model, weights),
    )


def _copy(source: WeightsSource | None) -> CopyKey:
    if source is None:
        return CopyKey("")
    return copy_key(source.source, include=source.include, sha256=source.sha256)


def _revision(model: Model, weights: Weights | None) -> str:
    source = model.source
    content = {
        **model.model_dump(mode="json", include=set(_REVISION_KEYS)),
        "weights": [str(model.local_weights), weights.fingerprint if weights else None],
        # as written: what is shown of a source leaves out what may make it another one
        **({} if source is None else {"source": [source.source, *source.include, source.sha256]}),
        # any set of GPUs meets the other two words
        "nvlink_required": model.nvlink is NvlinkUse.REQUIRED,
    }
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _rules(settings: Settings) -> SchedulingSettings:
    scheduling = settings.scheduling
    return SchedulingSettings(
        policy=scheduling.policy,
        protect=scheduling.protect,
        protect_max_wait=scheduling.protect_max_wait,
        min_residency_load_times=scheduling.min_residency.load_times,
        min_residency=scheduling.min_residency.duration,
        drain_after=scheduling.drain_after,
        drain_timeout=scheduling.drain_timeout,
        max_concurrent_loads=scheduling.max_concurrent_loads,
        frequency_half_life=scheduling.frequency_half_life,
        release_timeout=scheduling.release_timeout,
        idle_unload=scheduling.idle_unload,
        mode=scheduling.mode,
        max_pinned_gpus=scheduling.max_pinned_gpus,
        on_thrash=scheduling.on_thrash,
        require_fabric=settings.devices.require_fabric,
    )
