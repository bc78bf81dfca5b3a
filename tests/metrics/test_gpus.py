"""What the page says of GPUs and their driver, and when it says nothing."""

from dataclasses import replace

import pytest

from swapd.core.commands import Placed, ReleaseConfirmed
from swapd.core.ids import Bytes, GpuSet, InstanceId
from swapd.core.reasons import PlacementQuality, ReleaseEvidence
from swapd.core.topology import DriverState, GpuHealth
from swapd.core.view import FreeView
from swapd.metrics.now import DriverStats
from tests.fakes.gpu_nodes import CAPACITY, gpu, gpu_node, sick, topology
from tests.fakes.node_views import GIB, gpu_view, model_view, node_view
from tests.metrics.bench import Bench, seconds
from tests.metrics.full import M01

UUID = gpu(0).uuid
READ_FROM_THE_DRIVER = (
    "swapd_gpus{",
    "swapd_gpus_present",
    "swapd_gpu_health{",
    "swapd_gpu_free_bytes{",
    "swapd_gpu_used_bytes{",
    "swapd_gpu_foreign_bytes{",
    "swapd_nvlink_",
)


async def told(bench: Bench) -> list[str]:
    """List the series that stand for what the driver told."""
    return [name for name in await bench.series() if name.startswith(READ_FROM_THE_DRIVER)]


async def test_memory_is_told_per_gpu_under_the_labels_of_dcgm_exporter(bench: Bench) -> None:
    memory = {
        "free_bytes": Bytes(50 * GIB),
        "foreign_bytes": Bytes(2 * GIB),
        "reserved_bytes": Bytes(30 * GIB),
        "quarantined_bytes": Bytes(GIB),
    }
    bench.view = gpu_node(gpus={0: memory})
    series = await bench.series()
    shown = {
        name: series[f"swapd_gpu_{name}_bytes{{UUID={UUID},gpu=0}}"] / GIB
        for name in ("capacity", "used", "free", "foreign", "reserved", "quarantined")
    }
    assert shown == {"capacity": 80, "used": 30, "free": 50, "foreign": 2, "reserved": 30, "quarantined": 1}


async def test_more_free_memory_than_capacity_is_no_negative_use(bench: Bench) -> None:
    bench.view = gpu_node(gpus={0: {"free_bytes": Bytes(CAPACITY + 5)}})
    assert (await bench.series())[f"swapd_gpu_used_bytes{{UUID={UUID},gpu=0}}"] == 0


async def test_all_eight_gpus_are_in_every_scrape_whatever_their_health(bench: Bench) -> None:
    """What cannot be read of a GPU is left out; that it is there and what is booked on it never is."""
    healths = [*GpuHealth, GpuHealth.HEALTHY, GpuHealth.HEALTHY, GpuHealth.LOST]
    shape = topology(*(gpu(i, health=health, measured=health.value != "lost") for i, health in enumerate(healths)))
    bench.view = gpu_node(topology=shape)
    for _ in range(2):
        series = await bench.series()
        for i, health in enumerate(healths):
            labels = f"UUID={gpu(i).uuid},gpu={i}"
            assert f"swapd_gpu_reserved_bytes{{{labels}}}" in series
            assert series[f"swapd_gpu_health{{{labels},health={health.value}}}"] == 1
            assert (f"swapd_gpu_free_bytes{{{labels}}}" in series) == (health is not GpuHealth.LOST)
        assert sum(value for name, value in series.items() if name.startswith("swapd_gpu_health{")) == 8


async def test_gpus_are_counted_by_health_against_the_expected_number(bench: Bench) -> None:
    shape = topology(gpu(0), gpu(1, health=GpuHealth.LOST), gpu(2, health=GpuHealth.DEGRADED), expected=4)
    bench.view = gpu_node(topology=shape)
    series = await bench.series()
    counted = {health.value: series[f"swapd_gpus{{health={health.value}}}"] for health in GpuHealth}
    assert counted == {"healthy": 1, "degraded": 1, "failed": 0, "lost": 1, "mig": 0}
    assert (series["swapd_gpus_present"], series["swapd_gpus_expected"]) == (2, 4)


async def test_no_expectation_is_no_series(bench: Bench) -> None:
    bench.view = gpu_node(topology=topology(expected=0))
    assert "swapd_gpus_expected" not in await bench.series()


@pytest.mark.parametrize("state", [s for s in DriverState if s not in (DriverState.UP, DriverState.VIRTUAL)])
async def test_while_the_driver_cannot_be_asked_nothing_stale_is_shown(bench: Bench, state: DriverState) -> None:
    bench.view = gpu_node(gpus={0: {"reserved_bytes": Bytes(5)}})
    bench.driver = DriverStats(up=True)
    before = await told(bench)
    bench.view = replace(bench.view, topology=sick(topology(), driver=state))
    bench.driver = DriverStats(up=False, stalled_s=12.5, errors={("nvmlDeviceGetCount", "Unknown"): 3})
    series = await bench.series()
    assert await told(bench) == []
    assert series[f"swapd_gpu_reserved_bytes{{UUID={UUID},gpu=0}}"] == 5
    assert series["swapd_gpus_expected"] == 8
    assert series["swapd_nvml_up"] == 0
    assert series["swapd_nvml_stalled_seconds"] == 12.5
    assert series["swapd_nvml_errors_total{code=Unknown,function=nvmlDeviceGetCount}"] == 3
    states = {name: value for name, value in series.items() if name.startswith("swapd_nvml_state{")}
    assert [name for name, value in states.items() if value] == [f"swapd_nvml_state{{state={state.value}}}"]
    bench.view = gpu_node()
    bench.driver = DriverStats(up=True)
    assert await told(bench) == before != []


async def test_virtual_devices_have_accounts_and_no_driver(bench: Bench) -> None:
    series = await bench.series()
    assert [name for name in series if name.startswith("swapd_nvml")] == []
    assert series["swapd_gpu_reserved_bytes{UUID=virtual-0,gpu=0}"] == 0
    assert series["swapd_gpus{health=healthy}"] == 2
    assert [name for name in series if name.startswith(("swapd_gpu_free", "swapd_gpu_used"))] == []


async def test_a_gpu_that_was_never_readable_has_no_capacity_rather_than_none(bench: Bench) -> None:
    bench.view = node_view(gpus=(gpu_view(0, uuid="", memory_bytes=Bytes(0), health=GpuHealth.LOST),))
    series = await bench.series()
    assert series["swapd_gpu_reserved_bytes{UUID=,gpu=0}"] == 0
    assert [name for name in series if name.startswith("swapd_gpu_capacity_bytes")] == []


async def test_the_age_of_the_last_reading_is_told_once_there_was_one(bench: Bench) -> None:
    bench.driver = DriverStats(up=True)
    assert "swapd_nvml_last_read_age_seconds" not in await bench.series()
    bench.driver = DriverStats(up=True, last_read_age_s=2.5)
    assert (await bench.series())["swapd_nvml_last_read_age_seconds"] == 2.5


async def test_fragmentation_is_told_as_domains_and_as_a_ratio(bench: Bench) -> None:
    whole = (GpuSet(0b11), GpuSet(0b1100), GpuSet(0b110000))
    free = FreeView(GpuSet(0b1011), 2, GpuSet(0b11), GpuSet(0b11), whole, (GpuSet(0b11000000),))
    bench.view = gpu_node(free=free)
    series = await bench.series()
    assert series["swapd_nvlink_largest_free_block_gpus"] == 2
    assert series["swapd_nvlink_domains{integrity=whole}"] == 3
    assert series["swapd_nvlink_domains{integrity=fragmented}"] == 1
    assert series["swapd_nvlink_whole_domain_ratio"] == 0.75


async def test_a_node_without_nvlink_has_no_ratio(bench: Bench) -> None:
    bench.view = gpu_node(free=FreeView(GpuSet(3), 1, GpuSet(1), GpuSet(1), (), ()))
    assert "swapd_nvlink_whole_domain_ratio" not in await bench.series()


async def test_host_memory_is_told_where_it_is_accounted(bench: Bench) -> None:
    bench.view = gpu_node(host_booked_bytes=Bytes(3 * GIB))
    series = await bench.series()
    assert (series["swapd_host_reserved_bytes"], series["swapd_host_capacity_bytes"]) == (3 * GIB, 1024 * GIB)
    bench.view = gpu_node(topology=topology(host_bytes=None), host_booked_bytes=Bytes(3 * GIB))
    assert [name for name in await bench.series() if name.startswith("swapd_host")] == []


async def test_placements_are_counted_by_quality(bench: Bench) -> None:
    for quality in (PlacementQuality.TOP, PlacementQuality.TOP, PlacementQuality.SPREAD):
        bench.metrics.observe(Placed(InstanceId(1), M01, GpuSet(3), quality))
    series = await bench.series()
    assert {name: value for name, value in series.items() if name.startswith("swapd_placements")} == {
        "swapd_placements_total{quality=top}": 2,
        "swapd_placements_total{quality=spread}": 1,
    }


async def test_a_histogram_shows_how_long_memory_took_to_come_back(bench: Bench) -> None:
    """Twelve seconds of a driver that frees late, against a process list that told it at once."""
    bench.metrics.observe(ReleaseConfirmed(InstanceId(1), M01, seconds(12), ReleaseEvidence.FREE))
    bench.metrics.observe(ReleaseConfirmed(InstanceId(2), M01, seconds(0.05), ReleaseEvidence.PROCESSES))
    series = await bench.series()
    assert series["swapd_gpu_release_wait_seconds_bucket{evidence=free,le=10.0}"] == 0
    assert series["swapd_gpu_release_wait_seconds_bucket{evidence=free,le=15.0}"] == 1
    assert series["swapd_gpu_release_wait_seconds_sum{evidence=free}"] == 12
    assert series["swapd_gpu_release_wait_seconds_bucket{evidence=processes,le=0.1}"] == 1


async def test_a_models_memory_is_told_as_declared_and_as_measured(bench: Bench) -> None:
    measured = model_view("m01", declared_bytes=Bytes(10 * GIB), measured_bytes=Bytes(14 * GIB))
    bench.view = node_view(measured, model_view("m02", declared_bytes=Bytes(GIB)))
    series = await bench.series()
    assert series["swapd_model_declared_bytes{model=m01}"] == 10 * GIB
    assert series["swapd_model_measured_bytes{model=m01}"] == 14 * GIB
    assert series["swapd_model_declared_bytes{model=m02}"] == GIB
    assert "swapd_model_measured_bytes{model=m02}" not in series
