"""What sources ask for and what they make of the answers; HTTP, the hub and S3 against servers that speak them."""

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from swapd.core.ids import Bytes
from swapd.core.reasons import FetchFailure
from swapd.weights import Weights
from swapd.weights.facts import Fetched, FetchFailed
from swapd.weights.inventory import Layout
from swapd.weights.sources import connections
from swapd.weights.sources.base import ChangedError, RemoteFile, SourceError, select
from swapd.weights.sources.http import HttpSource, shown
from swapd.weights.sources.registry import source_for
from tests.weights.caches import MIB, M, noise, running
from tests.weights.servers import Blob, Hub, Server, serving

ROOT = Path(__file__).parents[2]


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
        assert await asyncio.wait_for(reading, 30) == 0
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
            assert isinstance(await run.fetch(), Fetched)
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
            assert await asyncio.wait_for(reading, 30) == 0
        made.gate.set()
    connections._tls.cache_clear()


# The hub: its address is read from the environment when its library is imported, so the fetch runs in a process.

FILES = {"config.json": b"{}", "model.safetensors": noise(3 * MIB), "sub/tokenizer.json": noise(1000, 2)}


async def test_a_repository_of_the_hub_is_fetched_with_our_token_and_verified(tmp_path: Path) -> None:
    async with serving(Hub(files=FILES, large=("model.safetensors",))) as hub:
        assert isinstance(hub, Hub)
        code, output = await fetch_from(hub, tmp_path, hub.token)
        assert (code, "Fetched" in output) == (0, True), output
        copy = next(path for path in (tmp_path / "cache").iterdir() if path.name != ".swapd")
        assert copy.name.startswith(f"lab-model-{'a' * 12}-")
        assert {name: (copy / name).read_bytes() for name in FILES} == FILES
        assert set(hub.authorized) == set(FILES), "large files were asked for at the hub, and came from elsewhere"
        marker = (copy / ".swapd.json").read_text()
        assert hashlib.sha256(FILES["model.safetensors"]).hexdigest() in marker


async def test_a_repository_that_is_not_ours_to_read_is_refused(tmp_path: Path) -> None:
    async with serving(Hub(files=FILES)) as hub:
        code, output = await fetch_from(hub, tmp_path, "hf_wrong")
        assert (code, "refused" in output, "the hub answered 401" in output) == (1, True, True), output


async def test_content_that_is_not_what_the_hub_promised_is_never_cached(tmp_path: Path) -> None:
    async with serving(Hub(files=dict(FILES), large=("model.safetensors",))) as hub:
        assert isinstance(hub, Hub)
        info = hub._info()
        hub._info = lambda: info  # type: ignore[method-assign]
        hub.files["sub/tokenizer.json"] = noise(1000, 3)
        code, output = await fetch_from(hub, tmp_path, hub.token)
        assert (code, "corrupt" in output) == (1, True), output
        assert [path.name for path in (tmp_path / "cache").iterdir()] == [".swapd"]


async def fetch_from(hub: Server, tmp_path: Path, token: str) -> tuple[int, str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": token,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.weights.fetching", str(tmp_path / "cache"), "hf://lab/model@main"),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    """Run a hub that the library in this process asks."""
    from huggingface_hub import constants

    made = Hub(files=dict(FILES), large=("model.safetensors",))
    async with serving(made):
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, made.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        monkeypatch.setenv("HF_TOKEN", made.token)
        yield made


async def test_only_wanted_files_of_a_repository_are_fetched_and_a_broken_fetch_goes_on(
    hub: Hub, tmp_path: Path
) -> None:
    hub.cut_after = [2 * MIB]
    async with running(tmp_path / "cache", {M: Weights("hf://lab/model", ("*.safetensors",))}) as run:
        answer = await run.fetch()
        assert isinstance(answer, Fetched), answer
        path = run.cache.path(M)
        assert path is not None
        assert (path.name, path.read_bytes()) == ("model.safetensors", FILES["model.safetensors"])
    assert hub.cut_after == []
    assert hub.authorized == ["model.safetensors"] * 2
    assert hub.sent < 2 * len(FILES["model.safetensors"])


@pytest.mark.parametrize("name", ["../../etc/x", "/etc/x", "nul\0", "x" * 300, "\udcff"])
async def test_a_repository_with_hostile_names_writes_nothing(hub: Hub, tmp_path: Path, name: str) -> None:
    hub.files[name] = b"evil"
    async with running(tmp_path / "cache", {M: Weights("hf://lab/model")}) as run:
        answer = await run.fetch()
        assert isinstance(answer, FetchFailed)
        assert (answer.failure, "cannot be kept" in answer.detail) == (FetchFailure.REFUSED, True)
    assert (os.listdir(tmp_path), os.listdir(tmp_path / "cache")) == (["cache"], [".swapd"])  # noqa: PTH208 - names alone


@pytest.mark.parametrize("size", ["12", -5, None, 10**30, 1.5])
async def test_a_repository_with_sizes_that_cannot_be_is_refused(hub: Hub, tmp_path: Path, size: object) -> None:
    info = hub._info()
    info["siblings"][0]["size"] = size
    hub._info = lambda: info  # type: ignore[method-assign]
    async with running(tmp_path / "cache", {M: Weights("hf://lab/model")}) as run:
        answer = await run.fetch()
        assert isinstance(answer, FetchFailed)
        assert answer.failure == FetchFailure.REFUSED


async def test_a_branch_that_moves_during_a_fetch_is_fetched_as_it_was_and_looked_up_at_the_next_fetch_only(
    hub: Hub, tmp_path: Path
) -> None:
    first, second = hub.revision, "b" * 40
    info, branch = hub._info, [first]
    hub._info = lambda: {**info(), "sha": branch[0]}  # type: ignore[method-assign]
    hub.on_sent = lambda: branch.__setitem__(0, second)
    async with running(tmp_path / "cache", {M: Weights("hf://lab/model@main")}) as run:
        assert isinstance(await run.fetch(), Fetched)
        assert run.cache.copies()[0].revision == first[:12]
        questions = len(hub.asked)
        assert isinstance(await run.fetch(), Fetched)
        assert len(hub.asked) == questions, "what is here is here, wherever the branch is now"
        run.cache.refetch(M)
        hub.revision = second
        answer = await run.answer(since=len(run.facts))
        assert isinstance(answer, Fetched)
        assert run.cache.path(M) is not None
        assert [copy.revision for copy in run.cache.copies() if not copy.damaged] == [second[:12]]


async def test_a_hub_that_is_busy_may_answer_later_and_one_that_knows_nothing_will_not(
    hub: Hub, tmp_path: Path
) -> None:
    async with running(tmp_path / "cache", {M: Weights("hf://lab/other@main")}, retries=1) as run:
        answer = await run.fetch()
        assert isinstance(answer, FetchFailed)
        assert (answer.failure, "404 for lab/other@main" in answer.detail) == (FetchFailure.REFUSED, True)


async def test_a_hub_that_cannot_be_reached_is_no_refusal(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    async with running(tmp_path / "cache", {M: Weights("hf://lab/model")}, retries=1) as run:
        answer = await run.fetch()
        assert isinstance(answer, FetchFailed)
        assert answer.failure == FetchFailure.UNREACHABLE


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


async def test_a_store_that_cannot_be_reached_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    for name, value in (
        ("ACCESS_KEY_ID", "test"),
        ("SECRET_ACCESS_KEY", "test"),
        ("ENDPOINT_URL", "http://127.0.0.1:1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(SourceError) as caught:
        await asyncio.to_thread(source_for("s3://models/m", timeout_s=1).list)
    assert not caught.value.permanent


async def test_a_redirect_to_another_host_takes_no_credentials_with_it(server: Server) -> None:
    server.redirects["/old"] = (302, server.url.replace("127.0.0.1", "localhost") + "/m")
    url = server.url.replace("http://", "http://user:word@") + "/old"
    await asyncio.to_thread(HttpSource(url).list)
    assert [told.get("Authorization") for told in server.headers] == ["Basic dXNlcjp3b3Jk", None]


# S3, served by moto in a process of its own.


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        assert server.stdout is not None
        told = None
        while told is None and (line := server.stdout.readline()):
            told = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert told is not None
        yield told[0]
        server.kill()


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    import fsspec

    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("ENDPOINT_URL", s3)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    store = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
    store.mkdir("models")
    objects = {"lab/m/config.json": b"{}", "lab/m/deep/m.bin": noise(20 * MIB), "lab/other": b"other"}
    for key, content in objects.items():
        store.pipe_file(f"models/{key}", content)
    yield objects
    store.rm("models", recursive=True)


async def test_a_prefix_of_a_bucket_is_fetched(bucket: dict[str, bytes], tmp_path: Path) -> None:
    async with running(tmp_path / "cache", {M: Weights("s3://models/lab/m")}) as run:
        answer = await run.fetch()
        assert isinstance(answer, Fetched), answer
        copy = run.cache.path(M)
        assert copy is not None
        assert (copy / "deep/m.bin").read_bytes() == bucket["lab/m/deep/m.bin"]
        assert {path.name for path in copy.iterdir()} == {"config.json", "deep", ".swapd.json"}


async def test_one_object_is_fetched_as_a_file(bucket: dict[str, bytes], tmp_path: Path) -> None:
    async with running(tmp_path / "cache", {M: Weights("s3://models/lab/other")}) as run:
        await run.fetch()
        path = run.cache.path(M)
        assert path is not None
        assert (path.name, path.read_bytes()) == ("other", b"other")


@pytest.mark.parametrize("url", ["s3://models/none", "s3://elsewhere/m"])
async def test_objects_that_are_not_there_are_refused(bucket: dict[str, bytes], tmp_path: Path, url: str) -> None:
    async with running(tmp_path / "cache", {M: Weights(url)}) as run:
        answer = await run.fetch()
        assert isinstance(answer, FetchFailed)
        assert answer.failure == FetchFailure.REFUSED
