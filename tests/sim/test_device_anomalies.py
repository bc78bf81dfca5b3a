"""Strikes the devices at the first moment of a run, then at the second, … to the last; nothing may break."""

import random
from collections.abc import Callable

import pytest

from swapd.core.events import Event, GpuMemoryRead, RequestArrived, Tick
from swapd.core.ids import SECOND, Instant, ModelName, RequestId, seconds
from swapd.core.topology import DriverState, GpuHealth
from swapd.sim.driver import DriverTurns, ForeignMemory, HealthTurns, Incident, ListsTurn
from swapd.sim.faults import Fault
from tests.properties.nodes import RINGED
from tests.sim.rigs import Rig, rig

#: models asked for every 4 s on four GPUs, of one, two and four GPUs
ASKED = ("a", "p", "b", "q", "c", "w", "a", "b", "p")
END = Instant(seconds(150))

Strike = Callable[[Instant], tuple[Incident, ...]]


def later(at: Instant, after_s: float) -> Instant:
    return Instant(at + seconds(after_s))


def health(health: GpuHealth, *, healed_after_s: float) -> Strike:
    return lambda at: (
        HealthTurns(at, 0, health),
        HealthTurns(later(at, healed_after_s), 0, GpuHealth.HEALTHY),
    )


def outage(state: DriverState, seconds_long: float) -> Strike:
    return lambda at: (DriverTurns(at, state), DriverTurns(later(at, seconds_long), DriverState.UP))


def foreign(share: float) -> Strike:
    capacity = RINGED.origin.topology.gpus[0].memory_bytes
    return lambda at: (
        ForeignMemory(at, 0, type(capacity)(round(capacity * share))),
        ForeignMemory(later(at, 25), 0, type(capacity)(0)),
    )


STRIKES: dict[str, Strike] = {
    "a GPU is lost for a moment": health(GpuHealth.LOST, healed_after_s=0.5),
    "a GPU is lost for a while": health(GpuHealth.LOST, healed_after_s=30),
    "a GPU is lost to the end": health(GpuHealth.LOST, healed_after_s=10_000),
    "a GPU fails": health(GpuHealth.FAILED, healed_after_s=30),
    "others take a whole GPU": foreign(1),
    "others take a third of a GPU": foreign(0.34),
    "the driver stalls": outage(DriverState.STALLED, 20),
    "the driver is let go": outage(DriverState.RELEASED, 60),
    "process lists cannot be trusted": lambda at: (ListsTurn(at, trusted=False),),
}


def built() -> Rig:
    """Return the node with its requests on the way; an engine that loses its GPU hangs."""
    node = rig(RINGED, hangs, random.Random(0), interval=seconds(20))
    for place, name in enumerate(ASKED):
        node.node.post(RequestArrived(Instant(seconds(4 * place)), RequestId(place + 1), ModelName(name)))
    return node


def hangs(possible: tuple[Fault, ...]) -> Fault | None:
    return Fault.HANGS_WITHOUT_GPU if Fault.HANGS_WITHOUT_GPU in possible else None


def moments() -> list[Instant]:
    """Return the moments at which something happens in a run that nothing disturbs, readings and wake-ups left out."""
    undisturbed = built()
    undisturbed.node.run(END)
    facts: list[Event] = [event for event, _ in undisturbed.watch.recording.steps]
    return sorted({fact.at for fact in facts if not isinstance(fact, GpuMemoryRead | Tick)})


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", STRIKES)
def test_any_mishap_at_any_moment_breaks_no_law(kind: str, stride: int) -> None:
    found = moments()
    assert len(found) > 40
    first = list(STRIKES).index(kind) % stride
    for moment in found[first::stride]:
        struck = built()
        # a nanosecond after a reading that the moment itself may have brought about
        struck.node.post(*STRIKES[kind](Instant(moment + 2)))
        struck.node.run(Instant(END + 30 * SECOND))
        struck.heal()
        struck.come_to_rest()
