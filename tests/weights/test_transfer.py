"""Connections come and go while a file is brought."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from swapd.aio.backoff import Backoff
from swapd.aio.threads import Stop, StoppedError
from swapd.core.events import WeightsFetched
from swapd.core.ids import SECOND, Bytes, Instant
from swapd.weights import ramp, stretches, transfer
from swapd.weights.bucket import Bucket
from swapd.weights.partial import Partial, discard
from swapd.weights.sources.base import Checksum, Listing, RemoteFile, SourceError
from swapd.weights.transfer import CorruptError, Manner, Transfer
from tests.weights.caches import DEADLINE_S, MIB, M, noise, running
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


class Wanting:
    """A ramp that asks a function."""

    connections = 1

    def __init__(self, wanted: Callable[[int], int]) -> None:
        self._wanted = wanted

    def look(self, _now: Instant, came: int) -> int:
        return self._wanted(came)


@pytest.fixture
def deadline() -> Iterator[Stop]:
    """Return what stops a transfer that hangs."""
    stop = Stop()
    timer = threading.Timer(DEADLINE_S, stop)
    timer.start()
    yield stop
    timer.cancel()


def test_a_source_that_bears_one_connection_brings_all_by_that_one(
    source: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Stop
) -> None:
    refused: list[int] = []
    real = source.open

    def busy(file: RemoteFile, start: int, stop: int) -> MemoryStream:
        if source.reading:
            refused.append(start)
            raise SourceError("one at a time", after_s=3600.0)
        return real(file, start, stop)

    def wanted(came: int) -> int:
        """Want a second connection once the first has brought something, until it is refused."""
        source.permit(100 if refused else 0 if came else 1)
        return 2 if came and not refused else 1

    monkeypatch.setattr(source, "open", busy)
    monkeypatch.setattr(transfer, "Ramp", lambda _most: Wanting(wanted))
    (arrived,) = Transfer(source, [(FILE, tmp_path)], manner=MANNER, stop=deadline).run()
    assert arrived.path.read_bytes() == source.content
    assert (source.asked, refused) == ([(0, SIZE)], [2 * MIB])


def test_several_connections_that_bring_nothing_fail_as_one_does(
    source: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Stop
) -> None:
    asked: list[int] = []

    def refuse(_file: RemoteFile, start: int, _stop: int) -> MemoryStream:
        asked.append(start)
        raise SourceError("down")

    monkeypatch.setattr(source, "open", refuse)
    monkeypatch.setattr(transfer, "Ramp", lambda _most: Wanting(lambda _: 2))
    with pytest.raises(SourceError, match="down"):
        Transfer(source, [(FILE, tmp_path)], manner=replace(MANNER, retries=3), stop=deadline).run()
    assert 3 < len(asked) <= 2 * 3 + 2


def test_what_a_connection_leaves_is_brought_by_the_others(
    source: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Stop
) -> None:
    broken: list[MemoryStream] = []
    real = MemoryStream.readinto

    def breaking(self: MemoryStream, buffer: memoryview) -> int:
        """Break the second connection after its first part."""
        count = real(self, buffer)
        if len(source.reading) == 2 and not broken and self._stop != SIZE:
            broken.append(self)
        elif self in broken:
            raise SourceError("broken", after_s=3600.0)
        return count

    monkeypatch.setattr(MemoryStream, "readinto", breaking)

    def wanted(came: int) -> int:
        source.permit(1 if not came or len(source.reading) == 2 else 100 if broken else 0)
        return 2

    monkeypatch.setattr(transfer, "Ramp", lambda _most: Wanting(wanted))
    manner = replace(MANNER, retries=1)
    (arrived,) = Transfer(source, [(FILE, tmp_path)], manner=manner, stop=deadline).run()
    assert arrived.path.read_bytes() == source.content
    assert len(broken) == 1


def test_a_connection_that_outlives_its_transfer_lets_go_of_the_partial_when_it_ends(
    source: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Stop
) -> None:
    connecting, connected = threading.Event(), threading.Event()

    def slow(_file: RemoteFile, _start: int, _stop: int) -> MemoryStream:
        connecting.set()
        connected.wait(DEADLINE_S)
        raise SourceError("nobody is there")

    def stop_when_it_connects() -> None:
        connecting.wait(DEADLINE_S)
        deadline()

    monkeypatch.setattr(source, "open", slow)
    monkeypatch.setattr(transfer, "_JOIN_S", 0.0)
    threading.Thread(target=stop_when_it_connects).start()
    run = Transfer(source, [(FILE, tmp_path / "m")], manner=MANNER, stop=deadline)
    with pytest.raises(StoppedError):
        run.run()
    assert not discard(tmp_path / "m"), "it may still write"
    connected.set()
    for thread in run._threads:
        thread.join(DEADLINE_S)
    assert discard(tmp_path / "m")


def test_a_checksum_is_not_of_what_an_earlier_try_had_brought(
    source: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Stop
) -> None:
    read = threading.Event()
    real_read, real_readinto = Partial.read, MemoryStream.readinto

    def reading(self: Partial, buffer: memoryview, at: int) -> int:
        count = real_read(self, buffer, at)
        read.set()
        return count

    def readinto(self: MemoryStream, buffer: memoryview) -> int:
        """Bring one good part and break off; then bring all, with a part that is another one."""
        again, begins = len(source.asked) > 1, self._at == 0
        if not again and not begins:
            read.wait(DEADLINE_S)
            raise SourceError("broken off")
        source.permit(1)
        count = real_readinto(self, buffer)
        if again and begins:
            buffer[:7] = b"another"
        return count

    monkeypatch.setattr(Partial, "read", reading)
    monkeypatch.setattr(MemoryStream, "readinto", readinto)
    file = replace(FILE, ranges=False, checksum=Checksum("sha256", hashlib.sha256(source.content).hexdigest()))
    with pytest.raises(CorruptError):
        Transfer(source, [(file, tmp_path)], manner=replace(MANNER, retries=1), stop=deadline).run()


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
