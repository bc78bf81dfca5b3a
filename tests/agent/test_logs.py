"""Log lines are one JSON object or one console line each, and a stalled reader costs lines, not the daemon."""

import io
import json
import logging
import pathlib
import threading
from collections.abc import Iterator

import pytest
import structlog
from typing_extensions import override

from swapd.agent import logs


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_json_lines_carry_the_event_its_fields_level_and_time() -> None:
    stream = io.StringIO()
    writer = logs.configure("json", "info", stream)
    structlog.get_logger("swapd").info("granted", request=7, model="m01")
    structlog.get_logger("swapd").debug("too fine")
    writer.close()
    [line] = map(json.loads, stream.getvalue().splitlines())
    assert {"event": "granted", "request": 7, "model": "m01", "level": "info"}.items() <= line.items()
    assert line["timestamp"].endswith("Z")
    assert list(line)[:3] == ["timestamp", "level", "event"]


def test_other_libraries_lines_come_out_in_the_same_form_with_their_traceback() -> None:
    stream = io.StringIO()
    writer = logs.configure("json", "info", stream)
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("aiohttp.server").exception("Unhandled %s", "thing")
    writer.close()
    [line] = map(json.loads, stream.getvalue().splitlines())
    assert line["event"] == "Unhandled thing"
    assert "ValueError: bad" in line["exception"]


def test_console_lines_are_for_people() -> None:
    stream = io.StringIO()
    writer = logs.configure("console", "info", stream)
    structlog.get_logger("swapd").info("granted", request=7)
    writer.close()
    [line] = stream.getvalue().splitlines()
    assert "granted" in line
    assert "request=7" in line


class StalledStream(io.StringIO):
    """Blocks every write until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    @override
    def write(self, text: str) -> int:
        self.go.wait()
        return super().write(text)


def test_a_line_with_values_that_json_has_no_form_for_is_written_all_the_same() -> None:
    stream = io.StringIO()
    writer = logs.configure("json", "info", stream)
    log = structlog.get_logger("swapd")
    log.info("half a pair", path="/\udcff", where=pathlib.Path("/x"), kinds={1: object})
    log.info("next")
    writer.close()
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["path"], first["where"]) == ("/\udcff", "/x")
    assert second["event"] == "next"


def test_a_line_with_a_value_that_has_no_text_is_the_only_one_lost() -> None:
    class Odd:
        @override
        def __str__(self) -> str:
            raise RuntimeError("no text")

    stream = StalledStream()
    writer = logs.configure("json", "info", stream)
    log = structlog.get_logger("swapd")
    for number in range(10):
        log.info("line", number=Odd() if number == 8 else number)
    stream.go.set()
    writer.close()
    assert [json.loads(line)["number"] for line in stream.getvalue().splitlines()] == [0, 1, 2, 3, 4, 5, 6, 7, 9]


def test_a_line_that_cannot_be_written_does_not_end_the_log() -> None:
    class FullDisk(io.StringIO):
        broken = True

        @override
        def write(self, text: str) -> int:
            if self.broken:
                self.broken = False
                raise OSError("No space left on device")
            return super().write(text)

    stream = FullDisk()
    writer = logs.configure("json", "info", stream)
    structlog.get_logger("swapd").info("lost")
    structlog.get_logger("swapd").info("kept")
    assert writer.close()
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["kept"]


def test_closing_gives_up_on_a_stalled_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_FLUSH_S", 0.01)
    stream = StalledStream()
    writer = logs.configure("json", "info", stream)
    structlog.get_logger("swapd").info("line")
    assert not writer.close()
    stream.go.set()
    writer._thread.join()


def test_a_stalled_reader_loses_lines_and_is_told_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_QUEUE_LINES", 10)
    stream = StalledStream()
    writer = logs.configure("json", "info", stream)
    log = structlog.get_logger("swapd")
    for number in range(100):
        log.info("line", number=number)
    stream.go.set()
    while True:
        log.info("after")
        if "log lines were dropped" in stream.getvalue():
            break
    writer.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    dropped = [line["event"] for line in lines if "dropped" in line["event"]]
    assert dropped
    assert all(int(event.split()[0]) > 0 for event in dropped)
