"""Checks a configuration file without a daemon, and shows what was understood."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swapd.cli.client import REFUSED, printable
from swapd.cli.help import Command

if TYPE_CHECKING:
    from rich.console import Console

    from swapd.config.load import Loaded
    from swapd.config.problems import Problem


@click.command(cls=Command, short_help="Check a config file.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print problems, warnings and all settings as JSON.")
def check(config: Path, *, as_json: bool) -> None:
    """Check CONFIG as swapd serve would, and show what was understood.

    Each problem is one line on standard error: file, line, and what to do. Nothing is started.

      Example:  swapd check swapd.yaml && swapd reload
      Exit codes: 0 it can be used (there may be warnings) · 1 it is refused · 2 wrong usage
    """
    from swapd.config.load import load
    from swapd.config.problems import ConfigError

    try:
        loaded = load(config)
    except ConfigError as error:
        if as_json:
            click.echo(_json({"ok": False, "problems": _plain(error.problems), "warnings": [], "settings": None}))
        else:
            _complain("", error.problems)
        raise SystemExit(REFUSED) from None
    if as_json:
        settings = loaded.settings.model_dump(mode="json")
        click.echo(_json({"ok": True, "problems": [], "warnings": _plain(loaded.warnings), "settings": settings}))
        return
    _complain("warning: ", loaded.warnings)
    from rich.console import Console

    from swapd.cli.table import wide

    _print(wide(Console(markup=False, highlight=False, emoji=False)), loaded)


def _print(console: "Console", loaded: "Loaded") -> None:
    from rich.text import Text

    from swapd.cli.table import size, table
    from swapd.config.compile import load_estimate
    from swapd.config.units import format_duration, format_listen
    from swapd.core.ids import SECOND, Duration

    settings = loaded.settings
    devices, http, metrics = settings.devices.virtual, settings.http, settings.metrics
    console.print(Text(f"{printable(loaded.path)} is valid"))
    console.print(Text(f"http {format_listen(http.listen)}, metrics {format_listen(metrics.listen)}"))
    console.print(Text(f"{devices.count} virtual devices with {size(devices.memory)} each"))
    console.print(Text(f"policy {settings.scheduling.policy.value}, mode {settings.scheduling.mode.value}\n"))
    models = table("model", "engine", "GPUs", "per GPU", "aliases", "pin", "max wait", "first load", right=("GPUs",))
    for name, model in settings.models.items():
        shared = "" if model.exclusive else ", shared"
        estimate = Duration(round(load_estimate(model) / SECOND) * SECOND)
        models.add_row(
            Text(printable(name)),
            model.engine.value,
            str(model.gpus),
            f"{size(model.memory)}{shared}",
            Text(printable(", ".join(model.aliases)) or "–"),
            "pinned" if model.pin else "–",
            format_duration(model.max_wait),
            f"about {format_duration(estimate)}",
        )
    console.print(models)


def _complain(prefix: str, problems: "Iterable[Problem]") -> None:
    for problem in problems:
        click.echo(f"{prefix}{printable(problem)}", err=True)


def _plain(problems: "Iterable[Problem]") -> list[dict[str, object]]:
    return [{"path": str(problem.path), "line": problem.line, "message": problem.message} for problem in problems]


def _json(document: dict[str, object]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)
