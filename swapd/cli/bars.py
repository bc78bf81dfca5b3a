"""Draws the timelines of loads for a terminal: a line for each stage, its bar where it lies in time.

Stages that went on at the same time stand above each other, and one that occurred several times has one line with
several bars. Nothing is said by colour alone: every bar has its name and its seconds.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from swapd.cli.client import printable
from swapd.cli.table import Json, age

_FULL: Final = "█"
_PARTS: Final = " ▏▎▍▌▋▊▉"
"""Eighths of a cell, from the left."""
_WIDEST: Final = 100
_STYLES: Final = {
    "queued": "dim",
    "drain": "yellow",
    "stop": "yellow",
    "sleep": "yellow",
    "release": "yellow",
    "fetch": "cyan",
    "page_cache": "blue",
    "first_byte": "green",
}
_SOURCES: Final = {
    "remote": "weights fetched from their source",
    "cache": "weights read from the disk",
    "page_cache": "weights in memory already",
    "wake": "woken",
}


def print_timelines(console: Console, loads: Sequence[Json], *, of: str | None = None, now_s: float) -> None:
    """Print loads (``of`` one model, or of all), the last one at the end."""
    if not loads:
        whose = "" if of is None else f" of {printable(of)}"
        console.print(Text(f"no load{whose} has ended since the daemon's start"))
    for number, load in enumerate(loads):
        if number:
            console.print()
        _print_load(console, load, now_s)


def _print_load(console: Console, load: Json, now_s: float) -> None:
    ready = load["result"] == "ready"
    head = Text(printable(load["model"]), "bold")
    head.append(f"  {load['result']}", "green" if ready else "bold red")
    reached = "to the first byte" if any(s["stage"] == "first_byte" for s in load["stages"]) else "in all"
    head.append(f"  {_seconds(load['total_s'])} {reached}")
    head.append(f"  {_SOURCES.get(load['source'], load['source'])}")
    head.append(f"  {age(max(0.0, now_s - load['ended_at']))} ago")
    console.print(head)
    if load["victims"]:
        console.print(Text(f"evicted for it: {', '.join(map(printable, load['victims']))}"))
    if not ready and load["detail"]:
        console.print(Text(f"{load['failure']}: {printable(load['detail'])}", "red"))
    lines = _lines(load["stages"])
    width = min(console.width - 26, _WIDEST)
    for stage, spans in lines.items():
        took = sum(end - begin for begin, end in spans)
        line = Text(f"  {stage.replace('_', ' '):<11}{_seconds(took):>9}  ")
        console.print(line.append(_bar(spans, load["total_s"], width), _STYLES.get(stage, "")))


def _lines(stages: Iterable[Json]) -> dict[str, list[tuple[float, float]]]:
    """Return the bars of each stage, in the order in which stages began."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for stage in stages:
        lines.setdefault(printable(stage["stage"]), []).append((stage["begin_s"], stage["end_s"]))
    return lines


def _bar(spans: Iterable[tuple[float, float]], total_s: float, width: int) -> str:
    """Return the bars of one line; each is seen, however short it is."""
    cells = [" "] * width
    scale = width / total_s if total_s > 0 else 0.0
    for begin_s, end_s in spans:
        first = min(int(begin_s * scale), width - 1)
        eighths = max(1, round(end_s * scale * 8) - first * 8)
        for cell in range(first, min(width, first + -(-eighths // 8))):
            part = eighths - (cell - first) * 8
            cells[cell] = _FULL if part >= 8 else _PARTS[part]
    return "".join(cells).rstrip()


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 100 else age(seconds)
