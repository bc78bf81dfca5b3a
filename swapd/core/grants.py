"""Gives waiting requests to ready instances, and refuses those that cannot be served.

Rules that hold here: a grant counts as in flight in the same step; nobody is granted out of turn, on a suspect
instance, or beyond the model's concurrency; a request is answered once, by a grant or a refusal (a granted one that
got no answer comes back once).
"""

from collections.abc import Mapping
from typing import Final

from swapd.core.commands import Answer, Cut, Grant, Reject
from swapd.core.course import read_ahead, waited_through
from swapd.core.ids import SECOND, Duration, Instant, ModelName, RequestId
from swapd.core.node import Node
from swapd.core.reasons import Rejection, Stage, State
from swapd.core.state import Instance, Model, Phase, Request

# on Python 3.11 a member costs ten times as much as a global
_GRANTED: Final = Phase.GRANTED
_READY: Final = State.READY

NO_STAGES: Final[Mapping[Stage, Duration]] = {}


def granted(instance: Instance, request: Request, at: Instant) -> Grant:
    """Send a request to an instance; return the order, which is still to be given."""
    model = request.model
    request.phase = _GRANTED
    request.instance = instance
    request.granted_at = at
    instance.in_flight[request.id] = request
    instance.last_grant = at
    waited = Duration(at - request.arrived)
    stages = NO_STAGES
    if request.cold:
        stages = stages_within(instance, request.arrived, waited)
        model.demand.account.waited.add(at, waited / SECOND)
    return Grant(request.id, instance.id, model.spec.name, request.cold, waited, stages)


def serve(node: Node, instance: Instance) -> None:
    """Grant the queue of a ready instance as far as its slots go."""
    model = instance.model
    queue = model.queue
    if instance.state is not _READY or instance.suspect or not queue:
        return
    while queue and len(instance.in_flight) < model.spec.concurrency:
        node.out.append(granted(instance, queue.pop(), node.at))
    node.refresh(model)


def stages_within(instance: Instance, arrived: Instant, waited: Duration) -> dict[Stage, Duration]:
    """Return which stages of the load a request waited through; the rest of its wait is ``queued``.

    ``page_cache`` runs beside the others and is no part of the sum.
    """
    stages: dict[Stage, Duration] = {}
    for stage, start, end in waited_through(instance, instance.ready_at):
        overlap = end - max(start, arrived)
        if overlap > 0:
            stages[stage] = Duration(stages.get(stage, 0) + overlap)
    stages = {Stage.QUEUED: Duration(waited - sum(stages.values())), **stages}
    reading = read_ahead(instance, arrived, instance.ready_at)
    return {**stages, Stage.PAGE_CACHE: reading} if reading else stages


def refuse(
    node: Node,
    request: RequestId,
    model: ModelName,
    reason: Rejection,
    detail: str,
    *,
    retry_after: Duration | None = None,
    permanent: bool = False,
    cold_start: bool = False,
    waited: Duration = Duration(0),
) -> None:
    """Answer a request with an error; its end is still to be reported."""
    node.refused[request] = None
    node.out.append(Reject(request, model, reason, retry_after, detail, permanent, cold_start, waited))


def refuse_queued(
    node: Node,
    request: Request,
    reason: Rejection,
    detail: str,
    *,
    retry_after: Duration | None = None,
    permanent: bool = False,
) -> None:
    """Take a request out of its queue and refuse it; the caller refreshes the model."""
    model = request.model
    model.queue.remove(request)
    del node.requests[request.id]
    cold = request.cold or model.instance is None or model.instance.state is not State.READY
    waited = Duration(node.at - request.arrived)
    if cold:
        model.demand.account.waited.add(node.at, waited / SECOND)
    refuse(
        node,
        request.id,
        model.name,
        reason,
        detail,
        retry_after=retry_after,
        permanent=permanent,
        cold_start=cold,
        waited=waited,
    )


def refuse_all(
    node: Node,
    model: Model,
    reason: Rejection,
    detail: str,
    *,
    retry_after: Duration | None = None,
    permanent: bool = False,
) -> None:
    """Refuse everybody who waits for a model with one shared reason, operators included."""
    for request in list(model.queue):
        refuse_queued(node, request, reason, detail, retry_after=retry_after, permanent=permanent)
    settle_orders(node, model, ok=False, detail=detail, reason=reason)
    note_if_idle(node, model)
    node.refresh(model)


def note_if_idle(node: Node, model: Model) -> None:
    """Let the next request count as an episode only after a pause from now on, if nothing waits or is served."""
    if not model.queue and (model.instance is None or not model.instance.in_flight):
        model.demand.idle_since = node.at


def settle_orders(node: Node, model: Model, *, ok: bool, detail: str, reason: Rejection | None = None) -> None:
    """Answer every operator who waits for a model to be ready."""
    for order in model.orders:
        node.out.append(Answer(order, ok, detail, reason))
    model.orders.clear()


def cut_all(node: Node, instance: Instance) -> int:
    """Break off what an instance still serves; return how many requests that were."""
    count = len(instance.in_flight)
    for request in instance.in_flight.values():
        request.phase = Phase.CUT
        node.out.append(Cut(request.id, instance.model.name, instance.id))
    instance.in_flight.clear()
    return count
