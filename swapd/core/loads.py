"""Decides what follows when a load ends, and when an engine breaks down: service, refusal, cool-down, another try.

Rules that hold here:

* Everybody who waits for a load shares its outcome.
* A model that fails to load cools down: 10 s, 20 s, … at most 5 min. Success, a changed configuration and an
  operator's order to load clear that.
* An engine that breaks down while ready is loaded again at once if somebody waits; the third time within five minutes
  counts like a failed load, and its quick success does not wipe that out.
"""

from typing import Final

from swapd.core.commands import CoolingDown
from swapd.core.doubts import doubted, told
from swapd.core.grants import refuse_all, serve, settle_orders
from swapd.core.ids import SECOND, Duration, Instant
from swapd.core.lifecycle import Cause
from swapd.core.moves import step, unload
from swapd.core.node import Node
from swapd.core.reasons import LoadFailure, LoadResult, Rejection, State, UnloadCause
from swapd.core.state import BREAKDOWNS, Instance, Model
from swapd.core.swaps import load_ended
from swapd.core.weights import reload_time

COOL_DOWN_FIRST: Final = Duration(10 * SECOND)
COOL_DOWN_MOST: Final = Duration(300 * SECOND)
BREAKDOWN_WINDOW: Final = Duration(300 * SECOND)
_UNDER_WAY: Final = (State.LOADING, State.READY)


def ready(node: Node, instance: Instance) -> None:
    """Take a loaded instance into service and grant its queue in the same step."""
    at, model = node.at, instance.model
    instance.ready_at = instance.last_used = at
    load_ended(node, instance, LoadResult.READY)
    model.weights.verified = model.weights.renewed = False
    clear_cool_down(model, keep_failures=_breaks_down(model, at))
    drop_wish(node, model)
    touch(node, model, 0.0)
    step(node, instance, Cause.ENGINE_READY, f"ready after {(at - instance.started_at) / SECOND:.3g} s")
    for request in model.queue:
        request.cold = True
    serve(node, instance)
    settle_orders(node, model, ok=True, detail=f"{model.name} is ready")
    node.refresh(model)


def touch(node: Node, model: Model, requests: float) -> None:
    """Let F fade to now, add requests, and take H."""
    at = node.at
    faded = model.frequency * 2.0 ** ((model.frequency_at - at) / node.settings.frequency_half_life)
    model.frequency = faded + requests
    model.frequency_at = at
    model.clock = node.clock
    model.worth = node.clock + model.frequency * reload_time(node, model) / SECOND / model.spec.footprint.gpus


def fail_load(
    node: Node, instance: Instance, failure: LoadFailure, detail: str, *, cause: Cause, permanent: bool = False
) -> None:
    """End a load that did not succeed."""
    model = instance.model
    load_ended(node, instance, LoadResult.FAILED, failure=failure, detail=detail)
    unload(node, instance, UnloadCause.LOAD_FAILED, cause, f"load failed ({failure.value}): {detail}")
    if not doubted(node, model, failure, detail, permanent=permanent):
        cool_down(node, model, told(model, detail), permanent=permanent)


def break_down(node: Node, instance: Instance, unload_cause: UnloadCause, cause: Cause, detail: str) -> None:
    """Let a ready or draining instance go whose engine died or does not answer."""
    model, at = instance.model, node.at
    unload(node, instance, unload_cause, cause, detail)
    model.last_error = detail
    model.breakdowns.append(at)
    if _breaks_down(model, at):
        cool_down(node, model, f"{model.name} broke down {BREAKDOWNS} times in a row: {detail}", permanent=False)


def _breaks_down(model: Model, at: Instant) -> bool:
    times = model.breakdowns
    return len(times) >= BREAKDOWNS and at - times[0] <= BREAKDOWN_WINDOW


def cool_down(node: Node, model: Model, detail: str, *, permanent: bool) -> None:
    """Refuse everybody who waits for a model's load, and do not try it again for a while."""
    model.failures += 1
    wait = COOL_DOWN_MOST if permanent else min(COOL_DOWN_FIRST << min(model.failures - 1, 8), COOL_DOWN_MOST)
    until = Instant(node.at + wait)
    model.cooling_until = until
    model.permanent = permanent
    model.last_error = detail
    drop_wish(node, model)
    node.out.append(CoolingDown(model.name, model.failures, until))
    retry_after = None if permanent else Duration(wait)
    if model.instance is None or model.instance.state not in _UNDER_WAY:
        refuse_all(node, model, Rejection.LOAD_FAILED, detail, retry_after=retry_after, permanent=permanent)


def clear_cool_down(model: Model, *, keep_failures: bool = False) -> None:
    """Let a model be tried again at once; without ``keep_failures`` the count starts anew."""
    model.cooling_until = None
    model.permanent = False
    if not keep_failures:
        model.failures = 0


def drop_wish(node: Node, model: Model) -> None:
    """Forget that a model should come back after a change."""
    node.wishes.pop(model.name, None)
