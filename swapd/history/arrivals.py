"""Keeps when which model was asked for, and for how long it served, so that real traffic can be replayed elsewhere.

One CSV file a day in its own directory: ``unix_s,model,service_s``, the service time empty for a request that was never
granted. Names and times only: no content, no client. Files and not a database, because nothing here is ever looked up:
lines are added at one end and whole days are forgotten at the other.

Rules:
* Bounded: in memory by lines, a day by bytes, all by days. What is beyond is dropped, and that is reported once.
* The files are touched on one own thread only, each call under a deadline. Nothing here blocks the event loop, and no
  trouble with them reaches the caller.
* Lines are added within seconds, and what a crash leaves of a last line does not stand in the way of the next.
"""

import asyncio
import functools
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Final

from swapd.aio.one_thread import OneThread, ThreadBusyError
from swapd.aio.supervise import Tasks
from swapd.core.ids import ModelName

HEADER: Final = "unix_s,model,service_s\n"
KEPT_DAYS: Final = 8
"""A week, and the day that is being written."""
DAY_BYTES: Final = 16 << 20
"""About 400,000 requests."""
_BUFFERED: Final = 20_000
_WRITE_AFTER_S: Final = 5.0
_CALL_S: Final = 5.0
_CHUNK: Final = 1 << 18
_PATTERN: Final = "arrivals-????-??-??.csv"


Row = tuple[float, ModelName, float | None]
"""Unix time of a request's arrival, its model, and the seconds for which it served, ``None``: it was never granted."""


class FullError(Exception):
    """There is no room for more lines; the message says where."""


class Arrivals:
    """The record of one daemon's requests; made and used on one event loop."""

    def __init__(
        self, directory: Path, *, report: Callable[[str], None], wall: Callable[[], float] = time.time
    ) -> None:
        """``report`` is told each trouble, and its end, in one sentence; on the loop thread."""
        self._directory = directory
        self._report = report
        self._wall = wall
        self._thread = OneThread("swapd-arrivals")
        self._tasks = Tasks()
        self._rows: list[Row] = []
        self._trouble = ""
        self._closing = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def record(self, rows: Sequence[Row]) -> None:
        """Note requests that have ended."""
        if len(self._rows) >= _BUFFERED:
            self._failed(FullError("they come faster than they can be written"))
            return
        self._rows += rows
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start(self._write_soon(), name="arrivals: write")

    async def read(self) -> AsyncGenerator[bytes, None]:
        """Yield everything that is kept as CSV with one header; lines of different days may overlap in time."""
        await self._write()
        yield HEADER.encode()
        for path in await self._thread.call(self._days, timeout=_CALL_S):
            async with aclosing(self._chunks(path)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def aclose(self) -> None:
        """Write what is not written yet, within seconds, and end; nothing is recorded after that."""
        self._closing.set()
        if self._writing is not None:
            await self._writing
        await self._tasks.aclose()
        await self._thread.aclose(timeout=1.0)

    async def _chunks(self, path: Path) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a day without their header, whole."""
        place, rest = len(HEADER), b""
        while chunk := await self._thread.call(partial(_read, path, place), timeout=_CALL_S):
            place += len(chunk)
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            yield whole + newline

    async def _write_soon(self) -> None:
        while self._rows:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WRITE_AFTER_S):
                    await self._closing.wait()
            await self._write()

    async def _write(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        try:
            await self._thread.call(lambda: self._append("".join(map(_line, rows)).encode()), timeout=_CALL_S)
        except (OSError, FullError, TimeoutError, ThreadBusyError) as error:
            self._failed(error)
        else:
            if self._trouble:
                self._trouble = ""
                self._report(f"requests are recorded again in {self._directory}")

    def _failed(self, error: BaseException) -> None:
        slow = isinstance(error, TimeoutError | ThreadBusyError)
        what = "the disk is too slow" if slow else (getattr(error, "strerror", None) or str(error))
        if what != self._trouble:
            self._trouble = what
            self._report(f"requests are not recorded in {self._directory}: {what}")

    # On the thread:

    def _append(self, lines: bytes) -> None:
        path = self._directory / time.strftime("arrivals-%Y-%m-%d.csv", time.gmtime(self._wall()))
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        begun = not path.exists()
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size + len(lines) > DAY_BYTES:
                raise FullError(f"{path.name} has grown to {DAY_BYTES >> 20} MiB, and the day goes on")
            if not size:
                lines = HEADER.encode() + lines
            elif _ends_within_a_line(file.fileno(), size):
                lines = b"\n" + lines
            file.write(lines)
        if begun:
            self._forget(besides=path)

    def _forget(self, besides: Path) -> None:
        """Remove the oldest days, but not the one that is being written: the clock may be far behind for a while."""
        others = [day for day in self._days() if day != besides]
        for old in others[: -(KEPT_DAYS - 1)]:
            old.unlink(missing_ok=True)

    def _days(self) -> list[Path]:
        return sorted(self._directory.glob(_PATTERN))


def _ends_within_a_line(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) != b"\n"


def _read(path: Path, place: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(place)
            return file.read(_CHUNK)
    except FileNotFoundError:
        return b""  # forgotten meanwhile


def _line(row: Row) -> str:
    # in whole milliseconds: to write a fraction costs three times as much
    moment, model, served_s = row
    at = round(moment * 1000)
    if served_s is None:
        return f"{at // 1000}.{at % 1000:03},{_quoted(model)},\n"
    took = round(served_s * 1000)
    return f"{at // 1000}.{at % 1000:03},{_quoted(model)},{took // 1000}.{took % 1000:03}\n"


@functools.lru_cache(maxsize=1024)
def _quoted(name: str) -> str:
    """Write a name as CSV does."""
    return f'"{name.replace(chr(34), chr(34) * 2)}"' if any(c in name for c in ',"\n\r') else name
