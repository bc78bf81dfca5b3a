"""Brings the files of one copy here: several connections fetch, the calling thread follows with checksums.

Rules:
* Work is cut into stretches, handed out from the front, so that the checksum can follow closely behind. The last
  connections share one large file as well as many small ones.
* A connection that breaks is made again where it was. The fetch fails when nothing at all has come for so many tries,
  or at once when the source says that it has no more to say.
* Another version at the source ends the transfer: its caller lists again.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from isal.isal_zlib import crc32

from swapd.aio.backoff import Backoff
from swapd.aio.threads import Stop, StoppedError
from swapd.weights.bucket import Bucket
from swapd.weights.checks import MIB, digest_for, read_buffer
from swapd.weights.partial import Partial
from swapd.weights.sources.base import ChangedError, RemoteFile, Source, SourceError

_LEAST_STRETCH: Final = 16 * MIB
_MOST_STRETCH: Final = 256 * MIB
_STRETCHES: Final = 32
"""A file is cut into about as many, within the limits."""
_READ: Final = MIB
"""As much as a block at least has: it is written at once, with one checksum and one line in the journal."""
_BEGIN: Final = 8 * MIB
"""So often is the disk told to begin with what has come."""
_LOOK_S: Final = 0.5
_JOIN_S: Final = 10.0


class CorruptError(Exception):
    """A file has come whole, and is not what the source promised; one sentence."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a transfer goes about it."""

    connections: int
    #: tries without a byte before it fails
    retries: int
    pauses: Backoff
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Arrived:
    """A file that is all here, verified and durable."""

    file: RemoteFile
    path: Path
    #: CRC-32 of each block
    block: int
    crcs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Stretch:
    partial: Partial
    start: int
    stop: int


class Transfer:
    """One run of one fetch; ``run`` blocks and belongs on a thread of its own."""

    def __init__(self, source: Source, files: Iterable[tuple[RemoteFile, Path]], *, manner: Manner, stop: Stop) -> None:
        """``files``: with the directory of each one's partial."""
        self._source = source
        self._files = tuple(files)
        self._manner = manner
        self._outer = stop
        self._stop = Stop()
        self._work: deque[_Stretch] = deque()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        #: tries in a row after which no block had come, by whichever connection
        self._vain = 0
        #: bytes that were here, and bytes that have come; written under the lock, read by anyone
        self.present = 0
        self.came = 0

    def run(self) -> tuple[Arrived, ...]:
        """Bring all files. Raises ``SourceError``, ``CorruptError``, ``OSError``, ``StoppedError``."""
        self._outer.waking(self._stop)
        partials: list[Partial] = []
        threads: Sequence[threading.Thread] = ()
        try:
            for file, directory in self._files:
                partial = Partial.open(directory, file, self._stop)
                partials.append(partial)
                self.present += partial.present
                self._work.extend(_stretches(partial))
            threads = self._start()
            return tuple(self._finish(partial) for partial in partials)
        finally:
            self._outer.not_waking(self._stop)
            self._stop()
            for thread in threads:
                thread.join(_JOIN_S)
            if not any(thread.is_alive() for thread in threads):  # else one may still write: its lock must stay
                for partial in partials:
                    partial.close()

    def _start(self) -> Sequence[threading.Thread]:
        count = min(self._manner.connections, len(self._work))
        threads = [threading.Thread(target=self._run, name=f"swapd-fetch-{n}", daemon=True) for n in range(count)]
        for thread in threads:
            thread.start()
        return threads

    # On the calling thread:

    def _finish(self, partial: Partial) -> Arrived:
        """Wait for a file, and for its checksum; make it durable."""
        file = partial.file
        digest = digest_for(file.checksum, file.size) if file.checksum is not None else None
        buffer, at, begun = read_buffer(), 0, 0
        while at < file.size:
            here = partial.wait_beyond(at, _LOOK_S)
            if here - begun >= _BEGIN:
                partial.begin_writing()
                begun = here
            if self._error is not None:
                raise self._error
            self._stop.check()
            while at < here:
                count = here - at
                if digest is not None:
                    count = partial.read(buffer[: min(count, len(buffer))], at)
                    digest.update(buffer[:count])
                at += count
        if digest is not None and file.checksum is not None and digest.hexdigest() != file.checksum.digest.lower():
            partial.forget()
            told = f"{file.checksum.algorithm} {digest.hexdigest()}, and {file.checksum.digest} was promised"
            raise CorruptError(f"{file.name} has come with {told}")
        partial.sync()
        return Arrived(file, partial.data_path, partial.block, partial.crcs)

    # On the connections' threads:

    def _run(self) -> None:
        buffer = memoryview(bytearray(self._manner.bucket.chunk(_READ)))
        try:
            while (stretch := self._next()) is not None:
                self._fetch(stretch, buffer)
        except StoppedError:
            return
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            with self._lock:
                self._error = self._error or error
            self._stop()

    def _next(self) -> _Stretch | None:
        with self._lock:
            return self._work.popleft() if self._work else None

    def _fetch(self, stretch: _Stretch, buffer: memoryview) -> None:
        """Bring one stretch, with as many tries as it takes."""
        partial, tries = stretch.partial, 0
        while (gap := partial.missing(stretch.start, stretch.stop)) is not None:
            came = self.came
            try:
                self._stream(partial, *gap, buffer)
            except SourceError as error:
                self._stop.check()
                tries = 0 if self.came > came else tries + 1
                if error.permanent or isinstance(error, ChangedError) or not self._may_try_again():
                    raise
                self._stop.pause(max(error.after_s, self._manner.pauses.delay(max(0, tries - 1))))
                if not _resumable(partial.file):
                    partial.forget()

    def _may_try_again(self) -> bool:
        with self._lock:
            self._vain += 1
            return self._vain <= self._manner.retries * self._manner.connections

    def _stream(self, partial: Partial, start: int, stop: int, buffer: memoryview) -> None:
        stream = self._source.open(partial.file, start, stop)
        self._stop.waking(stream.close)
        try:
            at, crc = start, 0
            while at < stop:
                block_end = min((at // partial.block + 1) * partial.block, stop)
                count = stream.readinto(buffer[: min(len(buffer), block_end - at)])
                self._stop.check()
                if count == 0:
                    raise SourceError(f"the source broke off {partial.file.name} at byte {at} of {partial.file.size}")
                partial.write(buffer[:count], at)
                crc = crc32(buffer[:count], crc)
                at += count
                with self._lock:
                    self.came += count
                if at == block_end:
                    partial.add((at - 1) // partial.block * partial.block, crc)
                    crc = 0
                    self._vain = 0
                delay = self._manner.bucket.take(count)
                if delay > 0:
                    self._stop.pause(delay)
        finally:
            self._stop.not_waking(stream.close)
            stream.close()


def _resumable(file: RemoteFile) -> bool:
    return file.ranges and file.recognisable


def _stretches(partial: Partial) -> Iterable[_Stretch]:
    """Cut what is missing; a file that cannot be had in parts is one piece."""
    file = partial.file
    if not _resumable(file):
        if partial.missing(0, file.size) is not None:
            yield _Stretch(partial, 0, file.size)
        return
    length = max(_LEAST_STRETCH, min(_MOST_STRETCH, file.size // _STRETCHES))
    length -= length % partial.block
    at = 0
    while at < file.size and (gap := partial.missing(at, file.size)) is not None:
        start, stop = gap
        for begin in range(start, stop, length):
            yield _Stretch(partial, begin, min(begin + length, stop))
        at = -(-stop // partial.block) * partial.block
