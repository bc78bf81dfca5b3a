"""Checks a configuration file without a daemon, and shows what was understood and where its models would go."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swapd.cli.client import REFUSED, printable
from swapd.cli.help import Command

if TYPE_CHECKING:
    from rich.console import Console

    from swapd.cli.placing import Placement
    from swapd.config.check import Report, Table
    from swapd.config.problems import Problem


@click.command(cls=Command, short_help="Check a config file.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print problems, warnings, settings and placement as JSON.")
@click.option(
    "--fixture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Check for another machine: the one with this topology matrix (nvidia-smi topo -m). Needs --gpu-memory.",
)
@click.option("--gpu-memory", metavar="SIZE", help="Usable memory of each GPU of that machine, for example 80GB.")
def check(config: Path, *, as_json: bool, fixture: Path | None, gpu_memory: str | None) -> None:
    """Check CONFIG as swapd serve would, and show what was understood and where on the GPUs its models would go.

    Each problem is one line on standard error: file, line, and what to do. Nothing is started. With --fixture neither
    the programs and weights nor the host memory of this machine count.

      Example:  swapd check swapd.yaml && swapd reload
      Exit codes: 0 it can be used (there may be warnings) · 1 it is refused · 2 wrong usage
    """
    from swapd.config.check import inspect

    report = inspect(config, elsewhere=fixture is not None)
    placement = _placed(report, fixture, gpu_memory)
    warnings = [*report.warnings, *_misgivings(report, placement)]
    if as_json:
        click.echo(json.dumps(_document(report, warnings, placement), indent=2, ensure_ascii=False))
    else:
        _complain("", report.problems)
        _complain("warning: ", warnings)
        _print(config, report, placement)
    if report.loaded is None:
        raise SystemExit(REFUSED)


def _placed(report: "Report", fixture: Path | None, gpu_memory: str | None) -> "Placement | None":
    """Return where the models would go; ``None``: the file is refused, or its devices are virtual."""
    if (fixture is None) is not (gpu_memory is None):
        raise click.UsageError("--fixture and --gpu-memory go together: a topology matrix does not tell memory")
    if report.settings is None:
        return None
    virtual = report.settings.devices.virtual is not None
    if fixture is None or gpu_memory is None:
        if virtual:
            return None
        from swapd.cli.placing import here

        return here(report.settings)
    if virtual:
        raise click.UsageError("--fixture is about GPUs, and the devices of this file are virtual")
    from swapd.cli.placing import UnreadableError, there
    from swapd.config.units import parse_size

    try:
        return there(report.settings, fixture, parse_size(gpu_memory))
    except UnreadableError as error:
        raise click.UsageError(printable(error)) from None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--gpu-memory") from None


def _misgivings(report: "Report", placement: "Placement | None") -> "Iterable[Problem]":
    if report.loaded is None or placement is None:
        return ()
    from swapd.cli.placing import warnings

    return warnings(report.loaded, placement)


def _document(report: "Report", warnings: "Iterable[Problem]", placement: "Placement | None") -> dict[str, object]:
    return {
        "ok": report.settings is not None,
        "problems": _plain(report.problems),
        "warnings": _plain(warnings),
        "settings": None if report.settings is None else report.settings.model_dump(mode="json"),
        "placement": None if placement is None else _place_document(placement),
    }


def _place_document(placement: "Placement") -> dict[str, object]:
    from swapd.cli.placing import as_json

    return as_json(placement)


def _print(config: Path, report: "Report", placement: "Placement | None") -> None:
    if report.settings is None:
        return
    from rich.console import Console
    from rich.text import Text

    from swapd.cli.table import wide
    from swapd.config.check import model_table, node_table

    console = wide(Console(markup=False, highlight=False, emoji=False))
    console.print(Text(f"{printable(config)} is valid"))
    _print_table(console, "Node", node_table(report.settings))
    _print_table(console, "Models", model_table(report.settings))
    if placement is not None:
        _print_placement(console, placement)


def _print_placement(console: "Console", placement: "Placement") -> None:
    from rich.text import Text

    from swapd.cli.placing import described, row
    from swapd.config.check import Table

    if placement.topology is not None:
        title = f"Placement on {described(placement.topology)}"
        rows = tuple(row(place) for place in placement.places)
        _print_table(console, title, Table(("model", "GPUs", "how good"), rows))
        for complaint in placement.topology.complaints:
            console.print(Text(printable(complaint), "yellow"))
    if placement.unchecked:
        what = "" if placement.topology is not None else "Placement was not checked: "
        console.print(Text(f"\n{what}{printable(placement.unchecked)}"))


def _print_table(console: "Console", title: str, understood: "Table") -> None:
    from rich.text import Text

    from swapd.cli.table import table

    rows = table(*understood.columns)
    for row in understood.rows:
        rows.add_row(*(Text(printable(cell) or "–") for cell in row))
    console.print(Text(f"\n{printable(title)}", "bold"))
    console.print(rows)


def _complain(prefix: str, problems: "Iterable[Problem]") -> None:
    for problem in problems:
        click.echo(f"{prefix}{printable(problem)}", err=True)


def _plain(problems: "Iterable[Problem]") -> list[dict[str, object]]:
    return [{"path": str(problem.path), "line": problem.line, "message": problem.message} for problem in problems]
