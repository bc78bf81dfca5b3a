"""Repositories of a hub, which speaks what the real one does.

Its address is read from the environment when its library is imported, so some fetches run in a process.
"""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swapd.core.events import FetchFailed, WeightsFetched
from swapd.core.reasons import FetchFailure
from swapd.weights import Weights
from tests.weights.caches import MIB, M, noise, running
from tests.weights.servers import Hub, Server, serving

ROOT = Path(__file__).parents[2]
FILES = {"config.json": b"{}", "model.safetensors": noise(3 * MIB), "sub/tokenizer.json": noise(1000, 2)}


async def test_a_repository_of_the_hub_is_fetched_with_our_token_and_verified(tmp_path: Path) -> None:
    async with serving(Hub(files=FILES, large=("model.safetensors",))) as hub:
        assert isinstance(hub, Hub)
        code, output = await fetch_from(hub, tmp_path, hub.token)
        assert (code, "WeightsFetched" in output) == (0, True), output
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
        assert isinstance(answer, WeightsFetched), answer
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
        assert isinstance(await run.fetch(), WeightsFetched)
        assert run.cache.copies()[0].revision == first[:12]
        questions = len(hub.asked)
        assert isinstance(await run.fetch(), WeightsFetched)
        assert len(hub.asked) == questions, "what is here is here, wherever the branch is now"
        run.cache.refetch(M)
        hub.revision = second
        answer = await run.answer(since=len(run.facts))
        assert isinstance(answer, WeightsFetched)
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
