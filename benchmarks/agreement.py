"""Whether the simulator can be believed: a live daemon and the simulator on the same requests, in compressed time.

Twelve models on four virtual devices, served by processes that take as long as they are told: loads, services, and all
times of the configuration are one fortieth of a plausible hour. The daemon records what it was asked, the simulator
plays that record with the load times that the daemon measured; then their loads and evictions are compared.
`python -m benchmarks.agreement [SEED…]`; each seed takes a minute and a half.
"""

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from benchmarks.tools import table
from swapd.core.ids import ModelName, seconds
from swapd.sim.workload import Arrival, Zipf
from tests.fakes.daemon import Daemon, chat, running, swapd_executable, total
from tests.fakes.scripted import scripted_model

COMPRESSION: Final = 40
HOUR_S: Final = 3600
GOAL: Final = 0.10
SEEDS: Final = (1, 2, 3)
#: GPUs and load seconds, before compression
MODELS: Final = (
    *((1, load) for load in (20, 24, 28, 32, 22, 26, 30)),
    *((2, load) for load in (36, 40, 44)),
    *((4, load) for load in (60, 72)),
)


@dataclass(frozen=True, slots=True)
class Counts:
    """What one of the two has done."""

    loads: float
    evictions: float
    wait_mean_s: float


def workload(seed: int, hours: float) -> list[Arrival]:
    """Return the requests of an hour, before compression; some models are asked for often, some hardly ever."""
    names = [ModelName(f"m{number:02}") for number in range(len(MODELS))]
    chance = random.Random(seed)
    chance.shuffle(names)
    zipf = Zipf(rate_per_s=0.08, duration=seconds(HOUR_S * hours), exponent=0.7, mean_service=seconds(6))
    return zipf.arrivals(names, chance)


def models() -> dict[str, dict[str, Any]]:
    """Return the models of the configuration."""
    return {
        f"m{number:02}": scripted_model(
            "--load-s", f"{load_s / COMPRESSION:.3f}", gpus=gpus, memory="2GiB", load_estimate=_scaled(load_s)
        )
        for number, (gpus, load_s) in enumerate(MODELS)
    }


def rules() -> dict[str, Any]:
    """Return the defaults of the rules, compressed; ``protect: auto`` is so by itself."""
    return {
        "protect_max_wait": _scaled(15),
        "drain_after": _scaled(120),
        "frequency_half_life": _scaled(86_400),
    }


async def live(daemon: Daemon, arrivals: list[Arrival]) -> Counts:
    """Ask the daemon, each request at its time."""
    waits: list[float] = []
    began = time.monotonic()

    async def ask(client: aiohttp.ClientSession, arrival: Arrival) -> None:
        await asyncio.sleep(began + arrival.at / 1e9 / COMPRESSION - time.monotonic())
        service_s = arrival.service / 1e9 / COMPRESSION
        sent = time.monotonic()
        headers = {"x-fake": f"delay={service_s:.4f} chunks=1"}
        async with client.post("/v1/chat/completions", json=chat(arrival.model), headers=headers) as answer:
            await answer.read()
            assert answer.status == 200, await answer.text()
        waits.append(max(0.0, time.monotonic() - sent - service_s))

    async with daemon.client() as client:
        await asyncio.gather(*(ask(client, arrival) for arrival in arrivals))
    metrics = await daemon.metrics()
    return Counts(
        total(metrics, "swapd_model_loads_total", result="ready"),
        total(metrics, "swapd_evictions_total", reason="evicted"),
        statistics.mean(waits),
    )


async def simulated(daemon: Daemon, directory: Path, unload_s: float) -> Counts:
    """Play the daemon's own record under its own configuration, with the load times it measured."""
    trace, config = directory / "trace.csv", directory / "replay.yaml"
    trace.write_text(await daemon.cli("trace"))
    document = dict(daemon.config)
    listed = (line.split(",") for line in (await daemon.cli("trace", "--models")).splitlines()[1:])
    document["models"] = {
        name: {**document["models"][name], "load_estimate": f"{round(float(load_s) * 1000)}ms"}
        for name, _, load_s in listed
    }
    config.write_text(yaml.safe_dump(document))
    process = await asyncio.create_subprocess_exec(
        swapd_executable(),
        "simulate",
        *("--trace", str(trace), "--models", str(config), "--policy", "gdsf"),
        *("--unload", f"{round(unload_s * 1000)}ms", "--json"),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    [row] = json.loads(printed)["policies"]
    return Counts(row["loads"], row["evictions"], row["wait_mean_s"])


async def unload_time(daemon: Daemon) -> float:
    """Return the mean time from the order to stop until the memory is free, in seconds."""
    metrics = await daemon.metrics()
    name = "swapd_load_stage_duration_seconds"
    return sum(
        total(metrics, f"{name}_sum", stage=stage) / max(1, total(metrics, f"{name}_count", stage=stage))
        for stage in ("stop", "release")
    )


async def measure(*, seed: int = 1, hours: float = 1.0) -> tuple[Counts, Counts]:
    """Return what the daemon did, and what the simulator says."""
    arrivals = workload(seed, hours)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        devices = {"virtual": {"count": 4, "memory": "2GiB"}}
        async with running(directory, models=models(), devices=devices, scheduling=rules()) as daemon:
            done = await live(daemon, arrivals)
            return done, await simulated(daemon, directory, await unload_time(daemon))


def off(done: float, said: float) -> float:
    """Return by which share the simulator is off."""
    return (said - done) / done


def _scaled(value_s: float) -> str:
    return f"{round(value_s / COMPRESSION * 1000)}ms"


async def main() -> int:
    """Measure with each seed and print; return 1 if loads or evictions are further off than the goal."""
    seeds = [int(argument) for argument in sys.argv[1:]] or SEEDS
    rows, worst = [], 0.0
    for seed in seeds:
        done, said = await measure(seed=seed)
        for what, one, other in (
            ("loads", done.loads, said.loads),
            ("evictions", done.evictions, said.evictions),
            ("mean wait, ms", done.wait_mean_s * 1000, said.wait_mean_s * 1000),
        ):
            rows.append([str(seed), what, f"{one:.4g}", f"{other:.4g}", f"{off(one, other):+.1%}"])
        worst = max(worst, abs(off(done.loads, said.loads)), abs(off(done.evictions, said.evictions)))
    table(
        f"Agreement: an hour of requests for {len(MODELS)} models, {COMPRESSION} times as fast",
        ["seed", "", "live", "simulated", "off"],
        rows,
    )
    print(f"goal: loads and evictions within {GOAL:.0%}: {'kept' if worst <= GOAL else 'MISSED'}")
    return worst > GOAL


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
