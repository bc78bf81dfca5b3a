"""A daemon that finds its GPUs by itself: the driver is a fake that counts the memory of real processes."""

import asyncio
import contextlib
import json
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.fakes.daemon import ROOT, Daemon, chat, eventually, running, total, until
from tests.fakes.scripted import model_status, process_of, scripted_model

GIB = 1 << 30
MATRICES = ROOT / "tests" / "data" / "topologies"
IRREGULAR = "05_h100_pcie_irregular_bridges.txt"
HGX = "03_hgx_h100_8gpu_nvswitch.txt"


class Node:
    """A running daemon and the script of its driver."""

    def __init__(self, daemon: Daemon, directory: Path) -> None:
        self.daemon = daemon
        self._script = directory / "script.json"
        self._overcommit = directory / "overcommit"

    def script(self, **keys: Any) -> None:
        write_script(self._script, keys)

    async def ask(self, model: str) -> int:
        async with self.daemon.client() as http, http.post("/v1/chat/completions", json=chat(model)) as answer:
            await answer.read()
            return answer.status

    async def topology(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(await self.daemon.cli("topology", "--json"))
        return document

    async def devices(self) -> list[dict[str, Any]]:
        devices: list[dict[str, Any]] = (await self.daemon.status())["devices"]
        return devices

    async def health(self, gpu: int) -> str:
        return str((await self.devices())[gpu]["health"])

    async def driver_up(self) -> bool:
        return total(await self.daemon.metrics(), "swapd_nvml_up") == 1

    async def gpus_of(self, model: str) -> list[int]:
        gpus: list[int] = (await process_of(self.daemon, model))["gpus"]
        return gpus

    def told(self, health: str) -> str:
        """Return the log lines that say that a GPU has come to this."""
        return "".join(line for line in self.daemon.log().splitlines() if f'"after":"{health}"' in line)

    def overcommitted(self) -> bool:
        return self._overcommit.exists()


def write_script(path: Path, keys: Mapping[str, Any]) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(keys))
    draft.replace(path)


def gpu_model(*options: str, gpus: int = 1, gib: float = 40, true_gib: float | None = None, **more: Any) -> Any:
    held = int((gib if true_gib is None else true_gib) * GIB)
    env = {"FAKE_GPU_BYTES": str(held)}
    return scripted_model(*options, gpus=gpus, env=env, **{"memory": f"{gib}GiB", **more})


@contextlib.asynccontextmanager
async def node(
    directory: Path,
    matrix: str,
    models: Mapping[str, Any],
    *,
    script: Mapping[str, Any] | None = None,
    wait: bool = True,
    **sections: Any,
) -> AsyncIterator[Node]:
    """Run a daemon on a machine as the matrix says; leaving the block asserts that no GPU ever held too much."""
    machine = directory / "machine"
    machine.mkdir(exist_ok=True)
    shutil.copy(MATRICES / matrix, machine / "matrix.txt")
    write_script(machine / "script.json", script or {})
    program = (sys.executable, str(ROOT / "tests" / "fakes" / "gpu_node.py"), str(machine))
    environment = {"PYTHONPATH": str(ROOT)}
    async with running(
        directory, models=models, devices={}, program=program, environment=environment, wait=wait, **sections
    ) as daemon:
        found = Node(daemon, machine)
        yield found
        assert not found.overcommitted()


async def test_a_model_on_two_gpus_gets_a_linked_pair_and_its_engine_sees_exactly_these_in_pci_order(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, IRREGULAR, {"pair": gpu_model(gpus=2)}) as here:
        assert await here.ask("pair") == 200
        assert await here.gpus_of("pair") == [1, 2]
        gpus = (await here.topology())["topology"]["gpus"]
        environ = psutil.Process((await process_of(here.daemon, "pair"))["pid"]).environ()
        assert environ["CUDA_VISIBLE_DEVICES"].split(",") == [gpus[1]["uuid"], gpus[2]["uuid"]]
        assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        metrics = await here.daemon.metrics()
        assert total(metrics, "swapd_placements_total", quality="top") == 1
        assert total(metrics, "swapd_gpus", health="healthy") == 8


async def test_an_engine_sees_its_gpus_in_the_order_of_the_ring(tmp_path: Path) -> None:
    """The pairs 12, 34, 67 and 05 are bridged: the ring goes over 0 1 2 3 4 6 7 5."""
    async with node(tmp_path, IRREGULAR, {"all": gpu_model(gpus=8)}) as here:
        assert await here.ask("all") == 200
        gpus = (await here.topology())["topology"]["gpus"]
        environ = psutil.Process((await process_of(here.daemon, "all"))["pid"]).environ()
        assert environ["CUDA_VISIBLE_DEVICES"].split(",") == [gpus[gpu]["uuid"] for gpu in (0, 1, 2, 3, 4, 6, 7, 5)]


async def test_the_next_model_starts_only_when_the_driver_shows_the_memory_free(tmp_path: Path) -> None:
    models = {"a": gpu_model(gpus=8, gib=60), "b": gpu_model(gpus=8, gib=60)}
    async with node(tmp_path, HGX, models, script={"late_s": 1.5, "unlisted": True}, scheduling={"protect": 0}) as here:
        assert await here.ask("a") == 200
        assert await here.ask("b") == 200
        assert not here.overcommitted()
        metrics = await here.daemon.metrics()
        assert total(metrics, "swapd_gpu_release_wait_seconds_count", evidence="free") == 1
        assert total(metrics, "swapd_gpu_release_wait_seconds_sum", evidence="free") > 1


async def test_a_lost_gpu_takes_only_its_own_model_along_and_is_used_again_once_it_is_back(tmp_path: Path) -> None:
    models = {"one": gpu_model(gpus=8, gib=20, exclusive=False), "two": gpu_model(gpus=2, gib=20, exclusive=False)}
    async with node(tmp_path, HGX, models) as here:
        assert await here.ask("two") == 200
        first, second = await here.gpus_of("two")
        here.script(lost=[first])
        await eventually(lambda: _is(here.health(first), "lost"), "the GPU is seen to be lost")
        assert await here.ask("two") == 200
        assert first not in await here.gpus_of("two")
        assert await here.health(second) == "healthy"
        assert await here.ask("one") == 503
        here.script()
        await eventually(lambda: _is(here.health(first), "healthy"), "the GPU is back")
        assert await here.ask("one") == 200


async def test_a_hardware_xid_takes_a_gpu_out_of_service_and_an_application_xid_does_not(tmp_path: Path) -> None:
    async with node(tmp_path, HGX, {"a": gpu_model()}) as here:
        await eventually(lambda: _is(here.health(3), "healthy"), "the GPUs are known")
        here.script(xids=[[4, 31], [3, 79]])
        await until(lambda: '"gpu":3,' in here.told("failed"), "the fault is seen")
        assert '"gpu":4,' not in here.told("failed")
        assert await here.ask("a") == 200


async def test_a_driver_that_comes_late_is_taken_into_service_without_a_restart(tmp_path: Path) -> None:
    async with node(tmp_path, HGX, {"a": gpu_model()}, script={"absent": True}, wait=False) as here:
        await eventually(lambda: _answers(here.daemon, "/livez", 200), "it lives")
        await eventually(lambda: _answers(here.daemon, "/readyz", 503), "it is not ready")
        await eventually(lambda: _is(here.ask("a"), 503), "requests are refused meanwhile")
        here.script()
        await eventually(lambda: _is(here.ask("a"), 200), "it serves")
        assert await _answers(here.daemon, "/readyz", 200)


async def test_resident_models_serve_while_a_call_to_the_driver_hangs(tmp_path: Path) -> None:
    async with node(tmp_path, HGX, {"a": gpu_model()}) as here:
        assert await here.ask("a") == 200
        here.script(hang=True)
        await asyncio.sleep(0.5)  # into the middle of a call
        for _ in range(5):
            assert await here.ask("a") == 200
        assert await _answers(here.daemon, "/livez", 200)
        here.script()
        await eventually(here.driver_up, "the driver answers again")


async def test_an_operator_can_have_the_driver_and_gives_it_back(tmp_path: Path) -> None:
    async with node(tmp_path, HGX, {"a": gpu_model(), "b": gpu_model()}) as here:
        assert await here.ask("a") == 200
        await here.daemon.cli("release-gpus")
        assert (await here.ask("a"), await here.ask("b")) == (200, 503)
        await here.daemon.cli("release-gpus", "--take-back")
        await eventually(here.driver_up, "the driver is taken back")
        assert await here.ask("b") == 200
        seen = await here.daemon.cli("release-gpus", "--", sys.executable, "-c", "print('reset')")
        assert "reset" in seen
        await eventually(here.driver_up, "the driver is taken back")


async def test_what_a_model_really_takes_is_measured_kept_and_reckoned_with_after_a_restart(tmp_path: Path) -> None:
    models = {"a": gpu_model(gib=10, true_gib=14)}
    async with node(tmp_path, HGX, models) as here:
        assert await here.ask("a") == 200
        await eventually(lambda: _measured(here.daemon, 14 * GIB), "it is measured")
        assert "footprint_measured" in here.daemon.log()
    async with node(tmp_path, HGX, models) as again:
        assert await _measured(again.daemon, 14 * GIB)


async def test_foreign_memory_is_seen_and_avoided(tmp_path: Path) -> None:
    script = {"foreign": {str(gpu): 60 * GIB for gpu in range(8) if gpu != 6}}
    async with node(tmp_path, HGX, {"a": gpu_model()}, script=script) as here:
        assert await here.ask("a") == 200
        assert await here.gpus_of("a") == [6]
        assert (await here.devices())[0]["foreign_bytes"] == 60 * GIB


async def _is(found: Any, wanted: Any) -> bool:
    return bool(await found == wanted)


async def _measured(daemon: Daemon, wanted: int) -> bool:
    return bool((await model_status(daemon, "a"))["measured_bytes"] == wanted)


async def _answers(daemon: Daemon, path: str, status: int) -> bool:
    with contextlib.suppress(aiohttp.ClientConnectionError):
        async with aiohttp.ClientSession() as http, http.get(f"{daemon.metrics_url}{path}") as answer:
            return answer.status == status
    return False
