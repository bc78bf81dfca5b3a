"""The operator's orders: each is one request to the daemon, and its sentence is what the command prints."""

from collections.abc import Callable
from pathlib import Path

import click

from swapd.cli.client import F, admin_option, model_path, order
from swapd.cli.help import Command


def _seconds(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    from swapd.config.units import parse_duration
    from swapd.core.ids import SECOND

    if value is None:
        return None
    try:
        return parse_duration(value) / SECOND
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


MODEL = click.argument("model")


def duration_option(name: str, help_text: str) -> Callable[[F], F]:
    """Make an option that takes a duration and passes it on in seconds; ``None`` when it is not given."""
    return click.option(name, callback=_seconds, metavar="DURATION", help=help_text)


@click.command(cls=Command, short_help="Make a model resident.")
@MODEL
@admin_option
def load(model: str, admin: Path | None) -> None:
    """Make MODEL (a name or an alias) resident and wait until it serves.

    Idle models are evicted for it as for any request; pinned ones never are. Clears the cool-down of a model that
    failed to load, and works in mode manual.

      Example:  swapd load m01
      Exit codes: 0 it is resident · 1 it cannot be loaded, or its load failed · 3 no daemon
    """
    click.echo(order(admin, model_path(model, "load")))


@click.command(cls=Command, short_help="Take a model off the GPUs.")
@MODEL
@duration_option(
    "--timeout",
    "Cut the requests that are still in flight after this, such as 30s. [default: drain_timeout of the config]",
)
@admin_option
def unload(model: str, timeout: float | None, admin: Path | None) -> None:
    """Let the requests of MODEL (a name or an alias) finish, then stop its engine, and wait until its memory is free.

    New requests for it wait and load it again afterwards.

      Example:  swapd unload m01 --timeout 30s
      Exit codes: 0 it is off the GPUs · 1 refused · 3 no daemon
    """
    click.echo(order(admin, model_path(model, "unload"), {"timeout": timeout}))


@click.command(cls=Command, short_help="Never evict a model.")
@MODEL
@admin_option
def pin(model: str, admin: Path | None) -> None:
    """Never evict MODEL (a name or an alias), and load it whenever it is absent.

    Lasts until swapd unpin or the daemon's end; for good, set pin: true in the config. Requests that could only be
    served by evicting pinned models are refused.

      Example:  swapd pin m01
      Exit codes: 0 pinned · 1 refused · 3 no daemon
    """
    click.echo(order(admin, model_path(model, "pin")))


@click.command(cls=Command, short_help="Let a pinned model be evicted again.")
@MODEL
@admin_option
def unpin(model: str, admin: Path | None) -> None:
    """Let MODEL (a name or an alias) be evicted again, even if the config pins it.

    Example:  swapd unpin m01
    Exit codes: 0 unpinned · 1 refused · 3 no daemon
    """
    click.echo(order(admin, model_path(model, "unpin")))


@click.command(cls=Command, short_help="Take the node out of service.")
@duration_option(
    "--timeout",
    "Cut the requests that are still in flight after this, for example 150s. [default: wait for all]",
)
@admin_option
def drain(timeout: float | None, admin: Path | None) -> None:
    """Take the node out of service: no new loads, requests in flight finish, every engine is stopped.

    /readyz answers 503 at once; resident models serve for five more seconds, until whoever routes here has noticed.
    Returns when nothing is left; the daemon goes on running, swapd undrain brings the
    node back. May be repeated.

      Example:  swapd drain --timeout 150s && systemctl stop swapd
      Exit codes: 0 drained · 1 refused · 3 no daemon
    """
    click.echo(order(admin, "/v1/drain", {"timeout": timeout}))


@click.command(cls=Command, short_help="Bring a drained node back into service.")
@admin_option
def undrain(admin: Path | None) -> None:
    """Bring the node back into service after swapd drain.

    Example:  swapd undrain
    Exit codes: 0 in service · 1 refused (the daemon is about to exit) · 3 no daemon
    """
    click.echo(order(admin, "/v1/undrain"))


@click.command(cls=Command, short_help="Read the config file again.")
@admin_option
def reload(admin: Path | None) -> None:
    """Read the config file again now and apply what has changed.

    The daemon also does so by itself when the file changes, and on SIGHUP. An invalid file changes nothing.

      Example:  swapd check swapd.yaml && swapd reload
      Exit codes: 0 applied · 1 refused, the old configuration stays in force · 3 no daemon
    """
    click.echo(order(admin, "/v1/reload"))
