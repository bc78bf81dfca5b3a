"""Who brings which part of which file."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from swapd.aio.threads import Stop
from swapd.core.ids import Bytes
from swapd.weights.partial import Partial
from swapd.weights.sources.base import RemoteFile
from swapd.weights.stretches import Stretch, Stretches
from tests.weights.caches import MIB

SIZE = 40 * MIB + 5


def file(name: str, size: int = SIZE, *, tag: str = "v1", ranges: bool = True) -> RemoteFile:
    return RemoteFile(name, Bytes(size), name, tag, ranges=ranges)


@pytest.fixture
def partial(tmp_path: Path) -> Iterator[Partial]:
    with closing(Partial.open(tmp_path / "m", file("m"), Stop())) as made:
        yield made


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Partial]:
    with closing(Partial.open(tmp_path / "n", file("n"), Stop())) as made:
        yield made


def lacking(*partials: Partial) -> Stretches:
    made = Stretches()
    for partial in partials:
        made.add(partial)
    return made


def taken(stretches: Stretches) -> Stretch:
    stretch = stretches.take()
    assert stretch is not None
    return stretch


def test_they_are_handed_out_from_the_front_and_cover_every_file(partial: Partial, other: Partial) -> None:
    stretches = lacking(partial, other)
    places = [(stretch.partial, stretch.start, stretch.stop) for stretch in iter(stretches.take, None)]
    bounds = [(0, 16 * MIB), (16 * MIB, 32 * MIB), (32 * MIB, SIZE)]
    assert places == [(of, *bound) for of in (partial, other) for bound in bounds]


def test_one_that_is_alone_reaches_to_the_end_of_its_file_and_no_further(partial: Partial, other: Partial) -> None:
    stretches = lacking(partial, other)
    first = taken(stretches)
    assert stretches.reach(first) == SIZE
    assert (stretches.go_on(first, SIZE), first.stop) == (True, 32 * MIB)
    assert (stretches.go_on(first, SIZE), first.stop) == (True, SIZE)
    assert (stretches.go_on(first, SIZE), first.stop) == (False, SIZE)
    assert len(stretches) == 3


def test_nobody_goes_on_into_what_another_one_brings(partial: Partial) -> None:
    stretches = lacking(partial)
    first, second = taken(stretches), taken(stretches)
    assert (stretches.reach(first), stretches.go_on(first, SIZE)) == (16 * MIB, False)
    assert (stretches.reach(second), stretches.go_on(second, SIZE)) == (SIZE, True)
    assert stretches.take() is None


def test_nobody_goes_on_over_what_is_here_already(partial: Partial) -> None:
    partial.add(16 * MIB, 0)
    stretches = lacking(partial)
    first = taken(stretches)
    assert (first.start, first.stop) == (0, 16 * MIB)
    assert (stretches.reach(first), stretches.go_on(first, SIZE)) == (16 * MIB, False)
    assert taken(stretches).start == 17 * MIB


def test_nobody_goes_on_further_than_was_asked(partial: Partial) -> None:
    stretches = lacking(partial)
    first = taken(stretches)
    assert (stretches.go_on(first, 32 * MIB - 1), first.stop) == (False, 16 * MIB)
    assert (stretches.go_on(first, 32 * MIB), first.stop) == (True, 32 * MIB)


def test_what_is_given_back_is_the_next_one_as_far_as_it_has_not_come(partial: Partial) -> None:
    stretches = lacking(partial)
    first, second = taken(stretches), taken(stretches)
    partial.add(16 * MIB, 0)
    stretches.give_back(second)
    again = taken(stretches)
    assert (again.start, again.stop) == (17 * MIB, 32 * MIB)
    for at in range(16):
        partial.add(at * MIB, 0)
    stretches.give_back(first)
    assert taken(stretches).start == 32 * MIB


def test_no_request_is_endless(tmp_path: Path) -> None:
    with closing(Partial.open(tmp_path / "large", file("large", 10_000 * MIB), Stop())) as large:
        stretches = lacking(large)
        first = taken(stretches)
        assert first.stop < stretches.reach(first) <= 1024 * MIB


@pytest.mark.parametrize("how", [{"ranges": False}, {"tag": ""}])
def test_a_file_that_cannot_be_had_in_parts_is_one_stretch(tmp_path: Path, how: dict[str, object]) -> None:
    told = file("m", ranges=bool(how.get("ranges", True)), tag=str(how.get("tag", "v1")))
    with closing(Partial.open(tmp_path / "m", told, Stop())) as partial:
        stretches = lacking(partial)
        first = taken(stretches)
        assert (first.start, first.stop, len(stretches)) == (0, SIZE, 0)
