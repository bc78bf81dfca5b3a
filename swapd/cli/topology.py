"""Shows how the node's GPUs are joined: of the running daemon, of this machine, or of a topology matrix in a file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swapd.cli.client import UnreachableError, admin_option
from swapd.cli.client import status as ask_status
from swapd.cli.client import topology as ask_topology
from swapd.cli.help import Command

if TYPE_CHECKING:
    from swapd.core.view import NodeView

Json = dict[str, Any]


@click.command(cls=Command, short_help="Show how the GPUs are joined, and what is free.")
@click.option("--json", "as_json", is_flag=True, help="Print topology, free, models and state as one JSON object.")
@click.option(
    "--fixture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show the machine whose topology matrix, as nvidia-smi topo -m prints it, is in FILE.",
)
@admin_option
def topology(*, as_json: bool, fixture: Path | None, admin: Path | None) -> None:
    """Show how the GPUs are joined (NVLinks, PCIe, NUMA), who is on them, and the largest free NVLink block.

    With --json: what placers are told of this node. Masks are hexadecimal, bit i is GPU i of topology.gpus. Without a
    daemon the GPUs of this machine are read once. A FILE does not tell names and sizes of GPUs: those are made up.

      Example:  swapd topology --json | jq .free.largest_nvlink_block
      Exit codes: 0 shown, whatever it says · 1 FILE is no matrix · 3 no daemon and no driver
    """
    document = _document(fixture, admin, as_json=as_json)
    if as_json:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    from swapd.cli.matrix import print_topology
    from swapd.cli.table import wide

    print_topology(wide(Console(markup=False, highlight=False, emoji=False)), document)


def _document(fixture: Path | None, admin: Path | None, *, as_json: bool) -> Json:
    """Return what placers are told, or what the page is made of."""
    if fixture is not None:
        from swapd.cli.offline import of_matrix

        return _offline(of_matrix(fixture), as_json=as_json)
    try:
        return ask_topology(admin) if as_json else ask_status(admin)
    except UnreachableError as error:
        if admin is not None:
            raise
        return _this_machine(error, as_json=as_json)


def _this_machine(unreachable: UnreachableError, *, as_json: bool) -> Json:
    from swapd.cli.offline import NoDriverError, of_this_machine

    try:
        view = of_this_machine()
    except NoDriverError as error:
        raise UnreachableError(f"{unreachable.message}; nor can this machine's GPUs be read: {error}") from None
    click.echo("no swapd answers: these are the GPUs as the driver tells them now", err=True)
    return _offline(view, as_json=as_json)


def _offline(view: "NodeView", *, as_json: bool) -> Json:
    if as_json:
        from swapd.kube.annotations import annotations

        return {**annotations(view, not_ready=())}
    from swapd.admin.devices import devices_part

    return devices_part(view)
