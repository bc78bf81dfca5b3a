"""Weights on the virtual node: they come, are read, verified, deleted; a simulation has them at hand from the start."""

from dataclasses import replace

from swapd.core.catalog import Catalog, Source
from swapd.core.commands import Answer, Command, FetchEnded, LoadFinished
from swapd.core.events import Event, PrefetchOrdered, RequestArrived
from swapd.core.ids import Instant, ModelName, RequestId, seconds
from swapd.sim.node import VirtualNode
from swapd.sim.rehearse import rehearse
from swapd.sim.replay import Origin
from swapd.sim.run import Setup, simulate
from swapd.sim.timeline import CopyDeleted
from swapd.sim.workload import ping_pong
from swapd.sim.world import HealthyWorld
from tests.properties.nodes import EXCLUSIVE, TINY, fetched, topology
from tests.sim.rigs import TIMINGS

A, B = ModelName("a"), ModelName("b")


def elsewhere(catalog: Catalog) -> Catalog:
    return replace(catalog, models={name: fetched(spec, pinned=False) for name, spec in catalog.models.items()})


def played(*happenings: Event | CopyDeleted, until: float = 200) -> list[tuple[float, Command]]:
    """Play on one GPU with models from elsewhere; return every command with its time in seconds."""
    given: list[tuple[float, Command]] = []

    def note(event: Event, commands: tuple[Command, ...]) -> None:
        given.extend((event.at / 1e9, command) for command in commands)
        scheduler.check()

    scheduler = Origin(topology(1), elsewhere(TINY)).scheduler()
    node = VirtualNode(scheduler, HealthyWorld(replace(TIMINGS, read=seconds(1))), observers=(note,))
    node.post(*happenings)
    node.run(Instant(seconds(until)))
    return given


def asked(number: int, model: ModelName, at: float) -> Event:
    return RequestArrived(Instant(seconds(at)), RequestId(number), model)


def test_a_first_load_is_remote_and_the_next_one_is_faster() -> None:
    given = played(asked(1, A, 0), asked(2, B, 30), asked(3, A, 60))
    loads = [(c.model, c.source, c.load_time) for _, c in given if isinstance(c, LoadFinished)]
    assert loads == [
        (A, Source.REMOTE, seconds(6 + 8)),
        (B, Source.REMOTE, seconds(6 + 8)),
        (A, Source.PAGE_CACHE, seconds(8)),
    ]


def test_a_copy_that_is_deleted_by_hand_is_fetched_again() -> None:
    deleted = CopyDeleted(Instant(seconds(50)), A)
    given = played(asked(1, A, 0), asked(2, B, 30), deleted, asked(3, A, 60))
    assert [c.model for _, c in given if isinstance(c, FetchEnded)] == [A, B, A]


def test_a_prefetch_is_answered_when_the_copy_is_there() -> None:
    given = played(PrefetchOrdered(Instant(0), RequestId(1), A))
    assert [(at, c.ok) for at, c in given if isinstance(c, Answer)] == [(6, True)]


def test_a_simulation_has_all_weights_at_hand() -> None:
    arrivals = ping_pong([A, B], 8, gap_s=30, service=seconds(1))
    with_them, without = (
        simulate(Setup(topology(2), catalog, TIMINGS), arrivals) for catalog in (EXCLUSIVE, elsewhere(EXCLUSIVE))
    )
    assert with_them == without
    assert without.node.loads == 2


def test_a_rehearsal_has_all_weights_at_hand() -> None:
    assert rehearse(topology(3), elsewhere(EXCLUSIVE)) == rehearse(topology(3), EXCLUSIVE)
