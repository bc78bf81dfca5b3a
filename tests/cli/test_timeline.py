"""swapd timeline: where the time of cold starts went, drawn and as a document."""

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from swapd.admin.timeline import Timeline, timeline_document
from swapd.cli.bars import print_timelines
from swapd.core.catalog import Source
from swapd.core.commands import LoadFinished, StageSpan
from swapd.core.ids import Duration, InstanceId, ModelName, seconds
from swapd.core.reasons import LoadFailure, LoadResult, Stage
from tests.cli.command import node


def span(stage: Stage, begin: float, end: float) -> StageSpan:
    return StageSpan(stage, seconds(begin), seconds(end))


LOAD = LoadFinished(
    instance=InstanceId(4),
    model=ModelName("m01"),
    result=LoadResult.READY,
    source=Source.REMOTE,
    load_time=seconds(9),
    duration=seconds(9.5),
    stages={},
    victims=(ModelName("m02"), ModelName("m03")),
    timeline=(
        span(Stage.QUEUED, 0, 5),
        span(Stage.FETCH, 0, 6),
        span(Stage.STOP, 5, 7),
        span(Stage.PAGE_CACHE, 6, 8),
        span(Stage.LOAD, 7, 9),
        span(Stage.WARMUP, 9, 9.9),
    ),
)


def printed(*timelines: Timeline, width: int = 46) -> list[str]:
    """Print for a terminal on which a bar is as wide as ``width`` less 26."""
    file = io.StringIO()
    loads = json.loads(json.dumps(timeline_document(timelines)))["loads"]
    print_timelines(Console(file=file, width=width, force_terminal=False), loads, now_s=160.0)
    return file.getvalue().splitlines()


def test_stages_that_went_on_at_the_same_time_stand_above_each_other() -> None:
    lines = printed(Timeline(LOAD, 100.0, seconds(0.1)))
    head = " ".join(" ".join(lines[:-7]).split())
    assert head.startswith("m01 ready 10.00 s to the first byte weights fetched from their source 1m00s ago")
    assert head.endswith("evicted for it: m02, m03")
    assert lines[-7:] == [
        "  queued        5.00 s  ██████████",
        "  fetch         6.00 s  ████████████",
        "  stop          2.00 s            ████",
        "  page cache    2.00 s              ████",
        "  load          2.00 s                ████",
        "  warmup        0.90 s                    █▊",
        "  first byte    0.10 s                     █",
    ]


def test_a_stage_that_comes_twice_has_one_line_with_both_bars() -> None:
    twice = replace(LOAD, timeline=(span(Stage.FETCH, 0, 2), span(Stage.LOAD, 2, 8), span(Stage.FETCH, 8, 10)))
    assert printed(Timeline(twice, 100.0))[-2:] == [
        "  fetch         4.00 s  ████            ████",
        "  load          6.00 s      ████████████",
    ]


def test_a_stage_that_is_too_short_to_draw_is_seen_all_the_same() -> None:
    short = replace(LOAD, timeline=(span(Stage.SPAWN, 0, 0.001), span(Stage.LOAD, 0.001, 100)))
    assert printed(Timeline(short, 100.0))[-2].startswith("  spawn         0.00 s  ▏")


def test_a_load_that_failed_says_why() -> None:
    failed = replace(LOAD, result=LoadResult.FAILED, failure=LoadFailure.EXITED, detail="no \x1b[2Jmemory", victims=())
    text = " ".join(" ".join(printed(Timeline(failed, 100.0), width=120)).split())
    assert "m01 failed 9.90 s in all" in text
    assert "exited: no �[2Jmemory" in text
    assert "evicted" not in text


def test_before_the_first_load_there_is_nothing_to_draw() -> None:
    assert printed(width=80) == ["no load has ended since the daemon's start"]


def test_a_load_without_length_has_no_bars_to_speak_of() -> None:
    instant = replace(LOAD, timeline=(StageSpan(Stage.LOAD, Duration(0), Duration(0)),))
    assert printed(Timeline(instant, 100.0))[-1] == "  load          0.00 s  ▏"


async def test_the_command_shows_the_last_load_of_each_model_or_all_of_one(tmp_path: Path) -> None:
    def load(number: int, model: str) -> Timeline:
        return Timeline(replace(LOAD, instance=InstanceId(number), model=ModelName(model), victims=()), 100.0)

    async with node(tmp_path / "admin.sock") as daemon:
        daemon.control.kept = [load(1, "m01"), load(2, "org/model-7b"), load(3, "m01")]
        shown = await daemon.swapd("timeline")
        assert shown.exit_code == 0
        assert [line.split()[0] for line in shown.output.splitlines() if "ago" in line] == ["org/model-7b", "m01"]
        one = await daemon.swapd("timeline", "tiny")
        assert [line.split()[0] for line in one.output.splitlines() if "ago" in line] == ["m01", "m01"]
        raw = await daemon.swapd("timeline", "org/model-7b", "--json")
        assert [one["instance"] for one in json.loads(raw.output)["loads"]] == [2]


async def test_a_model_that_was_not_loaded_yet_is_told_from_a_node_that_loaded_nothing(tmp_path: Path) -> None:
    async with node(tmp_path / "admin.sock") as daemon:
        daemon.control.kept = [Timeline(LOAD, 100.0)]
        other = await daemon.swapd("timeline", "org/model-7b")
        assert other.output == "no load of org/model-7b has ended since the daemon's start\n"


async def test_a_name_that_nobody_has_is_refused(tmp_path: Path) -> None:
    async with node(tmp_path / "admin.sock") as daemon:
        refused = await daemon.swapd("timeline", "nobody")
        assert (refused.exit_code, "no model and no alias is named" in refused.output) == (1, True)
