"""A node whose models take turns in too few places says so, what to move, and still knows it after a restart."""

import json
from pathlib import Path
from typing import Any

from tests.fakes.daemon import Daemon, chat, running, total
from tests.fakes.scripted import scripted_model


async def take_turns(daemon: Daemon, names: list[str], rounds: int) -> None:
    async with daemon.client() as http:
        for number in range(rounds * len(names)):
            async with http.post("/v1/chat/completions", json=chat(names[number % len(names)])) as answer:
                assert answer.status == 200, await answer.text()


async def report(daemon: Daemon) -> dict[str, Any]:
    document = json.loads(await daemon.cli("report", "--json"))
    return {model["name"]: model for model in document["models"]}


async def test_a_thrashing_pair_is_reported_with_its_cost_and_is_not_forgotten_by_a_restart(tmp_path: Path) -> None:
    models = {name: scripted_model(stop={"grace": "1s"}) for name in ("a", "b", "idle")}
    options: dict[str, Any] = {
        "models": models,
        "scheduling": {"protect": 0, "max_pinned_gpus": 1},
        "devices": {"virtual": {"count": 1, "memory": "1GiB"}},
    }
    async with running(tmp_path, **options) as daemon:
        await take_turns(daemon, ["a", "b"], 5)
        found = await report(daemon)
        for name, other in (("a", "b"), ("b", "a")):
            assert (found[name]["verdict"], found[name]["partner"]) == ("thrashing", other)
            assert found[name]["since_start"]["loads"] == 5
            assert found[name]["since_start"]["own_gpu_seconds"] > 0
            assert [victim["model"] for victim in found[name]["advice"]["evicts"]] == [other]
            assert found[name]["advice"]["move"] == "dedicated"  # a pin would leave no room for the others
        assert found["idle"]["caused_gpu_seconds"] == 0
        assert "a thrashes with b" in await daemon.cli("report")
        metrics = await daemon.metrics()
        assert total(metrics, "swapd_promotion_recommended", tier="hot") == 2
        assert total(metrics, "swapd_model_loading_gpu_seconds_total", model="a", kind="own") > 0
    before = found
    async with running(tmp_path, **options) as daemon:
        found = await report(daemon)
        for name, other in (("a", "b"), ("b", "a")):
            assert (found[name]["verdict"], found[name]["partner"]) == ("thrashing", other)
            assert found[name]["week"]["costs"]["loads"] == 5
            assert found[name]["since_start"]["loads"] == 0
            assert found[name]["caused_gpu_seconds"] >= before[name]["caused_gpu_seconds"]
