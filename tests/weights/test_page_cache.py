"""Reading into the page cache, and asking what is in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swapd.aio.threads import Stop
from swapd.weights.open_files import in_use
from swapd.weights.page_cache import Warming, available_memory, resident_bytes
from tests.weights.caches import MIB, noise

SIZE = 20 * MIB + 5


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(noise(SIZE))
    return path


def drop(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_the_kernel_says_what_is_there(file: Path) -> None:
    assert resident_bytes(file) == SIZE
    drop(file)
    if resident_bytes(file) == SIZE:
        pytest.skip("this file system lives in memory")
    assert resident_bytes(file) == 0
    with file.open("rb") as opened:
        os.preadv(opened.fileno(), [bytearray(MIB)], 4 * MIB)
    assert MIB <= resident_bytes(file) < SIZE


def test_an_empty_file_is_nowhere(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert resident_bytes(tmp_path / "empty") == 0


def test_all_is_read_once_and_not_again(file: Path) -> None:
    drop(file)
    cold = resident_bytes(file)
    first = Warming([file], readers=3, spare=0, stop=Stop()).run()
    assert (first.read + first.present, first.whole, resident_bytes(file)) == (SIZE, True, SIZE)
    assert first.read >= SIZE - cold - 8 * MIB
    again = Warming([file], readers=3, spare=0, stop=Stop()).run()
    assert (again.read, again.present, again.whole) == (0, SIZE, True)


def test_no_memory_is_taken_that_is_not_to_spare(file: Path) -> None:
    drop(file)
    if resident_bytes(file):
        pytest.skip("this file system lives in memory")
    left = [60 * MIB]

    def available() -> int:
        left[0] -= 10 * MIB
        return left[0]

    warmth = Warming([file], readers=1, spare=30 * MIB, stop=Stop(), available=available).run()
    assert (warmth.whole, warmth.read) == (False, 16 * MIB), "50 and 40 are enough for 8 above 30, 30 is not"


def test_what_is_in_memory_already_needs_no_more_of_it(file: Path) -> None:
    assert resident_bytes(file) == SIZE
    warmth = Warming([file], readers=1, spare=2**60, stop=Stop()).run()
    assert (warmth.read, warmth.present, warmth.whole) == (0, SIZE, True)


def test_what_the_kernel_leaves_out_of_an_announcement_is_read_nevertheless(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None)
    drop_by_other_means(file)
    if resident_bytes(file) == SIZE:
        pytest.skip("this file system lives in memory")
    warmth = Warming([file], readers=2, spare=0, stop=Stop()).run()
    assert (warmth.whole, resident_bytes(file)) == (True, SIZE)


def drop_by_other_means(path: Path) -> None:
    script = "import os,sys; f=os.open(sys.argv[1],os.O_RDWR); os.fsync(f); os.posix_fadvise(f,0,0,4)"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)


def test_a_file_of_which_the_kernel_does_not_tell_is_read_in_full(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    file.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda *_: False)
    warmth = Warming([file], readers=2, spare=0, stop=Stop()).run()
    assert (warmth.read, warmth.present, warmth.whole) == (SIZE, 0, True)


def test_a_file_that_has_become_shorter_makes_it_less_than_whole(file: Path) -> None:
    warming = Warming([file], readers=1, spare=0, stop=Stop(), available=lambda: 2**40)
    real = warming._next

    def shorten() -> object:
        os.truncate(file, 9 * MIB)
        return real()

    warming._next = shorten  # type: ignore[method-assign, assignment]
    warmth = warming.run()
    assert (warmth.read + warmth.present, warmth.whole) == (8 * MIB, False)


def test_it_can_be_stopped(file: Path) -> None:
    drop(file)
    if resident_bytes(file):
        pytest.skip("this file system lives in memory")
    stop = Stop()

    def available() -> int:
        stop()
        return 2**40

    warmth = Warming([file], readers=1, spare=0, stop=stop, available=available).run()
    assert (warmth.read, warmth.whole) == (0, False)


def test_a_file_that_is_gone_makes_it_less_than_whole(file: Path) -> None:
    gone = file.with_name("gone")
    warmth = Warming([gone, file], readers=2, spare=0, stop=Stop()).run()
    assert (warmth.whole, warmth.read + warmth.present) == (False, SIZE)


def test_available_memory_is_told_and_nothing_where_it_is_not(tmp_path: Path) -> None:
    assert available_memory() > 0
    assert available_memory(tmp_path / "none") == 0
    (tmp_path / "meminfo").write_text("MemTotal: 5 kB\n")
    assert available_memory(tmp_path / "meminfo") == 0


MAPS = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_a_file_that_was_mapped_and_closed_is_in_use(file: Path) -> None:
    status = file.stat()
    inodes = {(status.st_dev, status.st_ino)}
    assert not in_use(inodes, names={file.name})
    with subprocess.Popen(["python3", "-c", MAPS, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"mapped\n"
        assert in_use(inodes, names={file.name})
        assert not in_use({(status.st_dev, 0)}, names={file.name})
        engine.communicate(b"")
    assert not in_use(inodes, names={file.name})
