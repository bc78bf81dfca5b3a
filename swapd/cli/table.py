"""Lays the status document out for a terminal: what is wrong first, then devices, models, and why.

Every name and text becomes a ``Text`` without markup, with unprintable characters replaced: names are the operator's,
error texts are an engine's. Only the exceptional is coloured, and nothing is said by colour alone.
"""

from collections.abc import Iterable, Iterator, Sequence
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
IT_THRASHED: Final = "pinned: it thrashed"
"""How a pin reads that nobody has asked for."""
_BAR: Final = 10
_WHY_LINES: Final = 8
_NOTEWORTHY_SHARE: Final = 0.01
"""Foreign memory below this share of a GPU is the driver's own, and noise."""
_NOTEWORTHY_DIFFERENCE: Final = 0.1
"""Measured memory that differs from the configured by more than this share wants correcting."""
_USABLE: Final = frozenset({"degraded", "mig"})
_STATE_STYLES: Final = {"ready": "green", "failed": "bold red", "leaked": "bold red", "loading": "yellow"}


def wide(console: Console) -> Console:
    """Return the console, widened if its output is no terminal."""
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH_IN_PIPE)
    return console


def print_sentence(console: Console, sentence: str) -> None:
    """Print a sentence; on one line, however long, if the output is no terminal."""
    console.print(Text(printable(sentence)), soft_wrap=not console.is_terminal)


def print_status(console: Console, document: Json) -> None:
    """Print the document."""
    _print_head(console, document)
    console.print()
    narrow = console.width < _NARROW
    console.print(_devices(document["devices"], narrow=narrow))
    for trouble in gpu_troubles(document["driver"], document["devices"]):
        console.print(trouble)
    console.print()
    console.print(_models(document, narrow=narrow))
    reservation = document["reservation"]
    if reservation is not None:
        draining = ", ".join(map(printable, reservation["draining"])) or "nobody"
        line = f"GPUs {_gpus(reservation['gpus'])} are reserved for {printable(reservation['model'])}"
        console.print(Text(f"\n{line} since {age(reservation['age_s'])}; draining {draining}"))
    _print_errors(console, document["models"])
    _print_standing_fetches(console, document["models"])
    _print_footprints(console, document["models"])
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
    trouble = driver_trouble(document["driver"], told=document["not_ready"])
    if trouble is not None:
        console.print(trouble)
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


def _devices(devices: list[Json], *, narrow: bool) -> Table:
    measured = any(device["free_bytes"] is not None for device in devices)
    columns = ("GPU", "device", "reserved", "", *(["free"] if measured else []), "models")
    rows = table(*(columns if not narrow else ("GPU", "reserved", "models")), right=("GPU", "free"))
    for device in devices:
        total, reserved = device["memory_bytes"], device["reserved_bytes"]
        filled = min(round(_BAR * reserved / total), _BAR) if total else 0
        bar = "█" * filled + "░" * (_BAR - filled)
        free = [] if not measured else ["–" if device["free_bytes"] is None else size(device["free_bytes"])]
        number, models = str(device["index"]), Text(", ".join(map(printable, device["models"])) or "–")
        described = Text(printable(device["name"] or device["uuid"] or "–"))
        if narrow:
            rows.add_row(number, _reserved(device), models)
        else:
            rows.add_row(number, described, _reserved(device), bar, *free, models)
    return rows


def _reserved(device: Json) -> Text:
    """Say what is booked on a device, and why it, or part of its memory, can be given to nobody."""
    text = Text(f"{size(device['reserved_bytes'])} of {size(device['memory_bytes'])}")
    if device["health"] != "healthy":
        text.append(", ").append_text(health(device))
    if device["quarantined_bytes"]:
        text.append(f", {size(device['quarantined_bytes'])} not released", "bold red")
    if (device["foreign_bytes"] or 0) > device["memory_bytes"] * _NOTEWORTHY_SHARE:
        text.append(f", {size(device['foreign_bytes'])} foreign", "yellow")
    return text


def gpu_troubles(driver: Json, devices: Iterable[Json]) -> Iterator[Text]:
    """Yield a line for each thing that is not as it should be with the GPUs: once, whoever tells it."""
    complaints = list(map(printable, driver["complaints"]))
    for device in devices:
        why = printable(device["health_why"] or device["health"])
        if device["health"] != "healthy" and not any(why in complaint for complaint in complaints):
            yield Text(f"GPU {device['index']}: {why}", _style(device))
    for complaint in complaints:
        yield Text(complaint, "yellow")


def health(device: Json) -> Text:
    """Return a GPU's health in a word, coloured if it is exceptional."""
    return Text(device["health"], _style(device))


def _style(device: Json) -> str:
    if device["health"] == "healthy":
        return ""
    return "yellow" if device["health"] in _USABLE else "bold red"


def driver_trouble(driver: Json, *, told: Sequence[str] = ()) -> Text | None:
    """Return the line that says that the driver cannot be asked; ``None``: it can, or there is none.

    The reason is left out if it is among the sentences already ``told``.
    """
    if driver["state"] in {"up", "virtual"}:
        return None
    state = driver["state"].replace("_", " ")
    why = f": {printable(driver['trouble'])}" if driver["trouble"] and driver["trouble"] not in told else ""
    return Text(f"GPU driver {state}, nothing new is loaded{why}", "bold red")


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
            Text(_pin(model)),
            _verdict(model),
        )
        if narrow:
            state.append(f", {_pin(model)}" if model["pinned"] else "")
            if model["verdict"] in _NOTEWORTHY:
                state.append(", ").append_text(_verdict(model))
        rows.add_row(*(cells if narrow else cells + rest))
    return rows


def _state(model: Json, instance: Json | None) -> str:
    if instance is None:
        if model["fetch"] is not None:
            return _fetching(model["fetch"])
        cooling = model["cooling_down_s"]
        return model["state"] if cooling is None else f"{model['state']}, again in {age(cooling)}"
    stage = f" ({instance['stage']})" if instance["stage"] else ""
    outdated = ", outdated" if instance["outdated"] else ""
    return f"{instance['state']}{stage} {age(instance['age_s'])}{outdated}"


def _fetching(fetch: Json) -> str:
    from swapd.cli.prefetch import percent

    done = percent(fetch)
    if fetch["waits"] or not fetch["running"]:
        return "to be fetched" if done is None else f"{done} % fetched, stands still"
    return "fetching" if done is None else f"fetching {done} %, {age(fetch['remaining_s'])} left"


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


def _pin(model: Json) -> str:
    if not model["pinned"]:
        return "–"
    return IT_THRASHED if model["pinned_by"] == "on_thrash" else "pinned"


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


def _print_standing_fetches(console: Console, models: list[Json]) -> None:
    for model in models:
        if model["fetch"] is not None and model["fetch"]["waits"]:
            line = f"\nthe fetch of {printable(model['name'])} waits: {printable(model['fetch']['waits'])}"
            console.print(Text(line, "yellow"))


def _print_footprints(console: Console, models: list[Json]) -> None:
    for model in models:
        declared, measured = model["declared_bytes"], model["measured_bytes"]
        if measured is not None and abs(measured - declared) > _NOTEWORTHY_DIFFERENCE * declared:
            took = f"{printable(model['name'])} took {size(measured)} per GPU when it was last ready"
            console.print(Text(f"\n{took}, its memory is configured as {size(declared)}", "yellow"))


def _print_why(console: Console, document: Json) -> None:
    if document["why"]:
        console.print(Text("\nWhy", "bold"))
    for decision in document["why"][-_WHY_LINES:]:
        print_sentence(console, f"{age(decision['age_s']):>7} ago  {decision['text']}")
