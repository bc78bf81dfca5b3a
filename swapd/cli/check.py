"""Checks a configuration file without a daemon, and shows what was understood."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swapd.cli.client import REFUSED, printable
from swapd.cli.help import Command

if TYPE_CHECKING:
    from swapd.config.problems import Problem
    from swapd.config.schema import Settings


@click.command(cls=Command, short_help="Check a config file.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print problems, warnings and all settings as JSON.")
def check(config: Path, *, as_json: bool) -> None:
    """Check CONFIG as swapd serve would, and show what was understood.

    Each problem is one line on standard error: file, line, and what to do. Nothing is started.

      Example:  swapd check swapd.yaml && swapd reload
      Exit codes: 0 it can be used (there may be warnings) · 1 it is refused · 2 wrong usage
    """
    from swapd.config.check import inspect

    report = inspect(config)
    if as_json:
        document = {
            "ok": report.settings is not None,
            "problems": _plain(report.problems),
            "warnings": _plain(report.warnings),
            "settings": None if report.settings is None else report.settings.model_dump(mode="json"),
        }
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _complain("", report.problems)
        _complain("warning: ", report.warnings)
        if report.settings is not None:
            _print(config, report.settings)
    if report.settings is None:
        raise SystemExit(REFUSED)


def _print(config: Path, settings: "Settings") -> None:
    from rich.console import Console
    from rich.text import Text

    from swapd.cli.table import table, wide
    from swapd.config.check import model_table, node_table

    console = wide(Console(markup=False, highlight=False, emoji=False))
    console.print(Text(f"{printable(config)} is valid"))
    for title, understood in (("Node", node_table(settings)), ("Models", model_table(settings))):
        rows = table(*understood.columns)
        for row in understood.rows:
            rows.add_row(*(Text(printable(cell) or "–") for cell in row))
        console.print(Text(f"\n{title}", "bold"))
        console.print(rows)


def _complain(prefix: str, problems: "Iterable[Problem]") -> None:
    for problem in problems:
        click.echo(f"{prefix}{printable(problem)}", err=True)


def _plain(problems: "Iterable[Problem]") -> list[dict[str, object]]:
    return [{"path": str(problem.path), "line": problem.line, "message": problem.message} for problem in problems]
