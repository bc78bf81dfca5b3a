"""What sources ask for and what they make of the answers; HTTP against a server that speaks it."""

import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from swapd.core.events import FetchFailed, WeightsFetched
from swapd.core.ids import Bytes
from swapd.core.reasons import FetchFailure
from swapd.weights import Weights
from swapd.weights.inventory import Layout
from swapd.weights.sources import connections
from swapd.weights.sources.base import ChangedError, RemoteFile, SourceError, select
from swapd.weights.sources.http import HttpSource, shown
from swapd.weights.sources.registry import source_for
from tests.weights.caches import MIB, M, noise, running
from tests.weights.servers import Blob, Server, serving


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        made.blobs["/m"] = Blob(noise(MIB))
        yield made


async def test_a_read_that_waits_for_a_silent_source_ends_when_it_is_closed(server: Server) -> None:
    source = HttpSource(f"{server.url}/m")
    file = (await asyncio.to_thread(source.list)).files[0]
    server.gate = asyncio.Event()
    stream = await asyncio.to_thread(source.open, file, 0, 100)
    reading = asyncio.ensure_future(asyncio.to_thread(stream.readinto, memoryview(bytearray(100))))
    await asyncio.sleep(0)
    await asyncio.to_thread(stream.close)
    with contextlib.suppress(SourceError):
        assert await asyncio.wait_for(reading, 60) == 0
    server.gate.set()


async def test_another_version_of_the_file_is_not_taken_for_the_one_that_was_listed(server: Server) -> None:
    source = HttpSource(f"{server.url}/m")
    file = (await asyncio.to_thread(source.list)).files[0]
    server.blobs["/m"] = Blob(noise(MIB, 2))
    with pytest.raises(ChangedError):
        await asyncio.to_thread(source.open, file, 100, 200)


async def test_a_host_that_does_not_exist_is_an_error_that_may_pass() -> None:
    with pytest.raises(SourceError, match="cannot be reached") as caught:
        await asyncio.to_thread(HttpSource("http://127.0.0.1:1/m").list)
    assert not caught.value.permanent


HOSTILE = [
    *("../evil", "/etc/passwd", "a/../../b", "..", ".swapd.json", ".swapd/x", "nul\0", "", ".", "\ud800", "new\nline"),
    *("x" * 256, "/".join(["deep"] * 300), "\x1b[2J"),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_cannot_be_kept_are_refused(name: str) -> None:
    with pytest.raises(SourceError, match="cannot be kept") as caught:
        select([RemoteFile(name, Bytes(1), "w", "t")], (), source="s")
    assert caught.value.permanent
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b/c", "x", "a/b"), ("a/b", "a//b"), ("a", "./a")])
def test_two_files_at_one_place_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(SourceError, match="two files at") as caught:
        select([RemoteFile(name, Bytes(1), "w", "t") for name in names], (), source="s")
    assert caught.value.permanent


@pytest.mark.parametrize("size", [-1, 10**18 + 1])
def test_sizes_that_no_file_has_are_refused(size: int) -> None:
    with pytest.raises(SourceError, match="says that 'm' has") as caught:
        select([RemoteFile("m", Bytes(size), "w", "t")], (), source="s")
    assert caught.value.permanent


def test_a_copy_stays_in_the_folder_of_the_cache_whatever_a_source_calls_its_version(tmp_path: Path) -> None:
    for revision in ("../../../x", "refs/pr/1", "/etc", "..", "\0"):
        place = Layout(tmp_path).place(Weights("hf://lab/model@../../up"), revision)
        assert (place.parent, place.name.startswith("lab-model-")) == (tmp_path, True)


def test_patterns_choose_files() -> None:
    names = ["config.json", "model-Q4.gguf", "model-Q8.gguf", "sub/model-Q4.gguf"]
    files = [RemoteFile(name, 1, name, "t") for name in names]  # type: ignore[arg-type]
    assert [file.name for file in select(files, ("*Q4.gguf", "*.json"), source="s")] == [names[0], names[1], names[3]]
    with pytest.raises(SourceError, match="no file that matches"):
        select(files, ("*.bin",), source="s")


def test_what_may_be_secret_is_not_shown() -> None:
    assert shown("https://user:word@host:8/path?signature=x#y") == "https://host:8/path"
    assert shown("hf://model@main") == "hf://model@main"


@pytest.mark.parametrize("url", ["m.gguf", "ftp://host/m", "hf://", "hf://a/b/c", "file://host/path"])
def test_urls_of_no_source_are_refused(url: str) -> None:
    with pytest.raises(SourceError) as caught:
        source_for(url, timeout_s=1)
    assert caught.value.permanent


def test_a_source_whose_driver_is_not_installed_says_what_to_install() -> None:
    with pytest.raises(SourceError, match=r"swapd\[s3\]"):
        source_for("az://container/key", timeout_s=1)


async def test_a_local_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"one")
    source = source_for(f"file://{path}", timeout_s=1)
    file = source.list().files[0]
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    with pytest.raises(ChangedError):
        source.open(file, 0, 3)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Make a certificate for this machine, signed by itself, and its key beside it."""
    path = tmp_path / "tls.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, "-keyout", path.with_suffix(".key"), "-out", path], check=True, capture_output=True)
    return path


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
async def test_https_is_fetched_from_whom_this_machine_trusts_and_from_nobody_else(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    content = noise(3 * MIB + 5)
    async with serving(tls=context) as made:
        made.blobs["/m"] = Blob(content)
        made.cut_after = [MIB]
        async with running(tmp_path / "cache", {M: Weights(f"{made.url}/m")}, retries=1) as run:
            connections._tls.cache_clear()
            answer = await run.fetch()
            assert isinstance(answer, FetchFailed)
            assert (answer.failure, "certificate verify failed" in answer.detail) == (FetchFailure.UNREACHABLE, True)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            connections._tls.cache_clear()
            assert isinstance(await run.fetch(), WeightsFetched)
            path = run.cache.path(M)
            assert path is not None
            assert path.read_bytes() == content
        source = HttpSource(f"{made.url}/m")
        file = (await asyncio.to_thread(source.list)).files[0]
        made.gate = asyncio.Event()
        stream = await asyncio.to_thread(source.open, file, 0, 100)
        reading = asyncio.ensure_future(asyncio.to_thread(stream.readinto, memoryview(bytearray(100))))
        await asyncio.sleep(0)
        await asyncio.to_thread(stream.close)
        with contextlib.suppress(SourceError):
            assert await asyncio.wait_for(reading, 60) == 0
        made.gate.set()
    connections._tls.cache_clear()


@pytest.mark.parametrize(("status", "kind"), [(301, "m"), (302, "m"), (307, "m"), (308, "m")])
async def test_redirects_inside_one_host_keep_the_credentials(server: Server, status: int, kind: str) -> None:
    server.redirects["/old"] = (status, f"{server.url}/{kind}")
    url = server.url.replace("http://", "http://user:word@") + "/old"
    listing = await asyncio.to_thread(HttpSource(url).list)
    assert listing.files[0].size == MIB
    assert [told.get("Authorization") for told in server.headers] == ["Basic dXNlcjp3b3Jk"] * 2


async def test_a_redirect_to_something_else_than_http_is_not_followed(server: Server) -> None:
    server.redirects["/old"] = (302, "ftp://127.0.0.1/m")
    with pytest.raises(SourceError, match="answered 302"):
        await asyncio.to_thread(HttpSource(f"{server.url}/old").list)


async def test_an_answer_with_another_range_than_was_asked_for_is_not_taken(server: Server) -> None:
    source = HttpSource(f"{server.url}/m")
    file = (await asyncio.to_thread(source.list)).files[0]
    server.shift = 7
    with pytest.raises(SourceError, match="another range"):
        await asyncio.to_thread(source.open, file, 100, 200)


async def test_a_server_that_says_another_size_or_forgets_ranges_has_changed(server: Server) -> None:
    source = HttpSource(f"{server.url}/m")
    file = (await asyncio.to_thread(source.list)).files[0]
    with pytest.raises(ChangedError):
        await asyncio.to_thread(source.open, replace(file, size=file.size - 1), 100, 200)
    server.blobs["/m"].ranges = False
    with pytest.raises(ChangedError):
        await asyncio.to_thread(source.open, file, 100, 200)
    with pytest.raises(ChangedError):
        await asyncio.to_thread(source.open, replace(file, ranges=False, size=file.size - 1), 0, 100)


async def test_a_redirect_to_another_host_takes_no_credentials_with_it(server: Server) -> None:
    server.redirects["/old"] = (302, server.url.replace("127.0.0.1", "localhost") + "/m")
    url = server.url.replace("http://", "http://user:word@") + "/old"
    await asyncio.to_thread(HttpSource(url).list)
    assert [told.get("Authorization") for told in server.headers] == ["Basic dXNlcjp3b3Jk", None]
