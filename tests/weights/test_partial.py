"""A file on its way: what counts after whatever kind of crash."""

import shutil
import threading
import zlib
from pathlib import Path

import pytest

from swapd.aio.threads import Stop, StoppedError
from swapd.core.ids import Bytes
from swapd.weights.partial import Partial, discard
from swapd.weights.sources.base import RemoteFile
from tests.weights.caches import MIB, noise

CONTENT = noise(3 * MIB + 1000)
FILE = RemoteFile("m", Bytes(len(CONTENT)), "somewhere", "v1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "partial"


def opened(path: Path, file: RemoteFile = FILE) -> Partial:
    return Partial.open(path, file, Stop())


def add(partial: Partial, block: int) -> None:
    data = CONTENT[block * MIB : (block + 1) * MIB]
    partial.write(memoryview(data), block * MIB)
    partial.add(block * MIB, zlib.crc32(data))


def with_blocks(path: Path, *blocks: int) -> None:
    partial = opened(path)
    for block in blocks:
        add(partial, block)
    partial.close()


def test_blocks_that_were_added_are_there_after_a_restart(path: Path) -> None:
    with_blocks(path, 0, 3)
    partial = opened(path)
    assert (partial.present, partial.here()) == (MIB + 1000, MIB)
    assert partial.missing(0, FILE.size) == (MIB, 3 * MIB)
    add(partial, 1)
    add(partial, 2)
    assert (partial.missing(0, FILE.size), partial.present) == (None, FILE.size)
    assert partial.data_path.read_bytes() == CONTENT
    assert partial.crcs == tuple(zlib.crc32(CONTENT[at : at + MIB]) for at in range(0, FILE.size, MIB))
    partial.close()


def test_a_block_that_never_reached_the_disk_does_not_count(path: Path) -> None:
    with_blocks(path, 0, 1)
    with (path / "data").open("r+b") as file:
        file.seek(MIB)
        file.write(bytes(MIB))  # as after a power cut: the length is there, the bytes are not
    partial = opened(path)
    assert partial.missing(0, FILE.size) == (MIB, FILE.size)
    partial.close()


def test_a_block_behind_the_end_of_the_data_does_not_count_whatever_the_journal_says(path: Path) -> None:
    with_blocks(path, 0)
    with (path / "journal").open("ab") as journal:
        journal.write(b"1 00000000\n3 00000000\n")  # the checksum of nothing
    partial = opened(path)
    assert (partial.present, partial.missing(0, FILE.size)) == (MIB, (MIB, FILE.size))
    partial.close()


@pytest.mark.parametrize("cut", range(1, 30, 7))
def test_a_journal_that_was_cut_off_anywhere_counts_up_to_there(path: Path, cut: int) -> None:
    with_blocks(path, 0, 1)
    journal = path / "journal"
    journal.write_bytes(journal.read_bytes()[:-cut])
    partial = opened(path)
    assert partial.present in (0, MIB)
    partial.close()


@pytest.mark.parametrize(
    "other", [RemoteFile("m", FILE.size, "somewhere", "v2"), RemoteFile("m", FILE.size, "somewhere", "")]
)
def test_nothing_is_used_of_another_version_or_of_one_that_cannot_be_told(path: Path, other: RemoteFile) -> None:
    partial = opened(path, other)
    add(partial, 0)
    partial.close()
    partial = opened(path, FILE)
    assert partial.present == 0
    partial.close()
    with_blocks(path, 0)
    partial = opened(path, other)
    assert partial.present == 0
    partial.close()


def test_a_journal_that_speaks_nonsense_is_not_believed(path: Path) -> None:
    with_blocks(path, 0)
    with (path / "journal").open("ab") as journal:
        journal.write(b"99 00000000\nx y\n")
    partial = opened(path)
    assert partial.present == MIB
    partial.close()


def test_forgotten_is_forgotten(path: Path) -> None:
    partial = opened(path)
    add(partial, 0)
    partial.forget()
    add(partial, 1)
    partial.close()
    partial = opened(path)
    assert (partial.present, partial.missing(0, FILE.size)) == (MIB, (0, MIB))
    partial.close()


def test_the_next_one_waits_until_the_one_before_has_ended(path: Path) -> None:
    first, second = opened(path), list[Partial]()
    waiting = threading.Thread(target=lambda: second.append(opened(path)))
    waiting.start()
    add(first, 0)
    assert (second, discard(path)) == ([], False)
    first.close()
    waiting.join(30)
    assert second[0].present == MIB
    second[0].close()
    assert discard(path)
    assert not path.exists()


def test_waiting_for_the_one_before_can_be_stopped(path: Path) -> None:
    first, stop = opened(path), Stop()
    stop()
    with pytest.raises(StoppedError):
        Partial.open(path, FILE, stop)
    first.close()


def test_a_partial_that_was_removed_while_it_was_waited_for_is_begun_anew(path: Path) -> None:
    first = opened(path)
    add(first, 0)
    found: list[Partial] = []
    waiting = threading.Thread(target=lambda: found.append(opened(path)))
    waiting.start()
    shutil.rmtree(path)
    first.close()
    waiting.join(30)
    assert (found[0].present, (path / "journal").exists()) == (0, True)
    found[0].close()


def test_a_partial_that_is_removed_while_its_folder_is_made_is_begun_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, removed = Path.mkdir, [path]

    def mkdir(self: Path, *args: int, **kwargs: bool) -> None:
        if self == path and removed:
            raise FileExistsError(removed.pop())  # it was there, and is gone when the library looks
        real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    partial = opened(path)
    assert partial.present == 0
    partial.close()


def test_what_is_no_partial_at_all_is_removed_too(path: Path) -> None:
    path.mkdir()
    (path / "data").write_bytes(b"left by hand")
    assert discard(path)
    assert not path.exists()


def test_the_disk_begins_with_what_has_come_wherever_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr("swapd.weights.partial.begin_writing", begun.append)
    partial = opened(tmp_path / "large", RemoteFile("large", Bytes(64 * MIB), "somewhere", "v1"))
    for block in range(20, 27):
        partial.add(block * MIB, 0)
        partial.begin_writing()
    assert begun == []
    partial.add(40 * MIB, 0)
    assert partial.wait_beyond(0, threading.TIMEOUT_MAX) == 0  # nothing lies there: it is woken for the disk
    partial.begin_writing()
    partial.begin_writing()
    assert len(begun) == 1
    partial.close()


def test_who_waits_is_woken_by_the_block_that_was_waited_for(path: Path) -> None:
    partial = opened(path)
    add(partial, 0)
    found: list[int] = []
    wait = partial.wait_beyond
    waiting = threading.Thread(target=lambda: found.append(wait(2 * MIB, threading.TIMEOUT_MAX)), daemon=True)
    waiting.start()
    for block in (1, 3, 2):
        add(partial, block)
    waiting.join(60)
    assert found == [FILE.size]
    partial.close()
