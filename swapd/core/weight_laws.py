"""States what must be true of weights after every event: nothing starts without them, nothing is fetched needlessly."""

from collections import Counter

from swapd.core.commands import CancelFetch, FetchWeights, KeepWeights, RefetchWeights, Start, VerifyWeights
from swapd.core.lawbook import law
from swapd.core.node import Node
from swapd.core.reasons import State
from swapd.core.shared_copies import copy_of, fetches
from swapd.core.state import Instance, Model


def check(node: Node) -> None:
    """Raise LawBrokenError if any law about weights does not hold."""
    never_starts_uncached(node)
    one_fetch_for_each_model(node)
    nothing_is_fetched_needlessly(node)
    weights_are_kept_before_use(node)
    missing_weights_are_fetched(node)
    no_room_is_kept_for_weights_far_off(node)
    copies_are_given_up_for_a_fetch(node)
    no_copy_is_given_up_in_vain(node)


def never_starts_uncached(node: Node) -> None:
    """No engine starts whose weights come through the cache and are not there, or are being verified."""
    for order in node.out:
        if isinstance(order, Start) and order.spec.fetched:
            weights = node.models[order.spec.name].weights
            here = weights.cached is not None and not weights.verifying and weights.given_to is None
            law(node, "never_starts_uncached", f"{order.spec.name} starts without its weights", holds=here)


def one_fetch_for_each_model(node: Node) -> None:
    """No model has two fetches, and what is ordered is known as under way."""
    ordered = Counter(order.model for order in node.out if isinstance(order, FetchWeights | RefetchWeights))
    for name, count in ordered.items():
        fetch = node.models[name].weights.fetch
        law(node, "one_fetch_for_each_model", f"{count} fetches of {name} ordered at once", holds=count == 1)
        law(node, "one_fetch_for_each_model", f"the fetch of {name} is not known", holds=fetch is not None)
    for name, model in node.models.items():
        known = (model.weights.fetch is not None) is (name in node.fetching)
        law(node, "one_fetch_for_each_model", f"the fetch of {name} is in no list", holds=known)
    ended = Counter(order.model for order in node.out if isinstance(order, CancelFetch))
    law(node, "one_fetch_for_each_model", "a fetch is ended twice", holds=all(count == 1 for count in ended.values()))


def nothing_is_fetched_needlessly(node: Node) -> None:
    """Nothing is fetched that is cached already, not to be fetched, or for a node that leaves service."""
    for order in node.out:
        if not isinstance(order, FetchWeights | RefetchWeights):
            continue
        model = node.models[order.model]
        name = "nothing_is_fetched_needlessly"
        law(node, name, f"{order.model} has no source", holds=model.spec.fetched and model.configured)
        law(node, name, f"{order.model} while the node leaves service", holds=node.drain is None)
        law(
            node,
            name,
            f"{order.model} is cached",
            holds=isinstance(order, RefetchWeights) or model.weights.cached is None,
        )


def weights_are_kept_before_use(node: Node) -> None:
    """Before any order that rests on it the cache is told what to keep, and it knows of everything held and pinned."""
    used = [n for n, o in enumerate(node.out) if isinstance(o, FetchWeights | RefetchWeights | VerifyWeights | Start)]
    kept = [number for number, order in enumerate(node.out) if isinstance(order, KeepWeights)]
    law(node, "weights_are_kept_before_use", "told twice in one step", holds=len(kept) <= 1)
    law(node, "weights_are_kept_before_use", "told too late", holds=not kept or not used or kept[0] < used[0])
    for name, model in node.models.items():
        if model.spec.fetched:
            right = model.weights.kept == (_is_held(node, model), model.pinned)
            law(node, "weights_are_kept_before_use", f"not told how {name} stands", holds=right)


def _is_held(node: Node, model: Model) -> bool:
    waited_for = (bool(model.queue) or bool(model.orders)) and model.weights.given_to is None
    alive = any(instance.model is model for instance in node.instances.values())
    return waited_for or alive or model.weights.fetch is not None or model.weights.verifying


def missing_weights_are_fetched(node: Node) -> None:
    """Whoever waits for a model whose weights are missing waits for a fetch, a verification, or a cool-down."""
    for name, model in node.models.items():
        weights = model.weights
        missing = model.spec.fetched and weights.cached is None and model.configured and node.drain is None
        absent = model.instance is None and (model.orders or (model.queue and not node.manual))
        if missing and (absent or weights.prefetches):
            cooling = model.cooling_until is not None and node.at < model.cooling_until
            helped = weights.fetch is not None or weights.verifying or cooling
            law(node, "missing_weights_are_fetched", f"nothing is done for {name}", holds=helped)
            cancelled = weights.fetch is not None and weights.fetch.cancelled
            later = not cancelled or name in node.hungry
            law(node, "missing_weights_are_fetched", f"{name} is forgotten with its fetch", holds=later)


def no_room_is_kept_for_weights_far_off(node: Node) -> None:
    """No room is booked in this step, or reserved, for weights whose fetch has not begun."""
    booked = [i.model for i in node.instances.values() if i.state is State.RESERVED and i.step == node.step]
    if node.reservation is not None:
        booked.append(node.reservation.model)
    for model in booked:
        weights = model.weights
        begun = weights.fetch is not None and weights.fetch.running is not None
        near = not model.spec.fetched or weights.cached is not None or begun
        law(node, "no_room_is_kept_for_weights_far_off", f"room for {model.name}", holds=near)


def copies_are_given_up_for_a_fetch(node: Node) -> None:
    """Every copy that is given up is there, serves nobody, and some fetch waits for its room."""
    name = "copies_are_given_up_for_a_fetch"
    for model in node.models.values():
        heir = model.weights.given_to
        if heir is None:
            continue
        fetch = node.models[heir].weights.fetch if heir in node.models else None
        law(node, name, f"{model.name} for {heir}", holds=fetch is not None and copy_of(model.spec) in fetch.given)
        law(node, name, f"{model.name} has no copy", holds=model.weights.cached is not None)
        law(node, name, f"{model.name} serves, or is to", holds=model.instance is None)


def no_copy_is_given_up_in_vain(node: Node) -> None:
    """Whoever leaves in this step for a fetch makes free what it lacks, together with others, and not without them.

    A copy is free when nobody is left that has it.
    """
    for model in node.fetching.values():
        fetch = model.weights.fetch
        assert fetch is not None
        leaving = [one.model for one in node.instances.values() if _left_for(one, model) and one.step == node.step]
        given = sum(sum(known.given.values()) for _, known in fetches(node, model))
        for giver in leaving:
            name, copy = giver.name, copy_of(giver.spec)
            size = fetch.given.get(copy, 0)
            kept = [one.model.name for one in node.instances.values() if copy_of(one.spec) == copy and _stays(one)]
            law(node, "no_copy_is_given_up_in_vain", f"{name} for {model.name}", holds=given >= fetch.lacking)
            law(node, "no_copy_is_given_up_in_vain", f"{name} need not", holds=given - size < fetch.lacking)
            law(node, "no_copy_is_given_up_in_vain", f"{kept} have the copy of {name}", holds=not kept)


def _stays(instance: Instance) -> bool:
    return instance.state is not State.UNLOADING


def _left_for(instance: Instance, heir: Model) -> bool:
    return instance.state is State.UNLOADING and instance.model.weights.given_to == heir.name
