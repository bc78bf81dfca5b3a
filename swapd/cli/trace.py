"""Writes the requests that the daemon has on record as a trace for ``swapd simulate``."""

import csv
import io
import math
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from swapd.cli.client import RefusedError, admin_option, text
from swapd.cli.help import Command
from swapd.cli.orders import duration_option


class _Row(NamedTuple):
    """One request; sorts by time."""

    unix_s: float
    model: str
    #: ``None``: it was never granted
    service_s: float | None


@click.command(cls=Command, short_help="Write the recorded requests as a trace.")
@duration_option("--since", "Only the requests of the last so many hours or days, for example 7d. [default: all]")
@click.option("--models", is_flag=True, help="Write the list of models instead, with the load times expected now.")
@admin_option
def trace(*, since: float | None, models: bool, admin: Path | None) -> None:
    """Write the requests of the last days as CSV for swapd simulate: t_s,model,service_s.

    The daemon records when each model was asked for and for how long it served: names and times, no content. A request
    that was refused, or left while it waited, has no service time: it gets the median of its model.

      Example:  swapd trace > week.csv && swapd trace --models > models.csv
      Exit codes: 0 written · 1 nothing is on record · 3 no daemon
    """
    if models:
        click.echo(text(admin, "/v1/trace/models"), nl=False)
        return
    rows = sorted(_rows(text(admin, "/v1/trace")), key=lambda row: row.unix_s)
    if since is not None:
        now = time.time()  # what the record has of later comes from a clock that was wrong
        rows = [row for row in rows if now - since <= row.unix_s <= now]
    if not rows:
        raise RefusedError("no request is on record yet" if since is None else "no request of that time is on record")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("t_s", "model", "service_s"))
    writer.writerows(_replayable(rows))
    sys.stdout.flush()


def _rows(lines: str) -> Iterator[_Row]:
    """Yield what is whole; of a line that a crash or a hand has spoiled nothing can be told."""
    for row in csv.DictReader(io.StringIO(lines)):
        try:
            service = None if row["service_s"] == "" else _finite(row["service_s"])
            yield _Row(_finite(row["unix_s"]), sys.intern(row["model"]), service)
        except (TypeError, ValueError):
            continue


def _finite(text: str) -> float:
    """Return a number that has a place in a trace. Raises ``TypeError``, ``ValueError``."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _replayable(rows: list[_Row]) -> Iterable[tuple[str, str, str]]:
    """Yield the rows from time 0 on, each with a service time."""
    from statistics import median

    served: dict[str, list[float]] = {}
    for row in rows:
        if row.service_s is not None:
            served.setdefault(row.model, []).append(row.service_s)
    usual = {model: median(times) for model, times in served.items()}
    of_all = median(usual.values()) if usual else 1.0
    for row in rows:
        service = usual.get(row.model, of_all) if row.service_s is None else row.service_s
        yield f"{row.unix_s - rows[0].unix_s:.3f}", row.model, f"{service:.3f}"
