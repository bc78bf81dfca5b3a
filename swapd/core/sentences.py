"""Writes the sentences that tell a client why it is refused, and how long it had better wait before it asks again.

A load or a request that takes longer than expected is said to do so. Then nobody knows the rest any more: what is
advised is a share of what was expected, never "at once", or all who were refused would come back together.
"""

from typing import Final

from swapd.core.eta import overdue_load, overdue_service
from swapd.core.ids import SECOND, Bytes, Duration, GpuSet, gpu_indices
from swapd.core.node import Node
from swapd.core.reasons import State
from swapd.core.state import Instance, Model
from swapd.core.topology import Gpu, GpuHealth
from swapd.core.weights import has_weights

#: the least time after which to ask again, and the least share of what was expected
LEAST: Final = Duration(SECOND)
SHARE: Final = 4
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_CONDITIONS: Final = {
    GpuHealth.HEALTHY: "is healthy",
    GpuHealth.DEGRADED: "is degraded",
    GpuHealth.FAILED: "has failed",
    GpuHealth.LOST: "is lost",
    GpuHealth.MIG: "is partitioned by MIG",
}
#: what helps a model for which there is no room in time
ADVICE: Final = "a place of its own (promotion) or another node would help"


def gpu_list(gpus: GpuSet) -> str:
    """Name a set of GPUs by their indices."""
    indices = list(gpu_indices(gpus))
    return f"{'GPU' if len(indices) == 1 else 'GPUs'} {', '.join(map(str, indices))}"


def gpu_condition(gpu: Gpu) -> str:
    """Say how a GPU is: ``GPU 3 is lost (it has left the bus)``."""
    return f"GPU {gpu.index} {_CONDITIONS[gpu.health]}" + (f" ({gpu.why})" if gpu.why else "")


def size(count: Bytes) -> str:
    """Write a number of bytes in GiB, or in MiB below one."""
    return f"{count / _GIB:.3g} GiB" if count >= _GIB else f"{count / _MIB:.3g} MiB"


def retry_after(node: Node, model: Model, remaining: Duration) -> Duration:
    """Return when to ask for a model again that is expected in ``remaining``.

    At least a share of the load it waits for; of a resident one, of the time that its requests take or have taken.
    """
    instance, expected = model.instance, model.lhat
    if instance is not None and instance.state is State.READY:
        expected = Duration(max(round(model.service), node.at - instance.last_grant if instance.in_flight else 0))
    return Duration(max(remaining, expected // SHARE, LEAST))


def queue_full(model: Model) -> str:
    """Say that no more requests may wait for a model."""
    waiting = number(len(model.queue), "request")
    return f"{waiting} {'waits' if len(model.queue) == 1 else 'wait'} for {model.name} already; {ADVICE}"


def too_far_off(model: Model, expected: Duration) -> str:
    """Say that a model would come later than its ``max_wait``."""
    limit = model.spec.max_wait
    return f"{model.name} is expected in {spell(expected)}, later than its limit of {limit / SECOND:g} s; {ADVICE}"


def waited_too_long(node: Node, model: Model, remaining: Duration) -> str:
    """Say what it was that somebody has waited for through the whole ``max_wait``."""
    return f"waited {model.spec.max_wait / SECOND:g} s for {model.name}; {_obstacle(node, model, remaining)}"


def _obstacle(node: Node, model: Model, remaining: Duration) -> str:
    instance = model.instance
    if instance is not None and instance.state is State.READY:
        return _busy(node, instance, remaining)
    if instance is not None and overdue_load(node, instance):
        return f"its load is taking longer than the expected {spell(model.lhat)}"
    more = f"it is expected to take {spell(remaining)} more"
    if instance is None and not has_weights(model):
        return weights_are_missing(model, remaining)
    if instance is None or instance.state is State.DRAINING:
        return f"there is no room for it yet, and {more}; {ADVICE}"
    return more


def weights_are_missing(model: Model, remaining: Duration) -> str:
    """Say why a model's weights are not here."""
    weights = model.weights
    if weights.verifying:
        return "its weights are being verified, because its engine has failed to load them"
    if weights.given_to is not None:
        return f"its weights leave the node, to make room on the disk for those of {weights.given_to}"
    if weights.fetch is not None and weights.fetch.waits:
        return f"its weights cannot be fetched yet: {weights.fetch.waits}"
    return f"its weights are being fetched, and it is expected to take {spell(remaining)} more"


def _busy(node: Node, instance: Instance, remaining: Duration) -> str:
    """Say that a model is resident, but its engine takes no more."""
    model = instance.model
    if instance.suspect:
        return "it is resident, but its engine is being checked after a broken answer"
    slots = "the only slot" if model.spec.concurrency == 1 else f"all {model.spec.concurrency} slots"
    busy = f"it is resident, but {slots} of its engine {'is' if model.spec.concurrency == 1 else 'are'} busy"
    if not model.service:
        return f"{busy}, and none of its requests has ended yet"
    if overdue_service(node, instance):
        return f"{busy}, and its requests are taking longer than the expected {spell(model.service)}"
    return f"{busy}, and one is expected within {spell(remaining)}"


def cooling(model: Model) -> str:
    """Say that a model has failed to load and is not tried now."""
    times = "once" if model.failures == 1 else f"{model.failures} times in a row"
    return f"{model.name} failed {times}; the last time: {model.last_error}"


def number(count: int, noun: str) -> str:
    """Return a number of things: ``1 request``, ``2 requests``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def spell(duration: float) -> str:
    """Return a duration in seconds as people say it: one digit behind the point below ten."""
    seconds = duration / SECOND
    return f"{seconds:.0f} s" if seconds >= 9.95 else f"{max(seconds, 0.1):.1f}".removesuffix(".0") + " s"
