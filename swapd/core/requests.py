"""Applies what happens to requests: they arrive, end, or come back from an engine that broke off.

Each function returns whether the event can matter to anybody else, that is, whether the node has to settle. A request
for a ready model with a free slot, and its end, are O(1) and settle nothing.
"""

from math import exp
from typing import Final

from swapd.core.commands import Check, Grant
from swapd.core.eta import SERVICE_WEIGHT, eta, note_service, surely_within, surplus
from swapd.core.events import RequestArrived, RequestEnded, UpstreamFailed
from swapd.core.eviction import find
from swapd.core.feasibility import infeasible
from swapd.core.fetching import consider
from swapd.core.grants import NO_STAGES, note_if_idle, refuse, serve
from swapd.core.ids import SECOND, Duration, Instant
from swapd.core.loads import touch
from swapd.core.moves import book
from swapd.core.node import Node
from swapd.core.node_drain import DETAIL, RETRY_AFTER
from swapd.core.reasons import Outcome, Rejection, State
from swapd.core.sentences import cooling, queue_full, retry_after, too_far_off
from swapd.core.state import Instance, Model, Phase, Request
from swapd.core.viability import EPISODE_GAP
from swapd.core.weights import has_weights, reload_time

# on Python 3.11 a member costs ten times as much as a global
_READY: Final = State.READY
_DRAINING: Final = State.DRAINING
_QUEUED: Final = Phase.QUEUED
_CUT: Final = Phase.CUT
_GRANTED: Final = Phase.GRANTED
_SERVED: Final = Outcome.SERVED

_NOTHING: Final = Duration(0)

#: after a second broken answer; the engine is being checked meanwhile
UPSTREAM_RETRY: Final = Duration(SECOND)


def arrived(node: Node, event: RequestArrived) -> bool:
    """Grant, queue or refuse a new request."""
    assert event.request not in node.requests, f"request {event.request} arrived twice"
    granted = granted_at_once(node, event)
    if granted is not None:
        node.out.append(granted)
        return False
    model = node.models.get(event.model)
    if model is None or not model.configured:
        refuse(node, event.request, event.model, Rejection.UNKNOWN_MODEL, f"no model {event.model}", permanent=True)
        return False
    instance = model.instance
    idle = not model.queue and (instance is None or not instance.in_flight)
    model.demand.arrived(event.at, idle=idle)
    touch(node, model, 1.0)
    request = Request(event.request, model, event.at, max(event.priority, model.spec.priority))
    if instance is not None and instance.state is _READY:
        instance.last_used = event.at
    if not _admitted(node, model, request):
        return False
    node.requests[request.id] = request
    model.queue.push(request)
    node.refresh(model)
    node.wake_by(Instant(event.at + model.spec.max_wait))
    return instance is None


def granted_at_once(node: Node, event: RequestArrived) -> Grant | None:
    """Grant a request for a ready model with a free slot; ``None``: it is not one, and nothing has changed.

    It does what ``Demand.arrived``, ``touch`` and ``granted`` do, without the calls: every request comes here.
    """
    model = node.models.get(event.model)
    if model is None or not model.configured:
        return None
    instance, spec, at = model.instance, model.spec, event.at
    if instance is None or instance.state is not _READY or instance.suspect or model.queue.count:
        return None
    in_flight = instance.in_flight
    if len(in_flight) >= spec.concurrency or (node.drain is not None and at >= node.drain.linger_until):
        return None
    demand = model.demand
    demand.arrivals += 1
    demand.last_arrival = at
    requests = demand.requests
    requests.value = requests.value * exp((requests.at - at) / requests.tau) + 1.0
    requests.at = at
    if not in_flight and at - demand.idle_since >= EPISODE_GAP:
        demand.episodes.add(at, 1.0)
    faded = model.frequency * 2.0 ** ((model.frequency_at - at) / node.settings.frequency_half_life)
    frequency = model.frequency = faded + 1.0
    model.frequency_at = at
    clock = model.clock = node.clock
    reload = reload_time(node, model) if spec.fetched else model.lhat
    model.worth = clock + frequency * reload / SECOND / spec.footprint.gpus
    instance.last_used = instance.last_grant = at
    number, priority = event.request, event.priority
    if priority is not spec.priority:
        priority = max(priority, spec.priority)
    request = Request(number, model, at, priority, _GRANTED, instance, at)
    node.requests[number] = in_flight[number] = request
    return Grant(number, instance.id, spec.name, False, _NOTHING, NO_STAGES)  # noqa: FBT003


def _admitted(node: Node, model: Model, request: Request) -> bool:
    """Refuse a request that must not wait; say whether it may."""
    instance = model.instance
    name, spec = model.name, model.spec
    if node.drain is not None and _turned_away(node, instance):
        refuse(node, request.id, name, Rejection.DRAINING, DETAIL, retry_after=RETRY_AFTER)
        return False
    if instance is None or instance.state is _DRAINING:
        if node.manual and not model.orders and name not in node.wishes:
            detail = f"{name} is not loaded and the node is in manual mode; an operator has to load it"
            refuse(node, request.id, name, Rejection.MANUAL_MODE, detail)
            return False
        if _cooling(node, model, request):
            return False
    if instance is None or (instance.state is _DRAINING and node.degraded):
        never = infeasible(node, model)
        if never is not None:
            model.story.add(node.at, f"refused: {never.detail}")
            refuse(
                node,
                request.id,
                name,
                never.reason,
                never.detail,
                retry_after=never.retry_after,
                permanent=never.permanent,
            )
            return False
    if len(model.queue) >= spec.max_queue:
        again = retry_after(node, model, eta(node, model))
        refuse(node, request.id, name, Rejection.QUEUE_FULL, queue_full(model), retry_after=again)
        return False
    return _in_time(node, model, request)


def _turned_away(node: Node, instance: Instance | None) -> bool:
    assert node.drain is not None
    return instance is None or instance.state is not _READY or node.at >= node.drain.linger_until


def _cooling(node: Node, model: Model, request: Request) -> bool:
    until = model.cooling_until
    if until is None or node.at >= until or model.orders:
        return False
    detail, permanent = cooling(model), model.permanent
    again = None if permanent else Duration(until - node.at)
    refuse(node, request.id, model.name, Rejection.COOLING_DOWN, detail, retry_after=again, permanent=permanent)
    return True


def _in_time(node: Node, model: Model, request: Request) -> bool:
    """Refuse a request that would wait longer than promised; load ahead where that costs nobody anything.

    A mere guess of how long its weights take refuses nobody: they may come sooner, and whoever waits learns more.
    """
    limit, instance = model.spec.max_wait, model.instance
    if instance is not None and instance.state is _READY:
        return True
    if instance is None and surely_within(node, model, limit):
        return True
    expected = eta(node, model, guessing=False)
    if expected <= limit:
        return True
    detail = too_far_off(model, expected)
    model.story.add(node.at, f"refused: {detail}")
    refuse(node, request.id, model.name, Rejection.ETA_EXCEEDS_MAX_WAIT, detail, retry_after=expected)
    if instance is None:
        _load_ahead(node, model)
    return False


def _load_ahead(node: Node, model: Model) -> None:
    """Load a model whose request was refused for its ETA, if free room and a free slot are there right now.

    If its weights are missing, they are fetched, and it is not loaded yet.
    """
    if not has_weights(model):
        model.weights.ahead = True
        consider(node, model)
        node.changes += 1
        return
    if node.loads_running >= node.settings.max_concurrent_loads or not node.may_load:
        return
    plan = find(node, model.need, surplus(node, model), {})
    if plan is None or plan.waits:
        return
    begun = (State.RESERVED, State.LOADING)
    if any(other.state in begun for gpu in node.on(plan.gpus) for other in gpu.instances.values()):
        return
    instance = book(node, model, plan, "room is free, so that the next request finds it")
    instance.ahead = True


def ended_quietly(node: Node, event: RequestEnded) -> bool:
    """Take out a granted request whose end can matter to nobody; ``False``: it is not one, and nothing has changed."""
    number, at = event.request, event.at
    request = node.requests.get(number)
    if request is None or request.phase is not _GRANTED:
        return False
    model, instance = request.model, request.instance
    if instance is None or model.queue.count:
        return False
    in_flight = instance.in_flight
    if len(in_flight) == 1:
        # it falls idle, of which others may have waited
        if instance.state is not _READY or instance.outdated_since is not None or node.pending:
            return False
        if node.drain is not None or node.wishes or (node.pins and node.lacks_pins):
            return False
        idle_unload = node.settings.idle_unload
        if idle_unload is not None and (node.wake is None or node.wake > at + idle_unload):
            return False
        model.demand.idle_since = at
    del node.requests[number], in_flight[number]
    instance.last_used = at
    if event.outcome is _SERVED:
        # as ``note_service`` does
        service = model.service
        model.service = service + (at - request.granted_at - service) * (SERVICE_WEIGHT if service else 1.0)
    return True


def ended(node: Node, event: RequestEnded) -> bool:
    """Take a request out, wherever it is, and hand its slot on."""
    request = node.requests.pop(event.request, None)
    if request is None:
        if event.request in node.refused:
            del node.refused[event.request]
        else:
            node.stale(f"request {event.request} ended, but is not open")
        return False
    model = request.model
    if request.phase is _QUEUED:
        return _left_the_queue(node, model, request)
    instance = request.instance
    if instance is None or request.phase is _CUT:
        return True
    del instance.in_flight[request.id]
    instance.last_used = event.at
    if event.outcome is _SERVED:
        note_service(model, event.at - request.granted_at)
    if model.queue.count:
        serve(node, instance)
    if instance.in_flight:
        return False
    return _fell_idle(node, instance)


def _left_the_queue(node: Node, model: Model, request: Request) -> bool:
    model.queue.remove(request)
    node.refresh(model)
    if model.queue:
        return False
    note_if_idle(node, model)
    instance = model.instance
    return instance is None or instance.state is not _READY or not instance.in_flight


def _fell_idle(node: Node, instance: Instance) -> bool:
    """Say whether an instance that serves nobody any more matters to somebody."""
    model = instance.model
    if model.queue.count:
        return True
    model.demand.idle_since = node.at
    if instance.state is not _READY or instance.outdated_since is not None:
        return True
    if node.settings.idle_unload is not None:
        node.wake_by(Instant(node.at + node.settings.idle_unload))
    return bool(node.pending) or node.drain is not None or node.lacks_pins


def upstream_failed(node: Node, event: UpstreamFailed) -> bool:
    """Put a granted request that got no answer back at the head of its queue, once, and have its engine checked."""
    request = node.requests.get(event.request)
    in_flight = request is not None and request.phase is _GRANTED
    if request is None or not in_flight or request.instance is None or request.instance.id != event.instance:
        node.stale(f"request {event.request} failed on instance {event.instance}, but is not in flight there")
        return False
    instance, model = request.instance, request.model
    del instance.in_flight[request.id]
    instance.last_used = event.at
    if instance.state is _READY and not instance.suspect:
        instance.suspect = True
        node.out.append(Check(instance.id, model.name))
    late = event.at >= request.arrived + model.spec.max_wait
    if request.retried or late or not _may_wait_again(node, model):
        del node.requests[request.id]
        detail = f"the engine of {model.name} broke off before it answered"
        refuse(node, request.id, model.name, Rejection.UPSTREAM_FAILED, detail, retry_after=UPSTREAM_RETRY)
    else:
        request.retried = True
        request.phase = _QUEUED
        request.instance = None
        model.queue.put_back(request)
        node.refresh(model)
        if model.instance is not None:
            serve(node, model.instance)
    return True


def _may_wait_again(node: Node, model: Model) -> bool:
    if not model.configured or len(model.queue) >= model.spec.max_queue:
        return False
    if model.instance is not None:
        return True
    cooling = model.cooling_until is not None and node.at < model.cooling_until
    return not (node.manual or node.drain is not None or cooling) and infeasible(node, model) is None
