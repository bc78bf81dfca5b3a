"""Strikes the first order a fault can strike, then the second, … until a run passes untouched; nothing may break."""

import random
from dataclasses import replace

import pytest

from swapd.core.catalog import Catalog
from swapd.core.events import RequestArrived, WeightsCached
from swapd.core.ids import Bytes, Instant, ModelName, RequestId, seconds
from swapd.sim.faults import FETCH_FAULTS, Choice, Fault, Nth
from swapd.sim.node import VirtualNode
from swapd.sim.replay import Origin
from swapd.sim.timeline import CopyDeleted
from tests.properties.nodes import EXCLUSIVE, Place, fetched, topology
from tests.sim.rigs import rig

#: models asked for every 3 s on two GPUs: loads, evictions, a reservation that drains
ASKED = ("a", "b", "a", "c", "a", "b", "c", "d", "a")
#: no run of the scenario has more orders of one kind
MOST_ORDERS = 60
#: kills and checks are ordered only where something else goes wrong all the time
BESIDE = {
    Fault.SURVIVES_KILL: Fault.IGNORES_STOP,
    Fault.CHECK_FAILS: Fault.REFUSES_REQUEST,
    Fault.CHECK_FINDS_EXIT: Fault.REFUSES_REQUEST,
    Fault.COPY_DAMAGED: Fault.EXITS_LOADING,
}
#: models whose weights come from elsewhere
ELSEWHERE = replace(EXCLUSIVE, models={name: fetched(spec) for name, spec in EXCLUSIVE.models.items()})


def put_there(node: VirtualNode, catalog: Catalog) -> None:
    """Let a copy of every model lie in the cache from the start."""
    node.shelf.cached.update(dict.fromkeys(catalog.models, Bytes(1)))
    node.post(WeightsCached(Instant(0), dict(node.shelf.cached)))


def beside(nth: Nth) -> Choice:
    """Return the choice of one order, and of every order that has to go wrong for it to come about."""
    constant = BESIDE.get(nth.fault)

    def choose(possible: tuple[Fault, ...]) -> Fault | None:
        return nth(possible) or (constant if constant in possible else None)

    return choose


#: what can only befall an engine on a GPU that is lost
ON_REAL_GPUS = (Fault.HANGS_WITHOUT_GPU,)
#: what can only befall weights that come from elsewhere
OF_WEIGHTS = (*FETCH_FAULTS, Fault.COPY_DAMAGED, Fault.WARMS_IN_PART)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in ON_REAL_GPUS + OF_WEIGHTS])
def test_any_single_fault_at_any_point_breaks_no_law(fault: Fault) -> None:
    strike_everywhere(fault, EXCLUSIVE)


@pytest.mark.parametrize("fault", OF_WEIGHTS)
def test_any_single_fault_of_weights_at_any_point_breaks_no_law(fault: Fault) -> None:
    strike_everywhere(fault, ELSEWHERE)


def test_a_copy_that_is_deleted_by_hand_at_any_moment_is_fetched_again() -> None:
    for half_seconds in range(120):
        built = rig(Place(Origin(topology(2), ELSEWHERE)), lambda _: None, random.Random(0))
        ask(built.node)
        built.node.post(CopyDeleted(Instant(seconds(half_seconds / 2)), ModelName("c")))
        built.node.run(Instant(seconds(120)))
        built.come_to_rest()


def ask(node: VirtualNode) -> None:
    for place, name in enumerate(ASKED):
        node.post(RequestArrived(Instant(seconds(3 * place)), RequestId(place + 1), ModelName(name)))


def strike_everywhere(fault: Fault, catalog: Catalog) -> None:
    struck = 0
    for number in range(MOST_ORDERS):
        choice = Nth(fault, number)
        built = rig(Place(Origin(topology(2), catalog)), beside(choice), random.Random(number))
        if fault is Fault.COPY_DAMAGED:
            put_there(built.node, catalog)
        ask(built.node)
        built.node.run(Instant(seconds(120)))
        built.heal()
        built.come_to_rest()
        if not choice.struck:
            break
        struck += 1
    else:
        pytest.fail(f"{fault} still strikes after {MOST_ORDERS} runs")
    assert struck > 0
