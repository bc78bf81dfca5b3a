"""Each law can be broken, and ``check`` says which one was: a guard that never barks guards nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from swapd.core.commands import Answer, Evicted, StaleFact, Transitioned
from swapd.core.ids import Bytes, Duration, InstanceId, Instant, ModelName, RequestId, seconds
from swapd.core.lawbook import LawBrokenError
from swapd.core.node import GpuRecord, Node
from swapd.core.reasons import State, UnloadCause
from swapd.core.state import Eviction, Instance, Phase
from swapd.core.topology import DriverState, GpuHealth
from tests.core.driver import World, spec
from tests.core.gpus import LATENCY, GpuWorld, node, with_gpu


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


def started_node() -> World:
    """Stop right after a start on measured GPUs: a is ready on GPU 0, t has just begun to load on the other two."""
    t = spec("t", 2, gib=60, load=10)
    t = replace(t, footprint=replace(t.footprint, host_bytes=Bytes(50 << 30)))
    world = GpuWorld([spec("a", gib=20, load=10), t], devices=node(3, host=64))
    world.request("a", at=0)
    world.request("t", at=20)
    world.run(20 + LATENCY)
    assert world.core._node.instances[InstanceId(2)].state is State.LOADING
    return world


def t_of(node: Node) -> Instance:
    return node.instances[InstanceId(2)]


def gpu_of_t(node: Node) -> GpuRecord:
    return node.on(t_of(node).gpus)[0]


def start_beside_others(node: Node) -> None:
    gpu_of_t(node).foreign_bytes = Bytes(30 << 30)


def book_beside_others(node: Node) -> None:
    start_beside_others(node)
    t_of(node).state = State.RESERVED
    t_of(node).reserved_at = node.at


def start_unread(node: Node) -> None:
    gpu_of_t(node).taken = Instant(t_of(node).reserved_at - 1)


def start_before_a_neighbour_settled(node: Node) -> None:
    gpu_of_t(node).settled = node.at


def start_into_too_little(node: Node) -> None:
    gpu_of_t(node).free_bytes = Bytes(59 << 30)


def start_unknown(node: Node) -> None:
    gpu_of_t(node).free_bytes = None


def start_beyond_the_host(node: Node) -> None:
    t_of(node).host_bytes = Bytes(65 << 30)


def book_beyond_the_host(node: Node) -> None:
    start_beyond_the_host(node)
    t_of(node).state = State.RESERVED
    t_of(node).reserved_at = node.at


def with_changed_gpu(node: Node, **changes: Any) -> None:
    node.set_topology(with_gpu(node.topology, gpu_of_t(node).index, **changes))


def start_on_a_lost_gpu(node: Node) -> None:
    with_changed_gpu(node, health=GpuHealth.LOST)


def mix_products(node: Node) -> None:
    with_changed_gpu(node, name="NVIDIA A100")


def start_on_another_kind(node: Node) -> None:
    model = node.models[ModelName("t")]
    model.need = model.need._replace(gpu_name="*H200*")


def start_without_a_driver(node: Node) -> None:
    node.set_topology(replace(node.topology, driver=DriverState.STALLED))


@pytest.mark.parametrize(
    ("law", "defect"),
    [
        ("no_overcommit", start_beside_others),
        ("no_overcommit", book_beside_others),
        ("starts_are_confirmed", start_unread),
        ("starts_are_confirmed", start_before_a_neighbour_settled),
        ("starts_are_confirmed", start_into_too_little),
        ("starts_are_confirmed", start_unknown),
        ("host_memory_is_never_overbooked", start_beyond_the_host),
        ("host_memory_is_never_overbooked", book_beyond_the_host),
        ("only_good_gpus_are_taken", start_on_a_lost_gpu),
        ("only_good_gpus_are_taken", mix_products),
        ("only_good_gpus_are_taken", start_on_another_kind),
        ("only_good_gpus_are_taken", start_without_a_driver),
    ],
)
def test_a_broken_law_of_devices_is_named(law: str, defect: Callable[[Node], None]) -> None:
    world = started_node()
    world.core.check()
    defect(world.core._node)
    with pytest.raises(LawBrokenError, match=rf"(?s)^{law}: "):
        world.core.check()


def test_engines_that_prove_larger_than_booked_break_no_law_where_that_is_measured() -> None:
    world = started_node()
    node = world.core._node
    node.instances[InstanceId(1)].bytes_per_gpu = Bytes(90 << 30)
    world.core.check()


def test_the_node_under_test_is_in_the_middle_of_a_swap() -> None:
    world = busy_node()
    states = {i.model.name: str(i.state) for i in world.core._node.instances.values()}
    assert states == {"a": "ready", "b": "unloading", "c": "reserved"}
    assert [(c.model, c.cause) for c in world.of(Evicted)] == [("b", UnloadCause.EVICTED)]


def test_a_core_that_never_comes_to_an_end_of_deciding_stops_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([spec("a")])

    def restless(node: Node) -> None:
        node.changes += 1

    monkeypatch.setattr("swapd.core.reservation.keep", restless)
    with pytest.raises(LawBrokenError, match="decisions_come_to_an_end"):
        world.request("a", at=1)
        world.run(10)
