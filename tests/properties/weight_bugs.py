"""Small deliberate bugs in what the core does about weights, each planted by its name. The suite must catch each."""

from collections.abc import Callable
from typing import Any

import pytest

from swapd.core.commands import FetchWeights, KeepWeights, WarmWeights
from swapd.core.disk_room import Giver
from swapd.core.node import Node
from swapd.core.state import Instance, Model
from tests.properties.planting import Function, exchange, instead

Patch = pytest.MonkeyPatch
BUGS: list[Callable[[Patch], None]] = []


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """Enter a bug in the list."""
    BUGS.append(plant)
    return plant


@bug
def an_engine_starts_without_its_weights(patch: Patch) -> None:
    exchange(patch, "has_weights", instead(lambda _model: True))


@bug
def room_is_booked_for_the_whole_fetch(patch: Patch) -> None:
    exchange(patch, "lacks_weights", instead(lambda _node, _model, _clearing: False))


@bug
def room_is_never_given_back(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def await_weights(node: Node, instance: Instance) -> None:
            if instance.weights_wanting is None:
                original(node, instance)

        return await_weights

    exchange(patch, "_await_weights", bad)


@bug
def a_copy_that_is_gone_is_not_missed(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def weights_cached(node: Node, event: Any) -> Any:
            known = {name: m.weights.cached for name, m in node.models.items() if m.weights.cached is not None}
            settled = original(node, event)
            for name, size in known.items():
                node.models[name].weights.cached = size
            return settled

        return weights_cached

    exchange(patch, "weights_cached", bad)


@bug
def a_copy_is_loaded_while_it_is_verified(patch: Patch) -> None:
    def seen(original: Function) -> Function:
        def bad(*arguments: Any) -> Any:
            model = next(argument for argument in arguments if isinstance(argument, Model))
            kept, model.weights.verifying = model.weights.verifying, False
            try:
                return original(*arguments)
            finally:
                model.weights.verifying = kept

        return bad

    exchange(patch, "has_weights", seen)
    exchange(patch, "lacks_weights", seen)


@bug
def a_fetch_is_ordered_for_every_request(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def order(node: Node, model: Model, *, ahead: bool) -> None:
            original(node, model, ahead=ahead)
            if not any(isinstance(order, FetchWeights) and order.model == model.name for order in node.out):
                node.out.append(FetchWeights(model.name, ahead))

        return order

    exchange(patch, "_order", bad)


@bug
def a_cancelled_fetch_counts_as_ended(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def cancel(node: Node, model: Model) -> None:
            original(node, model)
            model.weights.fetch = None
            node.fetching.pop(model.name, None)

        return cancel

    exchange(patch, "cancel", bad)


@bug
def a_removed_model_is_fetched_on(patch: Patch) -> None:
    exchange(patch, "_fetch_nothing", instead(lambda _node, _model, _detail, **_how: None))
    exchange(patch, "_doubt_nothing", instead(lambda _node, _model: None))


@bug
def a_node_that_leaves_service_begins_fetches(patch: Patch) -> None:
    exchange(patch, "_must_wait", instead(lambda _node, model: model.weights.verifying))


@bug
def a_failed_fetch_is_tried_again_at_once(patch: Patch) -> None:
    exchange(patch, "_give_up", instead(lambda *_, **__: None))


@bug
def manual_mode_fetches_by_itself(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def wanted(node: Node, model: Model) -> Any:
            with pytest.MonkeyPatch.context() as blinded:
                blinded.setattr(Node, "manual", property(lambda _: False))
                return original(node, model)

        return wanted

    exchange(patch, "_wanted", bad)


@bug
def a_prefetch_gets_no_answer(patch: Patch) -> None:
    exchange(patch, "answer_prefetches", instead(lambda _node, model, **_how: model.weights.prefetches.clear()))


@bug
def the_cache_is_told_too_late_what_to_keep(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def keep(node: Node) -> None:
            original(node)
            node.out.sort(key=lambda order: isinstance(order, KeepWeights))

        return keep

    import swapd.core.standings

    patch.setattr("swapd.core.standings.keep", bad(swapd.core.standings.keep))


@bug
def weights_on_their_way_are_not_kept(patch: Patch) -> None:
    exchange(patch, "_held", instead(lambda _node, model: model.instance is not None))


@bug
def a_damaged_copy_is_not_given_up(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def weights_verified(node: Node, event: Any) -> Any:
            node.models[event.model].weights.doubt = ""
            return original(node, event)

        return weights_verified

    exchange(patch, "weights_verified", bad)


@bug
def a_copy_is_verified_after_every_failure(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def doubted(node: Node, model: Model, failure: Any, detail: str, *, permanent: bool) -> Any:
            model.weights.verified = False
            return original(node, model, failure, detail, permanent=permanent)

        return doubted

    exchange(patch, "doubted", bad)


@bug
def reading_never_ends(patch: Patch) -> None:
    exchange(patch, "stop_needless", instead(lambda _node: None))


@bug
def weights_are_read_twice(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def warm(node: Node, model: Model) -> None:
            original(node, model)
            if model.weights.warming is not None:
                node.out.append(WarmWeights(model.name))

        return warm

    exchange(patch, "warm", bad)


@bug
def too_few_leave_for_the_disk(patch: Patch) -> None:
    exchange(patch, "choose", instead(lambda givers, _needed: min(givers).instances if givers else ()))


@bug
def too_many_leave_for_the_disk(patch: Patch) -> None:
    exchange(
        patch, "choose", instead(lambda givers, _needed: tuple(one for giver in givers for one in giver.instances))
    )


@bug
def a_shared_copy_counts_for_each_model(patch: Patch) -> None:
    def each(original: Function) -> Function:
        def givers(node: Node, costs: Any) -> list[Giver]:
            found = original(node, costs)
            return [Giver(giver.cost, (one,), giver.size) for giver in found for one in giver.instances]

        return givers

    exchange(patch, "_givers", each)


@bug
def a_sharer_that_serves_is_forgotten(patch: Patch) -> None:
    def alone(original: Function) -> Function:
        def residents(node: Node, copy: Any) -> list[Instance]:
            return [one for one in original(node, copy) if not one.in_flight]

        return residents

    exchange(patch, "_residents", alone)


@bug
def a_sharer_without_an_instance_is_forgotten(patch: Patch) -> None:
    exchange(patch, "_holds", instead(lambda model: model.instance is not None and model.pinned))


@bug
def a_shared_copy_is_given_up_by_one_model_alone(patch: Patch) -> None:
    def alone(original: Function) -> Function:
        def let_leave(*arguments: Any, **how: Any) -> Any:
            with pytest.MonkeyPatch.context() as blinded:
                blinded.setattr("swapd.core.disk_room.sharers", lambda _node, model: [model])
                return original(*arguments, **how)

        return let_leave

    exchange(patch, "_let_leave", alone)


@bug
def a_shared_fetch_has_room_made_for_each_model(patch: Patch) -> None:
    def own(_node: Node, model: Model) -> int:
        fetch = model.weights.fetch
        return 0 if fetch is None else fetch.lacking - sum(fetch.given.values())

    exchange(patch, "_lacking", instead(own))


@bug
def a_copy_that_is_given_up_is_loaded(patch: Patch) -> None:
    def seen(original: Function) -> Function:
        def bad(*arguments: Any) -> Any:
            model = next(argument for argument in arguments if isinstance(argument, Model))
            kept, model.weights.given_to = model.weights.given_to, None
            try:
                return original(*arguments)
            finally:
                model.weights.given_to = kept

        return bad

    exchange(patch, "has_weights", seen)
    exchange(patch, "lacks_weights", seen)
