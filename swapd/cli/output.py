"""Tells a standard output that takes nothing, such as a file on a full disk, from every other error."""

import io
import os
import sys
from pathlib import Path
from typing import TextIO

from typing_extensions import Buffer, override


class OutputError(OSError):
    """Standard output could not be written."""


class _Descriptor(io.FileIO):
    """Where standard output goes."""

    @override
    def write(self, data: Buffer, /) -> int | None:  # type: ignore[override]  # one of FileIO's bases promises int
        try:
            return super().write(data)
        except BrokenPipeError:
            raise  # the reader has seen enough: click ends quietly
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from error


def standard_output() -> TextIO:
    """Return a stream to take the place of ``sys.stdout``.

    What a terminal has no character for is replaced by a question mark, and what is written after the output was closed
    goes nowhere.
    """
    given: TextIO | None = sys.stdout
    if given is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    return io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(given.fileno(), "w", closefd=False)),
        encoding=given.encoding,
        errors="replace",
        line_buffering=given.isatty(),
    )
