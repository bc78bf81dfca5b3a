"""A changed configuration is applied as a difference; an invalid one changes nothing."""

import asyncio
import copy
import signal
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.daemon import Daemon, chat, eventually, running, total, until
from tests.fakes.scripted import model_status, process_of, scripted_model


async def applied(daemon: Daemon, times: int) -> None:
    """Wait until the daemon has applied (or refused) this many changes."""

    def seen() -> bool:
        return daemon.log().count("config_applied") + daemon.log().count("config_refused") >= times

    await until(seen, f"{times} changes are applied or refused")


def changed(daemon: Daemon, **models: Any) -> dict[str, Any]:
    """Return the config with these models merged in; ``None`` removes one."""
    config = copy.deepcopy(daemon.config)
    config["models"].update(models)
    config["models"] = {name: model for name, model in config["models"].items() if model is not None}
    return config


async def test_an_unchanged_model_keeps_its_process_and_its_stream_while_others_come_and_go(tmp_path: Path) -> None:
    models = {"a": scripted_model(script="chunks=40 interval=0.05"), "b": scripted_model()}
    async with running(tmp_path, models=models) as daemon, daemon.client() as http:
        await daemon.cli("load", "b")
        async with http.post("/v1/chat/completions", json=chat("a", stream=True)) as stream:
            await stream.content.readany()
            before = await process_of(daemon, "a")
            daemon.write_config(changed(daemon, b=None, c=scripted_model()))
            await applied(daemon, 1)
            async with http.post("/v1/chat/completions", json=chat("b")) as gone:
                assert gone.status == 404
            async with http.post("/v1/chat/completions", json=chat("c")) as new:
                assert new.status == 200
            assert (await stream.content.read()).rstrip().endswith(b"data: [DONE]")
        after = await process_of(daemon, "a")
        assert (after["pid"], after["port"]) == (before["pid"], before["port"])
        metrics = await daemon.metrics()
        assert not [series for series in metrics if 'model="b"' in series]


async def test_a_changed_model_is_loaded_again_when_idle_under_steady_traffic_too(tmp_path: Path) -> None:
    async with (
        running(tmp_path, models={"a": scripted_model()}, scheduling={"drain_after": "500ms"}) as daemon,
        daemon.client() as http,
    ):
        statuses: set[int] = set()

        async def ask() -> None:
            async with http.post("/v1/chat/completions", json=chat("a")) as answer:
                statuses.add(answer.status)

        await ask()
        before = (await process_of(daemon, "a"))["pid"]
        daemon.write_config(changed(daemon, a=scripted_model(env={"NEW": "1"})))
        while True:
            await asyncio.gather(*(ask() for _ in range(4)))
            instances = [instance for instance in (await daemon.status())["instances"] if instance["state"] == "ready"]
            if instances and instances[0]["pid"] != before:
                break
        assert statuses == {200}


async def test_an_invalid_file_changes_nothing_and_is_reported(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}) as daemon, daemon.client() as http:
        await daemon.cli("load", "a")
        before = (await process_of(daemon, "a"))["pid"]
        good = copy.deepcopy(daemon.config)
        daemon.write_config({**daemon.config, "modles": {}})
        await applied(daemon, 1)
        status = await daemon.status()
        assert status["config"]["ok"] is False
        assert "modles" in status["config"]["error"]
        assert (await daemon.metrics())["swapd_config_last_reload_successful"] == 0
        async with http.post("/v1/chat/completions", json=chat("a")) as answer:
            assert answer.status == 200
        assert (await process_of(daemon, "a"))["pid"] == before
        daemon.write_config(good)
        await applied(daemon, 2)
        assert (await daemon.status())["config"]["ok"] is True
        assert (await daemon.metrics())["swapd_config_last_reload_successful"] == 1


async def test_a_hangup_signal_reads_the_file_again(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}) as daemon:
        daemon.process.send_signal(signal.SIGHUP)
        await applied(daemon, 1)
        assert (await daemon.status())["config"]["ok"] is True


async def test_a_burst_of_writes_is_applied_once_it_is_quiet(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}) as daemon:
        await daemon.cli("load", "a")
        before = (await process_of(daemon, "a"))["pid"]
        for number in range(20):
            daemon.write_config(
                {**daemon.config, "models": {**daemon.config["models"], f"new{number}": scripted_model()}}
            )

        async def last_is_in_force() -> bool:
            return "new19" in {model["name"] for model in (await daemon.status())["models"]}

        await eventually(last_is_in_force, "the last write is in force")
        assert (await process_of(daemon, "a"))["pid"] == before
        # a burst that a busy machine stretches may be applied in a few steps, never write by write
        assert daemon.log().count("config_applied") < 10


async def test_the_symlink_swap_of_a_mounted_config_is_noticed(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}) as daemon:
        # the first swap makes the file a link into a versioned directory, as a mounted ConfigMap has it
        for version in ("..v1", "..v2"):
            (tmp_path / version).mkdir()
            config = changed(daemon, **{version.strip("."): scripted_model()})
            (tmp_path / version / "swapd.yaml").write_text(yaml.safe_dump(config))
            (tmp_path / "..tmp").symlink_to(version)
            (tmp_path / "..tmp").replace(tmp_path / "..data")
            if not daemon.config_path.is_symlink():
                (tmp_path / "link").symlink_to("..data/swapd.yaml")
                (tmp_path / "link").replace(daemon.config_path)

            async def known(name: str = version.strip(".")) -> bool:
                return name in {model["name"] for model in (await daemon.status())["models"]}

            await eventually(known, f"{version} is in force")
        assert (await model_status(daemon, "v2"))["state"] == "absent"
        assert "v1" not in {model["name"] for model in (await daemon.status())["models"]}
        assert total(await daemon.metrics(), "swapd_models", state="absent") == 2
