"""Applies a new configuration as a difference.

Rules that hold here: an unchanged model keeps its instance, its requests and its history; a removed one refuses its
waiters and drains; a changed one (another revision) reloads when idle, or after ``drain_after`` if it never is; limits
and settings count at once. A load under way with the old revision is broken off, as its result would be outdated.
"""

from swapd.core.catalog import Catalog, ModelSpec, SchedulingSettings
from swapd.core.devices import set_boards
from swapd.core.eta import expect
from swapd.core.fetching import answer_prefetches, cancel, consider
from swapd.core.footprints import plan_with
from swapd.core.grants import refuse_all, refuse_queued, serve
from swapd.core.ids import Bytes
from swapd.core.lifecycle import Cause
from swapd.core.loads import clear_cool_down, drop_wish
from swapd.core.moves import abort_load, drain, forget, lift_drain
from swapd.core.node import Node
from swapd.core.operators import enter_pin
from swapd.core.policies import policy_named
from swapd.core.reasons import Rejection, State, UnloadCause
from swapd.core.state import Model, Need
from swapd.core.thrash_pins import conform
from swapd.core.viability import Demand


def apply(node: Node, catalog: Catalog) -> None:
    """Make the node's models and settings those of the catalogue."""
    _set_settings(node, catalog.settings)
    for name in list(node.models):
        if name not in catalog.models and node.models[name].configured:
            _remove(node, node.models[name])
    for spec in catalog.models.values():
        _enter(node, spec)
    conform(node)
    set_boards(node)
    node.recheck = True


def _set_settings(node: Node, settings: SchedulingSettings) -> None:
    if not node.policy_fixed and settings.policy is not node.settings.policy:
        node.policy = policy_named(settings.policy)
    node.settings = settings
    node.suited.clear()


def _enter(node: Node, spec: ModelSpec) -> None:
    model = node.models.get(spec.name)
    if model is None:
        model = Model(spec, Need.of(spec), demand=Demand(node.at), frequency_at=node.at)
        node.models[spec.name] = model
        model.weights.cached = node.cached.get(spec.name)
        expect(model)
        enter_pin(node, model)
        return
    changed = model.spec.revision != spec.revision
    if changed:
        _doubt_nothing(node, model)
    _set_spec(node, model, spec)
    model.configured = True
    node.removed.pop(spec.name, None)
    expect(model)
    enter_pin(node, model)
    if changed:
        clear_cool_down(model)
        model.breakdowns.clear()
        model.story.add(node.at, "its configuration has changed")
    if not spec.fetched:
        _fetch_nothing(node, model, f"the weights of {model.name} are not fetched any more", ok=True)
    _bound_queue(node, model)
    _compare(node, model)
    consider(node, model)
    node.refresh(model)


def _set_spec(node: Node, model: Model, spec: ModelSpec) -> None:
    """Give a model its new specification; what was measured of another revision does not count any more."""
    measured = model.measured if model.spec.revision == spec.revision else None
    model.spec = spec
    plan_with(node, model, measured)


def _doubt_nothing(node: Node, model: Model) -> None:
    """Forget what was known of weights that may be others now; a fetch that may be of the old ones ends."""
    weights = model.weights
    weights.size, weights.came, weights.doubt = Bytes(0), None, ""
    weights.verified = weights.renewed = False
    weights.given_to = None
    node.unkept[model.name] = model
    cancel(node, model)


def _fetch_nothing(node: Node, model: Model, detail: str, *, ok: bool) -> None:
    """End a fetch that has lost its sense, and answer whoever waits for it."""
    cancel(node, model)
    model.weights.ahead = False
    answer_prefetches(node, model, ok=ok, detail=detail, reason=None if ok else Rejection.UNKNOWN_MODEL)
    node.unkept[model.name] = model


def _bound_queue(node: Node, model: Model) -> None:
    """Refuse the youngest waiters beyond a limit that was lowered."""
    while len(model.queue) > model.spec.max_queue:
        detail = f"the queue of {model.name} was made shorter"
        refuse_queued(node, model.queue.youngest(), Rejection.QUEUE_FULL, detail, retry_after=model.lhat)


def _compare(node: Node, model: Model) -> None:
    """Hold the running instance against the new configuration."""
    instance = model.instance
    if instance is None:
        return
    why = "its configuration has changed"
    if instance.spec.revision == model.spec.revision:
        instance.outdated_since = None
        if instance.drain is not None and instance.drain.cause in (UnloadCause.CHANGED, UnloadCause.REMOVED):
            drop_wish(node, model)
            lift_drain(node, instance)
        serve(node, instance)
    elif instance.state is State.RESERVED:
        forget(node, instance, Cause.UNWANTED, why)
    elif instance.state is State.LOADING:
        abort_load(node, instance, Cause.WITHDRAWN, why, UnloadCause.CHANGED)
    else:
        instance.outdated_since = instance.outdated_since or node.at
        serve(node, instance)


def _remove(node: Node, model: Model) -> None:
    detail = f"{model.name} was removed from the configuration"
    model.configured = False
    node.removed[model.name] = None
    model.pin_override = None
    model.thrash_pin = None
    refuse_all(node, model, Rejection.UNKNOWN_MODEL, detail, permanent=True)
    _doubt_nothing(node, model)
    _fetch_nothing(node, model, detail, ok=False)
    enter_pin(node, model)
    drop_wish(node, model)
    instance = model.instance
    if instance is None:
        pass
    elif instance.state is State.RESERVED:
        forget(node, instance, Cause.UNWANTED, detail)
    elif instance.state is State.LOADING:
        abort_load(node, instance, Cause.WITHDRAWN, detail, UnloadCause.REMOVED)
    else:
        drain(node, instance, UnloadCause.REMOVED, detail, node.settings.drain_timeout)
