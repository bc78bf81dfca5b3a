"""Lays the promotion report out for a terminal: the node, what to do, then every model by what it has cost."""

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from swapd.cli.client import printable
from swapd.cli.table import IT_THRASHED, Json, age, print_sentence, table

_NARROW: Final = 90
"""Below this the columns that explain, rather than state, are left out."""
_STYLES: Final = {"thrashing": "bold red", "marginal": "yellow"}


def print_report(console: Console, document: Json) -> None:
    """Print the report."""
    _print_head(console, document["node"])
    moving = [model["advice"] for model in document["models"] if model["advice"]["move"] != "stay"]
    console.print(Text("\nWhat to do", "bold"))
    for advice in moving:
        print_sentence(console, f"  {advice['detail']}")
    if not moving:
        console.print(Text("  nothing: no model had better be elsewhere"))
    console.print()
    console.print(_models(document["models"], narrow=console.width < _NARROW))


def _print_head(console: Console, node: Json) -> None:
    verdict, limit = node["verdict"], node["max_pinned_gpus"]
    share = Text(f"{node['load_fraction']:.1%} of the GPUs' time goes into loading: ")
    console.print(share.append(verdict, _STYLES.get(verdict, "")))
    console.print(Text(printable(node["detail"])))
    most = "max_pinned_gpus is not set" if limit is None else f"of at most {limit}"
    console.print(Text(f"pinned: {node['pinned_gpus']} of {node['gpus']} GPUs, {most}; on_thrash {node['on_thrash']}"))


def _models(models: list[Json], *, narrow: bool) -> Table:
    brief = ("model", "GPUs", "cost", "verdict", "tier", "advice")
    full = ("model", "GPUs", "cost", "own/h", "charged/h", "loads/h", "wait", "verdict", "requests/h", "tier", "advice")
    columns = brief if narrow else full
    right = ("GPUs", "cost", "own/h", "charged/h", "loads/h", "wait", "requests/h")
    rows = table(*columns, right=right)
    for model in models:
        hourly = model["per_hour"]
        cells = {
            "model": Text(printable(model["name"])),
            "GPUs": Text(str(model["gpus"])),
            "cost": Text(f"{model['caused_gpu_seconds']:.0f}"),
            "own/h": Text(f"{hourly['own_gpu_seconds']:.0f}"),
            "charged/h": Text(f"{hourly['charged_gpu_seconds']:.0f}"),
            "loads/h": Text(f"{hourly['loads']:.0f}"),
            "wait": Text(age(model["wait_per_request_s"] if hourly["requests"] else None)),
            "verdict": _verdict(model),
            "requests/h": Text(f"{hourly['requests']:.0f}"),
            "tier": Text(_tier(model["week"])),
            "advice": Text(_advice(model)),
        }
        rows.add_row(*(cells[column] for column in columns))
    return rows


def _verdict(model: Json) -> Text:
    partner = f" with {printable(model['partner'])}" if model["partner"] else ""
    return Text(f"{model['verdict']}{partner}", _STYLES.get(model["verdict"], ""))


def _tier(week: Json | None) -> str:
    if week is None:
        return "–"
    return f"{week['tier']} (provisional)" if week["provisional"] else str(week["tier"])


def _advice(model: Json) -> str:
    by, move = model["pinned_by"], model["advice"]["move"]
    pinned = IT_THRASHED if by == "on_thrash" else f"pinned by {by}" if by else ""
    return ", ".join(filter(None, (pinned, "" if move == "stay" else move))) or "–"
