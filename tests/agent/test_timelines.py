"""The last loads are kept, second by second, and the first byte is added when it is known."""

from dataclasses import dataclass, field, replace

from swapd.admin.timeline import Timeline
from swapd.agent.timelines import IN_ALL, PER_MODEL, Timelines
from swapd.core.catalog import Source
from swapd.core.commands import LoadFinished, StageSpan
from swapd.core.ids import Duration, InstanceId, Instant, ModelName, seconds
from swapd.core.reasons import LoadFailure, LoadResult, Stage

LOAD = LoadFinished(
    instance=InstanceId(1),
    model=ModelName("m01"),
    result=LoadResult.READY,
    source=Source.CACHE,
    load_time=seconds(3),
    duration=seconds(3),
    stages={Stage.LOAD: seconds(3)},
    victims=(),
    timeline=(StageSpan(Stage.QUEUED, Duration(0), seconds(2)), StageSpan(Stage.LOAD, seconds(2), seconds(5))),
)


@dataclass
class Kept:
    """Timelines under a clock that is set by hand."""

    at_s: float = 100.0
    timelines: Timelines = field(init=False)

    def __post_init__(self) -> None:
        self.timelines = Timelines(now=lambda: Instant(seconds(self.at_s)), wall=lambda: 1_700_000_000.0)

    def finish(self, number: int, model: str = "m01", result: LoadResult = LoadResult.READY) -> None:
        self.timelines.finished(replace(LOAD, instance=InstanceId(number), model=ModelName(model), result=result))

    def numbers(self, model: str | None = None) -> list[int]:
        found = self.timelines.of(None if model is None else ModelName(model))
        return [timeline.load.instance for timeline in found]


def test_loads_are_kept_in_the_order_in_which_they_ended() -> None:
    kept = Kept()
    for number, model in enumerate(("a", "b", "a")):
        kept.finish(number, model)
    assert kept.numbers() == [0, 1, 2]
    assert kept.numbers("a") == [0, 2]
    assert kept.numbers("nobody") == []
    assert kept.timelines.of(ModelName("b")) == (
        Timeline(replace(LOAD, instance=InstanceId(1), model=ModelName("b")), 1_700_000_000.0),
    )


def test_the_oldest_load_of_a_model_goes_first() -> None:
    kept = Kept()
    kept.finish(1000, "rare")
    for number in range(PER_MODEL + 2):
        kept.finish(number, "busy")
    assert kept.numbers("busy") == list(range(2, PER_MODEL + 2))
    assert kept.numbers("rare") == [1000]


def test_the_oldest_load_of_all_goes_when_there_are_too_many_models() -> None:
    kept = Kept()
    for number in range(IN_ALL + 3):
        kept.finish(number, f"m{number}")
    assert kept.numbers() == list(range(3, IN_ALL + 3))


def test_the_first_byte_follows_the_load_at_its_distance() -> None:
    kept = Kept()
    kept.finish(1)
    kept.finish(2, "other")
    kept.at_s = 104
    kept.timelines.first_byte(InstanceId(1), ago=seconds(3.5))
    told, other = kept.timelines.of(None)
    assert told.spans[-1] == StageSpan(Stage.FIRST_BYTE, seconds(5), seconds(5.5))
    assert other.first_byte is None
    assert other.spans == LOAD.timeline


def test_of_several_requests_the_earliest_byte_counts() -> None:
    kept = Kept()
    kept.finish(1)
    for at_s, ago in ((103, 1.0), (110, 9.0), (111, 2.0)):
        kept.at_s = at_s
        kept.timelines.first_byte(InstanceId(1), ago=seconds(ago))
    assert [timeline.first_byte for timeline in kept.timelines.of(None)] == [seconds(1)]


def test_a_byte_of_a_load_that_is_not_kept_changes_nothing() -> None:
    kept = Kept()
    kept.finish(1, result=LoadResult.FAILED)
    before = kept.timelines.of(None)
    for number in (1, 99):
        kept.timelines.first_byte(InstanceId(number), ago=Duration(0))
    assert kept.timelines.of(None) == before


def test_a_load_that_failed_is_kept_with_what_it_came_to() -> None:
    kept = Kept()
    failed = replace(LOAD, result=LoadResult.FAILED, failure=LoadFailure.EXITED, detail="status 1")
    kept.timelines.finished(failed)
    assert [timeline.load for timeline in kept.timelines.of(None)] == [failed]
