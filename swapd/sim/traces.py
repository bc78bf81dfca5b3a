"""Reads traces: the requests to replay, and the models they ask for, from CSV with a header line.

Requests: ``t_s,model,service_s`` (seconds from the start of the trace; seconds from grant to the end of the answer).
Models: ``model,gpus,load_s``. Further columns are ignored, lines may come in any order. What cannot be used is refused
with its line, never guessed.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from swapd.core.catalog import Footprint, ModelSpec
from swapd.core.ids import SECOND, Bytes, Duration, ModelName, seconds
from swapd.sim.workload import Arrival, numbered

REQUESTS: Final = ("t_s", "model", "service_s")
MODELS: Final = ("model", "gpus", "load_s")
#: a load that takes this many times as long as listed has failed; at least the daemon's own default
_LOAD_TIMEOUT: Final = 3
_LEAST_TIMEOUT: Final = 600 * SECOND
#: the most that may stand in a column. Seconds of thirty years: times are counted from the start, not from 1970; and
#: no load takes longer than a day
_MOST: Final = {"t_s": 1_000_000_000, "service_s": 1_000_000_000, "gpus": 64, "load_s": 86_400}


class TraceError(ValueError):
    """The file is no trace, or no model list; one sentence with the line."""


def read_requests(lines: Iterable[str]) -> list[Arrival]:
    """Read the requests of a trace. Raises ``TraceError``."""
    return numbered(
        (_number(row, "t_s", line), _name(row, line), seconds(_number(row, "service_s", line)))
        for line, row in _rows(lines, REQUESTS)
    )


def read_models(lines: Iterable[str], *, bytes_per_gpu: Bytes) -> dict[ModelName, ModelSpec]:
    """Read a model list; each model takes its GPUs whole. Raises ``TraceError``."""
    models: dict[ModelName, ModelSpec] = {}
    for line, row in _rows(lines, MODELS):
        name, gpus, load = _name(row, line), _whole(row, "gpus", line), seconds(_number(row, "load_s", line))
        if name in models:
            raise TraceError(f"line {line}: {name} is listed twice")
        models[name] = ModelSpec(
            name=name,
            footprint=Footprint(gpus=gpus, bytes_per_gpu=bytes_per_gpu),
            load_estimate=load,
            load_timeout=Duration(max(_LOAD_TIMEOUT * load, _LEAST_TIMEOUT)),
        )
    if not models:
        raise TraceError("it lists no model")
    return models


def unlisted(arrivals: Iterable[Arrival], models: Mapping[ModelName, ModelSpec]) -> list[ModelName]:
    """Return the models that are asked for but not listed, by name."""
    return sorted({arrival.model for arrival in arrivals} - models.keys())


def _rows(lines: Iterable[str], wanted: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each line with its number, under the names of the header."""
    reader = csv.DictReader(lines, skipinitialspace=True)
    try:
        header = reader.fieldnames or ()
        missing = [column for column in wanted if column not in header]
        if missing:
            raise TraceError(f"the first line must name the columns {','.join(wanted)}; {missing[0]} is missing")
        for row in reader:
            for column in wanted:
                if not row.get(column):
                    raise TraceError(f"line {reader.line_num}: {column} is missing")
            yield reader.line_num, row
    except UnicodeDecodeError:
        raise TraceError("it is no text in UTF-8") from None
    except csv.Error as error:
        raise TraceError(f"line {reader.line_num + 1}: {error}") from None


def _name(row: Mapping[str, str], line: int) -> ModelName:
    name = row["model"].strip()
    if not name:
        raise TraceError(f"line {line}: the model has no name")
    return ModelName(name)


def _whole(row: Mapping[str, str], column: str, line: int) -> int:
    try:
        value = int(row[column])
    except ValueError:
        value = 0
    if not 1 <= value <= _MOST[column]:
        raise TraceError(f"line {line}: {column} is a whole number from 1 to {_MOST[column]:,}, not {row[column]!r}")
    return value


def _number(row: Mapping[str, str], column: str, line: int) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    most = _MOST[column]
    if not 0 <= value <= most:
        start = ", counted from the start" if column == "t_s" else ""
        limit = f" to {most:,}{start}" if value > most else ""
        raise TraceError(f"line {line}: {column} is a number from 0{limit}, not {row[column]!r}")
    return value
