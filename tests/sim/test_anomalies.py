"""Strikes the first order a fault can strike, then the second, … until a run passes untouched; nothing may break."""

import random

import pytest

from swapd.core.events import RequestArrived
from swapd.core.ids import Instant, ModelName, RequestId, seconds
from swapd.sim.faults import Fault, Nth
from swapd.sim.replay import Origin
from tests.properties.nodes import EXCLUSIVE, topology
from tests.sim.rigs import rig

#: models asked for every 3 s on two GPUs: loads, evictions, a reservation that drains
ASKED = ("a", "b", "a", "c", "a", "b", "c", "d", "a")
#: no run of the scenario has more orders of one kind
MOST_ORDERS = 60
#: checks and kills are ordered only after something else has gone wrong
NEVER_ALONE = {Fault.SURVIVES_KILL, Fault.CHECK_FAILS, Fault.CHECK_FINDS_EXIT}


@pytest.mark.parametrize("fault", Fault)
def test_any_single_fault_at_any_point_breaks_no_law(fault: Fault) -> None:
    struck = 0
    for number in range(MOST_ORDERS):
        choice = Nth(fault, number)
        built = rig(Origin(topology(2), EXCLUSIVE), choice, random.Random(number))
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
    assert struck > 0 or fault in NEVER_ALONE
