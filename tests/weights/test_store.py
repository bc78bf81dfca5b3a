"""Objects of S3, served by moto in a process of its own."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swapd.core.events import FetchFailed, WeightsFetched
from swapd.core.reasons import FetchFailure
from swapd.weights import Weights
from swapd.weights.sources.base import SourceError
from swapd.weights.sources.registry import source_for
from tests.weights.caches import MIB, M, noise, running


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
        assert isinstance(answer, WeightsFetched), answer
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
