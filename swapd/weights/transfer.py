"""Brings the files of one copy here: several connections fetch, the calling thread follows with checksums.

Rules:
* The calling thread decides how many connections there are (``ramp``), and what they bring is handed out to them
  (``stretches``). One that is no longer wanted ends at the end of its stretch.
* A connection that breaks is made again where it was if it is the only one; else it leaves what it has not brought to
  the others, and a new one is made after a pause: a source that bears no more of them is not a source that has failed.
  The fetch fails when nothing at all has come for so many tries, or at once when the source says that it has no more
  to say.
* Another version at the source ends the transfer: its caller lists again.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from isal.isal_zlib import crc32

from swapd.aio.backoff import Backoff
from swapd.aio.threads import Stop, StoppedError
from swapd.core.ids import SECOND, Instant
from swapd.weights.bucket import Bucket
from swapd.weights.checks import MIB, Digest, digest_for, read_buffer
from swapd.weights.partial import Partial
from swapd.weights.ramp import Ramp
from swapd.weights.sources.base import ChangedError, RemoteFile, Source, SourceError, Stream
from swapd.weights.stretches import Stretch, Stretches, resumable

_READ: Final = MIB
"""As much as a block at least has: it is written at once, with one checksum and one line in the journal."""
_FOLLOW: Final = 8 * MIB
"""Without a checksum the calling thread looks after so much again."""
_LOOK_S: Final = 0.25
_JOIN_S: Final = 10.0


class CorruptError(Exception):
    """A file has come whole, and is not what the source promised; one sentence."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a transfer goes about it."""

    #: as many as it may have
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


class Transfer:
    """One run of one fetch; ``run`` blocks and belongs on a thread of its own."""

    def __init__(self, source: Source, files: Iterable[tuple[RemoteFile, Path]], *, manner: Manner, stop: Stop) -> None:
        """``files``: with the directory of each one's partial."""
        self._source = source
        self._files = tuple(files)
        self._manner = manner
        self._outer = stop
        self._stop = Stop()
        self._ramp = Ramp(manner.connections)
        self._work = Stretches()
        self._partials: list[Partial] = []
        self._threads: list[threading.Thread] = []
        #: guards what follows, and the work
        self._lock = threading.Lock()
        #: threads that use the partials; the last one closes them
        self._inside = 1
        #: connections that there should be, and that there are
        self._wanted = self._ramp.connections
        self._running = 0
        #: no connection is added before
        self._patience = Instant(0)
        self._error: BaseException | None = None
        #: tries in a row after which no block had come, by whichever connection
        self._vain = 0
        #: what had come when a try was in vain last
        self._came_before = 0
        #: bytes that were here, and bytes that have come; written under the lock, read by anyone
        self.present = 0
        self.came = 0

    def run(self) -> tuple[Arrived, ...]:
        """Bring all files. Raises ``SourceError``, ``CorruptError``, ``OSError``, ``StoppedError``."""
        self._outer.waking(self._stop)
        try:
            for file, directory in self._files:
                partial = Partial.open(directory, file, self._stop)
                self._partials.append(partial)
                self.present += partial.present
                self._work.add(partial)
            return tuple(self._finish(partial) for partial in self._partials)
        finally:
            self._outer.not_waking(self._stop)
            self._stop()
            for thread in self._threads:
                thread.join(_JOIN_S)
            self._leave()

    def _leave(self) -> None:
        """Close the partials unless somebody may still write: until then their locks must stay."""
        with self._lock:
            self._inside -= 1
            if self._inside:
                return
        for partial in self._partials:
            partial.close()

    # On the calling thread:

    def _finish(self, partial: Partial) -> Arrived:
        """Wait for a file, and for its checksum; make it durable."""
        file = partial.file
        digest, begun = _digest(file), partial.begun
        buffer, at = read_buffer(), 0
        while at < file.size:
            self._oversee()
            here = partial.wait_beyond(at if digest is not None else min(at + _FOLLOW, file.size) - 1, _LOOK_S)
            if partial.begun != begun:  # what was read is not what is there now
                digest, begun, at = _digest(file), partial.begun, 0
            elif digest is None:
                partial.begin_writing()
                at = here
            elif at < here:
                count = partial.read(buffer[: min(here - at, len(buffer))], at)
                digest.update(buffer[:count])
                at += count
        if digest is not None and file.checksum is not None and digest.hexdigest() != file.checksum.digest.lower():
            partial.forget()
            told = f"{file.checksum.algorithm} {digest.hexdigest()}, and {file.checksum.digest} was promised"
            raise CorruptError(f"{file.name} has come with {told}")
        partial.sync()
        return Arrived(file, partial.data_path, partial.block, partial.crcs)

    def _oversee(self) -> None:
        """End if a connection has failed; see to it that there are as many as there should be."""
        if self._error is not None:
            raise self._error
        self._stop.check()
        now = Instant(time.monotonic_ns())
        self._wanted = self._ramp.look(now, self.came)
        with self._lock:
            count = min(self._wanted - self._running, len(self._work)) if now >= self._patience else 0
        for _ in range(count):
            self._connect()

    def _connect(self) -> None:
        """Add a connection."""
        thread = threading.Thread(target=self._run, name=f"swapd-fetch-{len(self._threads)}", daemon=True)
        with self._lock:
            self._running += 1
            self._inside += 1
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            self._leave()
            raise
        self._threads.append(thread)

    # On the connections' threads:

    def _run(self) -> None:
        buffer = memoryview(bytearray(self._manner.bucket.chunk(_READ)))
        try:
            while (stretch := self._next()) is not None and self._fetch(stretch, buffer):
                pass
        except StoppedError:
            return
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            with self._lock:
                self._error = self._error or error
            self._stop()
        finally:
            self._leave()

    def _next(self) -> Stretch | None:
        with self._lock:
            stretch = self._work.take() if self._running <= self._wanted else None
            if stretch is None:
                self._running -= 1
            return stretch

    def _reach(self, stretch: Stretch, stop: int) -> int:
        """Return up to where to ask: one that is alone goes on and on."""
        with self._lock:
            return self._work.reach(stretch) if self._wanted == 1 and stop == stretch.stop else stop

    def _goes_on(self, stretch: Stretch, reach: int) -> bool:
        with self._lock:
            return self._running <= self._wanted and self._work.go_on(stretch, reach)

    def _fetch(self, stretch: Stretch, buffer: memoryview) -> bool:
        """Bring one stretch, with as many tries as it takes; ``False``: the others have to, without this connection."""
        partial, tries = stretch.partial, 0
        while (gap := partial.missing(stretch.start, stretch.stop)) is not None:
            came, answered, reach = self.came, False, self._reach(stretch, gap[1])
            try:
                stream = self._source.open(partial.file, gap[0], reach)
                answered = True
                self._read(stream, stretch, (*gap, reach), buffer)
            except SourceError as error:
                self._stop.check()
                tries = 0 if self.came > came else tries + 1
                if error.permanent or isinstance(error, ChangedError) or not self._may_try_again(answered=answered):
                    raise
                if not resumable(partial):
                    partial.forget()
                pause_s = max(error.after_s, self._manner.pauses.delay(max(0, tries - 1)))
                if self._steps_back(stretch, pause_s):
                    return False
                self._stop.pause(pause_s)
        return True

    def _may_try_again(self, *, answered: bool) -> bool:
        with self._lock:
            others_bring = self._running > 1 and self.came > self._came_before
            if answered or not others_bring:  # else the source bears no more connections, and works
                self._vain += 1
            self._came_before = self.came
            return self._vain <= self._manner.retries * self._running

    def _steps_back(self, stretch: Stretch, pause_s: float) -> bool:
        """Leave the stretch to the other connections, if there are some."""
        with self._lock:
            if self._running == 1:
                return False
            self._running -= 1
            self._work.give_back(stretch)
            self._patience = Instant(time.monotonic_ns() + int(pause_s * SECOND))
            return True

    def _read(self, stream: Stream, stretch: Stretch, bounds: tuple[int, int, int], buffer: memoryview) -> None:
        """Read ``bounds``: from where, up to where, and up to where it was asked if the next stretch is free."""
        partial, (at, stop, reach) = stretch.partial, bounds
        self._stop.waking(stream.close)
        try:
            crc = 0
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
                    if partial.file.checksum is not None:  # the calling thread has more to do than this one
                        partial.begin_writing()
                delay = self._manner.bucket.take(count)
                if delay > 0:
                    self._stop.pause(delay)
                if at == stop < reach and self._goes_on(stretch, reach):
                    stop = stretch.stop
        finally:
            self._stop.not_waking(stream.close)
            stream.close()


def _digest(file: RemoteFile) -> Digest | None:
    return digest_for(file.checksum, file.size) if file.checksum is not None else None
