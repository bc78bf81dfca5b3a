"""Estimates how far off a model's weights are, and says whether it may be placed: fetch first, evict late.

Rules that hold here:

* A model whose copy is further off than it takes to make room is not placed: the residents serve on meanwhile. Busy
  ones may be drained for it when the fetch takes no longer than the drain and the release, idle ones leave when it
  takes no longer than the release; so both go on beside the last stretch of the fetch.
* Only a fetch that tells how it gets on, or whose time is not up, counts as near its end. One that has fallen silent
  gets further off with every second.
"""

from collections.abc import Iterable
from typing import Final

from swapd.core.catalog import Source
from swapd.core.copies import Fetch
from swapd.core.ids import SECOND, Bytes, Duration, Instant
from swapd.core.node import Node
from swapd.core.shared_copies import under_way
from swapd.core.state import Instance, Model

#: progress is told about once a second; after this long without, nobody knows how a fetch gets on
SILENCE: Final = Duration(3 * SECOND)
#: the least share of the expected time that a fetch still takes which has not told how it gets on
SHARE: Final = 4


def median(times: Iterable[Duration]) -> Duration:
    """Return the median, the lower one of two; there must be one."""
    ordered = sorted(times)
    return ordered[(len(ordered) - 1) // 2]


def has_weights(model: Model) -> bool:
    """Say whether an engine can find a model's weights on this node."""
    weights = model.weights
    return not model.spec.fetched or (weights.cached is not None and not weights.verifying and weights.given_to is None)


def expected_fetch(node: Node, model: Model) -> Duration:
    """Return how long a whole fetch of a model is expected to take."""
    found = _reckoned_fetch(node, model)
    return model.spec.fetch_estimate if found is None else found


def _reckoned_fetch(node: Node, model: Model) -> Duration | None:
    """Return how long a whole fetch takes by what was measured; ``None``: nothing was."""
    remote = model.typical.get(Source.REMOTE)
    if remote is not None and (measured := remote - model.lhat) > 0:
        return Duration(measured)
    return node.bandwidth.time_of(model.weights.size) if model.weights.size else None


def is_guess(node: Node, model: Model) -> bool:
    """Say whether nothing is known of how long the weights of a model take but what is configured."""
    if not model.spec.fetched:
        return True
    fetch = under_way(node, model)
    tells = fetch is not None and not fetch.cancelled and _left(fetch) is not None
    return not tells and _reckoned_fetch(node, model) is None


def remaining_fetch(node: Node, model: Model, at: Instant) -> Duration:
    """Return how long it is expected to take from ``at`` until the weights are here."""
    weights = model.weights
    if not model.spec.fetched or (weights.cached is not None and weights.given_to is None):
        return Duration(0)
    fetch = under_way(node, model)
    if fetch is None or fetch.cancelled or fetch.running is None:
        return expected_fetch(node, model)
    left = _left(fetch)
    if left is None or fetch.told is None:
        expected = expected_fetch(node, model)
        counted = expected if fetch.waits else expected - (at - fetch.running)
        return Duration(max(counted, expected // SHARE))
    silent = 0 if fetch.waits else at - fetch.told
    return Duration(max(0, left - silent) if silent <= SILENCE else left + silent)


def _left(fetch: Fetch) -> int | None:
    """Return how long the rest of a fetch takes at its present speed, as of its last word; ``None``: not known."""
    if fetch.told is None or fetch.rate <= 0 or not fetch.total:
        return None
    return round((fetch.total - fetch.done) / fetch.rate * SECOND)


def lacks_weights(node: Node, model: Model, clearing: int) -> bool:
    """Say whether a model's weights are further off than it takes to make room, ``clearing``."""
    if not model.spec.fetched:
        return False
    weights = model.weights
    if weights.verifying or weights.given_to is not None:
        return True
    if weights.cached is not None:
        return False
    fetch = weights.fetch
    if fetch is None or fetch.running is None or fetch.cancelled or fetch.late or fetch.waits:
        return True
    return remaining_fetch(node, model, node.at) > clearing


def near_moment(node: Node, model: Model, clearing: int) -> Instant | None:
    """Return when the rest of a fetch that goes on as expected is as short as ``clearing``; ``None``: not known."""
    fetch = model.weights.fetch
    if fetch is None or fetch.running is None:
        return None
    left = _left(fetch)
    if left is None or fetch.told is None:
        return Instant(fetch.running + expected_fetch(node, model) - clearing)
    return Instant(fetch.told + left - clearing)


def reload_time(node: Node, model: Model) -> Duration:
    """Return how long it is expected to take to load a model again, with the fetch if its copy is gone."""
    if model.weights.cached is not None or not model.spec.fetched:
        return model.lhat
    return Duration(model.lhat + expected_fetch(node, model))


def note_starved(node: Node, model: Model) -> None:
    """Note that nothing but its weights keeps a pending model from being placed."""
    weights = model.weights
    over = weights.fed is not None and model.since is not None and weights.fed < model.since
    if weights.starved is None or over:
        weights.starved = node.at
    weights.fed = None


def note_fed(node: Node, model: Model) -> None:
    """Note that a pending model's weights keep it waiting no longer."""
    if model.weights.fed is None:
        model.weights.fed = node.at


def starved_before(node: Node, instance: Instance) -> tuple[Instant, Instant] | None:
    """Return from when to when nothing but its weights had kept a model from being booked, if at all."""
    weights = instance.model.weights
    if weights.starved is None:
        return None
    ends = [weights.fed or node.at]
    if weights.came is not None:
        ends.append(weights.came[1])
    if instance.timeline:
        ends.append(instance.timeline[0][1])
    begin, end = max(weights.starved, instance.waited_from), min(ends)
    weights.starved = weights.fed = None
    return (begin, end) if begin < end else None


def note_size(model: Model, size: Bytes) -> None:
    """Remember how large a model's copy is; 0: that is not known yet."""
    model.weights.size = size or model.weights.size
