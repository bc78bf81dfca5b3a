"""Twelve models on two devices, real engines, mixed traffic: every request is answered by the model it names."""

import asyncio
import collections
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.daemon import Daemon, chat, running, tiny_models, total

NAMES = [f"m{number:02}" for number in range(1, 13)]
REQUESTS = 200
AT_ONCE = 24


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw of one request."""

    model: str
    status: int
    text: str
    cold: bool
    complete: bool


async def ask(client: aiohttp.ClientSession, model: str, *, stream: bool) -> Seen:
    """Send one chat and read its whole answer, plain or streamed."""
    async with client.post("/v1/chat/completions", json=chat(model, stream=stream)) as answer:
        cold = answer.headers.get("x-swapd-cold-start") == "1"
        body = (await answer.read()).decode()
        if answer.status != 200:
            return Seen(model, answer.status, body, cold, complete=False)
        if not stream:
            return Seen(model, 200, json.loads(body)["choices"][0]["message"]["content"], cold, complete=True)
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    deltas = [json.loads(event)["choices"] for event in events if event != "[DONE]"]
    words = [choice["delta"].get("content") or "" for choices in deltas for choice in choices]
    return Seen(model, 200, "".join(words), cold, complete=events[-1] == "[DONE]")


async def mixed_traffic(daemon: Daemon, rng: random.Random) -> list[Seen]:
    """Send plain and streamed requests for all models in random order, a bounded number at once."""
    todo = [(NAMES[number % len(NAMES)], number % 3 == 0) for number in range(REQUESTS)]
    rng.shuffle(todo)
    turnstile = asyncio.Semaphore(AT_ONCE)
    async with daemon.client(timeout=aiohttp.ClientTimeout(total=None)) as client:

        async def one(model: str, stream: bool) -> Seen:
            async with turnstile:
                return await ask(client, model, stream=stream)

        return await asyncio.gather(*(one(model, stream) for model, stream in todo))


@pytest.mark.timeout(600)
async def test_each_of_200_mixed_requests_is_answered_by_the_model_it_names_and_the_books_agree(tmp_path: Path) -> None:
    models = tiny_models(tmp_path, NAMES, concurrency=4)
    defaults = {"max_wait": "300s"}
    async with running(tmp_path, models=models, defaults=defaults, scheduling={"protect": "200ms"}) as daemon:
        seen = await mixed_traffic(daemon, random.Random(7))
        assert [answer for answer in seen if answer.status != 200] == []
        assert [answer for answer in seen if f"I am {answer.model} ." not in answer.text] == []
        assert [answer for answer in seen if not answer.complete] == []
        check_metrics(await daemon.metrics(), seen)
        check_status(await daemon.status(), await daemon.metrics())


def check_metrics(metrics: dict[str, float], seen: list[Seen]) -> None:
    """Compare /metrics with what the clients saw."""
    asked = collections.Counter(answer.model for answer in seen)
    assert {name: total(metrics, "swapd_requests_total", model=name, code="200") for name in NAMES} == dict(asked)
    assert total(metrics, "swapd_requests_total") == REQUESTS
    cold = sum(answer.cold for answer in seen)
    assert total(metrics, "swapd_requests_total", start="cold_start") == cold
    assert total(metrics, "swapd_rejections_total") == 0
    assert total(metrics, "swapd_inflight_requests") == 0
    assert total(metrics, "swapd_queue_requests") == 0


def check_status(status: dict[str, Any], metrics: dict[str, float]) -> None:
    """Compare the status document with /metrics, and both with the laws of the node."""
    ready = {model["name"] for model in status["models"] if model["state"] == "ready"}
    assert {name for name in NAMES if total(metrics, "swapd_model_state", model=name, state="ready")} == ready
    loads = total(metrics, "swapd_model_loads_total", result="ready")
    assert total(metrics, "swapd_model_loads_total") == loads >= len(NAMES)
    assert loads - total(metrics, "swapd_evictions_total") == len(ready) == 2
    assert {name for device in status["devices"] for name in device["models"]} == ready
    assert all(model["in_flight"] == 0 and not any(model["queued"].values()) for model in status["models"])
