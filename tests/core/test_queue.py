"""Queues and agendas keep their order whatever is taken out of them."""

import random
from dataclasses import dataclass

import pytest

from swapd.core.agenda import Agenda
from swapd.core.catalog import Priority
from swapd.core.ids import Instant, ModelName, RequestId
from swapd.core.queue import ModelQueue
from swapd.core.story import Story


@dataclass(eq=False)
class Waiting:
    id: RequestId
    arrived: Instant
    priority: Priority = Priority.NORMAL


def waiting(number: int, priority: Priority = Priority.NORMAL) -> Waiting:
    return Waiting(RequestId(number), Instant(number), priority)


def filled(*requests: Waiting) -> ModelQueue[Waiting]:
    queue: ModelQueue[Waiting] = ModelQueue()
    for request in requests:
        queue.push(request)
    return queue


def test_the_class_goes_before_age_and_age_before_anything_else() -> None:
    queue = filled(
        waiting(1, Priority.LOW), waiting(2), waiting(3, Priority.HIGH), waiting(4), waiting(5, Priority.HIGH)
    )
    assert [request.id for request in queue] == [3, 5, 2, 4, 1]
    assert [queue.pop().id for _ in range(5)] == [3, 5, 2, 4, 1]


def test_the_oldest_is_the_oldest_of_all_classes() -> None:
    queue = filled(waiting(1, Priority.LOW), waiting(2, Priority.HIGH))
    assert (queue.oldest().id, queue.youngest().id) == (1, 1)
    assert queue.rank() == (Priority.HIGH, 2)


def test_a_request_put_back_stands_before_the_younger_and_behind_the_older_of_its_class() -> None:
    queue = filled(waiting(1), waiting(5), waiting(6))
    queue.put_back(waiting(3))
    assert [request.id for request in queue] == [1, 3, 5, 6]


def test_whoever_leaves_is_out_at_once() -> None:
    requests = [waiting(number) for number in range(4)]
    queue = filled(*requests)
    queue.remove(requests[2])
    assert requests[2] not in queue
    assert requests[3] in queue
    assert (len(queue), [request.id for request in queue]) == (3, [0, 1, 3])


@pytest.mark.parametrize("ask", [ModelQueue.pop, ModelQueue.rank])
def test_an_empty_queue_has_nobody_to_serve(ask) -> None:  # noqa: ANN001 - a method
    with pytest.raises(IndexError):
        ask(filled())


def test_an_agenda_stays_sorted_through_any_changes() -> None:
    chance = random.Random(5)
    agenda: Agenda[int] = Agenda()
    keys: dict[str, int] = {}
    for _ in range(2000):
        name = f"m{chance.randrange(12)}"
        if chance.random() < 0.3:
            agenda.drop(ModelName(name))
            keys.pop(name, None)
        else:
            keys[name] = chance.randrange(6)
            agenda.put(ModelName(name), keys[name])
        expected = sorted(keys, key=lambda n: (keys[n], n))
        assert list(agenda) == expected
        assert agenda.first() == (keys[expected[0]] if expected else None)
        assert agenda.after(2) == min((key for key in keys.values() if key > 2), default=None)
        assert len(agenda) == len(keys)


def test_a_story_forgets_its_oldest_lines_and_says_nothing_twice_in_a_row() -> None:
    story = Story(limit=3)
    for number, line in enumerate(["a", "b", "b", "c", "d"]):
        story.add(Instant(number), line)
    assert story.lines() == ((1, "b"), (3, "c"), (4, "d"))
