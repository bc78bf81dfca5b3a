"""Turns a snapshot into the values of the metrics about GPUs and their driver; pure.

What the driver told is on the page only while the driver can be asked: a stale value looks like a fact, and a 0 like an
empty GPU. What swapd itself has booked is always there, for every GPU. Labels are named as in dcgm-exporter.
"""

from collections.abc import Callable, Mapping

from swapd.core.ids import Bytes
from swapd.core.topology import DriverState, GpuHealth
from swapd.core.view import GpuView
from swapd.metrics.now import DriverStats, Now, Samples, one
from swapd.metrics.slots import Labels

_ANSWERING = frozenset({DriverState.UP, DriverState.VIRTUAL})


def _told(now: Now) -> bool:
    """Whether what was read from the GPUs is true now."""
    return now.view.topology.driver in _ANSWERING


def _labels(gpu: GpuView) -> Labels:
    return (str(gpu.index), gpu.uuid)


def _booked(read: Callable[[GpuView], Bytes]) -> Callable[[Now], Samples]:
    """Read one value from each GPU's accounts."""
    return lambda now: {_labels(gpu): read(gpu) for gpu in now.view.gpus}


def _measured(read: Callable[[GpuView, Bytes], int]) -> Callable[[Now], Samples]:
    """Read one value from each GPU of which the driver told the free memory."""

    def samples(now: Now) -> Samples:
        told = now.view.gpus if _told(now) else ()
        return {_labels(gpu): read(gpu, gpu.free_bytes) for gpu in told if gpu.free_bytes is not None}

    return samples


def _by_health(now: Now) -> Samples:
    if not _told(now):
        return {}
    healths = [gpu.health for gpu in now.view.gpus]
    return {(health.value,): healths.count(health) for health in GpuHealth}


def _health(now: Now) -> Samples:
    told = now.view.gpus if _told(now) else ()
    return {(*_labels(gpu), health.value): float(gpu.health is health) for gpu in told for health in GpuHealth}


def _present(now: Now) -> float | None:
    return sum(gpu.health is not GpuHealth.LOST for gpu in now.view.gpus) if _told(now) else None


def _domains(now: Now) -> Samples:
    if not _told(now):
        return {}
    free = now.view.free
    return {("whole",): len(free.whole_domains), ("fragmented",): len(free.fragmented_domains)}


def _whole_ratio(now: Now) -> float | None:
    free = now.view.free
    domains = len(free.whole_domains) + len(free.fragmented_domains)
    return len(free.whole_domains) / domains if domains and _told(now) else None


def _host(read: Callable[[Now], Bytes | None]) -> Callable[[Now], Samples]:
    return one(lambda now: None if now.view.topology.host_bytes is None else read(now))


def _states(now: Now) -> Samples:
    present = now.view.topology.driver
    if present is DriverState.VIRTUAL:
        return {}
    return {(state.value,): float(state is present) for state in DriverState if state is not DriverState.VIRTUAL}


def _driver(read: Callable[[DriverStats], float | None]) -> Callable[[Now], Samples]:
    return one(lambda now: None if now.driver is None else read(now.driver))


def _errors(now: Now) -> Samples:
    errors = {} if now.driver is None else now.driver.errors
    return {(function, code): count for (function, code), count in errors.items()}


GPU_METRICS: Mapping[str, Callable[[Now], Samples]] = {
    "swapd_gpus": _by_health,
    "swapd_gpus_present": one(_present),
    "swapd_gpus_expected": one(lambda now: now.view.topology.expected or None),
    "swapd_gpu_health": _health,
    "swapd_gpu_capacity_bytes": lambda now: {
        _labels(gpu): gpu.memory_bytes for gpu in now.view.gpus if gpu.memory_bytes
    },
    "swapd_gpu_reserved_bytes": _booked(lambda gpu: gpu.reserved_bytes),
    "swapd_gpu_quarantined_bytes": _booked(lambda gpu: gpu.quarantined_bytes),
    "swapd_gpu_free_bytes": _measured(lambda _, free: free),
    "swapd_gpu_used_bytes": _measured(lambda gpu, free: max(0, gpu.memory_bytes - free)),
    "swapd_gpu_foreign_bytes": _measured(lambda gpu, _: gpu.foreign_bytes),
    "swapd_host_reserved_bytes": _host(lambda now: now.view.host_booked_bytes),
    "swapd_host_capacity_bytes": _host(lambda now: now.view.topology.host_bytes),
    "swapd_nvlink_largest_free_block_gpus": one(lambda now: now.view.free.largest_nvlink_block if _told(now) else None),
    "swapd_nvlink_domains": _domains,
    "swapd_nvlink_whole_domain_ratio": one(_whole_ratio),
    "swapd_nvml_up": _driver(lambda driver: float(driver.up)),
    "swapd_nvml_state": _states,
    "swapd_nvml_stalled_seconds": _driver(lambda driver: driver.stalled_s),
    "swapd_nvml_last_read_age_seconds": _driver(lambda driver: driver.last_read_age_s),
    "swapd_nvml_errors_total": _errors,
}
"""How each metric about GPUs is read."""
