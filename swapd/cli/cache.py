"""Shows the node's cache of weights, and checks and removes what is in it."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
from typing_extensions import override

from swapd.cli import client
from swapd.cli.client import REFUSED, Json, RefusedError, admin_option, order, printable
from swapd.cli.help import Command, Group


class _ListsByDefault(Group):
    """Does ``ls`` where no command is named."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["ls", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListsByDefault, short_help="Show, verify and remove cached weights.")
def cache() -> None:
    """Show the weights that lie in the node's cache, or verify or remove some. Without a command: ls.

    Example:  swapd cache --json | jq '.copies[] | select(.in_use | not) | .models[]'
    Exit codes: 0 done · 1 refused, or a copy is damaged · 3 no daemon
    """


@cache.command(cls=Command, short_help="Show what is cached and what is being fetched.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole document as JSON.")
@admin_option
def ls(*, as_json: bool, admin: Path | None) -> None:
    """Show how full the cache is, every copy in it, and how far fetches are.

    Example:  swapd cache ls
    Exit codes: 0 shown, whatever it says · 3 no daemon
    """
    document = client.cache(admin)
    if as_json:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    from swapd.cli.table import wide

    _print(wide(Console(markup=False, highlight=False, emoji=False)), document)


@cache.command(cls=Command, short_help="Compare copies with their checksums.")
@click.argument("models", nargs=-1, metavar="[MODEL...]")
@admin_option
def verify(models: tuple[str, ...], admin: Path | None) -> None:
    """Compare the copies of each MODEL (a name or an alias; default: all) with their checksums.

    A damaged copy is not used any more; it is fetched again when its model is needed.

      Example:  swapd cache verify m01
      Exit codes: 0 all are intact · 1 some are damaged, or not cached · 3 no daemon
    """
    chosen = models or tuple(copy["models"][0] for copy in client.cache(admin)["copies"] if copy["models"])
    if not chosen:
        click.echo("no weights of any model are cached")
    _each(admin, chosen, "POST", "/verify")


@cache.command(cls=Command, short_help="Remove copies from the disk.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@admin_option
def rm(models: tuple[str, ...], admin: Path | None) -> None:
    """Remove the copy of each MODEL (a name or an alias), unless it is in use or pinned.

    The next request for the model fetches it again.

      Example:  swapd cache rm m01
      Exit codes: 0 removed · 1 some have to stay, or are not cached · 3 no daemon
    """
    _each(admin, models, "DELETE", "")


def _each(admin: Path | None, models: tuple[str, ...], method: str, verb: str) -> None:
    """Order something for one model after the other; one that is refused does not keep back the others."""
    refused = False
    for model in models:
        try:
            click.echo(order(admin, f"/v1/cache/{quote(model, safe='/')}{verb}", method=method))
        except RefusedError as error:
            refused = True
            click.echo(error.format_message(), err=True)
    if refused:
        raise SystemExit(REFUSED)


def _print(console: Any, document: Json) -> None:
    from rich.text import Text

    from swapd.cli.prefetch import describe
    from swapd.cli.table import size, table

    if document["path"] is None:
        console.print(Text("no model has a weights.source: nothing is cached"))
        return
    limit = document["limit_bytes"]
    full = f"{size(document['used_bytes'])} of {size(limit)}" if limit else size(document["used_bytes"])
    foreign = document["foreign_bytes"]
    others = f", {size(foreign)} of it not the cache's own" if foreign else ""
    console.print(Text(f"{printable(document['path'])}  {full}{others}"))
    if document["copies"]:
        rows = table("model", "size", "files", "state", "revision", "source", right=("size", "files"))
        for copy in document["copies"]:
            rows.add_row(*(Text(printable(cell)) for cell in _row(copy, size(copy["bytes"]))))
        console.print()
        console.print(rows)
    for number, fetch in enumerate(document["fetches"]):
        console.print(Text(("" if number else "\n") + describe(fetch)))


def _row(copy: Json, size: str) -> tuple[str, ...]:
    words = [word for key, word in (("damaged", "damaged"), ("in_use", "in use"), ("pinned", "pinned")) if copy[key]]
    state = ", ".join(words) or ("idle" if copy["models"] else "not needed")
    return ", ".join(copy["models"]) or "–", size, str(copy["files"]), state, copy["revision"], copy["source"]
