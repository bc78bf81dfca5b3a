"""Starts the daemon."""

import signal
import sys
from pathlib import Path
from typing import Literal

import click

from swapd.cli.help import Command


@click.command(cls=Command, short_help="Run the daemon.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--log-format",
    type=click.Choice(["json", "console"]),
    help="Form of the log on standard error. [default: console on a terminal, else json]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least important lines that are written.",
)
def serve(config: Path, log_format: Literal["json", "console"] | None, log_level: str) -> None:
    """Serve the models of CONFIG (YAML) in the foreground until SIGTERM or SIGINT.

    On the first signal requests in flight finish, for scheduling.drain_timeout or else two minutes, and the engines
    stop; a second signal ends at once. SIGHUP, or a change of the file, applies a new configuration without a restart.

      Example:  swapd serve swapd.yaml --log-format json
      Exit codes: 0 ended in order · 1 it could not start · 70 a law of the scheduler was broken
                  130 a second signal forced the end · 2 wrong usage
    """
    # the file is about to be read anyway; without this a reload that comes too early would end the daemon
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    chosen: Literal["json", "console"] = log_format or ("console" if sys.stderr.isatty() else "json")
    if chosen == "json":
        # structlog loads rich wherever it is installed, which takes 3 MB: it is for tracebacks on a terminal
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # says that there is no such module

    from swapd.agent.app import run

    raise SystemExit(run(config, log_format=chosen, log_level=log_level))
