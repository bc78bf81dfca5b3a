"""An engine describes and never acts: argument list, environment, probes and stop are values that a test can read."""

import json
import signal
from typing import Any

import pytest

from swapd.core.ids import SECOND, Duration, ModelName
from swapd.engines.base import (
    Binding,
    EngineError,
    EngineOptions,
    EnginePlan,
    LaunchSpec,
    ReadinessProbe,
    StopSpec,
    Warmup,
    WarmupRequest,
)
from swapd.engines.registry import ENGINES, plan

GPUS = ("GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-000000000000")
VIRTUAL = ("virtual-0",)
ENVIRON = {
    "PATH": "/usr/bin",
    "HOME": "/root",
    "NOTIFY_SOCKET": "/run/systemd/notify",
    "WATCHDOG_USEC": "1",
    "WATCHDOG_PID": "2",
    "LISTEN_FDS": "1",
    "LISTEN_PID": "2",
    "SWAPD_ADMIN": "/run/swapd/admin.sock",
    "CUDA_VISIBLE_DEVICES": "0",
}


NEAR = Binding(cpus=(0, 1), numa=(0,))


def described(engine: str, *, devices: tuple[str, ...] = VIRTUAL, **options: Any) -> EnginePlan:
    wanted = EngineOptions(name=ModelName(options.pop("name", "m01")), engine=engine, **options)
    return plan(wanted, port=20_001, devices=devices, environ=ENVIRON, binding=NEAR)


def launched(made: EnginePlan) -> LaunchSpec:
    assert made.launch is not None
    return made.launch


def test_a_command_gets_its_placeholders_argument_by_argument_and_nothing_else() -> None:
    command = (
        "serve",
        "--model={weights}",
        "--port",
        "{port}",
        "{name}",
        "{devices}",
        '{"a": {}}',
        "a b; rm -rf $HOME",
    )
    made = described("command", command=command, args=("--last",), weights="/m/a b.gguf", devices=GPUS)
    assert launched(made).argv == (
        "serve",
        "--model=/m/a b.gguf",
        "--port",
        "20001",
        "m01",
        ",".join(GPUS),
        '{"a": {}}',
        "a b; rm -rf $HOME",
        "--last",
    )


def test_a_placeholder_in_a_value_is_not_filled_again() -> None:
    assert launched(described("command", command=("serve", "{weights}"), weights="/m/{port}")).argv[1] == "/m/{port}"


def test_llama_server_is_told_model_name_port_slots_and_on_gpus_to_use_them() -> None:
    made = described("llama-server", weights="/m/a.gguf", concurrency=4, args=("-c", "4096"))
    assert launched(made).argv == (
        *("llama-server", "-m", "/m/a.gguf", "-a", "m01", "--host", "127.0.0.1", "--port", "20001", "-np", "4"),
        *("--metrics", "--no-ui", "-c", "4096"),
    )
    on_gpu = described("llama-server", weights="/m/a.gguf", command=("python", "serve.py"), devices=GPUS[:1])
    assert launched(on_gpu).argv[:2] == ("python", "serve.py")
    assert " -ngl 999 -fit off " in " ".join(launched(on_gpu).argv)


def test_vllm_is_told_every_name_one_rank_per_gpu_and_to_shut_down_within_the_grace() -> None:
    made = described(
        "vllm",
        weights="/m/big",
        aliases=("big", "big-chat"),
        devices=GPUS,
        stop_grace=Duration(30 * SECOND),
        args=("--max-model-len", "8192"),
    )
    assert launched(made).argv == (
        *("vllm", "serve", "/m/big", "--host", "127.0.0.1", "--port", "20001"),
        *("--served-model-name", "m01", "big", "big-chat", "--tensor-parallel-size", "2", "--shutdown-timeout", "29"),
        *("--enable-server-load-tracking", "--disable-uvicorn-access-log", "--max-model-len", "8192"),
    )
    env = launched(made).env
    assert (env["HF_HUB_OFFLINE"], env["VLLM_NO_USAGE_STATS"]) == ("1", "1")
    assert "VLLM_SERVER_DEV_MODE" not in env


@pytest.mark.parametrize("engine", ["llama-server", "vllm"])
def test_an_engine_that_loads_weights_says_so_when_there_are_none(engine: str) -> None:
    with pytest.raises(EngineError, match="model m01 needs weights"):
        described(engine)


def test_a_command_without_words_or_with_a_placeholder_without_value_is_refused() -> None:
    with pytest.raises(EngineError, match="needs a command"):
        described("command")
    with pytest.raises(EngineError, match=r"\{weights\} stands in '\{weights\}', but the model names no weights"):
        described("command", command=("serve", "{weights}"))


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(EngineError, match="use one of command, external, llama-server, vllm"):
        described("ollama")
    assert set(ENGINES) == {"command", "external", "llama-server", "vllm"}


def test_the_daemons_own_variables_stay_with_the_daemon() -> None:
    env = launched(described("command", command=("serve",), env={"OMP_NUM_THREADS": "1", "HOME": "/models"})).env
    assert env == {"PATH": "/usr/bin", "HOME": "/models", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_s_gpus_are_named_by_full_uuid_in_the_order_given_whatever_the_daemon_was_told(
    engine: str,
) -> None:
    for order in (GPUS, GPUS[::-1], GPUS[:1]):
        made = described(engine, command=("serve",), weights="/m", url="http://127.0.0.1:1", devices=order)
        env = launched(made).env
        assert (env["CUDA_DEVICE_ORDER"], env["CUDA_VISIBLE_DEVICES"]) == ("PCI_BUS_ID", ",".join(order))


def test_the_server_runs_near_its_gpus_and_its_stop_hook_anywhere() -> None:
    for engine in ("command", "llama-server", "vllm"):
        made = described(engine, command=("serve",), weights="/m", devices=GPUS, stop_command=("stop",))
        assert launched(made).binding == NEAR
        assert made.stop.command is not None
        assert made.stop.command.binding == Binding()
    assert launched(described("external", url="http://127.0.0.1:1", command=("start",))).binding == Binding()


def test_what_the_user_writes_has_the_last_word() -> None:
    mine = launched(described("command", command=("serve",), devices=GPUS, env={"CUDA_VISIBLE_DEVICES": "1"})).env
    assert mine["CUDA_VISIBLE_DEVICES"] == "1"


def test_probe_and_stop_come_from_the_options() -> None:
    made = described(
        "command",
        command=("serve",),
        cwd="/srv",
        health_path="/ready",
        health_timeout=SECOND,
        stop_signal=signal.SIGINT,
        stop_grace=SECOND,
        stop_command=("docker", "stop", "swapd-{name}-{port}"),
    )
    assert (made.host, made.port, made.serves) == ("127.0.0.1", 20_001, True)
    assert made.readiness == ReadinessProbe("/ready", SECOND)
    hook = LaunchSpec(("docker", "stop", "swapd-m01-20001"), launched(made).env, "/srv")
    assert made.stop == StopSpec(signal.SIGINT, SECOND, hook)
    assert not made.owns_listener
    assert described("command", command=("serve",)).owns_listener


def test_the_automatic_warmup_tries_what_the_engine_may_have_for_one_token() -> None:
    made = described("command", command=("serve",))
    assert [request.path for request in made.warmup.attempts] == [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/completion",
    ]
    body = json.loads(made.warmup.attempts[0].body)
    assert (body["model"], body["max_tokens"]) == ("m01", 1)
    for engine in ("llama-server", "vllm"):
        assert described(engine, weights="/m").warmup.attempts[0].path == "/v1/chat/completions"


def test_a_chosen_warmup_replaces_the_automatic_one() -> None:
    assert described("command", command=("serve",), warmup=Warmup.NONE).warmup.attempts == ()
    mine = WarmupRequest("/generate", b"{}")
    made = described("command", command=("serve",), warmup=mine)
    assert (made.warmup.attempts, made.warmup.exact) == ((mine,), True)


def test_an_external_server_has_hooks_and_an_address_but_no_process() -> None:
    made = described("external", url="http://10.0.0.7:9000", command=("start", "{name}"), stop_command=("stop",))
    assert launched(made).argv == ("start", "m01")
    assert (made.host, made.port, made.serves, made.owns_listener) == ("10.0.0.7", 9000, False, False)
    assert made.readiness.path == "/health"
    bare = described("external", url="http://127.0.0.1:{port}/ready")
    assert (bare.launch, bare.port, bare.readiness.path) == (None, 20_001, "/ready")


@pytest.mark.parametrize("url", ["https://a:1", "a:1", "http://", "http://a:99999", "http://u@a:1", "http://a:1/?x=1"])
def test_a_url_that_cannot_be_used_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(EngineError, match=r"needs a url like http://127\.0\.0\.1:9000"):
        described("external", url=url)


def test_an_external_server_without_a_url_is_refused() -> None:
    with pytest.raises(EngineError, match="needs a url: where its external server listens"):
        described("external")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_variables_of_the_configuration_are_told_from_the_daemon_s(engine: str) -> None:
    own = {"PLAIN": "swordfish"}
    made = described(
        engine, command=("serve",), weights="/m", url="http://127.0.0.1:1", stop_command=("stop",), env=own
    )
    assert made.stop.command is not None
    assert launched(made).own_env == made.stop.command.own_env == own
    assert {**launched(made).env, **own} == launched(made).env
