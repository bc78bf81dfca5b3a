"""When the node takes requests."""

import pytest

from swapd.agent.readiness import not_ready
from swapd.core.reasons import State
from swapd.core.topology import DriverState
from tests.fakes.gpu_nodes import gpu_node, sick, topology
from tests.fakes.node_views import instance_view, model_view, node_view

TROUBLED = [s for s in DriverState if s not in (DriverState.UP, DriverState.VIRTUAL, DriverState.STARTING)]


def test_a_node_is_ready_without_any_resident_model() -> None:
    assert not_ready(node_view()) == not_ready(gpu_node()) == ()


def test_a_draining_node_takes_no_requests() -> None:
    assert not_ready(gpu_node(draining=True, topology=sick(topology()))) == ("the node is draining",)


def test_before_the_first_reading_nothing_can_be_promised() -> None:
    serving = model_view("m01", instance=instance_view("m01"))
    starting = sick(topology(), driver=DriverState.STARTING, trouble="")
    assert not_ready(gpu_node(serving, topology=starting)) == ("the GPUs have not been read yet",)


@pytest.mark.parametrize("driver", TROUBLED)
def test_without_a_driver_the_node_is_ready_as_long_as_a_resident_model_serves(driver: DriverState) -> None:
    shape = sick(topology(), driver=driver, trouble="NVML is out of reach")
    serving, loading = (model_view("m01", instance=instance_view("m01", state=s)) for s in (State.READY, State.LOADING))
    assert not_ready(gpu_node(serving, topology=shape)) == ()
    assert not_ready(gpu_node(loading, topology=shape)) == ("NVML is out of reach",)
    assert not_ready(gpu_node(topology=shape)) == ("NVML is out of reach",)


def test_trouble_without_a_sentence_is_named_by_its_state() -> None:
    shape = sick(topology(), driver=DriverState.NOT_LOADED, trouble="")
    assert not_ready(gpu_node(topology=shape)) == ("the GPU driver is not loaded",)
