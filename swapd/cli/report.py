"""Shows what swapping costs and which models had better be elsewhere: the daemon's report as it is, or as a table."""

import json
from pathlib import Path

import click

from swapd.cli.client import admin_option
from swapd.cli.client import report as ask
from swapd.cli.help import Command


@click.command(cls=Command, short_help="Show what swapping costs, and what to move.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
@admin_option
def report(*, as_json: bool, admin: Path | None) -> None:
    """Show which models cost the pool most in loading, and which of them to pin here or to give their own GPUs.

    Cost is in GPU-seconds of loading: a model's own loads, and the reloads of models that it had evicted. With --json:
    one object with stable keys; times in seconds, rates per hour.

      Example:  swapd report --json | jq -r '.models[].advice | select(.move != "stay") | .detail'
      Exit codes: 0 shown, whatever it says · 3 no daemon
    """
    document = ask(admin)
    if as_json:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    from swapd.cli.report_table import print_report
    from swapd.cli.table import wide

    print_report(wide(Console(markup=False, highlight=False, emoji=False)), document)
