"""What a configuration file means: defaults, words, relative paths, YAML's traps."""

from collections.abc import Callable
from pathlib import Path

import pytest

from swapd.config import ConfigError, Loaded, load
from swapd.config.model import EngineKind, OnClientAbort, WarmupRequest
from swapd.config.schema import OnExit
from swapd.config.units import Listen, PortRange
from swapd.core.catalog import Mode, PolicyName, Priority
from swapd.core.ids import SECOND

Understood = Callable[[str], Loaded]
Refused = Callable[[str], list[str]]

MODEL = 'command: [./serve, "{port}"], memory: 1GiB'


def test_a_file_that_names_only_devices_has_every_default(understood: Understood) -> None:
    settings = understood("").settings
    assert settings.http.listen == Listen("127.0.0.1", 8090)
    assert (settings.http.max_body, settings.http.max_buffered, settings.http.sse_keepalive) == (
        64 << 20,
        512 << 20,
        None,
    )
    assert settings.metrics.listen == Listen("127.0.0.1", 9790)
    assert (settings.admin.socket, settings.state.path) == (None, None)
    assert (settings.engines.ports, settings.engines.on_exit) == (PortRange(20000, 29999), OnExit.STOP)
    scheduling = settings.scheduling
    assert (scheduling.policy, scheduling.mode, scheduling.max_concurrent_loads) == (PolicyName.GDSF, Mode.AUTO, 2)
    assert (scheduling.protect, scheduling.protect_max_wait, scheduling.drain_after) == (
        None,
        15 * SECOND,
        120 * SECOND,
    )
    assert (scheduling.drain_timeout, scheduling.idle_unload, scheduling.max_pinned_gpus) == (None, None, None)
    assert (scheduling.frequency_half_life, scheduling.release_timeout) == (86_400 * SECOND, 30 * SECOND)
    assert dict(settings.models) == {}


def test_a_model_has_the_defaults_of_the_node_where_it_says_nothing(understood: Understood) -> None:
    settings = understood(f"""
        defaults: {{max_wait: 40s, max_queue: 7, concurrency: 3, load_timeout: 4m, load_stall: 50s}}
        models:
          a: {{{MODEL}}}
          b: {{{MODEL}, max_wait: 90s, concurrency: 8}}
        """).settings
    a, b = settings.models["a"], settings.models["b"]
    assert (a.max_wait, a.max_queue, a.concurrency, a.load_timeout, a.load_stall) == (
        40 * SECOND,
        7,
        3,
        240 * SECOND,
        50 * SECOND,
    )
    assert (b.max_wait, b.max_queue, b.concurrency) == (90 * SECOND, 7, 8)


def test_a_model_with_every_key_is_understood(understood: Understood, directory: Path) -> None:
    model = understood("""
        models:
          Qwen/Qwen3-8B:
            engine: command
            command: [./serve, -m, "{weights}", -p, "{port}", -n, "{name}", -d, "{devices}"]
            weights: models/m.gguf
            gpus: 2
            memory: 1GiB
            exclusive: false
            aliases: [qwen, 8b]
            pin: false
            env: {OMP_NUM_THREADS: "1", DEBUG: on, LEVEL: 007}
            health: {path: "/ready?full=1", timeout: 500ms}
            warmup: {path: /v1/completions, body: {prompt: hi, max_tokens: 1}}
            stop: {signal: int, grace: 0, command: [./serve, --stop, "{name}"]}
            on_client_abort: finish
            priority: high
            load_estimate: 40s
        """).settings.models["Qwen/Qwen3-8B"]
    assert model.engine is EngineKind.COMMAND
    assert model.command[:3] == (str(directory / "serve"), "-m", "{weights}")
    assert model.weights == directory / "models" / "m.gguf"
    assert (model.gpus, model.memory, model.exclusive, model.aliases) == (2, 1 << 30, False, ("qwen", "8b"))
    assert model.env == {"OMP_NUM_THREADS": "1", "DEBUG": "on", "LEVEL": "007"}
    assert (model.health.path, model.health.timeout) == ("/ready?full=1", SECOND // 2)
    assert model.warmup == WarmupRequest(path="/v1/completions", body={"prompt": "hi", "max_tokens": 1})
    assert (model.stop.signal, model.stop.grace) == ("SIGINT", 0)
    assert model.stop.command == (str(directory / "serve"), "--stop", "{name}")
    assert (model.on_client_abort, model.priority) == (OnClientAbort.FINISH, Priority.HIGH)
    assert model.load_estimate == 40 * SECOND


def test_words_of_a_command_stay_as_they_are_written_although_yaml_sees_numbers(understood: Understood) -> None:
    model = understood("""
        models:
          7b:
            command: [./serve, --port, "{port}", -c, 4096, --yes, on, -t, 1e3, --ratio, 1:30, --json, '{"a": {"b": 1}}']
            memory: 1GiB
        """).settings.models["7b"]
    assert model.command[3:] == (
        "-c",
        "4096",
        "--yes",
        "on",
        "-t",
        "1e3",
        "--ratio",
        "1:30",
        "--json",
        '{"a": {"b": 1}}',
    )


@pytest.mark.parametrize(("text", "expected"), [("off", None), ('"off"', None), ("15s", 15 * SECOND)])
def test_keep_alives_are_off_also_when_yaml_makes_a_boolean_of_the_word(
    understood: Understood, text: str, expected: int | None
) -> None:
    assert understood(f"http: {{sse_keepalive: {text}}}").settings.http.sse_keepalive == expected


def test_words_for_no_limit_are_understood(understood: Understood) -> None:
    scheduling = understood("""
        scheduling: {protect: 0, protect_max_wait: never, min_residency: 1x, drain_timeout: 30s,
                     idle_unload: 10m, max_pinned_gpus: 2}
        """).settings.scheduling
    assert (scheduling.protect, scheduling.protect_max_wait, scheduling.drain_timeout) == (0, None, 30 * SECOND)
    assert (scheduling.min_residency.load_times, scheduling.min_residency.duration) == (1.0, 0)
    assert (scheduling.idle_unload, scheduling.max_pinned_gpus) == (600 * SECOND, 2)


def test_an_empty_section_is_as_good_as_none(understood: Understood) -> None:
    settings = understood("http:\nscheduling:\nmodels:\n").settings
    assert (settings.http.listen.port, dict(settings.models)) == (8090, {})


def test_paths_start_at_the_configuration_file(understood: Understood, directory: Path) -> None:
    settings = understood("admin: {socket: run/admin.sock}\nstate: {path: /var/x/../y.db}").settings
    assert settings.directory == directory
    assert (settings.admin.socket, settings.state.path) == (directory / "run" / "admin.sock", Path("/var/y.db"))


def test_a_path_may_begin_at_home(understood: Understood, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(directory))
    model = understood(
        'models: {a: {command: [~/serve, "{port}"], memory: 1GiB, weights: ~/models/m.gguf}}'
    ).settings.models["a"]
    assert (model.command[0], model.weights) == (str(directory / "serve"), directory / "models" / "m.gguf")


def test_a_relative_path_to_the_file_is_made_absolute_but_its_symlinks_are_kept(
    write: Callable[[str], Path], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("")
    (directory / "link").symlink_to(directory)
    monkeypatch.chdir(directory)
    loaded = load(Path("link/swapd.yaml"))
    assert (loaded.path, loaded.settings.directory) == (directory / "link" / "swapd.yaml", directory / "link")


def test_anchors_and_merge_keys_work_and_the_model_own_keys_win(understood: Understood) -> None:
    settings = understood("""
        models:
          a: &a {command: &serve [./serve, "{port}"], memory: 1GiB, max_wait: 20s}
          b: {<<: *a, memory: 2GiB}
          c: {command: *serve, memory: 3GiB}
          d: {<<: [{memory: 4GiB}, *a]}
        """).settings
    assert [model.memory >> 30 for model in settings.models.values()] == [1, 2, 3, 4]
    assert [model.max_wait // SECOND for model in settings.models.values()] == [20, 20, 300, 20]
    assert len({model.command for model in settings.models.values()}) == 1


@pytest.mark.parametrize("engine", ["llama-server", "vllm"])
def test_a_known_engine_needs_no_command_when_its_program_is_on_the_models_path(
    understood: Understood, directory: Path, engine: str
) -> None:
    (directory / "bin").mkdir()
    (directory / "bin" / engine).symlink_to(directory / "serve")
    settings = understood(f"""
        models:
          a: {{engine: {engine}, weights: models, memory: 1GiB, args: [-c, 4096], env: {{PATH: {directory}/bin}}}}
          b: {{engine: {engine}, command: [./serve], weights: models, memory: 1GiB}}
        """).settings
    assert settings.models["a"].args == ("-c", "4096")


def test_an_external_server_needs_its_url_and_a_way_to_stop_it_unless_it_is_pinned(understood: Understood) -> None:
    settings = understood("""
        models:
          a: {engine: external, url: "http://localhost:8000/", memory: 1GiB, pin: true}
          b: {engine: external, url: "http://[::1]:8000/health", memory: 1GiB, command: [./serve],
              stop: {command: [./serve, stop]}}
        """).settings
    assert [model.url for model in settings.models.values()] == ["http://localhost:8000", "http://[::1]:8000/health"]


def test_a_file_that_is_not_there_is_a_problem_like_any_other(directory: Path) -> None:
    for path, sentence in ((directory / "none.yaml", "readable"), (directory, "a regular file")):
        with pytest.raises(ConfigError, match=f"make the configuration file {sentence}"):
            load(path)


def test_a_problem_reads_as_file_line_and_sentence(write: Callable[[str], Path]) -> None:
    path = write("htpp: {}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"{path}:2: remove or correct `htpp`: there is no such key; did you mean `http`?"


def test_a_key_that_is_wrong_is_not_called_missing_as_well(refused: Refused) -> None:
    assert refused("scheduling: {on_thrash: pin, max_pinned_gpus: -1}") == [
        "2: `scheduling.max_pinned_gpus`: write a number of at least 0, not -1"
    ]
    assert refused("http: {listen: 0.0.0.0:8090, auth: all}") == ["2: `http.auth`: write none, not 'all'"]
