"""From settings to the core's words: specs, rules, devices, revisions, estimates."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from swapd.config import Loaded, compile_catalog, compile_topology, reserved_ports
from swapd.config.host import available_memory
from swapd.core.catalog import (
    Catalog,
    Footprint,
    Mode,
    ModelSpec,
    NvlinkUse,
    OnThrash,
    PolicyName,
    Priority,
    SchedulingSettings,
)
from swapd.core.ids import MILLISECOND, SECOND, Bytes, Duration, ModelName
from swapd.core.topology import DriverState, Gpu, NodeTopology
from swapd.weights import Weights
from swapd.weights.inventory import wanted

Understood = Callable[[str], Loaded]

MODEL = 'command: [./serve, "{port}"], weights: models/m.gguf, memory: 1GiB'


def spec(understood: Understood, keys: str, name: str = "m") -> ModelSpec:
    return compile_catalog(understood(f"models: {{{name}: {{{keys}}}}}").settings).models[ModelName(name)]


def test_devices_are_numbered_and_have_names_that_stay(understood: Understood) -> None:
    topology = compile_topology(understood("devices: {virtual: {count: 2, memory: 2GiB}}").settings)
    assert topology.gpus == (Gpu(0, "virtual-0", Bytes(2 << 30)), Gpu(1, "virtual-1", Bytes(2 << 30)))
    assert (topology.driver, topology.host_bytes) == (DriverState.VIRTUAL, available_memory())


def test_before_the_gpus_are_found_there_are_none_and_the_driver_is_starting(understood: Understood) -> None:
    settings = understood("devices: {expected: 8, host_memory: 1TiB}").settings
    assert compile_topology(settings) == NodeTopology(
        (), driver=DriverState.STARTING, expected=8, host_bytes=Bytes(1 << 40)
    )
    assert compile_topology(understood("devices: {host_memory: off}").settings).host_bytes is None


def test_the_core_is_told_everything_about_a_model(understood: Understood) -> None:
    made = spec(
        understood,
        f"{MODEL}, gpus: 2, exclusive: false, pin: true, concurrency: 3, max_queue: 5, max_wait: 9s, load_timeout: 1m, "
        "load_stall: 20s, load_estimate: 3s, stop: {grace: 4s, command: [./serve, stop]}, priority: low, "
        'host_memory: 64GiB, nvlink: required, gpu_name: "*h100*", min_compute_capability: 9.0',
    )
    assert made == ModelSpec(
        name=ModelName("m"),
        footprint=Footprint(gpus=2, bytes_per_gpu=Bytes(1 << 30), exclusive=False, host_bytes=Bytes(64 << 30)),
        pinned=True,
        concurrency=3,
        max_queue=5,
        max_wait=Duration(9 * SECOND),
        load_timeout=Duration(60 * SECOND + 40 * MILLISECOND),
        load_stall=Duration(20 * SECOND),
        stop_grace=Duration(4 * SECOND),
        has_stop_command=True,
        priority=Priority.LOW,
        nvlink=NvlinkUse.REQUIRED,
        gpu_name="*h100*",
        min_compute_capability=(9, 0),
        load_estimate=Duration(3 * SECOND),
        local_weights=True,
        revision=made.revision,
    )
    assert made.revision


def test_without_a_word_about_scheduling_the_core_has_its_own_defaults(understood: Understood) -> None:
    assert compile_catalog(understood("").settings) == Catalog()


def test_the_core_is_told_every_rule(understood: Understood) -> None:
    settings = understood("""
        devices: {require_fabric: true}
        scheduling: {policy: lru, protect: 1s, protect_max_wait: never, min_residency: 2x, drain_after: 3s,
                     drain_timeout: 4s, max_concurrent_loads: 5, frequency_half_life: 6s, release_timeout: 7s,
                     idle_unload: 8s, mode: manual, max_pinned_gpus: 3, on_thrash: pin}
        """).settings
    assert compile_catalog(settings).settings == SchedulingSettings(
        policy=PolicyName.LRU,
        protect=Duration(SECOND),
        protect_max_wait=None,
        min_residency_load_times=2.0,
        min_residency=Duration(0),
        drain_after=Duration(3 * SECOND),
        drain_timeout=Duration(4 * SECOND),
        max_concurrent_loads=5,
        frequency_half_life=Duration(6 * SECOND),
        release_timeout=Duration(7 * SECOND),
        idle_unload=Duration(8 * SECOND),
        mode=Mode.MANUAL,
        max_pinned_gpus=3,
        on_thrash=OnThrash.PIN,
        require_fabric=True,
    )


def test_heavier_weights_get_a_later_deadline_and_a_longer_first_guess(understood: Understood, directory: Path) -> None:
    with (directory / "models" / "m.gguf").open("wb") as file:
        file.truncate(70_000_000_000)
    made = spec(understood, MODEL)
    assert (made.load_timeout, made.load_estimate) == (Duration((600 + 700) * SECOND), Duration((2 + 35) * SECOND))


def test_a_directory_and_a_split_file_count_all_they_hold(understood: Understood, directory: Path) -> None:
    (directory / "models" / "sub").mkdir()
    (directory / "models" / "sub" / "more").write_bytes(bytes(6_000_000))
    for number in (1, 2):
        (directory / f"s-0000{number}-of-00002.gguf").write_bytes(bytes(3_000_000))
    (directory / "models" / "dangling").symlink_to("nowhere")
    whole = spec(understood, 'command: [./serve, "{port}"], weights: models, memory: 1GiB')
    split = spec(understood, 'command: [./serve, "{port}"], weights: s-00001-of-00002.gguf, memory: 1GiB')
    assert (whole.load_estimate - 2 * SECOND, split.load_estimate - 2 * SECOND) == (5 * MILLISECOND, 3 * MILLISECOND)


@pytest.mark.parametrize(
    "keys",
    [
        "concurrency: 2",
        "max_wait: 1m",
        "max_queue: 3",
        "load_timeout: 1m",
        "load_stall: 1m",
        "request_timeout: 1m",
        "load_estimate: 1m",
        "aliases: [x]",
        "pin: true",
        "priority: high",
        "on_client_abort: finish",
        "gpus: 1",
        "host_memory: 0",
        "nvlink: ignore",
        "gpu_name: null",
        "env: {}",
    ],
)
def test_what_needs_no_new_process_leaves_the_revision(understood: Understood, keys: str) -> None:
    assert spec(understood, f"{MODEL}, {keys}").revision == spec(understood, MODEL).revision


@pytest.mark.parametrize(
    "keys",
    [
        "gpus: 2",
        "memory: 2GiB",
        "host_memory: 1GiB",
        "nvlink: required",
        'gpu_name: "*H100*"',
        "min_compute_capability: 8.0",
        "exclusive: false",
        "env: {A: b}",
        "health: {path: /ready}",
        "warmup: none",
        "warmup: {path: /x, body: {}}",
        "stop: {signal: SIGINT}",
        "stop: {command: [./serve, stop]}",
        'command: [./serve, "{port}", more]',
        "weights: models",
    ],
)
def test_what_needs_a_new_process_changes_the_revision(understood: Understood, keys: str) -> None:
    changed = spec(understood, f"<<: {{{MODEL}}}, {keys}").revision
    assert changed != spec(understood, f"<<: {{{MODEL}}}").revision


def test_replaced_weights_change_the_revision_although_the_file_says_the_same(
    understood: Understood, directory: Path
) -> None:
    seen = [spec(understood, MODEL).revision, spec(understood, MODEL).revision]
    os.utime(directory / "models" / "m.gguf", ns=(1, 1))
    seen.append(spec(understood, MODEL).revision)
    (directory / "models" / "m.gguf").write_bytes(bytes(4_000_001))
    seen.append(spec(understood, MODEL).revision)
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


def test_weights_that_vanish_after_the_check_are_taken_as_unknown(understood: Understood, directory: Path) -> None:
    settings = understood(f"models: {{m: {{{MODEL}}}}}").settings
    (directory / "models" / "m.gguf").unlink()
    made = compile_catalog(settings).models[ModelName("m")]
    assert (made.load_estimate, made.load_timeout) == (Duration(2 * SECOND), Duration(600 * SECOND))


def test_no_engine_is_given_a_port_that_somebody_has(understood: Understood) -> None:
    settings = understood("""
        http: {listen: 127.0.0.1:20000}
        metrics: {listen: 127.0.0.1:0}
        models:
          a: {command: [./serve, "{port}", --grpc-port, 20001], memory: 1GiB}
          b: {engine: external, url: "http://127.0.0.1:20002", memory: 1GiB, pin: true}
          c: {engine: external, url: "http://127.0.0.1:20002", memory: 1GiB, pin: true}
        """).settings
    assert reserved_ports(settings) == {20000, 20001, 20002}


def test_models_share_a_copy_that_ask_for_the_same_as_the_cache_names_it(understood: Understood) -> None:
    sources = {
        "a": '{source: "hf://o/n@main", include: ["*.json", "*.txt"]}',
        "b": '{source: "hf://o/n@main", include: ["*.txt", "*.json"]}',
        "c": '{source: "hf://o/n@main"}',
        "d": '{source: "hf://o/n@other"}',
        "e": "models/m.gguf",
    }
    keys = "command: [./serve, '{port}'], memory: 1GiB"
    models = ", ".join(f"{name}: {{{keys}, weights: {source}}}" for name, source in sources.items())
    specs = compile_catalog(understood(f"models: {{{models}}}").settings).models
    copies = {name: specs[ModelName(name)].copy for name in sources}
    assert copies["a"] == copies["b"] == wanted(Weights("hf://o/n@main", ("*.json", "*.txt")))
    assert len({copies[name] for name in "acde"}) == 4
    assert copies["e"] == ""
