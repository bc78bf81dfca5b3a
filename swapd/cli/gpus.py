"""Lends the GPUs to an operator: swapd lets go of the driver, a command may reset or partition them, swapd returns.

With a command the GPUs are taken back whatever happens to it: SIGTERM and SIGHUP are passed on to the command, SIGINT
reaches it from the terminal, and this program itself ends only when the daemon has the driver again, or cannot have it.
"""

import contextlib
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import click

from swapd.cli.client import REFUSED, RefusedError, admin_option, order
from swapd.cli.help import Command

_RELEASE, _ACQUIRE = "/v1/gpus/release", "/v1/gpus/acquire"
_NOT_EXECUTABLE: Final = 126
_NOT_FOUND: Final = 127
_BY_SIGNAL: Final = 128
"""The exit statuses with which shells tell these ends of a command."""


@click.command("release-gpus", cls=Command, short_help="Let go of the GPU driver, for a reset or for MIG.")
@click.option("--take-back", is_flag=True, help="Take the driver back and read the GPUs anew.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARGUMENT]...]")
@admin_option
def release_gpus(command: tuple[str, ...], *, take_back: bool, admin: Path | None) -> None:
    """Let go of the GPU driver, so that GPUs can be reset, partitioned (MIG) or unbound.

    Nothing new is loaded until it is taken back: with --take-back, or after COMMAND has ended, whatever came of it.
    Resident models go on serving and keep their GPUs busy, so a reset needs swapd drain first.

      Example:  swapd drain && swapd release-gpus -- nvidia-smi --gpu-reset -i 0 && swapd undrain
      Exit codes: 0 done · 1 refused · 3 no daemon · any other: that of COMMAND
    """
    if take_back and command:
        raise click.UsageError("the driver is taken back after the command by itself; leave out --take-back")
    if command:
        raise SystemExit(_lend(admin, command))
    click.echo(order(admin, _ACQUIRE if take_back else _RELEASE))


def _lend(admin: Path | None, command: Sequence[str]) -> int:
    """Run a command while the driver is released; return its exit status, or 1 if it alone was in order."""
    child = _Child()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, child.pass_on)
    try:
        click.echo(order(admin, _RELEASE), err=True)
    except RefusedError:
        with contextlib.suppress(click.ClickException):  # it may have let go all the same
            order(admin, _ACQUIRE)
        raise
    try:
        status = child.run(command)
    finally:
        taken_back = _take_back(admin)
    return status or (0 if taken_back else REFUSED)


def _take_back(admin: Path | None) -> bool:
    try:
        click.echo(order(admin, _ACQUIRE), err=True)
    except click.ClickException as error:
        error.show()
        click.echo("The GPUs are not taken back; swapd release-gpus --take-back tries again.", err=True)
        return False
    return True


class _Child:
    """The command, and the signal that is meant for it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._signal: int | None = None

    def run(self, command: Sequence[str]) -> int:
        """Run the command to its end; a signal that came before is its end already."""
        if self._signal is not None:
            return _BY_SIGNAL + self._signal
        try:
            self._process = subprocess.Popen(command)  # noqa: S603 - the operator's own command
        except OSError as error:
            click.echo(f"Error: {command[0]} cannot be run: {error.strerror or error}", err=True)
            return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        if self._signal is not None:  # it came while the command was being started
            self._process.send_signal(self._signal)
        status = self._process.wait()
        return status if status >= 0 else _BY_SIGNAL - status

    def pass_on(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        self._signal = number
        if self._process is not None and number != signal.SIGINT:
            self._process.send_signal(number)
