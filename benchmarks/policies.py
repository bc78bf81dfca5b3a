"""Compares eviction policies and protection times on one simulated node of 8 GPUs.

Runs on a synthetic day (Zipf, 45 models of 1 to 8 GPUs), or on a recorded trace:
`python -m benchmarks.policies REQUESTS.csv MODELS.csv`, columns `t_s,model,service_s` and `model,gpus,load_s`.
Nobody is refused here for having to wait, so that the waits can be compared.
"""

import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from swapd.core.catalog import Catalog, Footprint, ModelSpec, PolicyName, SchedulingSettings
from swapd.core.ids import Bytes, Duration, ModelName, seconds
from swapd.core.policies import EvictionPolicy
from swapd.core.topology import Gpu, NodeTopology
from swapd.sim import Report, Setup, simulate, table
from swapd.sim.clairvoyant import Clairvoyant
from swapd.sim.traces import read_models, read_requests
from swapd.sim.workload import Arrival, Zipf

GPU_BYTES = Bytes(80 << 30)
PATIENT = Duration(seconds(30 * 86_400))


@dataclass(frozen=True, slots=True)
class Scene:
    """Models and the requests for them."""

    models: Mapping[ModelName, ModelSpec]
    arrivals: list[Arrival]


SETTINGS = {
    "gdsf, protect auto (default)": SchedulingSettings(),
    "gdsf, protect 0": SchedulingSettings(protect=Duration(0)),
    "gdsf, protect 300 s": SchedulingSettings(protect=seconds(300)),
    "gdsf, protect 300 s, never lifted": SchedulingSettings(protect=seconds(300), protect_max_wait=None),
    "gdsf, 1 load at a time": SchedulingSettings(max_concurrent_loads=1),
    "lru": SchedulingSettings(policy=PolicyName.LRU),
    "lru, protect 0": SchedulingSettings(policy=PolicyName.LRU, protect=Duration(0)),
    "cheapest-reload": SchedulingSettings(policy=PolicyName.CHEAPEST_RELOAD),
}


def synthetic() -> Scene:
    """Return a day of 45 models, the popular ones not the small ones in particular."""
    chance = random.Random(45)
    models = {}
    for number in range(45):
        gpus = chance.choices((1, 2, 4, 8), (55, 27, 13, 5))[0]
        weights_gb = {1: 16, 2: 64, 4: 140, 8: 400}[gpus]
        spec = ModelSpec(
            name=ModelName(f"m{number:02}"),
            footprint=Footprint(gpus, GPU_BYTES),
            load_estimate=seconds(17 * chance.uniform(0.85, 1.15) + weights_gb / 6),
        )
        models[spec.name] = spec
    arrivals = Zipf(rate_per_s=0.04, duration=seconds(86_400)).arrivals(sorted(models), chance)
    return Scene(models, arrivals)


def recorded(requests: Path, models: Path) -> Scene:
    """Read a trace."""
    with models.open() as lines:
        specs = read_models(lines, bytes_per_gpu=GPU_BYTES)
    with requests.open() as lines:
        return Scene(specs, read_requests(lines))


def run(scene: Scene, settings: SchedulingSettings, policy: EvictionPolicy | None = None) -> Report:
    """Simulate the scene under one set of rules."""
    topology = NodeTopology(tuple(Gpu(index, f"virtual-{index}", GPU_BYTES) for index in range(8)))
    patient = {
        name: replace(spec, max_wait=PATIENT, max_queue=len(scene.arrivals)) for name, spec in scene.models.items()
    }
    return simulate(Setup(topology, Catalog(patient, settings), policy=policy), scene.arrivals)


def main() -> int:
    """Print the table."""
    paths = [Path(argument) for argument in sys.argv[1:3]]
    scene = recorded(*paths) if len(paths) == 2 else synthetic()
    begin = time.perf_counter()
    rows = [(name, run(scene, settings)) for name, settings in SETTINGS.items()]
    rows.append(("clairvoyant, protect auto", run(scene, SchedulingSettings(), Clairvoyant(scene.arrivals))))
    print(f"policies: {len(scene.arrivals)} requests for {len(scene.models)} models on 8 GPUs")
    print(table(rows))
    print(f"simulated in {time.perf_counter() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
