"""States what the benchmarks are to reach, collects what they have measured, and prints both in one table.

Every benchmark runs in a process of its own: what it measured goes through a file, named by the environment.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.tools import table

VARIABLE: Final = "BENCH_MEASURED"


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the table."""

    #: the benchmark that measures it
    by: str
    text: str
    limit: float
    unit: str = ""
    #: what would be better still
    moonshot: float | None = None
    at_least: bool = False

    def is_met(self, value: float) -> bool:
        """Tell whether a measured value keeps the goal."""
        return value >= self.limit if self.at_least else value <= self.limit

    def said(self, value: float | None) -> str:
        """Return a value with its unit and the direction of the goal."""
        return "–" if value is None else f"{'≥' if self.at_least else '≤'} {value:g}{self.unit}"


GOALS: Final = {
    "request": Goal("relay", "CPU per plain request to nginx, 16–64 connections", 1.6, moonshot=1.35),
    "chunk": Goal("relay", "CPU per paced chunk to nginx, 400 streams of 25/s", 1.15, moonshot=1.0),
    "request to naive": Goal("relay", "CPU per plain request to a naive proxy", 0.2),
    "chunk to naive": Goal("relay", "CPU per paced chunk to a naive proxy", 0.5),
    "p50": Goal("relay", "median latency at one connection to nginx", 1.2, moonshot=1.08),
    "delay p50": Goal("relay", "delay of a chunk to nginx, 1,000 streams of 25/s, p50", 1.1, moonshot=0.9),
    "delay p99": Goal("relay", "delay of a chunk to nginx, 1,000 streams of 25/s, p99", 1.3, moonshot=0.7),
    "product": Goal("relay", "product work per request: CPU over the front with a stub for a core", 4, " µs", 2),
    "body": Goal("relay", "CPU for a body of 20 MB to nginx", 1.7, moonshot=1.3),
    "body stall": Goal("stalls", "longest turn of the loop by a body of 2 MB of text", 3, " ms", 1),
    "ids stall": Goal("stalls", "longest turn of the loop by a body of 2 MB of token ids", 3, " ms", 1),
    "scrape stall": Goal("stalls", "longest turn of the loop by a scrape, 300 models", 2, " ms"),
    "models stall": Goal("stalls", "longest turn of the loop by GET /v1/models, 300 models", 2, " ms"),
    "status stall": Goal("stalls", "longest turn of the loop by swapd status, 300 models", 2, " ms"),
    "report stall": Goal("stalls", "longest turn of the loop by swapd report, 300 models", 2, " ms"),
    "body memory": Goal("footprint", "memory for a body of 100 MB, beyond the body", 16, " MiB"),
    "streams memory": Goal("footprint", "memory for 1,000 idle streams", 6, " MiB", 3.5),
    "swap": Goal("swap", "swap overhead: first byte, less the engines' own start and stop", 20, " ms", 10),
    "event": Goal("core", "core: one event, 8 GPUs, 300 models, 512 queued, p99", 0.5, " ms", 0.1),
    "placement": Goal("placement", "core: one placement decision, up to 8 GPUs, p99", 20, " µs", 10),
    "idle memory": Goal("footprint", "memory of the idle daemon", 70, " MB", 45),
    "idle CPU": Goal("footprint", "CPU of the idle daemon", 0.5, " %"),
    "start": Goal("footprint", "start to ready", 600, " ms", 300),
    "warming": Goal("cache", "page-cache warming to the disk", 0.9, moonshot=0.97, at_least=True),
    "fetch": Goal("cache", "fetch to the disk, to curl that leaves it in memory", 0.9, moonshot=0.97, at_least=True),
}


def measured(name: str, value: float) -> None:
    """Note the value for a goal."""
    assert name in GOALS
    path = os.environ.get(VARIABLE)
    if path is not None:
        with Path(path).open("a") as file:
            file.write(json.dumps([name, value]) + "\n")


def show(path: Path, benchmarks: list[str]) -> None:
    """Print the goals of these benchmarks beside what was measured; of several values the last one counts."""
    values: dict[str, float] = dict(json.loads(line) for line in path.read_text().splitlines())
    rows = []
    for name, goal in GOALS.items():
        if goal.by in benchmarks:
            value = values.get(name)
            verdict = "not measured" if value is None else "yes" if goal.is_met(value) else "**no**"
            told = "–" if value is None else f"{value:.3g}{goal.unit}"
            rows.append([goal.text, goal.said(goal.limit), goal.said(goal.moonshot), told, verdict])
    if rows:
        table("Goals", ["what", "goal", "moonshot", "measured", "met"], rows)
