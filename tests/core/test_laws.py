"""Each law can be broken, and ``check`` says which one was: a guard that never barks guards nothing."""

from collections.abc import Callable

import pytest

from swapd.core.commands import Answer, Evicted, StaleFact, Transitioned
from swapd.core.ids import Bytes, Duration, InstanceId, Instant, ModelName, RequestId, seconds
from swapd.core.laws import LawBrokenError
from swapd.core.node import Node
from swapd.core.reasons import State, UnloadCause
from swapd.core.state import Eviction, Instance, Phase
from tests.core.driver import World, spec


def busy_node() -> World:
    """Stop right after a decision: a serves and has a waiter; b has just been evicted for c, which is reserved."""
    models = [spec("a", gib=60, load=10, concurrency=1), spec("b", load=10), spec("c", load=10), spec("d")]
    world = World(models, gpus=2, protect=seconds(0))
    world.request("a", at=0, service=None)
    world.request("b", at=0)
    world.engines["b"].hook = 5
    world.request("a", at=20)
    world.request("c", at=20)
    world.run(20)
    return world


def instance(node: Node, model: str) -> Instance:
    return next(i for i in node.instances.values() if i.model.name == model)


def overcommit(node: Node) -> None:
    instance(node, "a").bytes_per_gpu = Bytes(1 << 40)


def share_what_is_exclusive(node: Node) -> None:
    node.gpus[0].instances[InstanceId(3)] = instance(node, "c")


def two_loads_on_one_device(node: Node) -> None:
    for name in "ac":
        instance(node, name).exclusive = False
        instance(node, name).state = State.LOADING
        instance(node, name).in_flight.clear()
    node.gpus[0].instances[InstanceId(3)] = instance(node, "c")


def forget_the_instance(node: Node) -> None:
    node.models[ModelName("a")].instance = None


def two_of_one_model(node: Node) -> None:
    instance(node, "c").model = node.models[ModelName("a")]


def serve_too_early(node: Node) -> None:
    instance(node, "c").in_flight.update(instance(node, "a").in_flight)


def evict_in_flight(node: Node) -> None:
    instance(node, "b").in_flight.update(instance(node, "a").in_flight)


def eviction(node: Node, *, pinned: bool = False, until: int = 0, waited: int = 0) -> None:
    instance(node, "b").eviction = Eviction(ModelName("c"), Duration(waited), Instant(until), pinned)


def evict_pinned(node: Node) -> None:
    eviction(node, pinned=True)


def evict_protected(node: Node) -> None:
    eviction(node, until=node.at + 1)


def protect_for_ever(node: Node) -> None:
    eviction(node, until=node.at + 1, waited=seconds(99))


def evict_needlessly(node: Node) -> None:
    for name in "bc":
        instance(node, name).exclusive = False


def evict_elsewhere(node: Node) -> None:
    del node.gpus[1].instances[instance(node, "b").id]


def evict_for_nobody(node: Node) -> None:
    instance(node, "c").step -= 1


def lose_a_request(node: Node) -> None:
    next(iter(node.requests.values())).phase = Phase.QUEUED


def refuse_and_keep(node: Node) -> None:
    node.refused[RequestId(1)] = None


def keep_an_ended_one_queued(node: Node) -> None:
    del node.requests[RequestId(3)]


def answer_twice(node: Node) -> None:
    node.out += [Answer(RequestId(9), ok=True, detail="")] * 2


def forget_a_deadline(node: Node) -> None:
    node.deadlines.drop(ModelName("a"))


def forget_an_operator(node: Node) -> None:
    node.models[ModelName("a")].orders[RequestId(9)] = node.at


def forget_a_pending_model(node: Node) -> None:
    node.models[ModelName("d")].orders[RequestId(9)] = node.at


def sleep_through_a_deadline(node: Node) -> None:
    node.wake = None


def load_for_nobody(node: Node) -> None:
    model = node.models[ModelName("c")]
    waiter = model.queue.pop()
    del node.requests[waiter.id]
    node.deadlines.drop(ModelName("c"))


def queue_without_bound(node: Node) -> None:
    model = node.models[ModelName("a")]
    model.spec = spec("a", max_queue=0)


def miscount_loads(node: Node) -> None:
    node.loads_running += 1


def talk_too_much(node: Node) -> None:
    node.out += [StaleFact("")] * 1000


def step_outside_the_table(node: Node) -> None:
    a = instance(node, "a")
    node.out.append(Transitioned(a.id, a.model.name, a.gpus, State.GONE, State.READY, ""))


@pytest.mark.parametrize(
    ("law", "defect"),
    [
        ("no_overcommit", overcommit),
        ("no_overcommit", share_what_is_exclusive),
        ("no_overcommit", two_loads_on_one_device),
        ("one_instance_per_model", forget_the_instance),
        ("one_instance_per_model", two_of_one_model),
        ("only_ready_serves", serve_too_early),
        ("never_evict_in_flight", evict_in_flight),
        ("never_evict_pinned", evict_pinned),
        ("protection_is_bounded", evict_protected),
        ("protection_is_bounded", protect_for_ever),
        ("no_needless_eviction", evict_needlessly),
        ("no_needless_eviction", evict_elsewhere),
        ("infeasible_evicts_nobody", evict_for_nobody),
        ("answered_exactly_once", lose_a_request),
        ("answered_exactly_once", refuse_and_keep),
        ("answered_exactly_once", keep_an_ended_one_queued),
        ("answered_exactly_once", answer_twice),
        ("nothing_dropped", forget_a_deadline),
        ("nothing_dropped", forget_an_operator),
        ("nothing_dropped", forget_a_pending_model),
        ("nothing_dropped", sleep_through_a_deadline),
        ("cancelled_never_loads", load_for_nobody),
        ("queue_bounded", queue_without_bound),
        ("queue_bounded", miscount_loads),
        ("commands_bounded", talk_too_much),
        ("legal_transitions_only", step_outside_the_table),
    ],
)
def test_a_broken_law_is_named(law: str, defect: Callable[[Node], None]) -> None:
    world = busy_node()
    world.core.check()
    defect(world.core._node)
    with pytest.raises(LawBrokenError, match=rf"(?s)^{law}: .*the node's story:\n.*c reserved"):
        world.core.check()


def test_the_node_under_test_is_in_the_middle_of_a_swap() -> None:
    world = busy_node()
    states = {i.model.name: str(i.state) for i in world.core._node.instances.values()}
    assert states == {"a": "ready", "b": "unloading", "c": "reserved"}
    assert [(c.model, c.cause) for c in world.of(Evicted)] == [("b", UnloadCause.EVICTED)]
