"""Lays the status document out for a terminal: what is wrong first, then devices, models, and why.

Every name and text becomes a ``Text`` without markup, with unprintable characters replaced: names are the operator's,
error texts are an engine's. Only the exceptional is coloured, and nothing is said by colour alone.
"""

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from swapd.cli.client import printable

Json = dict[str, Any]

_WIDTH_IN_PIPE: Final = 140
"""Columns when the output is no terminal, so that lines are whole for grep."""
_NARROW: Final = 90
"""Below this the columns that explain, rather than state, are left out."""
_BAR: Final = 10
_WHY_LINES: Final = 8
_STATE_STYLES: Final = {"ready": "green", "failed": "bold red", "leaked": "bold red", "loading": "yellow"}


def wide(console: Console) -> Console:
    """Return the console, widened if its output is no terminal."""
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH_IN_PIPE)
    return console


def print_status(console: Console, document: Json) -> None:
    """Print the document."""
    _print_head(console, document)
    console.print()
    console.print(_devices(document["devices"]))
    console.print()
    console.print(_models(document, narrow=console.width < _NARROW))
    reservation = document["reservation"]
    if reservation is not None:
        draining = ", ".join(map(printable, reservation["draining"])) or "nobody"
        line = f"GPUs {_gpus(reservation['gpus'])} are reserved for {printable(reservation['model'])}"
        console.print(Text(f"\n{line} since {age(reservation['age_s'])}; draining {draining}"))
    _print_errors(console, document["models"])
    _print_why(console, document)


def age(seconds: float | None) -> str:
    """Return an age in its two largest units: ``850ms``, ``12s``, ``3m05s``, ``2h10m``, ``4d03h``; ``–`` for none."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    for unit, lower, size, lower_size in (("d", "h", 86_400, 3600), ("h", "m", 3600, 60), ("m", "s", 60, 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // lower_size:02}{lower}"
    return f"{whole}s"


def size(count: int) -> str:
    """Return bytes in three figures and a binary unit."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def _print_head(console: Console, document: Json) -> None:
    if document["draining"]:
        word, style = ("DRAINED" if document["drained"] else "DRAINING"), "bold yellow"
    elif document["ready"]:
        word, style = "READY", "bold green"
    else:
        word, style = "NOT READY", "bold red"
    config = document["config"]
    busy = f"{document['load_fraction']:.0%} of the time loading"
    head = Text.assemble(
        f"swapd {printable(document['version'])}  ",
        (word, style),
        f"  up {age(document['uptime_s'])}  mode {document['mode']}  {busy}",
    )
    console.print(head)
    console.print(Text(f"config {printable(config['path'])}  in force since {age(config['age_s'])}"))
    console.print(Text("  ".join(f"{name} {printable(address)}" for name, address in document["listeners"].items())))
    for reason in document["not_ready"]:
        console.print(Text(f"not ready: {printable(reason)}", style="bold red"))
    if not config["ok"]:
        refused = printable(config["error"] or "the file is refused")
        console.print(
            Text(f"the config file as it is now is REFUSED, the old one stays in force: {refused}", "bold red")
        )
    if config["restart_needed"]:
        console.print(Text(f"waits for a restart of the daemon: {', '.join(config['restart_needed'])}", "yellow"))


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table without lines; the columns in ``right`` are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    numbers = frozenset(right)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


_NOTEWORTHY = frozenset({"thrashing", "marginal"})


def _devices(devices: list[Json]) -> Table:
    rows = table("GPU", "id", "reserved", "", "models", right=("GPU",))
    for device in devices:
        total, reserved, lost = device["memory_bytes"], device["reserved_bytes"], device["quarantined_bytes"]
        filled = round(_BAR * reserved / total) if total else 0
        text = Text(f"{size(reserved)} of {size(total)}")
        if lost:
            text.append(f", {size(lost)} not released", "bold red")
        bar = "█" * filled + "░" * (_BAR - filled)
        names = ", ".join(map(printable, device["models"])) or "–"
        rows.add_row(str(device["index"]), Text(printable(device["uuid"])), text, bar, Text(names))
    return rows


def _models(document: Json, *, narrow: bool) -> Table:
    instances = {instance["instance"]: instance for instance in document["instances"]}
    brief = ("model", "state", "on GPU", "in flight", "waiting")
    columns = brief if narrow else (*brief, "last used", "load", "pin", "swapping")
    rows = table(*columns, right=("in flight", "last used", "load"))
    for model in document["models"]:
        state = Text(_state(model, instances.get(model["instance"])), _STATE_STYLES.get(model["state"], ""))
        name = Text(printable(model["name"]))
        if not model["configured"]:
            name.append(" (removed)")
        cells = (name, state, Text(_gpus(model["gpus"])), Text(str(model["in_flight"] or "–")), Text(_waiting(model)))
        rest = (
            Text(age(model["last_used_s"])),
            Text(age(model["load_estimate_s"])),
            Text("pinned" if model["pinned"] else "–"),
            _verdict(model),
        )
        if narrow:
            state.append(", pinned" if model["pinned"] else "")
            if model["verdict"] in _NOTEWORTHY:
                state.append(", ").append_text(_verdict(model))
        rows.add_row(*(cells if narrow else cells + rest))
    return rows


def _state(model: Json, instance: Json | None) -> str:
    if instance is None:
        cooling = model["cooling_down_s"]
        return model["state"] if cooling is None else f"{model['state']}, again in {age(cooling)}"
    stage = f" ({instance['stage']})" if instance["stage"] else ""
    outdated = ", outdated" if instance["outdated"] else ""
    return f"{instance['state']}{stage} {age(instance['age_s'])}{outdated}"


def _waiting(model: Json) -> str:
    parts = [f"{count} {waiting.replace('_', ' ')}" for waiting, count in model["queued"].items() if count]
    return f"{', '.join(parts)} ({age(model['oldest_waiter_s'])})" if parts else "–"


def _verdict(model: Json) -> Text:
    verdict = model["verdict"]
    if verdict not in _NOTEWORTHY:
        return Text("–" if verdict == "unknown" else verdict)
    partner = f" with {printable(model['partner'])}" if model["partner"] else ""
    text = f"{verdict}{partner}, {model['load_fraction']:.0%} loading"
    return Text(text, "bold red" if verdict == "thrashing" else "yellow")


def _gpus(indices: list[int]) -> str:
    return ",".join(map(str, indices)) or "–"


def _print_errors(console: Console, models: list[Json]) -> None:
    failing = [model for model in models if model["last_error"] and model["consecutive_failures"]]
    for model in failing:
        times = f"failed {model['consecutive_failures']}×" if model["consecutive_failures"] > 1 else "failed"
        line = f"\n{printable(model['name'])} {times}: {printable(model['last_error'])}"
        console.print(Text(line, "red"))
        if model["log"]:
            console.print(Text(f"its log: {printable(model['log'])}"))


def _print_why(console: Console, document: Json) -> None:
    if document["why"]:
        console.print(Text("\nWhy", "bold"))
    for decision in document["why"][-_WHY_LINES:]:
        console.print(Text(f"{age(decision['age_s']):>7} ago  {printable(decision['text'])}"))
