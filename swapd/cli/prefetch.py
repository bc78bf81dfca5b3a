"""Has weights fetched before anybody asks for their models, and shows how far that is."""

import queue
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from swapd.cli import client
from swapd.cli.client import INTERRUPTED, REFUSED, Json, admin_option, printable
from swapd.cli.help import Command

if TYPE_CHECKING:
    from rich.progress import Progress

_LOOK_S: Final = 0.5
_STEP: Final = 10
"""Where no bar can be drawn, a line is written for each so many per cent."""

Show = Callable[[list[Json]], None]


@click.command(cls=Command, short_help="Have the weights of models in the cache.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@admin_option
def prefetch(models: tuple[str, ...], admin: Path | None) -> None:
    """Fetch the weights of each MODEL (a name or an alias) and wait until they are there.

    Nothing is loaded. Fetches that a request waits for go first. Ctrl-C ends the waiting, not the fetch: swapd cache
    shows how far it is.

      Example:  swapd prefetch m01 m02
      Exit codes: 0 they are there · 1 some could not be fetched · 3 no daemon
                  130 Ctrl-C, the fetch goes on
    """
    try:
        answer = _shown(admin, models)
    except KeyboardInterrupt:
        click.echo("the fetch goes on; swapd cache shows how far it is", err=True)
        raise SystemExit(INTERRUPTED) from None
    for result in answer.get("models", {"": answer}).values():
        click.echo(printable(result["detail"]), err=not result["ok"])
    if not answer["ok"]:
        raise SystemExit(REFUSED)


def _shown(admin: Path | None, models: tuple[str, ...]) -> Json:
    """Order the fetches, show how far they are until all have ended, and return the daemon's answer."""
    answers: queue.SimpleQueue[Json | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(client.prefetch(admin, models))
        except Exception as error:  # noqa: BLE001 - it is raised again where it is waited for
            answers.put(error)

    # a daemon thread: after Ctrl-C nobody waits for it
    threading.Thread(target=ask, name="prefetch", daemon=True).start()
    screen, show = _screen()
    with screen:
        while True:
            try:
                answer = answers.get(timeout=_LOOK_S)
            except queue.Empty:
                show(client.cache(admin)["fetches"])
                continue
            if isinstance(answer, Exception):
                raise answer
            if answer["ok"]:
                show([])
            return answer


def _screen() -> tuple[AbstractContextManager[Any], Show]:
    if not sys.stderr.isatty():
        return nullcontext(), Lines()
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True, markup=False, highlight=False, emoji=False),
    )
    return progress, Bars(progress)


class Bars:
    """One bar for each fetch."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._bars: dict[str, Any] = {}

    def __call__(self, fetches: list[Json]) -> None:
        """Draw the fetches that are under way; one that has ended has a full bar."""
        going = {fetch["model"] for fetch in fetches}
        for model, bar in self._bars.items():
            task = next(task for task in self._progress.tasks if task.id == bar)
            if model not in going and task.total is not None:
                self._progress.update(bar, completed=task.total, note="")
        for fetch in fetches:
            model = fetch["model"]
            if model not in self._bars:
                self._bars[model] = self._progress.add_task(printable(model), total=None, note="")
            total, note = fetch["total_bytes"], remark(fetch)
            self._progress.update(self._bars[model], completed=fetch["done_bytes"], total=total, note=note)


class Lines:
    """A line for each step of each fetch, where no bar can be drawn."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, str]] = {}

    def __call__(self, fetches: list[Json]) -> None:
        """Write what is new."""
        for fetch in fetches:
            done = percent(fetch)
            new = (-1 if done is None else done // _STEP, fetch["waits"] or "")
            if self._told.get(fetch["model"]) != new:
                self._told[fetch["model"]] = new
                click.echo(describe(fetch), err=True)


def describe(fetch: Json) -> str:
    """Return one line about a fetch."""
    from swapd.cli.table import size

    done, total, note = percent(fetch), fetch["total_bytes"], remark(fetch)
    far = "" if done is None else f" {done} % of {size(total)}"
    return f"fetching {printable(fetch['model'])}{far}" + (f", {note}" if note else "")


def percent(fetch: Json) -> int | None:
    """Return how much of a fetch has come; ``None``: its size is not known yet."""
    total = fetch["total_bytes"]
    return None if not total else 100 * fetch["done_bytes"] // total


def remark(fetch: Json) -> str:
    """Return what else there is to say of a fetch: why it stands still, or when it will be over."""
    from swapd.cli.table import age

    if fetch["waits"]:
        return printable(fetch["waits"])
    if not fetch["running"]:
        return "in the queue"
    return f"about {age(max(1.0, fetch['remaining_s']))} left"
