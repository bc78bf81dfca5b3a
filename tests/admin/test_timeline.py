"""The timelines of the last loads as JSON, over the admin socket."""

from dataclasses import replace

from aiohttp.test_utils import TestClient, TestServer

from swapd.admin.events import EventHub
from swapd.admin.server import admin_app
from swapd.admin.timeline import Timeline, timeline_document
from swapd.core.catalog import Source
from swapd.core.commands import LoadFinished, StageSpan
from swapd.core.ids import Duration, InstanceId, ModelName, seconds
from swapd.core.reasons import LoadFailure, LoadResult, Stage
from tests.fakes.control import FakeControl

LOAD = LoadFinished(
    instance=InstanceId(4),
    model=ModelName("m01"),
    result=LoadResult.READY,
    source=Source.REMOTE,
    load_time=seconds(9),
    duration=seconds(9.5),
    stages={Stage.STOP: seconds(1), Stage.LOAD: seconds(2)},
    victims=(ModelName("m02"),),
    timeline=(
        StageSpan(Stage.QUEUED, Duration(0), seconds(7.5)),
        StageSpan(Stage.FETCH, seconds(0.001), seconds(8)),
        StageSpan(Stage.STOP, seconds(7.5), seconds(8.5)),
        StageSpan(Stage.LOAD, seconds(8.5), seconds(10.5)),
    ),
)
READY = Timeline(LOAD, 1_700_000_000.1234, seconds(0.25))


def test_a_load_is_told_with_all_its_stages_and_its_first_byte() -> None:
    assert timeline_document([READY]) == {
        "loads": [
            {
                "model": "m01",
                "instance": 4,
                "ended_at": 1_700_000_000.123,
                "result": "ready",
                "source": "remote",
                "total_s": 10.75,
                "load_time_s": 9.0,
                "swap_s": 9.5,
                "victims": ["m02"],
                "failure": None,
                "detail": None,
                "stages": [
                    {"stage": "queued", "begin_s": 0.0, "end_s": 7.5},
                    {"stage": "fetch", "begin_s": 0.001, "end_s": 8.0},
                    {"stage": "stop", "begin_s": 7.5, "end_s": 8.5},
                    {"stage": "load", "begin_s": 8.5, "end_s": 10.5},
                    {"stage": "first_byte", "begin_s": 10.5, "end_s": 10.75},
                ],
            }
        ]
    }


def test_a_load_that_failed_says_why_and_one_without_stages_how_long_it_took() -> None:
    failed = replace(LOAD, result=LoadResult.FAILED, failure=LoadFailure.EXITED, detail="status 1", timeline=())
    [told] = timeline_document([Timeline(failed, 0.0)])["loads"]
    assert (told["result"], told["failure"], told["detail"]) == ("failed", "exited", "status 1")
    assert (told["total_s"], told["stages"]) == (9.5, [])


async def test_one_model_or_all_of_them_are_asked_for_by_name_or_alias() -> None:
    control = FakeControl(kept=[READY, Timeline(replace(LOAD, model=ModelName("org/model-7b")), 0.0)])
    async with TestClient(TestServer(admin_app(control, EventHub()))) as client:

        async def models(path: str) -> list[str]:
            answer = await client.get(path)
            assert answer.status == 200
            return [load["model"] for load in (await answer.json())["loads"]]

        assert await models("/v1/timeline") == ["m01", "org/model-7b"]
        assert await models("/v1/timeline/tiny") == ["m01"]
        assert await models("/v1/timeline/org/model-7b") == ["org/model-7b"]
        unknown = await client.get("/v1/timeline/nobody")
        assert unknown.status == 404
        assert (await unknown.json())["reason"] == "unknown_model"
