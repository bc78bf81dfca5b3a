"""A live daemon and the simulator do the same with the same requests, or the simulator is not to be believed."""

import pytest

from benchmarks.agreement import GOAL, measure, off


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_simulator_agrees_with_a_live_daemon_on_loads_and_evictions(seed: int) -> None:
    done, said = await measure(seed=seed)
    assert abs(off(done.loads, said.loads)) <= GOAL
    assert abs(off(done.evictions, said.evictions)) <= GOAL
