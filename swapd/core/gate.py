"""Decides whether the load of a booked instance may begin: its room must be free in truth, and its weights here.

Rules that hold here:

* Its weights are here. They may still come for their last stretch while room is made (see ``weights``); a load that
  would wait longer for them than a release may take gives its room back.
* Nobody else is coming or going on its GPUs, nobody booked there before it, and enough host memory is free.
* On GPUs whose memory is measured, a reading that began after the booking, and after a neighbour's last change, shows
  as much free memory as it needs, and so do the accounts with what is foreign. Otherwise it waits, for as long as a
  release may take; then its booking is given up, and its model is planned anew with what is known by then.
"""

from swapd.core.asking import hurry
from swapd.core.foreign import wait_no_longer
from swapd.core.host_memory import is_short
from swapd.core.ids import Instant
from swapd.core.lifecycle import Cause
from swapd.core.moves import forget, start
from swapd.core.node import GpuRecord, Node
from swapd.core.placement import fits_now
from swapd.core.reasons import Stage
from swapd.core.state import Instance
from swapd.core.weights import has_weights


def begin(node: Node, instance: Instance) -> None:
    """Start a booked instance, or see to it that its room is shown to be free."""
    gpus = node.on(instance.gpus)
    if not node.may_load or not fits_now(gpus, instance) or is_short(node, instance.host_bytes):
        instance.gated_since = instance.weights_wanting = None
    elif all(is_shown_free(gpu, instance) for gpu in gpus if gpu.measured):
        instance.gated_since = None
        if has_weights(instance.model):
            start(node, instance)
        else:
            _await_weights(node, instance)
    elif instance.gated_since is None:
        instance.gated_since, instance.weights_wanting = node.at, None
        if not instance.timeline or instance.timeline[-1][0] is not Stage.RELEASE:
            instance.timeline.append((Stage.RELEASE, node.at))
        hurry(node)
    elif node.at >= deadline(node, instance):
        for gpu in gpus:
            wait_no_longer(gpu)
        forget(node, instance, Cause.ROOM_LOST, "the driver did not show its room free in time")
        node.recheck = True


def _await_weights(node: Node, instance: Instance) -> None:
    """Wait for the end of the fetch, which was near when room was booked; if it is not, somebody else may have it."""
    if instance.weights_wanting is None:
        instance.weights_wanting = node.at
        instance.timeline.append((Stage.FETCH, node.at))
    elif node.at >= deadline(node, instance):
        fetch = instance.model.weights.fetch
        assert fetch is not None, f"{instance.model.name} keeps room, and its weights are not fetched"
        fetch.late = True
        forget(node, instance, Cause.WEIGHTS_WANTING, "its weights did not come in time")


def deadline(node: Node, instance: Instance) -> Instant:
    """Return when a booking is given up whose room is not shown to be free, or whose weights do not come."""
    since = instance.gated_since if instance.weights_wanting is None else instance.weights_wanting
    assert since is not None
    return Instant(since + node.settings.release_timeout)


def is_shown_free(gpu: GpuRecord, instance: Instance) -> bool:
    """Say whether the driver's last word on a GPU lets a booked instance start there."""
    need, free = instance.bytes_per_gpu, gpu.startable_bytes
    if free is None or gpu.taken < max(instance.reserved_at, gpu.settled):
        return False
    return free >= need and gpu.charged() + gpu.foreign_bytes + need <= gpu.memory_bytes
