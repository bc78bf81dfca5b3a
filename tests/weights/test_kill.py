"""A fetch that is killed, again and again: what has come is kept, and nothing is complete that is not."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swapd.weights import Weights
from swapd.weights.copies import check_file, read_copy
from tests.weights.caches import MIB, M, noise, running
from tests.weights.servers import Blob, Server, serving

ROOT = Path(__file__).parents[2]
CONTENT = noise(20 * MIB + 777, 5)
KILLS = 12
DEADLINE_S = 60.0
#: blocks that connections were in the middle of
LOSS = 2 * MIB


def copies(path: Path) -> list[Path]:
    return [folder for folder in path.iterdir() if folder.name != ".swapd"] if path.exists() else []


def assert_whole_or_none(path: Path) -> bool:
    """Whatever stands at a copy's place is complete, marker and all; return whether one does."""
    for folder in copies(path):
        copy = read_copy(folder)
        assert copy is not None, "a folder without a marker at the place of a copy"
        assert copy.whole
        assert [check_file(folder, file) for file in copy.marker.files] == [""]
        assert (folder / "m.gguf").read_bytes() == CONTENT
    return bool(copies(path))


async def start(path: Path, url: str, *arguments: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "tests.weights.fetching", str(path), url, *arguments]
    return await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


async def test_a_fetch_killed_at_twelve_points_goes_on_each_time_and_fetches_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    async with serving() as server:
        server.blobs["/m.gguf"] = Blob(CONTENT)
        for kill in range(1, KILLS + 1):
            before, target = server.sent, len(CONTENT) * kill // (KILLS + 1)
            process = await start(path, f"{server.url}/m.gguf")
            await kill_when_there(process, path, target, server)
            assert not assert_whole_or_none(path)
            assert server.sent - before <= len(CONTENT) * 2 // KILLS + 8 * MIB, "it went on where it was"
        before = server.sent
        process = await start(path, f"{server.url}/m.gguf")
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
        assert process.returncode == 0, output.decode()
        assert assert_whole_or_none(path)
        assert server.sent <= len(CONTENT) + KILLS * (LOSS + 8 * MIB)
        asked = len(server.asked)
        again = await start(path, f"{server.url}/m.gguf")
        await asyncio.wait_for(again.communicate(), DEADLINE_S)
        assert (again.returncode, len(server.asked)) == (0, asked), "what is complete is not asked for again"


async def kill_when_there(process: asyncio.subprocess.Process, path: Path, target: int, server: Server) -> None:
    """Kill the process when so many bytes stand in its journal; the source lets no more than a little more pass."""
    done = asyncio.Event()

    def look() -> None:
        if journalled(path) >= target:
            server.gate = asyncio.Event()
            done.set()

    server.gate = None
    server.rate = 60 * MIB
    server.on_sent = look
    await asyncio.wait_for(done.wait(), DEADLINE_S)
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    server.on_sent = lambda: None
    server.gate = None


def journalled(path: Path) -> int:
    return sum((len(file.read_bytes().split(b"\n")) - 2) * MIB for file in path.glob(".swapd/partial/*/journal"))


async def test_a_fetch_that_dies_at_any_step_leaves_nothing_half_that_looks_whole(tmp_path: Path) -> None:
    """Dies at its first step that touches the disk, then at its second, … until it lives."""
    path = tmp_path / "cache"
    async with serving() as server:
        server.blobs["/m.gguf"] = Blob(CONTENT[: 3 * MIB])
        process = await start(path, f"{server.url}/m.gguf", "--forks")
        assert process.stdin is not None
        assert process.stdout is not None
        step, died = 0, 0
        while True:
            step += 1
            process.stdin.write(b"%d\n" % step)
            line = b""
            async with asyncio.timeout(DEADLINE_S):
                while not (line := await process.stdout.readline()).startswith(b"ended"):
                    assert line, "the process that forks has ended"
            for folder in copies(path):
                copy = read_copy(folder)
                assert copy is not None
                assert copy.whole
                assert (folder / "m.gguf").read_bytes() == CONTENT[: 3 * MIB]
            if line == b"ended 0\n":
                break
            assert line == b"ended -9\n"
            died += 1
        process.stdin.close()
        await process.wait()
        assert died > 10
        assert copies(path)


async def test_a_fetch_from_scratch_that_dies_at_each_step_is_finished_by_the_next(tmp_path: Path) -> None:
    async with serving() as server:
        server.blobs["/m.gguf"] = Blob(CONTENT[: 2 * MIB])
        path = tmp_path / "cache"
        process = await start(path, f"{server.url}/m.gguf", "--forks")
        assert process.stdin is not None
        assert process.stdout is not None
        for step in (3, 6, 9, 11, 13, 15, 17, 19, 21, 10**9):
            for number in (step, 10**9):
                process.stdin.write(b"%d\n" % number)
                async with asyncio.timeout(DEADLINE_S):
                    while not (line := await process.stdout.readline()).startswith(b"ended"):
                        assert line, "the process that forks has ended"
            assert line == b"ended 0\n"
            (copy,) = copies(path)
            assert (copy / "m.gguf").read_bytes() == CONTENT[: 2 * MIB]
            for file in copy.iterdir():
                os.unlink(file)  # noqa: PTH108 - quickly
            copy.rmdir()
        process.stdin.close()
        await process.wait()


FILES = {"common": noise(MIB, 6), "m": noise(2 * MIB, 7), "n": noise(2 * MIB, 8)}


async def prepared(job: str, path: Path, source: Path) -> None:
    """Put a cache there as the job expects it, and the files that it fetches."""
    source.mkdir()  # noqa: ASYNC240 - quick
    for name, content in FILES.items():
        (source / name).write_bytes(content)
    if job == "share":
        return
    async with running(path, {M: Weights(f"file://{source}/m")}) as run:
        await run.fetch()
        await run.settled()
        if job == "verify":
            file = run.cache.path(M)
            assert file is not None
            status = file.stat()
            file.write_bytes(b"?" + FILES["m"][1:])
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def assert_honest(path: Path) -> None:
    """Whatever stands at a copy's place has its marker and files of its size."""
    for folder in copies(path):
        copy = read_copy(folder)
        assert copy is not None, "a folder without a marker at the place of a copy"
        assert copy.whole


def assert_right(path: Path) -> None:
    """Compare what would be used with its source; a damaged copy may still wait for its removal."""
    found = [copy for folder in copies(path) if (copy := read_copy(folder)) is not None and not copy.condemned]
    newest = {copy.marker.weights: copy for copy in sorted(found, key=lambda copy: copy.marker.files[0].mtime_ns)}
    assert newest
    for copy in newest.values():
        assert {file.name: (copy.path / file.name).read_bytes() for file in copy.marker.files}.items() <= FILES.items()


async def die_at_every(job: str, tmp_path: Path, stride: int) -> int:
    """Die at each step (or every so many) of a job that begins from the same state; live after each; count."""
    source, before, path = tmp_path / "source", tmp_path / "before", tmp_path / "cache"
    await prepared(job, before, source)
    process = await start(path, f"file://{source}", "--forks", "--job", job)
    assert process.stdin is not None
    assert process.stdout is not None

    async def ended(step: int) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"%d\n" % step)
        async with asyncio.timeout(DEADLINE_S):
            while not (line := await process.stdout.readline()).startswith(b"ended"):
                assert line, "the process that forks has ended"
        return int(line.split()[1])

    step, died = 1, 0
    while True:
        shutil.rmtree(path, ignore_errors=True)
        if before.exists():
            shutil.copytree(before, path)
        code = await ended(step)
        assert_honest(path)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert await ended(10**9) == 0, f"what was left at step {step} could not be put right"
        assert_honest(path)
        assert_right(path)
        died += 1
        step += stride
    process.stdin.close()
    await process.wait()
    return died


JOBS = ["evict", "share", "verify"]


@pytest.mark.parametrize("job", JOBS)
async def test_whoever_dies_while_copies_leave_are_shared_or_looked_at_is_put_right_by_the_next(
    tmp_path: Path, job: str
) -> None:
    assert await die_at_every(job, tmp_path, 8) > 3


@pytest.mark.soak
@pytest.mark.parametrize("job", JOBS)
async def test_whoever_dies_at_any_step_of_that_is_put_right_by_the_next(tmp_path: Path, job: str) -> None:
    assert await die_at_every(job, tmp_path, 1) > 30


async def test_a_block_that_was_written_and_not_noted_is_fetched_again_and_one_that_was_noted_and_not_written_too(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cache"
    async with serving() as server:
        server.blobs["/m.gguf"] = Blob(CONTENT)
        process = await start(path, f"{server.url}/m.gguf")
        await kill_when_there(process, path, 10 * MIB, server)
        (journal,) = path.glob(".swapd/partial/*/journal")
        lines = journal.read_bytes().split(b"\n")
        journal.write_bytes(b"\n".join([*lines[:4], *lines[5:7], lines[7][:6]]))  # one unnoted, one half a line
        with journal.with_name("data").open("r+b") as data:
            data.seek(int(lines[1].split()[0]) * MIB + 500)
            data.write(b"never came to the disk")
        before, server.rate = server.sent, None
        process = await start(path, f"{server.url}/m.gguf")
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
        assert process.returncode == 0, output.decode()
        assert assert_whole_or_none(path)
        assert server.sent - before >= len(CONTENT) - 4 * MIB, "the blocks 2, 3, 5 and 6 of the journal counted alone"


async def test_half_a_marker_is_none(tmp_path: Path) -> None:
    source = tmp_path / "m"
    source.write_bytes(CONTENT)
    models = {M: Weights(f"file://{source}")}
    async with running(tmp_path / "cache", models) as run:
        await run.fetch()
        marker = run.cache.copies()[0].path / ".swapd.json"
    whole = marker.read_bytes()
    for length in range(0, len(whole), len(whole) // 7):
        marker.write_bytes(whole[:length])
        async with running(tmp_path / "cache", models) as run:
            assert run.cached == {}
    marker.write_bytes(whole)
    marker.with_name(".swapd.json.new").write_bytes(whole[:99])
    async with running(tmp_path / "cache", models) as run:
        assert run.cached == {M: len(CONTENT)}


@pytest.mark.soak
@pytest.mark.parametrize("number", range(200))
async def test_a_fetch_killed_at_any_moment(tmp_path: Path, number: int) -> None:
    path = tmp_path / "cache"
    async with serving() as server:
        server.blobs["/m.gguf"] = Blob(CONTENT)
        server.rate = 40 * MIB
        for _ in range(3):
            process = await start(path, f"{server.url}/m.gguf")
            await asyncio.sleep(0.3 + number / 200)
            if process.returncode is None:
                process.kill()
            await process.communicate()
            assert_whole_or_none(path)
