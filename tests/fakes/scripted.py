"""Describes models that are served by the scripted engine, and reads back what such an engine has seen."""

import sys
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.daemon import Daemon, total

_ENGINE = Path(__file__).with_name("engine_scripted.py")


def scripted_model(*options: str, script: str = "", **settings: Any) -> dict[str, Any]:
    """Return the ``models:`` entry of one scripted engine; ``options`` and ``script`` are those of the engine."""
    command = [sys.executable, str(_ENGINE), "--port", "{port}", "--name", "{name}"]
    return {
        "engine": "command",
        "command": [*command, "--script", script, *options],
        "memory": "1GiB",
        **settings,
    }


async def model_status(daemon: Daemon, name: str) -> dict[str, Any]:
    """Return one model's part of the status document."""
    status = await daemon.status()
    return next(model for model in status["models"] if model["name"] == name)


async def in_flight(daemon: Daemon, name: str) -> float:
    """Return how many requests a model is serving, by the metrics."""
    return total(await daemon.metrics(), "swapd_inflight_requests", model=name)


async def process_of(daemon: Daemon, name: str) -> dict[str, Any]:
    """Return the ready instance of a model as the status document shows it."""
    status = await daemon.status()
    ready = (instance for instance in status["instances"] if instance["state"] == "ready")
    return next(instance for instance in ready if instance["model"] == name)


async def engine_requests(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    """Ask a model's engine, past the daemon, which requests it has seen; its own warm-up included."""
    port = (await process_of(daemon, name))["port"]
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/__requests") as answer:
        seen: list[dict[str, Any]] = await answer.json()
        return seen
