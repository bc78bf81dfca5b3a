"""The keys and defaults users rely on: a file that writes every default out means the same as a silent one."""

from collections.abc import Callable

import pytest

from swapd.config import Loaded
from swapd.config.devices import Devices
from swapd.core.ids import SECOND

Understood = Callable[[str], Loaded]

WRITTEN_OUT = """
http:    {listen: 127.0.0.1:8090, auth: none, max_body: 64MiB, max_buffered: 512MiB, sse_keepalive: off}
metrics: {listen: 127.0.0.1:9790}
admin:   {socket: auto}
state:   {path: auto}
engines: {ports: 20000-29999, on_exit: stop}
devices: {virtual: {count: 2, memory: 2GiB}}
scheduling: {policy: gdsf, protect: auto, protect_max_wait: 15s, min_residency: 0, drain_after: 120s,
             drain_timeout: null, max_concurrent_loads: 2, frequency_half_life: 24h, release_timeout: 30s,
             idle_unload: never, mode: auto, max_pinned_gpus: null, on_thrash: report}
defaults: {max_wait: 300s, max_queue: 512, concurrency: 16, load_timeout: 10m, load_stall: 2m,
           request_timeout: never}
"""

EVERY_KEY_OF_A_MODEL = """
devices: {virtual: {count: 2, memory: 2GiB}}
models:
  m01:
    engine: command
    command: [./serve, --model, "{weights}", --port, "{port}"]
    weights: models/m.gguf
    gpus: 1
    memory: 1GiB
    exclusive: true
    host_memory: 0
    nvlink: preferred
    gpu_name: null
    min_compute_capability: null
    aliases: [tiny-one]
    pin: false
    concurrency: 8
    max_wait: 90s
    request_timeout: never
    env: {OMP_NUM_THREADS: "1"}
    health: {path: /health, timeout: 2s}
    warmup: auto
    stop: {signal: SIGTERM, grace: 10s, command: null}
    on_client_abort: cancel
    priority: normal
"""

SILENT_ABOUT_DEFAULTS = """
devices: {virtual: {count: 2, memory: 2GiB}}
models:
  m01:
    command: [./serve, --model, "{weights}", --port, "{port}"]
    weights: models/m.gguf
    memory: 1GiB
    aliases: [tiny-one]
    concurrency: 8
    max_wait: 90s
    env: {OMP_NUM_THREADS: "1"}
"""


def test_every_default_of_the_node_is_what_it_is_said_to_be(understood: Understood) -> None:
    written_out = understood(WRITTEN_OUT).settings
    silent = understood("devices: {virtual: {count: 2, memory: 2GiB}}\n").settings
    assert written_out.model_dump() == silent.model_dump()


def test_without_a_word_about_devices_they_are_the_gpus_that_are_found(understood: Understood) -> None:
    silent, *others = (
        understood(text).settings.devices
        for text in (
            "# devices:\n",
            "devices:\n",
            "devices: {}\n",
            "devices: auto\n",
            "devices: {virtual: null, expected: null, memory: null, require_fabric: false, numa: auto}\n",
            "devices: {host_memory: auto}\n",
        )
    )
    assert silent.virtual is None
    assert all(devices == silent for devices in others)


def test_what_a_check_prints_of_the_devices_can_be_written_back(understood: Understood) -> None:
    for text in ("devices: {numa: off, host_memory: off, memory: 100GiB}", "devices: {virtual: {count: 1, memory: 1}}"):
        settings = understood(text).settings
        assert Devices.model_validate(settings.devices.model_dump(mode="json")) == settings.devices


@pytest.mark.parametrize(("written", "meant"), [("8.0", (8, 0)), ("9", (9, 0)), ('"12.1"', (12, 1)), ("10.0", (10, 0))])
def test_a_compute_capability_is_a_version_however_it_is_written(
    understood: Understood, written: str, meant: tuple[int, int]
) -> None:
    model = f'{{command: [./serve, "{{port}}"], memory: 1GiB, min_compute_capability: {written}}}'
    assert understood(f"models: {{a: {model}}}").settings.models["a"].min_compute_capability == meant


def test_every_default_of_a_model_is_what_it_is_said_to_be(understood: Understood) -> None:
    written_out = understood(EVERY_KEY_OF_A_MODEL).settings.models["m01"]
    silent = understood(SILENT_ABOUT_DEFAULTS).settings.models["m01"]
    assert written_out.model_dump() == silent.model_dump()


def test_limits_that_no_model_names_come_from_the_nodes_defaults(understood: Understood) -> None:
    model = understood('models: {a: {command: [./serve, "{port}"], memory: 1GiB}}\n').settings.models["a"]
    assert (model.max_wait, model.load_timeout, model.load_stall) == (300 * SECOND, 600 * SECOND, 120 * SECOND)
    assert (model.max_queue, model.concurrency) == (512, 16)


def test_the_limit_of_a_request_comes_from_the_defaults_and_a_model_may_lift_it(understood: Understood) -> None:
    text = """
defaults: {request_timeout: 10m}
models:
  a: {command: [./serve, "{port}"], memory: 1GiB}
  b: {command: [./serve, "{port}"], memory: 1GiB, request_timeout: never}
  c: {command: [./serve, "{port}"], memory: 1GiB, request_timeout: 30s}
"""
    models = understood(text).settings.models
    assert [models[name].request_timeout for name in "abc"] == [600 * SECOND, None, 30 * SECOND]
