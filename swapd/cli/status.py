"""Shows the node: the daemon's status document as it is, or as tables."""

import json
from pathlib import Path

import click

from swapd.cli.client import admin_option
from swapd.cli.client import status as ask
from swapd.cli.help import Command


@click.command(cls=Command, short_help="Show models, devices, queues, and why.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole document as JSON.")
@admin_option
def status(*, as_json: bool, admin: Path | None) -> None:
    """Show what the node is doing: devices, models and their states, who waits for what, and the last decisions.

    With --json: one object with stable keys; ages and times in seconds, sizes in bytes.

      Example:  swapd status --json | jq '.models[] | select(.state == "ready") | .name'
      Exit codes: 0 shown, whatever it says · 3 no daemon
    """
    document = ask(admin)
    if as_json:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    from swapd.cli.table import print_status, wide

    print_status(wide(Console(markup=False, highlight=False, emoji=False)), document)
