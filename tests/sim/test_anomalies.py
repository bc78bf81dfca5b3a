"""Strikes the first order a fault can strike, then the second, … until a run passes untouched; nothing may break."""

import random

import pytest

from swapd.core.events import RequestArrived
from swapd.core.ids import Instant, ModelName, RequestId, seconds
from swapd.sim.faults import Choice, Fault, Nth
from swapd.sim.replay import Origin
from tests.properties.nodes import EXCLUSIVE, Place, topology
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
}


def beside(nth: Nth) -> Choice:
    """Return the choice of one order, and of every order that has to go wrong for it to come about."""
    constant = BESIDE.get(nth.fault)

    def choose(possible: tuple[Fault, ...]) -> Fault | None:
        return nth(possible) or (constant if constant in possible else None)

    return choose


#: what can only befall an engine on a GPU that is lost
ON_REAL_GPUS = (Fault.HANGS_WITHOUT_GPU,)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in ON_REAL_GPUS])
def test_any_single_fault_at_any_point_breaks_no_law(fault: Fault) -> None:
    struck = 0
    for number in range(MOST_ORDERS):
        choice = Nth(fault, number)
        built = rig(Place(Origin(topology(2), EXCLUSIVE)), beside(choice), random.Random(number))
        for place, name in enumerate(ASKED):
            built.node.post(RequestArrived(Instant(seconds(3 * place)), RequestId(place + 1), ModelName(name)))
        built.node.run(Instant(seconds(120)))
        built.heal()
        built.come_to_rest()
        if not choice.struck:
            break
        struck += 1
    else:
        pytest.fail(f"{fault} still strikes after {MOST_ORDERS} runs")
    assert struck > 0
