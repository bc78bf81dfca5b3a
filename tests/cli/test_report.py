"""swapd report: what an operator reads, and what a script reads."""

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from swapd.admin.report import report_document
from swapd.aio.turns import at_once
from swapd.cli.report_table import print_report
from swapd.core.accounts import Costs
from swapd.core.ids import ModelName
from swapd.core.reasons import PinnedBy, Verdict
from swapd.core.tiers import Hour, weigh
from swapd.core.view import ModelView
from tests.cli.command import node
from tests.fakes.node_views import model_view, node_view

HOURLY = Costs(requests=60, loads=30, own_gpu_seconds=2400, charged_gpu_seconds=600, waited_seconds=1800)


def printed(*models: ModelView, width: int = 140, **changes: Any) -> list[str]:
    file = io.StringIO()
    print_report(
        Console(file=file, width=width, force_terminal=False), at_once(report_document(node_view(*models, **changes)))
    )
    return [" ".join(line.split()) for line in file.getvalue().splitlines()]


def thrashing(name: str = "t") -> ModelView:
    return model_view(
        name,
        verdict=Verdict.THRASHING,
        partner=ModelName("u"),
        hourly=HOURLY,
        totals=HOURLY,
        week=weigh([Hour(60)] * 12),
    )


def test_the_node_the_advice_and_every_model_by_its_cost_are_shown() -> None:
    lines = printed(model_view("u"), thrashing(), max_pinned_gpus=1, load_fraction=0.4, load_verdict=Verdict.THRASHING)
    assert lines[:4] == [
        "40.0% of the GPUs' time goes into loading: thrashing",
        "the pool thrashes, and no setting makes room: move the models that cost most, or add a node",
        "pinned: 0 of 2 GPUs, of at most 1; on_thrash report",
        "",
    ]
    at = lines.index("What to do")
    assert lines[at + 1].startswith("t thrashes with u: swapd pin t takes 1 of 2 GPUs and saves up to 3000 GPU-seconds")
    assert lines[-2:] == [
        "t 1 3000 2400 600 30 30s thrashing with u 60 warm (provisional) pin",
        "u 1 0 0 0 0 – unknown 0 – –",
    ]


def test_a_narrow_terminal_gets_fewer_columns() -> None:
    assert printed(thrashing(), width=80)[-2:] == [
        "model GPUs cost verdict tier advice",
        "t 1 3000 thrashing with u warm (provisional) dedicated",
    ]


def test_a_quiet_node_says_that_nothing_is_to_be_done() -> None:
    lines = printed(model_view("m", pinned_by=PinnedBy.CONFIG, verdict=Verdict.OK))
    assert "nothing: no model had better be elsewhere" in lines
    assert "pinned: 1 of 2 GPUs, max_pinned_gpus is not set; on_thrash report" in lines
    assert lines[-1] == "m 1 0 0 0 0 – ok 0 – pinned by config"


def test_a_pin_that_nobody_has_asked_for_reads_as_in_the_status() -> None:
    lines = printed(model_view("m", pinned_by=PinnedBy.ON_THRASH, verdict=Verdict.OK))
    assert lines[-1] == "m 1 0 0 0 0 – ok 0 – pinned: it thrashed, pin"


def test_a_sentence_is_whole_on_one_line_where_no_terminal_shows_it() -> None:
    names = [f"a-model-with-a-long-name-{number}" for number in range(3)]
    others = [model_view(name, gpus=2) for name in names]
    lines = printed(thrashing(), *others, max_pinned_gpus=2, load_fraction=0.4)
    (advice,) = (line for line in lines if line.startswith("t thrashes with u and costs"))
    assert advice.endswith("; give it its own GPUs, or add a node")
    assert len(advice) > 140


async def test_the_command_prints_the_table_or_the_whole_document(tmp_path: Path) -> None:
    async with node(tmp_path / "admin.sock") as daemon:
        daemon.control.view = node_view(thrashing())
        shown = await daemon.swapd("report")
        assert (shown.exit_code, "What to do" in shown.output) == (0, True)
        raw = await daemon.swapd("report", "--json")
        assert json.loads(raw.output) == json.loads(json.dumps(at_once(report_document(daemon.control.view))))
