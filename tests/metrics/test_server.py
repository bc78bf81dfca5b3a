"""The metrics port: probes and pages."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Generator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from swapd.core.ids import Instant
from swapd.core.view import NodeView
from swapd.metrics.collect import MAX_PAGES
from swapd.metrics.heartbeat import PERIOD, Heartbeat
from swapd.metrics.server import metrics_app
from tests.metrics.bench import Bench, seconds

Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[Client]:
    async def engine_metrics(request: web.Request) -> web.Response:
        return web.Response(text=f"page of {request.match_info['model']}")

    async with TestClient(TestServer(metrics_app(bench.metrics, engine_metrics=engine_metrics))) as made:
        yield made


async def test_metrics_answers_with_the_page_and_its_type(client: Client) -> None:
    response = await client.get("/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "swapd_build_info" in await response.text()


async def test_scrapes_that_come_faster_than_pages_are_made_are_refused(bench: Bench, client: Client) -> None:
    made = asyncio.Event()

    def slow() -> Generator[None, None, NodeView]:
        while not made.is_set():
            yield
        return bench.view

    bench.metrics._view = slow
    scrapes = [asyncio.ensure_future(client.get("/metrics")) for _ in range(MAX_PAGES + 2)]
    refused = [await first for first in itertools.islice(asyncio.as_completed(scrapes), 2)]
    assert [response.status for response in refused] == [503, 503]
    assert await refused[0].text() == f"{MAX_PAGES} scrapes are being answered; scrape less often\n"
    made.set()
    answers = [response.status for response in await asyncio.gather(*scrapes)]
    assert sorted(answers) == [200] * MAX_PAGES + [503] * 2


async def test_livez_asks_for_the_stamp_of_the_event_loop_and_nothing_else(bench: Bench, client: Client) -> None:
    bench.reasons = ("the node is draining",)
    bench.now = Instant(seconds(29.9))
    assert (await client.get("/livez")).status == 200
    bench.now = Instant(seconds(31))
    response = await client.get("/livez")
    assert (response.status, await response.text()) == (503, "the event loop has not turned for 31 s\n")
    bench.metrics.heartbeat.beat()
    assert (await client.get("/livez")).status == 200


async def test_readyz_says_why_not(bench: Bench, client: Client) -> None:
    assert (await client.get("/readyz")).status == 200
    bench.reasons = ("the node is draining", "no listener is open")
    response = await client.get("/readyz")
    assert (response.status, await response.text()) == (503, "the node is draining\nno listener is open\n")


async def test_an_engines_own_page_is_found_under_its_models_name(client: Client) -> None:
    assert await (await client.get("/metrics/models/org/model-7b")).text() == "page of org/model-7b"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_the_port_is_read_only(client: Client, method: str) -> None:
    for path in ("/metrics", "/livez", "/readyz", "/metrics/models/m01"):
        assert (await client.request(method, path)).status == 405


async def test_a_broken_request_does_not_end_the_port(client: Client) -> None:
    with pytest.raises(aiohttp.ClientError):
        await client.get("/metrics", headers={"Accept": "x" * 100_000}, raise_for_status=True)
    assert (await client.get("/metrics")).status == 200


async def test_the_heart_beats_every_period_while_the_loop_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now, beats = Instant(0), 0

    async def sleep(delay_s: float) -> None:
        """Sleep on the test's own clock; every third time the loop is half a second late."""
        nonlocal now, beats
        beats += 1
        if beats > 4:
            raise asyncio.CancelledError
        now = Instant(now + seconds(delay_s) + (seconds(0.5) if beats == 3 else 0))

    monkeypatch.setattr("swapd.metrics.heartbeat.asyncio.sleep", sleep)
    heart = Heartbeat(lambda: now)
    with pytest.raises(asyncio.CancelledError):
        await heart.run()
    assert (heart.lag(), heart.age()) == (seconds(0.5), 0)


def test_the_lag_is_the_worst_of_the_last_beats_and_is_forgotten() -> None:
    now = Instant(0)
    heart = Heartbeat(lambda: now)
    for step in (PERIOD, PERIOD + 300, PERIOD + 100):
        now = Instant(now + step)
        heart.beat()
    assert heart.lag() == 300
    for _ in range(15):
        now = Instant(now + PERIOD)
        heart.beat()
    assert heart.lag() == 0
