"""The memory of large bodies is used again, and what lies idle of it is bounded."""

import pytest

from swapd.proxy.front.arena import Arena, BodyReceiver
from swapd.proxy.gist import Gist

MIB = 1 << 20


def test_memory_is_used_again_the_least_that_has_room() -> None:
    arena = Arena()
    small, middle, large = (bytearray(size * MIB) for size in (1, 4, 16))
    for memory in (small, large, middle):
        arena.give(memory)
    assert arena.take(3 * MIB) is middle
    assert arena.take(3 * MIB) is small
    assert arena.take(15 * MIB) is large
    assert arena.take(3 * MIB) not in (small, middle, large)


def test_a_small_body_which_may_wait_for_long_does_not_take_the_memory_of_a_large_one() -> None:
    arena = Arena()
    large = bytearray(16 * MIB)
    arena.give(large)
    assert len(arena.take(70_000)) == len(arena.take(7 * MIB)) == len(Arena().take(0))
    assert arena.take(9 * MIB) is large
    least = arena.take(70_000)
    arena.give(least)
    assert arena.take(70_000) is least


def test_what_lies_idle_is_bounded_however_many_bodies_end_at_once() -> None:
    arena = Arena()
    given = [bytearray(10 * MIB) for _ in range(5)]
    for memory in given:
        arena.give(memory)
    arena.give(bytearray(40 * MIB))
    again = [arena.take(10 * MIB - 5000) for _ in range(5)]
    assert [len(memory) for memory in again] == [10 * MIB] * 3 + [len(Arena().take(0))] * 2


class Owner:
    """A connection that wants so many pieces of a body, and notes what it is told."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.pieces: list[int] = []
        #: number of pieces after which reading rested
        self.rests: list[int] = []
        self.body: bytes | None = None

    def body_came(self, count: int, beyond: bytes = b"") -> bool:
        assert not beyond
        self.pieces.append(count)
        return len(self.pieces) < self.wanted

    def body_complete(self, body: memoryview) -> None:
        self.body = bytes(body)

    def rest(self) -> None:
        self.rests.append(len(self.pieces))

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


def receive(owner: Owner, body: bytes, gist: Gist | None) -> None:
    """Let all of the body come that is wanted, as much at once as is read at once."""
    receiver = BodyReceiver(owner, gist, Arena().take(len(body)), len(body), body[:1000])
    at = 1000
    while at < len(body) and len(owner.pieces) < owner.wanted:
        space = receiver.get_buffer(-1)
        count = min(len(space), len(body) - at)
        space[:count] = body[at : at + count]
        del space
        at += count
        receiver.buffer_updated(count)


def test_reading_rests_after_each_piece_of_numbers_and_after_several_of_text_but_not_at_the_end() -> None:
    numbers, text = Owner(1000), Owner(1000)
    receive(numbers, b"[" + b"123, " * MIB + b"1]", Gist())
    receive(text, b'"' + b"abcde" * MIB + b'"', Gist())
    assert len(numbers.pieces) == len(text.pieces)
    assert numbers.rests == list(range(1, len(numbers.pieces)))
    assert 2 < len(text.rests) < len(numbers.rests)
    assert text.body == b'"' + b"abcde" * MIB + b'"'


@pytest.mark.parametrize("gist", [None, Gist()])
def test_reading_does_not_rest_where_there_was_nothing_to_look_at_or_nobody_wants_more(gist: Gist | None) -> None:
    strings, refused = Owner(1000), Owner(1)
    receive(strings, b"[" + b'"x", ' * MIB + b"1]", gist)
    receive(refused, b"[" + b"123, " * MIB + b"1]", Gist())
    assert not strings.rests
    assert strings.body is not None
    assert not refused.rests
    assert refused.body is None
