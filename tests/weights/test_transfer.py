"""Connections come and go while a file is brought."""

import threading
from pathlib import Path

import pytest

from swapd.aio.backoff import Backoff
from swapd.aio.threads import Stop
from swapd.core.events import WeightsFetched
from swapd.core.ids import SECOND, Bytes, Instant
from swapd.weights import ramp, stretches, transfer
from swapd.weights.bucket import Bucket
from swapd.weights.sources.base import Listing, RemoteFile
from swapd.weights.transfer import Manner, Transfer
from tests.weights.caches import MIB, M, noise, running
from tests.weights.remote import content_of, weights
from tests.weights.servers import Blob, Server

SIZE = 24 * MIB + 5
FILE = RemoteFile("m", Bytes(SIZE), "m", "v1")
MANNER = Manner(connections=3, retries=0, pauses=Backoff(0.01, 0.01), bucket=Bucket(None, now=lambda: 0.0))


class Memory:
    """A source that gives a part of its file for each permit; it knows who reads."""

    def __init__(self) -> None:
        self.content = noise(SIZE)
        self.asked: list[tuple[int, int]] = []
        self.reading: set[MemoryStream] = set()
        self.most_reading = 0
        self.permits = 0
        self.changed = threading.Condition()

    def list(self) -> Listing:
        return Listing("1", (FILE,))

    def open(self, _file: RemoteFile, start: int, stop: int) -> "MemoryStream":
        stream = MemoryStream(self, start, stop)
        with self.changed:
            self.asked.append((start, stop))
            self.reading.add(stream)
            self.most_reading = max(self.most_reading, len(self.reading))
        return stream

    def permit(self, parts: int) -> None:
        with self.changed:
            self.permits += parts
            self.changed.notify_all()


class MemoryStream:
    def __init__(self, source: Memory, start: int, stop: int) -> None:
        self._source, self._at, self._stop = source, start, stop

    def readinto(self, buffer: memoryview) -> int:
        source = self._source
        with source.changed:
            source.changed.wait_for(lambda: source.permits or self not in source.reading)
            source.permits -= 1
        count = min(len(buffer), self._stop - self._at)
        buffer[:count] = source.content[self._at : self._at + count]
        self._at += count
        return count

    def close(self) -> None:
        with self._source.changed:
            self._source.reading.discard(self)
            self._source.changed.notify_all()


class Script:
    """A ramp that says what it was told to say; once there are so many connections, so many parts come."""

    def __init__(self, source: Memory, *lines: tuple[int, int]) -> None:
        self.connections = lines[0][0]
        self._source = source
        self._lines = [*lines]

    def look(self, _now: Instant, _came: int) -> int:
        number, parts = self._lines[0]
        there = len(self._source.reading)
        if there == number:
            self._source.permit(parts)
            if len(self._lines) > 1:
                self._lines.pop(0)
        elif there > number:  # they leave when their stretches end
            self._source.permit(1)
        return number


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr(stretches, "_LEAST", 2 * MIB)
    monkeypatch.setattr(transfer, "_LOOK_S", 0.005)
    return Memory()


def brought(source: Memory, script: Script, path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(transfer, "Ramp", lambda _most: script)
    (arrived,) = Transfer(source, [(FILE, path)], manner=MANNER, stop=Stop()).run()
    return arrived.path.read_bytes()


def test_a_connection_that_is_alone_brings_a_file_by_one_request(
    source: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert brought(source, Script(source, (1, 100)), tmp_path, monkeypatch) == source.content
    assert source.asked == [(0, SIZE)]


def test_connections_that_are_wanted_later_share_what_is_left(
    source: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert brought(source, Script(source, (1, 3), (3, 100)), tmp_path, monkeypatch) == source.content
    assert source.most_reading == 3
    assert source.asked[0] == (0, SIZE)
    assert all(stop - start <= 2 * MIB for start, stop in source.asked[1:]), source.asked


def test_connections_that_are_no_longer_wanted_leave_and_the_last_one_brings_the_rest(
    source: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert brought(source, Script(source, (3, 1), (1, 100)), tmp_path, monkeypatch) == source.content
    assert source.most_reading == 3
    assert source.asked[-1][1] == SIZE
    assert source.asked[-1][1] - source.asked[-1][0] > 2 * MIB, source.asked


async def test_a_server_that_limits_each_connection_is_given_as_many_as_there_may_be(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretches, "_LEAST", MIB)
    for name, value in {"PERIOD": SECOND // 5, "REST": SECOND // 5}.items():
        monkeypatch.setattr(ramp, name, value)
    content = noise(32 * MIB)
    server.blobs["/m.gguf"], server.rate = Blob(content), 16.0 * MIB
    async with running(path, {M: weights(server)}, connections=4) as run:
        assert isinstance(await run.fetch(), WeightsFetched)
        assert content_of(run) == content
    assert server.most_answering >= 4
