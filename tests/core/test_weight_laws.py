"""Each law about weights can be broken, and ``check`` says which one was."""

from collections.abc import Callable

import pytest

from swapd.core import laws, weight_laws
from swapd.core.catalog import CopyKey
from swapd.core.commands import CancelFetch, Command, FetchWeights, KeepWeights, Start
from swapd.core.copies import Fetch
from swapd.core.ids import NO_GPUS, Bytes, InstanceId, Instant, ModelName, seconds
from swapd.core.lawbook import LawBrokenError
from swapd.core.node import Node
from swapd.core.reasons import State
from tests.core.driver import World, spec
from tests.core.test_weights import far

A, B = ModelName("a"), ModelName("b")


def waiting_node() -> World:
    """Stop right after a decision: a has just been ordered to be fetched, b has its copy, c serves."""
    world = World([far("a"), far("b"), spec("c", load=10), far("d")], gpus=1)
    world.store.put("b", at=0)
    world.store.remote("a", queued=5)
    world.request("c", at=0)
    world.request("a", at=20)
    world.run(20)
    return world


def order(command: Command) -> Callable[[Node], None]:
    return lambda node: node.out.append(command)


def start_without_weights(node: Node) -> None:
    node.out.append(Start(InstanceId(9), node.models[A].spec, NO_GPUS))


def start_during_a_verification(node: Node) -> None:
    node.models[ModelName("b")].weights.verifying = True
    node.out.append(Start(InstanceId(9), node.models[ModelName("b")].spec, NO_GPUS))


def forget_a_fetch(node: Node) -> None:
    node.models[A].weights.fetch = None


def lose_a_fetch(node: Node) -> None:
    node.fetching.clear()


def end_a_fetch_twice(node: Node) -> None:
    node.out += [CancelFetch(A), CancelFetch(A)]


def fetch_what_is_here(node: Node) -> None:
    model = node.models[ModelName("b")]
    model.weights.fetch = Fetch(node.at, ahead=True)
    node.fetching[model.name] = model
    node.out.append(FetchWeights(model.name, ahead=True))


def fetch_for_a_removed_model(node: Node) -> None:
    node.models[A].configured = False


def tell_late(node: Node) -> None:
    node.out.reverse()


def tell_nothing(node: Node) -> None:
    node.models[A].weights.kept = (False, False)


def forget_who_waits(node: Node) -> None:
    node.out.clear()
    node.models[A].weights.fetch = None
    node.fetching.clear()


def cancel_and_forget(node: Node) -> None:
    fetch = node.models[A].weights.fetch
    assert fetch is not None
    fetch.cancelled = True


def leaving_node() -> World:
    """Stop right after a decision: b has just been ordered to leave so that its copy makes room for that of a."""
    world = World([far("a"), far("b"), far("d")], gpus=2, protect=seconds(0))
    world.store.limit = 1_000_000
    world.engines["b"].hook = 1
    world.request("b", at=0)
    world.request("a", at=60)
    world.run(60)
    return world


def give_up_for_nobody(node: Node) -> None:
    node.models[B].weights.given_to = ModelName("d")


def give_up_what_is_gone(node: Node) -> None:
    node.models[B].weights.cached = None


def give_up_what_serves(node: Node) -> None:
    node.models[B].instance = next(iter(node.instances.values()))


def give_up_too_little(node: Node) -> None:
    fetch_of(node, A).lacking = Bytes(1_000_001)


def give_up_too_much(node: Node) -> None:
    fetch_of(node, A).given[CopyKey("d")] = Bytes(1_000_000)


def fetch_of(node: Node, model: ModelName) -> Fetch:
    fetch = node.models[model].weights.fetch
    assert fetch is not None
    return fetch


@pytest.mark.parametrize(
    ("law", "defect"),
    [
        ("infeasible_evicts_nobody", give_up_for_nobody),
        ("copies_are_given_up_for_a_fetch", give_up_for_nobody),
        ("copies_are_given_up_for_a_fetch", give_up_what_is_gone),
        ("copies_are_given_up_for_a_fetch", give_up_what_serves),
        ("no_copy_is_given_up_in_vain", give_up_too_little),
        ("no_copy_is_given_up_in_vain", give_up_too_much),
    ],
)
def test_a_broken_law_about_copies_that_are_given_up_is_named(law: str, defect: Callable[[Node], None]) -> None:
    node = leaving_node().core._node
    check = getattr(laws, law, None) or getattr(weight_laws, law)
    check(node)
    defect(node)
    with pytest.raises(LawBrokenError, match=rf"^{law}: "):
        check(node)


def keep_room(node: Node) -> None:
    instance = next(iter(node.instances.values()))
    instance.state, instance.step, instance.model = State.RESERVED, node.step, node.models[A]


@pytest.mark.parametrize(
    ("law", "defect"),
    [
        ("never_starts_uncached", start_without_weights),
        ("never_starts_uncached", start_during_a_verification),
        ("one_fetch_for_each_model", order(FetchWeights(A, ahead=False))),
        ("one_fetch_for_each_model", forget_a_fetch),
        ("one_fetch_for_each_model", lose_a_fetch),
        ("one_fetch_for_each_model", end_a_fetch_twice),
        ("nothing_is_fetched_needlessly", fetch_what_is_here),
        ("nothing_is_fetched_needlessly", fetch_for_a_removed_model),
        ("weights_are_kept_before_use", order(KeepWeights())),
        ("weights_are_kept_before_use", tell_late),
        ("weights_are_kept_before_use", tell_nothing),
        ("missing_weights_are_fetched", forget_who_waits),
        ("missing_weights_are_fetched", cancel_and_forget),
    ],
)
def test_a_broken_law_about_weights_is_named(law: str, defect: Callable[[Node], None]) -> None:
    world = waiting_node()
    world.core.check()
    defect(world.core._node)
    with pytest.raises(LawBrokenError, match=rf"(?s)^{law}: .*the node's story:"):
        world.core.check()


def test_no_room_is_kept_for_weights_whose_fetch_has_not_begun() -> None:
    world = waiting_node()
    fetch = world.core._node.models[A].weights.fetch
    assert fetch is not None
    fetch.running = None
    keep_room(world.core._node)
    with pytest.raises(LawBrokenError, match=r"^no_room_is_kept_for_weights_far_off: room for a"):
        weight_laws.no_room_is_kept_for_weights_far_off(world.core._node)
    fetch.running = Instant(1)
    weight_laws.no_room_is_kept_for_weights_far_off(world.core._node)
