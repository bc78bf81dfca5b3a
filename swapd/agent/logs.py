"""Decides how the daemon's log looks: one line per event, JSON or console, on standard error.

A log line never blocks the event loop: it goes as a dictionary through a bounded queue to one writer thread, which
renders it. When the reader of standard error stalls, lines are dropped, and their number is written as soon as it
reads again.
"""

import json
import logging
import queue
import sys
import threading
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import msgspec
import structlog
from typing_extensions import override

LogFormat = Literal["json", "console"]
Line = MutableMapping[str, Any]
Render = Callable[[Line], str]

_QUEUE_LINES: Final = 10_000
_FLUSH_S: Final = 2.0
_HEAD: Final = ("timestamp", "level", "event")


class _Lines:
    """The bounded queue; counts what does not fit."""

    def __init__(self) -> None:
        self.queue: queue.Queue[Line | None] = queue.Queue(_QUEUE_LINES)
        self._dropped = 0

    def put(self, line: Line) -> None:
        """Queue a line, after the number of those that were dropped before it."""
        try:
            if self._dropped:
                lost = f"{self._dropped} log lines were dropped"
                self.queue.put_nowait({**_head("warning", lost), "logger": "swapd.logs"})
                self._dropped = 0
            self.queue.put_nowait(line)
        except queue.Full:
            self._dropped += 1


class _Logger:
    """What structlog hands its finished lines to."""

    def __init__(self, lines: _Lines, name: str) -> None:
        self._lines = lines
        self._name = name

    def msg(self, **line: Any) -> None:
        """Queue a line."""
        line["logger"] = self._name
        self._lines.put(line)

    debug = info = warning = error = critical = exception = msg


class _Bridge(logging.Handler):
    """Brings the lines of other libraries into the same form."""

    def __init__(self, lines: _Lines) -> None:
        super().__init__()
        self._lines = lines
        self._plain = logging.Formatter()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        line = {**_head(record.levelname.lower(), record.getMessage()), "logger": record.name}
        if record.exc_info:
            line["exception"] = self._plain.formatException(record.exc_info)
        self._lines.put(line)


class LogWriter:
    """The writer thread."""

    def __init__(self, lines: _Lines, render: Render, stream: TextIO) -> None:
        self._lines = lines.queue
        self._render = render
        self._stream = stream
        self._thread = threading.Thread(target=self._run, name="swapd-log", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """Write out the queued lines and end the thread; ``False``: the reader of the log stalls, lines are lost."""
        try:
            self._lines.put(None, timeout=_FLUSH_S)
        except queue.Full:
            return False
        self._thread.join(_FLUSH_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(self._render(line) + "\n")
                self._stream.flush()
            except Exception:  # noqa: BLE001, S112 - disk full, reader gone, odd value: the next line may fare better
                continue


def configure(log_format: LogFormat, level: str, stream: TextIO = sys.stderr) -> LogWriter:
    """Route structlog and the standard library's logging to ``stream``; ``level`` is a logging level's name."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    lines = _Lines()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
        ],
        logger_factory=lambda name="swapd": _Logger(lines, name),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Bridge(lines)]
    root.setLevel(threshold)
    # aiohttp's access log would be a second line per request; ours carries model and instance.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    # Tells of every file that changes in the directory; what concerns the configuration is logged by its reload.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    render = _json if log_format == "json" else _console(colors=stream.isatty())
    return LogWriter(lines, render, stream)


def _head(level: str, event: str) -> dict[str, Any]:
    return {"timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"), "level": level, "event": event}


def _json(line: Line) -> str:
    """Render a line with what a reader looks for first at its beginning."""
    ordered = {key: line.pop(key) for key in _HEAD if key in line} | dict(line)
    try:
        return msgspec.json.encode(ordered, enc_hook=str).decode()
    except (ValueError, TypeError):  # half a surrogate pair in a path, for example
        return json.dumps(ordered, default=str)


def _console(*, colors: bool) -> Render:
    renderer = structlog.dev.ConsoleRenderer(colors=colors)
    return lambda line: str(renderer(None, "", line))
