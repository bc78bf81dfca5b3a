"""Counts the room that pinned models take: a bound that holds for certain, and one arrangement if there is one."""

from collections.abc import Mapping

from swapd.config.model import Model
from swapd.config.schema import Settings
from swapd.core.ids import Bytes


def devices(settings: Settings) -> tuple[int | None, Bytes | None]:
    """Return the number of devices and the memory of each; ``None``: only the driver knows."""
    virtual = settings.devices.virtual
    return (settings.devices.expected, None) if virtual is None else (virtual.count, virtual.memory)


def pinned(settings: Settings) -> dict[str, Model]:
    """Return the models pinned by configuration."""
    return {name: model for name, model in settings.models.items() if model.pin}


def exclusive_gpus(pins: Mapping[str, Model]) -> int:
    """Return how many GPUs are taken by pins that share with nobody."""
    return sum(model.gpus for model in pins.values() if model.exclusive)


def least_gpus(pins: Mapping[str, Model], memory: Bytes | None) -> int:
    """Return the number of GPUs the pins take at the very least: no arrangement needs fewer."""
    shared = [model for model in pins.values() if not model.exclusive]
    by_bytes = 0 if memory is None else -(-sum(model.gpus * model.memory for model in shared) // memory)
    widest = max((model.gpus for model in shared), default=0)
    return exclusive_gpus(pins) + max(by_bytes, widest)


def arrangeable(pins: Mapping[str, Model], count: int, memory: Bytes) -> bool:
    """Say whether the pins find room when placed largest first, each on the fullest GPUs that can still take it.

    True is certain. False is not a proof, because the order is fixed; it is what the node itself may run into.
    """
    free = [int(memory)] * (count - exclusive_gpus(pins))
    shared = sorted((model for model in pins.values() if not model.exclusive), key=lambda model: -model.memory)
    if count < exclusive_gpus(pins):
        return False
    for model in shared:
        fitting = sorted((left, gpu) for gpu, left in enumerate(free) if left >= model.memory)
        if len(fitting) < model.gpus:
            return False
        for _, gpu in fitting[: model.gpus]:
            free[gpu] -= model.memory
    return True
