"""Prints what happens on the node, as it happens."""

import contextlib
import sys
from pathlib import Path

import click

from swapd.cli.client import admin_option
from swapd.cli.client import events as stream
from swapd.cli.help import Command


@click.command(cls=Command, short_help="Follow what happens, one JSON line per event.")
@admin_option
def events(admin: Path | None) -> None:
    """Print one JSON object per line for every transition, load, eviction and verdict, as they happen.

    "event" names the kind, "time" is unix time, durations end in _s. A reader that is too slow loses lines and is told
    how many by {"event": "dropped"}; the daemon never waits for it. Ends with the daemon, or with Ctrl-C.

      Example:  swapd events | jq -c 'select(.event == "load_finished")'
      Exit codes: 0 the daemon has ended, or Ctrl-C · 1 too many readers · 3 no daemon
    """
    with contextlib.suppress(KeyboardInterrupt):
        for line in stream(admin):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
