"""Shows where the time of cold starts went: the daemon's timelines as they are, or drawn."""

import json
from pathlib import Path

import click

from swapd.cli.client import Json, admin_option
from swapd.cli.client import timeline as ask
from swapd.cli.help import Command


@click.command(cls=Command, short_help="Show every second of the last cold starts.")
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print all that is kept as JSON.")
@admin_option
def timeline(model: str | None, *, as_json: bool, admin: Path | None) -> None:
    """Show the last load of every model, or the last loads of MODEL, with a bar for each stage.

    Time runs from the arrival of the first request that waited to the first byte of an answer, which is known once the
    first of these requests has ended. Bars above each other went on at the same time. The daemon remembers the last 20
    loads of a model. With --json: the loads in the order in which they ended, times in seconds.

      Example:  swapd timeline --json | jq '.loads[-1].stages[] | select(.stage == "fetch")'
      Exit codes: 0 shown · 1 no such model · 3 no daemon
    """
    document = ask(admin, model)
    if as_json:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    import time

    from rich.console import Console

    from swapd.cli.bars import print_timelines
    from swapd.cli.table import wide

    loads = document["loads"] if model is not None else _last_of_each(document["loads"])
    print_timelines(wide(Console(markup=False, highlight=False, emoji=False)), loads, of=model, now_s=time.time())


def _last_of_each(loads: list[Json]) -> list[Json]:
    """Return the last load of each model, in the order in which they ended."""
    last = {load["model"]: number for number, load in enumerate(loads)}
    return [loads[number] for number in sorted(last.values())]
