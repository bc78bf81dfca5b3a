"""Decides how the daemon's log looks: one line per event, JSON or console, on standard error.

A log line never blocks the event loop: lines go through a bounded queue to one writer thread, and when the reader of
standard error stalls, lines are dropped and their number is written as soon as it reads again.
"""

import logging
import logging.handlers
import queue
import sys
import threading
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor
from typing_extensions import override

LogFormat = Literal["json", "console"]

_QUEUE_LINES = 10_000
_FLUSH_S = 2.0


class _DroppingHandler(logging.handlers.QueueHandler):
    """Puts records on a bounded queue; counts what does not fit."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord | None]") -> None:
        super().__init__(lines)
        self._dropped = 0

    @override
    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        # The formatter renders in the writer thread; structlog's event dict must reach it as it is.
        return record

    @override
    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                lost = logging.LogRecord(
                    "swapd.logs", logging.WARNING, __file__, 0, "%d log lines were dropped", (self._dropped,), None
                )
                self.queue.put_nowait(lost)
                self._dropped = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1


def _head_first(_: object, __: str, line: EventDict) -> EventDict:
    """Put what a reader looks for first at the beginning of the line."""
    return {key: line[key] for key in ("timestamp", "level", "event") if key in line} | dict(line)


class LogWriter:
    """The writer thread."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord | None]", handler: logging.Handler) -> None:
        self._lines = lines
        self._handler = handler
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
        while (record := self._lines.get()) is not None:
            self._handler.handle(record)


def configure(log_format: LogFormat, level: str, stream: TextIO = sys.stderr) -> LogWriter:
    """Route structlog and the standard library's logging to ``stream``; ``level`` is a logging level's name."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    final: list[Processor] = (
        [structlog.processors.format_exc_info, _head_first, structlog.processors.JSONRenderer(default=str)]
        if log_format == "json"
        else [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
    )
    writer = logging.StreamHandler(stream)
    writer.setFormatter(formatter)
    lines: queue.Queue[logging.LogRecord | None] = queue.Queue(_QUEUE_LINES)
    root = logging.getLogger()
    root.handlers[:] = [_DroppingHandler(lines)]
    root.setLevel(level.upper())
    # aiohttp's access log would be a second line per request; ours carries model and instance.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    # Tells of every file that changes in the directory; what concerns the configuration is logged by its reload.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    return LogWriter(lines, writer)
