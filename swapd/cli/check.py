"""Checks a configuration file without a daemon."""

from pathlib import Path

import click

from swapd.cli.help import Command


@click.command(cls=Command, short_help="Check a config file.")
@click.argument("config", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print problems or result as JSON.")
def check(config: Path, *, as_json: bool) -> None:
    """Check CONFIG as swapd serve would, and show what was understood.

    Each problem is one line: file, line, and what to do. Nothing is started.

      Example:  swapd check swapd.yaml && swapd reload
      Exit codes: 0 it can be used (there may be warnings) · 1 it is refused · 2 wrong usage
    """
    del config, as_json
