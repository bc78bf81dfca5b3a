"""Applies what the shell reports of weights: what is cached, how fetches get on and end, what a verification found.

A fact about a fetch or a model that is gone is stale: counted and ignored. Each function returns whether the node has
to settle.
"""

from typing import Final, assert_never

from swapd.core.commands import Answer, FetchEnded, RefetchWeights
from swapd.core.copies import Fetch
from swapd.core.disk_room import note_lacking
from swapd.core.eta import clearing_estimate, longest_release
from swapd.core.fetching import answer_prefetches, begin, consider, end, goes_on
from swapd.core.ids import Bytes, Duration, ModelName
from swapd.core.lifecycle import Cause
from swapd.core.loads import cool_down
from swapd.core.moves import forget
from swapd.core.node import Node
from swapd.core.node_drain import DETAIL
from swapd.core.reasons import FetchFailure, Rejection, Stage, State
from swapd.core.shared_copies import fetches, sharers
from swapd.core.state import Model
from swapd.core.warming import warm, weights_warmed
from swapd.core.weight_events import (
    FetchFailed,
    FetchProgressed,
    FetchStarted,
    FetchWaits,
    PrefetchOrdered,
    WeightEvent,
    WeightsCached,
    WeightsFetched,
    WeightsVerified,
    WeightsWarmed,
)
from swapd.core.weights import near_moment, note_size

#: trying again cannot help
_FOR_GOOD: Final = (FetchFailure.REFUSED, FetchFailure.TOO_LARGE, FetchFailure.CORRUPT)


def apply(node: Node, event: WeightEvent) -> bool:
    """Apply one fact about weights."""
    match event:
        case WeightsCached():
            return weights_cached(node, event)
        case FetchStarted():
            return fetch_started(node, event)
        case FetchWaits():
            return fetch_waits(node, event)
        case FetchProgressed():
            return fetch_progressed(node, event)
        case WeightsFetched():
            return weights_fetched(node, event)
        case FetchFailed():
            return fetch_failed(node, event)
        case WeightsWarmed():
            return weights_warmed(node, event)
        case WeightsVerified():
            return weights_verified(node, event)
        case PrefetchOrdered():
            return prefetch_ordered(node, event)
        case _:
            assert_never(event)


def weights_cached(node: Node, event: WeightsCached) -> bool:
    """Replace all that is known of the copies in the cache."""
    changed = bool(event.earlier)
    node.cached = event.cached
    for fetched, took in event.earlier:
        node.bandwidth.add(fetched, took)
    for name, model in node.models.items():
        size = event.cached.get(name)
        if size == model.weights.cached:
            continue
        changed = True
        model.weights.cached = size
        if size is None:
            model.weights.verified = False
            model.weights.given_to = None
            node.unkept[name] = model
            model.story.add(event.at, "its weights are not cached any more")
            consider(node, model)
        else:
            note_size(model, size)
            _is_here(node, model)
    return changed


def _is_here(node: Node, model: Model) -> None:
    model.weights.ahead = False
    if model.weights.fetch is not None:
        model.weights.fetch.here = node.at
    model.story.add(node.at, "its weights are cached")
    answer_prefetches(node, model, ok=True, detail=f"the weights of {model.name} are here")
    instance = model.instance
    if instance is not None and instance.state is State.RESERVED:
        warm(node, model)


def fetch_started(node: Node, event: FetchStarted) -> bool:
    """Note that a fetch has left the queue of fetches."""
    found = _fetch(node, event.model, "has begun")
    if found is None:
        return False
    model, fetch = found
    joined = fetch.running is not None
    fetch.running = event.at
    if not joined:
        goes_on(node, model)
    return model.instance is None


def fetch_waits(node: Node, event: FetchWaits) -> bool:
    """Note why a fetch waits for room on the disk, and how much of it residents would have to make free."""
    found = _fetch(node, event.model, "waits")
    if found is None:
        return False
    model, fetch = found
    if fetch.waits != event.detail:
        model.story.add(event.at, f"the fetch of its weights waits: {event.detail}")
    note_lacking(node, model, event.detail, event.lacking)
    return fetch.lacking > 0


def fetch_progressed(node: Node, event: FetchProgressed) -> bool:
    """Note how far a fetch has come; near its end its model may be placed, far from it room for it is given back."""
    found = _fetch(node, event.model, "gets on")
    if found is None:
        return False
    model, fetch = found
    if fetch.told is None:
        fetch.first = event.done
    fetch.told, given = event.at, any(other.given for _, other in fetches(node, model))
    goes_on(node, model)
    fetch.running = fetch.running or event.at
    fetch.done, fetch.total, fetch.rate = event.done, event.total, event.rate
    note_size(model, event.total)
    if model.instance is not None:
        return given or model.instance.state is State.RESERVED
    if node.reservation is not None and node.reservation.model is model:
        return True
    near = near_moment(node, model, max(clearing_estimate(node), longest_release(node)))
    if near is not None and near > event.at:
        node.wake_by(near)
        return given
    return True


def weights_fetched(node: Node, event: WeightsFetched) -> bool:
    """Take note of a copy that has come, complete and verified."""
    found = _fetch(node, event.model, "has ended")
    if found is None:
        return False
    model, fetch = found
    end(node, model)
    weights = model.weights
    began = fetch.since if fetch.running is None else fetch.running
    came = event.at if fetch.here is None else fetch.here
    weights.ended.append((Stage.FETCH, began, came))
    if not fetches(node, model):  # the last one counts what came for all of them
        node.bandwidth.add(event.fetched, event.took)
    node.out.append(FetchEnded(model.name, event.fetched, event.took))
    if weights.cached is not None:
        _is_sound(node, model)
        if event.fetched:
            weights.came = (fetch.since, came)
    elif not fetch.cancelled:
        _give_up(node, model, f"the weights of {model.name} were gone again as soon as they had come", permanent=False)
    return True


def _is_sound(node: Node, model: Model) -> None:
    """Note that a copy was found to be as it should, for all who have it."""
    for one in sharers(node, model):
        one.weights.verified = True


def fetch_failed(node: Node, event: FetchFailed) -> bool:
    """Let whoever waits for a fetch that failed know; one whose end was ordered is not missed."""
    found = _fetch(node, event.model, "has failed")
    if found is None:
        return False
    model, fetch = found
    end(node, model)
    began = fetch.since if fetch.running is None else fetch.running
    model.weights.ended.append((Stage.FETCH, began, event.at))
    came, took = Bytes(max(0, fetch.done - fetch.first)), Duration(event.at - began)
    node.out.append(FetchEnded(model.name, came, took, event.failure, event.detail))
    if event.failure is not FetchFailure.CANCELLED or not fetch.cancelled:
        _give_up(node, model, event.detail, permanent=event.failure in _FOR_GOOD)
    return True


def _give_up(node: Node, model: Model, detail: str, *, permanent: bool) -> None:
    """Let a model cool down whose weights do not come; what is resident or loads goes on."""
    model.weights.ahead = model.weights.renewed = False
    model.story.add(node.at, f"its weights do not come: {detail}")
    answer_prefetches(node, model, ok=False, detail=detail, reason=Rejection.LOAD_FAILED)
    instance = model.instance
    if instance is not None and instance.state is State.RESERVED:
        forget(node, instance, Cause.WEIGHTS_WANTING, "its weights do not come")
    cool_down(node, model, detail, permanent=permanent)


def weights_verified(node: Node, event: WeightsVerified) -> bool:
    """Decide who is to blame for a failed load: the copy, or not."""
    model = node.models.get(event.model)
    if model is None:
        node.stale(f"the weights of {event.model} were verified, but there is no such model")
        return False
    weights = model.weights
    weights.verified = event.intact
    if event.intact:
        _is_sound(node, model)
    if not weights.verifying:
        return False
    weights.verifying = False
    node.unkept[model.name] = model
    doubt, weights.doubt = weights.doubt, ""
    consider(node, model)
    if not doubt:
        return True
    if event.intact:
        cool_down(node, model, doubt, permanent=False)
    elif node.drain is None:
        weights.renewed = True
        weights.came = None
        begin(node, model, ahead=False)
        model.story.add(node.at, f"its weights are fetched anew: {event.detail or 'its copy is damaged'}")
        node.out.append(RefetchWeights(model.name))
    return True


def prefetch_ordered(node: Node, event: PrefetchOrdered) -> bool:
    """Bring a model's weights here; answered when they are, or cannot be brought."""
    model = node.models.get(event.model)
    if model is None or not model.configured:
        detail = f"no model {event.model}"
        node.out.append(Answer(event.request, ok=False, detail=detail, reason=Rejection.UNKNOWN_MODEL))
    elif not model.spec.fetched:
        detail = f"the weights of {model.name} are not fetched by swapd"
        node.out.append(Answer(event.request, ok=True, detail=detail))
    elif model.weights.cached is not None:
        node.out.append(Answer(event.request, ok=True, detail=f"the weights of {model.name} are here"))
    elif node.drain is not None:
        node.out.append(Answer(event.request, ok=False, detail=DETAIL, reason=Rejection.DRAINING))
    else:
        model.weights.prefetches[event.request] = None
        model.story.add(event.at, "its weights are wanted on this node")
        consider(node, model)
        return True
    return False


def _fetch(node: Node, name: ModelName, what: str) -> tuple[Model, Fetch] | None:
    """Return a model and its fetch; ``None``, and the fact counts as stale, if there is none."""
    model = node.models.get(name)
    if model is None or model.weights.fetch is None:
        node.stale(f"the fetch for {name} {what}, but there is none")
        return None
    return model, model.weights.fetch
