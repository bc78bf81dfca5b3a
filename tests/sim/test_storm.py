"""Faults of every kind at once: no law breaks while they last, and everything comes to rest once they are over."""

import os

import pytest

from tests.sim.rigs import stormy

SEEDS = range(int(os.environ.get("SWAPD_SIM_FIRST_SEED", "0")), int(os.environ.get("SWAPD_SIM_SEEDS", "18")))


@pytest.mark.parametrize("seed", SEEDS)
def test_laws_hold_under_faults_and_a_healed_node_keeps_every_promise(seed: int) -> None:
    built = stormy(seed)
    built.heal()
    built.come_to_rest()
