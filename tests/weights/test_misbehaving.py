"""Sources that misbehave: each fetch ends in a copy that is right or in a sentence, never in a mixture or a hang."""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from swapd.core.events import FetchFailed, WeightsFetched
from swapd.core.ids import seconds
from swapd.core.reasons import FetchFailure
from swapd.weights import Weights, flight
from swapd.weights.facts import Removed
from swapd.weights.sources.base import SourceError
from swapd.weights.sources.http import HttpSource, patience_s
from swapd.weights.sources.local import LocalSource, LocalStream
from tests.weights.caches import MIB, M, noise, running

CONTENT = noise(2 * MIB + 77, 8)
SIZE = len(CONTENT)
Script = Callable[[tuple[int, int], asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    """Run a server that reads a question and lets the script write; return its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = (await reader.readuntil(b"\r\n\r\n")).decode()
            told = re.search(r"Range: bytes=(\d+)-(\d+)", question)
            with contextlib.suppress(asyncio.CancelledError):  # the test is over
                await script((int(told[1]), int(told[2]) + 1) if told else (0, SIZE), writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def head(status: str, **headers: object) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


def part(start: int, stop: int, **headers: object) -> bytes:
    """Return the head of an honest answer to a question for a range."""
    told = {"ETag": '"one"', "Content_Length": stop - start, "Content_Range": f"bytes {start}-{stop - 1}/{SIZE}"}
    return head("206 Partial Content", **{**told, **headers})


async def fetched(tmp_path: Path, url: str, **settings: Any) -> tuple[FetchFailure, str] | bytes:
    """Fetch; return what went wrong, or the content."""
    quick = {"retries": 1, "connections": 1, "source_timeout": seconds(0.5)}
    async with running(tmp_path / "cache", {M: Weights(f"{url}/m")}, **{**quick, **settings}) as run:
        answer = await run.fetch()
        if isinstance(answer, FetchFailed):
            assert run.cached == {}
            return answer.failure, answer.detail
        path = run.cache.path(M)
        assert path is not None
        return path.read_bytes()


async def assert_fails(tmp_path: Path, script: Script, failure: FetchFailure, why: str, **settings: Any) -> None:
    async with scripted(script) as url:
        answer = await fetched(tmp_path, url, **settings)
        assert isinstance(answer, tuple)
        assert answer[0] == failure
        assert why in answer[1]


async def test_an_answer_that_was_compressed_unasked_is_refused(tmp_path: Path) -> None:
    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        writer.write(part(*asked, Content_Encoding="gzip"))

    await assert_fails(tmp_path, script, FetchFailure.REFUSED, "answered in the encoding gzip, unasked")


async def test_an_answer_that_ends_before_its_length_is_broken_off(tmp_path: Path) -> None:
    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        writer.write(part(*asked) + CONTENT[asked[0] : asked[1] - 1])

    await assert_fails(tmp_path, script, FetchFailure.UNREACHABLE, f"broke off m at byte {SIZE - 1} of {SIZE}")


async def test_answers_shorter_than_asked_for_are_put_together(tmp_path: Path) -> None:
    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        start, stop = asked[0], min(asked[1], asked[0] + MIB + 9)
        writer.write(part(start, stop) + CONTENT[start:stop])

    async with scripted(script) as url:
        assert await fetched(tmp_path, url) == CONTENT


async def test_answers_longer_than_told_are_cut(tmp_path: Path) -> None:
    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        writer.write(part(*asked) + CONTENT[slice(*asked)] + b"and more" * 1000)

    async with scripted(script) as url:
        assert await fetched(tmp_path, url) == CONTENT


async def test_ranges_in_pieces_of_unknown_length_are_taken(tmp_path: Path) -> None:
    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        told = f"bytes {asked[0]}-{asked[1] - 1}/{SIZE}"
        writer.write(head("206 Partial Content", ETag='"one"', Content_Range=told, Transfer_Encoding="chunked"))
        for at in range(*asked, 100_000):
            piece = CONTENT[at : min(at + 100_000, asked[1])]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")

    async with scripted(script) as url:
        assert await fetched(tmp_path, url) == CONTENT


async def test_the_whole_file_instead_of_a_range_is_not_taken_for_the_range(tmp_path: Path) -> None:
    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        if asked[1] - asked[0] == 1:
            writer.write(part(*asked) + CONTENT[slice(*asked)])
        else:
            writer.write(head("200 OK", ETag='"one"', Content_Length=SIZE) + CONTENT)

    await assert_fails(tmp_path, script, FetchFailure.UNREACHABLE, "answered with the whole file instead of a range")


async def test_a_source_that_is_another_one_at_every_question_is_given_up(tmp_path: Path) -> None:
    asked_before: list[int] = []

    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        asked_before.append(asked[0])
        writer.write(part(*asked, ETag=f'"{len(asked_before)}"') + CONTENT[slice(*asked)])

    await assert_fails(tmp_path, script, FetchFailure.UNREACHABLE, "has changed while it was fetched")


async def test_redirects_in_a_circle_and_to_nowhere_end(tmp_path: Path) -> None:
    async def circle(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        writer.write(head("302 Found", Location="/m"))

    async def nowhere(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        writer.write(head("302 Found", Location="http://[nowhere/m"))

    await assert_fails(tmp_path, circle, FetchFailure.REFUSED, "infinite loop")
    await assert_fails(tmp_path, nowhere, FetchFailure.UNREACHABLE, "it redirects to no address")


async def test_a_source_that_answers_byte_by_byte_has_broken_off(tmp_path: Path) -> None:
    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        writer.write(part(*asked))
        for at in range(*asked):
            writer.write(CONTENT[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0.02)

    await assert_fails(tmp_path, script, FetchFailure.UNREACHABLE, "bytes in ", retries=0)


async def test_a_source_that_falls_silent_in_the_middle_of_its_head_cannot_be_reached() -> None:
    silent = asyncio.Event()

    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 206 Partial Content\r\nX-More: ")
        await silent.wait()

    async with scripted(script) as url:
        with pytest.raises(SourceError, match="timed out") as caught:
            await asyncio.to_thread(HttpSource(f"{url}/m", timeout_s=0.1).list)
        assert not caught.value.permanent
        silent.set()


async def test_a_source_whose_head_comes_byte_by_byte_cannot_be_reached() -> None:
    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        for letter in b"HTTP/1.1 206 Partial Content\r\n" + b"X-More: and more\r\n" * 1000:
            writer.write(bytes([letter]))
            await writer.drain()
            await asyncio.sleep(0.02)

    async with scripted(script) as url:
        with pytest.raises(SourceError, match=r"in the middle of its head|timed out|reset by peer") as caught:
            await asyncio.to_thread(HttpSource(f"{url}/m", timeout_s=0.5).list)
        assert not caught.value.permanent


async def test_a_head_that_is_cut_is_no_answer(tmp_path: Path) -> None:
    cuts: list[int] = []

    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        whole = part(*asked) + CONTENT[slice(*asked)]
        cuts.append(len(cuts))
        writer.write(whole[: -(asked[1] - asked[0]) - 40] if cuts[-1] in (0, 2) else whole)

    async with scripted(script) as url:
        assert await fetched(tmp_path, url) == CONTENT
    assert len(cuts) == 5, "the first two questions were asked once more"


async def test_a_source_that_never_says_what_it_has_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight, "_LISTING_TIMEOUTS", 0)
    (tmp_path / "m").touch()
    assert await fetched(tmp_path, f"file://{tmp_path}", retries=0) == (
        FetchFailure.UNREACHABLE,
        f"the weights of m: file://{tmp_path}/m takes too long to say what it has",
    )


async def test_a_busy_source_is_left_alone_for_as_long_as_it_says(tmp_path: Path) -> None:
    busy = [
        0,
        0,
    ]  # answers to the question for the version, which is asked at the end again, and to that for the content
    loop = asyncio.get_running_loop()

    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        question = 0 if asked[1] - asked[0] == 1 else 1
        busy[question] += 1
        if busy[question] == 1:
            writer.write(head("429 Too Many Requests" if question else "503 Unavailable", Retry_After=1))
        else:
            writer.write(part(*asked) + CONTENT[slice(*asked)])

    async with scripted(script) as url:
        began = loop.time()
        assert await fetched(tmp_path, url) == CONTENT
        assert (busy, loop.time() - began > 2) == ([3, 2], True)


@pytest.mark.parametrize(
    ("told", "date", "expected"),
    [
        (None, None, 0),
        ("7", None, 7),
        ("99999", None, 60),
        ("-5", None, 0),
        ("soon", None, 0),
        ("9" * 5000, None, 0),
        ("Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 31 Dec 1999 23:59:49 GMT", 10),
        ("Fri, 31 Dec 1999 23:59:59 GMT", "Sat, 01 Jan 2000 23:59:49 GMT", 0),
        ("Fri, 31 Dec 1999 23:59:59 GMT", None, 0),
    ],
)
def test_how_long_a_busy_source_is_left_alone(told: str | None, date: str | None, expected: float) -> None:
    assert patience_s(told, date) == expected


@pytest.mark.parametrize(
    ("size", "failure", "why"),
    [
        ("999999999999999999", FetchFailure.TOO_LARGE, "the cache never has more than"),
        ("9" * 5000, FetchFailure.REFUSED, "does not say how large"),
        ("-1", FetchFailure.REFUSED, "does not say how large"),
        ("*", FetchFailure.REFUSED, "does not say how large"),
    ],
)
async def test_sizes_that_cannot_be_are_refused_before_anything_is_taken(
    tmp_path: Path, size: str, failure: FetchFailure, why: str
) -> None:
    async def script(asked: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        writer.write(head("206 Partial Content", ETag='"one"', Content_Range=f"bytes 0-0/{size}") + b"x")

    await assert_fails(tmp_path, script, failure, why)


async def test_files_of_two_versions_are_not_mixed_where_a_source_has_several(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for name in ("a", "b"):
        (store / name).write_bytes(noise(MIB, 1))
    real, changes = LocalSource.open, ["b", "a"]

    def opened(self: LocalSource, file: Any, start: int, stop: int) -> Any:
        if file.name == "b" and changes:  # both are new, and a was read before
            for name in changes:
                (store / name).write_bytes(noise(MIB, 2))
                os.utime(store / name, ns=(1, 1))
            changes.clear()
        return real(self, file, start, stop)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalSource, "open", opened)
        async with running(tmp_path / "cache", {M: Weights(f"file://{store}")}, connections=1) as run:
            assert isinstance(await run.fetch(), WeightsFetched)
            path = run.cache.path(M)
            assert path is not None
            assert {(path / name).read_bytes() for name in ("a", "b")} == {noise(MIB, 2)}


async def test_a_file_that_was_fetched_already_and_then_changes_makes_the_fetch_begin_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for name in ("a", "b"):
        (store / name).write_bytes(noise(MIB, 1))
    real, left = LocalSource.open, ["a"]

    def opened(self: LocalSource, file: Any, start: int, stop: int) -> Any:
        if file.name == "b" and left:
            left.clear()
            (store / "a").write_bytes(noise(MIB, 2))
            os.utime(store / "a", ns=(1, 1))
        return real(self, file, start, stop)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalSource, "open", opened)
        async with running(tmp_path / "cache", {M: Weights(f"file://{store}")}, connections=1) as run:
            answer = await run.fetch()
            assert isinstance(answer, WeightsFetched)
            path = run.cache.path(M)
            assert path is not None
            assert (path / "a").read_bytes() == noise(MIB, 2)
            assert answer.fetched == 3 * MIB, "what has not changed is not fetched again"


async def test_a_file_that_is_written_over_while_it_is_read_makes_the_fetch_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, writes = tmp_path / "m", [noise(3 * MIB, 2)]
    file.write_bytes(noise(3 * MIB, 1))
    real = LocalStream.readinto

    def readinto(self: LocalStream, buffer: memoryview) -> int:
        count = real(self, buffer)
        if writes:
            file.write_bytes(writes.pop())
            os.utime(file, ns=(1, 1))
        return count

    monkeypatch.setattr(LocalStream, "readinto", readinto)
    async with running(tmp_path / "cache", {M: Weights(f"file://{file}")}, connections=1) as run:
        assert isinstance(await run.fetch(), WeightsFetched)
        path = run.cache.path(M)
        assert path is not None
        assert path.read_bytes() == noise(3 * MIB, 2)
        await run.settled()


async def test_what_came_while_a_version_was_replaced_is_not_used_when_it_comes_back(tmp_path: Path) -> None:
    versions = {'"one"': noise(3 * MIB, 1), '"two"': noise(3 * MIB, 2)}
    now, asked = ['"one"'], 0

    async def script(wanted: tuple[int, int], writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += wanted[1] - wanted[0] > 1
        tag = now[0]
        told = {"Content_Range": f"bytes {wanted[0]}-{wanted[1] - 1}/{3 * MIB}", "ETag": tag}
        writer.write(part(*wanted, **told))
        if asked == 1:  # written over while it is sent
            writer.write(versions[tag][:MIB])
            now[0] = '"two"'
            writer.write(versions['"two"'][MIB:])
        else:
            writer.write(versions[tag][slice(*wanted)])

    async with scripted(script) as url, running(tmp_path / "cache", {M: Weights(f"{url}/m")}) as run:
        for tag in ('"two"', '"one"'):
            now[0] = now[0] if asked == 0 else tag
            assert isinstance(await run.fetch(), WeightsFetched)
            path = run.cache.path(M)
            assert path is not None
            assert path.read_bytes() == versions[tag]
            run.cache.remove(M)
            await run.until(Removed)


async def test_a_source_whose_library_raises_something_else_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(self: LocalSource) -> Any:
        raise LookupError("what is this")

    monkeypatch.setattr(LocalSource, "list", odd)
    assert await fetched(tmp_path, f"file://{tmp_path}") == (
        FetchFailure.UNREACHABLE,
        "the weights of m: LookupError: what is this",
    )
