"""Takes a random walk through the moves of a dialogue; the same seed takes the same walk."""

import random
from collections.abc import Callable, Sequence

from tests.properties.dialogue import Dialogue
from tests.properties.nodes import PLACES, Place, variants

#: moves with the weight each has in a walk
MOVES: tuple[tuple[float, Callable[[Dialogue, random.Random], None]], ...] = (
    (18, lambda talk, chance: talk.arrive(chance.randrange(64), chance.randrange(3))),
    (20, lambda talk, chance: talk.end(chance.randrange(64), 0)),
    (4, lambda talk, chance: talk.end(chance.randrange(64), chance.randrange(3))),
    (30, lambda talk, chance: talk.obey(chance.randrange(64))),
    (5, lambda talk, chance: talk.report(chance.randrange(64), chance.randrange(64))),
    (18, lambda talk, chance: talk.pass_time(chance.choice((1, 100, 1_000, 3_000, 9_000, 30_000)))),
    (3, lambda talk, chance: talk.fail_upstream(chance.randrange(64))),
    (1, lambda talk, chance: talk.oversleep(chance.choice((10, 5_000, 70_000)))),
    (3, lambda talk, chance: talk.order(chance.randrange(7), chance.randrange(64))),
    (0.6, lambda talk, chance: talk.drain_node(chance.randrange(8))),
    (6, lambda talk, _: talk.undrain_node()),
    (1, lambda talk, chance: talk.reconfigure(chance.randrange(64))),
    (1, lambda talk, _: talk.reconfigure(0)),
    (2, lambda talk, chance: talk.repeat_old_fact(chance.randrange(640))),
)

#: moves beside these where there is a driver
DEVICE_MOVES: tuple[tuple[float, Callable[[Dialogue, random.Random], None]], ...] = (
    (10, lambda talk, chance: talk.read(chance.randrange(64))),
    (8, lambda talk, _: talk.begin_reading()),
    (10, lambda talk, chance: talk.release(chance.randrange(64))),
    (2, lambda talk, chance: talk.befall(chance.randrange(40), chance.randrange(64))),
    (2, lambda talk, chance: talk.befall(1, chance.randrange(64))),
    (6, lambda talk, chance: talk.recover(chance.randrange(64))),
    (3, lambda talk, _: talk.tell_news()),
    (0.3, lambda talk, chance: talk.recall(chance.randrange(64), chance.randrange(8))),
)


#: moves beside these where weights are fetched
WEIGHT_MOVES: tuple[tuple[float, Callable[[Dialogue, random.Random], None]], ...] = (
    (8, lambda talk, chance: talk.bring_weights(chance.randrange(64))),
    (24, lambda talk, chance: talk.hear_of_weights(chance.randrange(64), chance.randrange(64))),
    (3, lambda talk, chance: talk.fill_the_disk(chance.randrange(64), chance.randrange(64))),
    (4, lambda talk, chance: talk.fail_load(chance.randrange(64))),
    (2, lambda talk, chance: talk.change_cache(chance.randrange(64), put=False)),
    (3, lambda talk, chance: talk.change_cache(chance.randrange(64), put=True)),
    (2, lambda talk, chance: talk.prefetch(chance.randrange(64))),
)


def walk(seed: int, places: Sequence[Place] = PLACES, *, steps: int = 180) -> Dialogue:
    """Take one walk over one of the nodes, bring it to rest, and return the dialogue."""
    chance = random.Random(seed)
    place = places[seed % len(places)]
    talk = Dialogue(place.origin, variants(place.origin.catalog), place.driver())
    moves = MOVES if talk.devices is None else MOVES + DEVICE_MOVES
    if any(spec.fetched for spec in place.origin.catalog.models.values()):
        moves += WEIGHT_MOVES
    weights = [weight for weight, _ in moves]
    for _ in range(steps):
        _, move = chance.choices(moves, weights)[0]
        move(talk, chance)
    talk.settle()
    talk.empty()
    return talk
