"""How many connections a transfer has, on sources of all kinds."""

import random
from collections.abc import Callable

import pytest

from swapd.core.ids import SECOND, Instant
from swapd.weights.ramp import PERIOD, REST, Ramp

TICK = SECOND // 10
#: bytes a tick
LINE = 10_000_000


class Played:
    """A ramp on a source whose rate depends on how many connections there are."""

    def __init__(self, most: int = 4) -> None:
        self.ramp = Ramp(most)
        self.now = 0
        self.came = 0

    def play(self, brings: Callable[[int], int], duration: int) -> list[int]:
        """Let time pass; return the numbers of connections in turn."""
        numbers = [self.ramp.look(Instant(self.now), self.came)]
        until = self.now + duration
        while self.now < until:
            self.now += TICK
            self.came += brings(numbers[-1])
            number = self.ramp.look(Instant(self.now), self.came)
            if number != numbers[-1]:
                numbers.append(number)
        return numbers


def each(connections: int) -> int:
    """Give each connection its own line, as a store does that limits each."""
    return LINE * connections


def together(_connections: int) -> int:
    """Give all connections one line, which one alone can fill."""
    return LINE


@pytest.mark.parametrize(
    ("most", "numbers"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (5, [1, 2, 4, 5])]
)
def test_connections_are_doubled_up_to_the_most_where_each_has_its_own_limit(most: int, numbers: list[int]) -> None:
    assert Played(most).play(each, 60 * SECOND) == numbers


def test_one_connection_stays_alone_where_it_brings_all() -> None:
    assert Played().play(together, 3 * PERIOD) == [1, 2, 1]


def test_no_more_than_two_are_ever_tried_where_one_brings_all_and_the_tries_are_rare() -> None:
    numbers = Played().play(together, 10 * (REST + 3 * PERIOD))
    assert max(numbers) == 2
    assert numbers.count(2) <= 11


def test_it_stops_where_more_connections_bring_no_more() -> None:
    played = Played(8)
    assert played.play(lambda connections: LINE * min(connections, 2), 5 * PERIOD) == [1, 2, 4, 2]


def test_a_number_that_was_in_vain_is_tried_again_after_a_rest() -> None:
    played = Played()
    assert played.play(together, 3 * PERIOD) == [1, 2, 1]
    assert played.play(each, REST - TICK) == [1]
    assert played.play(each, 5 * PERIOD) == [1, 2, 4]


def test_many_that_once_paid_are_kept() -> None:
    played = Played()
    played.play(each, 5 * PERIOD)
    assert played.play(together, 4 * REST) == [4]


def test_while_nothing_comes_there_is_one_after_the_first_try() -> None:
    assert Played().play(lambda _: 0, REST) == [1, 2, 1]


def test_what_comes_while_connections_are_being_made_does_not_count() -> None:
    played = Played()
    assert played.play(together, PERIOD) == [1, 2]
    assert played.play(lambda _: 0, PERIOD) == [2]
    assert played.play(each, PERIOD) == [2, 4]


def test_looking_more_often_decides_nothing() -> None:
    ramp = Ramp(4)
    for at in range(0, PERIOD, PERIOD // 100):
        assert ramp.look(Instant(at), at) == 1


@pytest.mark.parametrize("seed", range(20))
def test_it_bears_noise(seed: int) -> None:
    dice = random.Random(seed)

    def noisy(brings: Callable[[int], int]) -> Callable[[int], int]:
        return lambda connections: int(brings(connections) * dice.uniform(0.8, 1.2))

    assert Played().play(noisy(each), 5 * PERIOD) == [1, 2, 4]
    assert Played().play(noisy(together), 3 * PERIOD) == [1, 2, 1]
