"""Decides which environment a model server gets.

The daemon's own, less what concerns only the daemon (its service manager's sockets, its own settings), then the
devices, then what the engine wants, then what the user wrote: each later one wins.
"""

from collections.abc import Mapping

from swapd.engines.base import Assignment

_PRIVATE_NAMES = frozenset({"NOTIFY_SOCKET"})
_PRIVATE_PREFIXES = ("WATCHDOG_", "LISTEN_", "SWAPD_")
_VIRTUAL = "virtual-"


def environment(given: Assignment, engine: Mapping[str, str] | None = None) -> dict[str, str]:
    """Compose the complete environment of a model server; ``engine`` is what its kind of server wants."""
    inherited = {name: value for name, value in given.environ.items() if not _is_private(name)}
    return {**inherited, **device_variables(given.devices), **(engine or {}), **given.options.env}


def device_variables(devices: tuple[str, ...]) -> dict[str, str]:
    """Name the GPUs by full UUID, which no reboot or reordering changes; virtual devices have no variables."""
    if not has_gpus(devices):
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(devices)}


def has_gpus(devices: tuple[str, ...]) -> bool:
    """Whether these are real GPUs."""
    return bool(devices) and not any(device.startswith(_VIRTUAL) for device in devices)


def _is_private(name: str) -> bool:
    return name in _PRIVATE_NAMES or name.startswith(_PRIVATE_PREFIXES)
