"""An operator borrows the GPUs: what is done, and what is said to whoever is about to reset them."""

from typing import Any

import pytest

from swapd.admin.control import Result
from swapd.agent.control import AgentControl
from swapd.core.view import NodeView
from tests.fakes.control import extras
from tests.fakes.gpu_nodes import gpu_node
from tests.fakes.node_views import in_steps, instance_view, model_view, node_view


class FakeDriver:
    """Does as told; `trouble` is why it cannot."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble
        self.done: list[str] = []

    async def release(self) -> str:
        self.done.append("release")
        return self.trouble

    async def acquire(self) -> str:
        self.done.append("acquire")
        return self.trouble


def control(view: NodeView, driver: FakeDriver | None, *not_ready: str) -> AgentControl:
    nothing: Any = None  # no order of this file asks for it
    return AgentControl(
        now=nothing,
        operators=nothing,
        directory=nothing,
        reloader=nothing,
        extras=lambda _: extras(not_ready=not_ready),
        view=lambda: in_steps(view),
        arrivals=nothing,
        timelines=nothing,
        weights=nothing,
        driver=driver,
    )


async def test_the_driver_is_released_and_taken_back() -> None:
    driver = FakeDriver()
    asked = control(gpu_node(), driver)
    assert await asked.release_gpus() == Result(
        ok=True, detail="the driver is released; nothing is loaded until it is taken back"
    )
    assert await asked.acquire_gpus() == Result(ok=True, detail="the driver is taken back")
    assert driver.done == ["release", "acquire"]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("m01",), "m01 still holds its GPUs, and a reset would end it: swapd drain comes first"),
        (("m01", "m02"), "m01, m02 still hold their GPUs, and a reset would end them: swapd drain comes first"),
    ],
)
async def test_whoever_still_holds_gpus_is_named(names: tuple[str, ...], sentence: str) -> None:
    models = (model_view(name, instance=instance_view(name, number)) for number, name in enumerate(names))
    answer = await control(gpu_node(*models), FakeDriver()).release_gpus()
    assert answer == Result(ok=True, detail=f"the driver is released; {sentence}")


async def test_what_the_driver_cannot_do_is_passed_on() -> None:
    asked = control(gpu_node(), FakeDriver("a call has not come back for 40 s"))
    for answer in (await asked.release_gpus(), await asked.acquire_gpus()):
        assert answer == Result(ok=False, detail="a call has not come back for 40 s")


async def test_virtual_devices_have_no_driver_to_release() -> None:
    asked = control(node_view(), None)
    for answer in (await asked.release_gpus(), await asked.acquire_gpus()):
        assert (answer.ok, answer.detail.partition(":")[0]) == (False, "the devices are virtual")


async def test_the_topology_is_what_a_placer_is_told() -> None:
    shown = await control(gpu_node(), None, "the daemon is starting").topology()
    assert list(shown) == ["topology", "free", "models", "state"]
    assert shown["state"] == {"v": 1, "state": "degraded", "ready": False, "reasons": ["the daemon is starting"]}
