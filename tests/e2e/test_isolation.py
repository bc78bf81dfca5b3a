"""What one model goes through is no other's affair, and who only looks changes nothing."""

import asyncio
from pathlib import Path

import aiohttp

from tests.fakes.daemon import chat, running, until
from tests.fakes.scripted import model_status, process_of, scripted_model


async def test_a_model_that_does_not_want_to_leave_delays_nobody_else(tmp_path: Path) -> None:
    models = {"x": scripted_model("--ignore-term", stop={"grace": "10m"}), "y": scripted_model()}
    async with running(tmp_path, models=models) as daemon, daemon.client() as http:
        await asyncio.gather(daemon.cli("load", "x"), daemon.cli("load", "y"))
        pid = (await process_of(daemon, "x"))["pid"]
        leaving = asyncio.ensure_future(daemon.cli("unload", "x"))
        try:
            await until(lambda: "stopping" in daemon.log(), "x was asked to leave")
            for _ in range(20):
                async with http.post("/v1/chat/completions", json=chat("y")) as answer:
                    assert answer.status == 200
            status = await daemon.status()
            assert [i["state"] for i in status["instances"] if i["model"] == "x"] == ["unloading"]
            assert not leaving.done()
        finally:
            next(process for process in daemon.processes() if process.pid == pid).kill()
        await leaving


async def test_reading_a_models_metrics_and_state_does_not_keep_it(tmp_path: Path) -> None:
    models = {"a": scripted_model()}
    async with running(tmp_path, models=models, scheduling={"idle_unload": "500ms"}) as daemon:
        await daemon.cli("load", "a")
        async with aiohttp.ClientSession() as ops, daemon.client() as http, asyncio.timeout(60):
            resident = True
            while resident:
                async with http.get("/v1/models/a") as shown, ops.get(f"{daemon.metrics_url}/metrics") as scraped:
                    assert (shown.status, scraped.status in {200, 503, 429}) == (200, True)
                async with ops.get(f"{daemon.metrics_url}/metrics/models/a") as page:
                    resident = page.status != 404
        assert (await model_status(daemon, "a"))["state"] in {"unloading", "absent"}
