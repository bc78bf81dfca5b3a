"""Decides how the daemon's log looks: one line per event, JSON or console, on standard error.

A log line never blocks the event loop: it goes as a dictionary, or a struct, through a bounded queue to one writer
thread, which renders it. When the reader of standard error stalls, lines are dropped, and their number is written as
soon as it reads again.
"""

import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import msgspec
import structlog
from typing_extensions import override

from swapd.proxy.record import RequestRecord

LogFormat = Literal["json", "console"]
Line = MutableMapping[str, Any]


Render = Callable[[list[Line | RequestRecord]], str]
Entry = tuple[float, str, str | None, str, Line]
"""A line as it is queued: unix time, level, event, name of the logger, and the fields."""

_QUEUE_LINES: Final = 10_000
_FLUSH_S: Final = 2.0
_PAUSE_S: Final = 0.05
"""Lines are gathered for so long: a thread that wakes for each of them costs the event loop more than the line."""
_AT_ONCE: Final = 64
"""Lines that are written in one call, in which nobody else can run."""
_ENCODER: Final = msgspec.json.Encoder(enc_hook=str)
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class _Lines:
    """The bounded queue; counts what does not fit."""

    def __init__(self) -> None:
        self.waiting: deque[Entry | RequestRecord] = deque()
        #: set while there are lines
        self.wake: Final = threading.Event()
        self._dropped = 0

    def put(self, *entries: Entry | RequestRecord) -> None:
        """Queue lines, after the number of those that were dropped before them."""
        if len(self.waiting) >= _QUEUE_LINES:
            self._dropped += len(entries)
            return
        if self._dropped:
            lost = f"{self._dropped} log lines were dropped"
            self.waiting.append((time.time(), "warning", lost, "swapd.logs", {}))
            self._dropped = 0
        self.waiting += entries
        if not self.wake.is_set():
            self.wake.set()


class _Logger:
    """What structlog hands its lines to."""

    def __init__(self, lines: _Lines, name: str) -> None:
        self._lines = lines
        self._name = name

    def take_all(self, level: str, lines: list[RequestRecord]) -> None:
        """Queue lines of the kind that is written often."""
        for line in lines:
            line.level = level
        self._lines.put(*lines)

    def take(self, level: str, event: str | None, line: Line) -> None:
        """Queue a line; the writer thread gives it a form."""
        if "exc_info" in line:
            line = structlog.processors.format_exc_info(self, level, line)
        self._lines.put((time.time(), level, event, self._name, line))


def _bound_logger(threshold: int) -> type[structlog.typing.FilteringBoundLogger]:
    """Return structlog's own kind, but with one call to the queue in place of a chain of processors."""
    plain: Any = structlog.make_filtering_bound_logger(threshold)

    def method(level: str) -> Callable[..., None]:
        def write(self: Any, event: str | list[RequestRecord], **line: Any) -> None:
            if isinstance(event, list):
                self._logger.take_all(level, event)
            else:
                self._logger.take(level, event, {**self._context, **line} if self._context else line)

        return write

    written = {name: method(name) for name, level in _LEVELS.items() if level >= threshold}
    return type("BoundLogger", (plain,), written)


class _Bridge(logging.Handler):
    """Brings the lines of other libraries into the same form."""

    def __init__(self, lines: _Lines) -> None:
        super().__init__()
        self._lines = lines
        self._plain = logging.Formatter()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        line = {"exception": self._plain.formatException(record.exc_info)} if record.exc_info else {}
        self._lines.put((time.time(), record.levelname.lower(), record.getMessage(), record.name, line))


class LogWriter:
    """The writer thread."""

    def __init__(self, lines: _Lines, render: Render, stream: TextIO) -> None:
        self._lines = lines
        self._render = render
        self._stream = stream
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="swapd-log", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """Write out the queued lines and end the thread; ``False``: the reader of the log stalls, lines are lost."""
        self._closing.set()
        self._lines.wake.set()
        self._thread.join(_FLUSH_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        lines = self._lines
        while lines.waiting or not self._closing.is_set():
            lines.wake.wait()
            lines.wake.clear()
            while lines.waiting:
                count = min(len(lines.waiting), _AT_ONCE)
                self._write([_formed(lines.waiting.popleft()) for _ in range(count)])
            self._closing.wait(_PAUSE_S)

    def _write(self, formed: list[Line | RequestRecord]) -> None:
        while formed:
            try:
                self._stream.write(self._rendered(formed))
                self._stream.flush()
                break
            except Exception:  # noqa: BLE001 - disk full, reader gone: the younger lines may fare better
                del formed[: (len(formed) + 1) // 2]

    def _rendered(self, formed: list[Line | RequestRecord]) -> str:
        """Return the lines as text, but for those with a value that has none."""
        try:
            return self._render(formed)
        except Exception:  # noqa: BLE001 - whatever it is, it concerns one line
            return "".join(self._rendered([line]) for line in formed) if len(formed) > 1 else ""


def configure(log_format: LogFormat, level: str, stream: TextIO = sys.stderr) -> LogWriter:
    """Route structlog and the standard library's logging to ``stream``; ``level`` is a logging level's name."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    lines = _Lines()
    structlog.configure(
        processors=[],
        logger_factory=lambda name="swapd": _Logger(lines, name),
        wrapper_class=_bound_logger(threshold),
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


def _formed(entry: Entry | RequestRecord) -> Line | RequestRecord:
    """Return a line as it is written: what a reader looks for first at the beginning."""
    if isinstance(entry, RequestRecord):
        # as a datetime: the encoder writes it in a tenth of the time that to write it here takes
        entry.timestamp = datetime.fromtimestamp(entry.timestamp, UTC)
        return entry
    moment, level, event, logger, fields = entry
    time = datetime.fromtimestamp(moment, UTC)
    return {"timestamp": time, "level": level, "event": event, **fields, "logger": logger}


def _json(lines: list[Line | RequestRecord]) -> str:
    try:
        return _ENCODER.encode_lines(lines).decode()
    except (ValueError, TypeError):  # half a surrogate pair in a path, for example
        return "".join(json.dumps(_readable(line), default=str) + "\n" for line in lines)


def _console(*, colors: bool) -> Render:
    renderer = structlog.dev.ConsoleRenderer(colors=colors)
    return lambda lines: "".join(f"{renderer(None, '', _readable(line))}\n" for line in lines)


def _readable(line: Line | RequestRecord) -> Line:
    fields = msgspec.structs.asdict(line) if isinstance(line, RequestRecord) else line
    return {**fields, "timestamp": fields["timestamp"].isoformat().replace("+00:00", "Z")}
