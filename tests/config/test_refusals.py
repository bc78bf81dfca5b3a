"""What is refused: each with its line and a sentence that says what to do, all of them at once."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[[str], list[str]]

OK = 'command: [./serve, "{port}"], memory: 1GiB'


def test_everything_wrong_is_named_at_once_and_in_the_order_of_the_file(refused: Refused) -> None:
    found = refused("""
        http: {listen: 0.0.0.0:8090}
        scheduling:
          policy: gdfs
        models:
          a: {command: [./serve], memory: 1GiB}
          b: {command: [./serve, "{port}"], memroy: 1GiB}
          c: {command: [./serve, "{port}"], memory: 1GiB, weights: none.gguf}
          c: {}
        """)
    assert [line.partition(":")[0] for line in found] == ["3", "5", "7", "8", "8", "9", "10"]
    assert [line for line in found if "did you mean" in line] == [
        "5: `scheduling.policy`: write gdsf, lru or cheapest-reload, not 'gdfs'; did you mean `gdsf`?",
        "8: remove or correct `models.b.memroy`: there is no such key; did you mean `memory`?",
    ]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            "engine: vlm",
            "`models.a.engine`: write command, llama-server, vllm or external, not 'vlm'; did you mean `vllm`?",
        ),
        ("gpus: 0", "`models.a.gpus`: write a number of at least 1, not 0"),
        ("gpus: two", "`models.a.gpus`: write a whole number, for example 2, not 'two'"),
        ("gpus: 1.5", "`models.a.gpus`: write a whole number, for example 2, not 1.5"),
        ("gpus: true", "`models.a.gpus`: write a whole number, for example 2, not true"),
        ("pin: yess", "`models.a.pin`: write true or false, not 'yess'"),
        ("pin: 1", "`models.a.pin`: write true or false, not 1"),
        ("memory: 1G", "`models.a.memory`: write a size such as 64MiB, 80GB or a plain number of bytes, not '1G'"),
        ("memory: 0", "`models.a.memory`: write a size above 0, for example 1GiB"),
        ("max_wait: 90", "`models.a.max_wait`: write the unit of the duration, for example 90s or 90m"),
        ("max_wait: 0", "`models.a.max_wait`: write a duration above 0, for example 10s"),
        ("aliases: tiny", "`models.a.aliases`: write a list, for example [first, second], not 'tiny'"),
        ('aliases: ["x,y"]', "`models.a.aliases[1]`: use a name without commas"),
        ("aliases: [__unknown__]", "`models.a.aliases[1]`: choose another name: __unknown__ stands for unknown models"),
        ("command: ./serve", "`models.a.command`: write a list with one item per word"),
        ("command: [./serve, [x]]", "`models.a.command`: write text in quotes"),
        ("command: []", 'add `models.a.command`, for example [python, serve.py, --port, "{port}"]'),
        (
            "command: [./serve]",
            "`models.a.command`: put {port} where the program takes its port, because swapd chooses it",
        ),
        (
            'command: [./serve, "{port}", "{prot}"]',
            "`models.a.command[3]`: there is no {prot}; did you mean `port`?; possible are",
        ),
        (
            'command: [./serve, "{port}", "{weights}"]',
            "`models.a.command[3]`: add `models.a.weights`, because {weights}",
        ),
        ('command: [./none, "{port}"]', "`models.a.command`: correct the path or make the file executable"),
        ('command: [./note, "{port}"]', "`models.a.command`: correct the path or make the file executable"),
        ('command: [serve, "{port}"]', "`models.a.command`: write ./serve: it lies beside the configuration file"),
        ('command: [no-such-thing, "{port}"]', "`models.a.command`: install 'no-such-thing', which is not on PATH"),
        ("args: [x]", "`models.a.args`: remove this key: it is for engine: llama-server and vllm"),
        ('url: "http://127.0.0.1:1"', "`models.a.url`: remove this key: it is for engine: external"),
        ("weights: models/none.gguf", "`models.a.weights`: put the weights there or correct the path"),
        ("weights: note/x", "`models.a.weights`: make the weights readable"),
        ("weights: 3", "`models.a.weights`: write the path of a file"),
        ("env: [x]", "`models.a.env`: write variables and values"),
        ("env: {A=B: x}", "`models.a.env`: use a variable name without ="),
        ("env: {A: [x]}", "`models.a.env`: write text in quotes"),
        ("health: {path: health}", "`models.a.health.path`: write a request path that begins with a slash"),
        ("health: {timeout: 2}", "`models.a.health.timeout`: write the unit of the duration"),
        ("health: /health", "`models.a.health`: write keys and values below it, not '/health'"),
        ("warmup: maybe", "`models.a.warmup`: write auto or none, not 'maybe'"),
        ("warmup: {path: /x}", "add `models.a.warmup.body`, for example body: {prompt: hi, max_tokens: 1}"),
        ("warmup: {path: /x, body: hi}", "`models.a.warmup.body`: write the JSON body of the request as a mapping"),
        ("warmup: {path: /x, body: {t: .nan}}", "`models.a.warmup.body`: leave .nan and .inf out of the body"),
        ("stop: {signal: SIGTREM}", "`models.a.stop.signal`: write the name of a signal such as SIGTERM or SIGINT"),
        ("stop: {signal: 15}", "`models.a.stop.signal`: write the name of a signal such as SIGTERM or SIGINT, not 15"),
        ("stop: {command: []}", "`models.a.stop.command`: write program and arguments as a list, or null"),
        ("stop: {command: [./none]}", "`models.a.stop.command`: correct the path or make the file executable"),
        ('stop: {command: [./serve, "{pid}"]}', "`models.a.stop.command[2]`: there is no {pid}"),
        ("priority: urgent", "`models.a.priority`: write high, normal or low, not 'urgent'"),
        ("priority: null", "`models.a.priority`: write high, normal or low, not null"),
        ("priority: true", "`models.a.priority`: write high, normal or low, not true"),
        ("on_client_abort: ignore", "`models.a.on_client_abort`: write cancel or finish, not 'ignore'"),
        ("gpus: 5", "`models.a.gpus`: write at most 4, the number of the node's devices, not 5"),
        ("host_memory: most", "`models.a.host_memory`: write a size such as 64MiB, 80GB or a plain number of bytes"),
        ("nvlink: yes", "`models.a.nvlink`: write required, preferred or ignore, not true"),
        ("gpu_name: 4090", '`models.a.gpu_name`: write a pattern of the product name such as "*H100*", or null for'),
        ('gpu_name: ""', "`models.a.gpu_name`: write a pattern of the product name"),
        (
            "min_compute_capability: 8.0.1",
            "`models.a.min_compute_capability`: write a compute capability such as 8.0, or null for any, not '8.0.1'",
        ),
        ("min_compute_capability: 8.65", "`models.a.min_compute_capability`: write a compute capability such as 8.0"),
        ("min_compute_capability: true", "`models.a.min_compute_capability`: write a compute capability such as 8.0"),
        ("memory: 9GiB", "`models.a.memory`: write at most 8 GiB, the memory of a device, not 9 GiB"),
        ("engine: llama-server", "add `models.a.weights`, the file or directory that llama-server is to serve"),
        ("engine: external", "add `models.a.url`, the address of the server"),
        (
            'engine: external, url: "http://127.0.0.1:7"',
            "add `models.a.stop.command`, or `pin: true` if nothing is to stop the server",
        ),
        ("engine: external, url: 7", "`models.a.url`: write the base URL of the server"),
        (
            'engine: external, url: "https://127.0.0.1:7"',
            "`models.a.url`: write the base URL of the server with its port",
        ),
        ('engine: external, url: "http://127.0.0.1"', "`models.a.url`: write the base URL of the server with its port"),
        ('engine: external, url: "http://10.0.0.1:7"', "`models.a.url`: name a server on this machine's loopback"),
        ('engine: external, url: "http://u@127.0.0.1:7"', "`models.a.url`: write a base URL without user, query and"),
        ('engine: external, url: "http://127.0.0.1:99999"', "`models.a.url`: write the base URL of the server"),
    ],
)
def test_a_wrong_key_of_a_model_is_answered_with_what_to_do(refused: Refused, keys: str, sentence: str) -> None:
    found = refused(f"models:\n  a:\n    {{<<: {{{OK}}}, {keys}}}\n")
    assert len(found) == 1, found
    line, _, said = found[0].partition(": ")
    assert said.startswith(sentence)
    keys_of_its_own = ("command", "weights", "url", "stop")
    about_the_model_itself = said.startswith(tuple(f"add `models.a.{key}" for key in keys_of_its_own))
    assert line == ("3" if about_the_model_itself else "4")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("http: {listen: 8090}", "`http.listen`: write address and port such as 127.0.0.1:8090"),
        ("http: {listen: ':8090'}", "`http.listen`: write `auth: none` beside it"),
        ("http: {auth: keys}", "`http.auth`: write none, not 'keys'"),
        ("http: {max_body: big}", "`http.max_body`: write a size such as 64MiB"),
        (
            "http: {sse_keepalive: on}",
            "`http.sse_keepalive`: write a duration such as 500ms, 15s, 10m or 1h30m, not true, or off",
        ),
        ("http: {sse_keepalive: 0}", "`http.sse_keepalive`: write a duration above 0, for example 10s, or off"),
        ("http: 8090", "`http`: write keys and values below it, not 8090"),
        (
            "metrics: {listen: 127.0.0.1:8090}",
            "`metrics.listen`: choose another port: 8090 is the one of `http.listen`",
        ),
        ("admin: {socket: ''}", "`admin.socket`: write the path of a file"),
        (f"admin: {{socket: /{'x' * 120}}}", "`admin.socket`: choose a path of at most 107 bytes, the system's limit"),
        ("engines: {ports: 20000}", "`engines.ports`: write a range of ports such as 20000-29999, not 20000"),
        ("engines: {on_exit: keeep}", "`engines.on_exit`: write stop or keep, not 'keeep'; did you mean `keep`?"),
        ("scheduling: {protect_max_wait: null}", "`scheduling.protect_max_wait`: write a duration such as 500ms"),
        (
            "scheduling: {drain_timeout: never}",
            "`scheduling.drain_timeout`: write a duration such as 500ms, 15s, 10m or 1h30m, not 'never', or null",
        ),
        ("scheduling: {min_residency: 2}", "`scheduling.min_residency`: write the unit of the duration"),
        (
            "scheduling: {max_concurrent_loads: 0}",
            "`scheduling.max_concurrent_loads`: write a number of at least 1, not 0",
        ),
        ("scheduling: {max_pinned_gpus: -1}", "`scheduling.max_pinned_gpus`: write a number of at least 0, not -1"),
        (
            "scheduling: {policies: lru}",
            "remove or correct `scheduling.policies`: there is no such key; did you mean `policy`?",
        ),
        (
            "defaults: {max_wait: soon}",
            "`defaults.max_wait`: write a duration such as 500ms, 15s, 10m or 1h30m, not 'soon'",
        ),
        (
            "defaults: {zzz: 1}",
            "remove or correct `defaults.zzz`: there is no such key; possible here: max_wait, max_queue",
        ),
        ("models: [a]", "`models`: write keys and values below it, not ['a']"),
        (
            "devices: {virtual: {count: 65, memory: 1GiB}}",
            "`devices.virtual.count`: write a number of at most 64, not 65",
        ),
        ("devices: {virtual: {count: 2}}", "add `devices.virtual.memory`, for example memory: 2GiB"),
        ("devices: aut", "`devices`: write auto, or keys and values below it, not 'aut'"),
        ("devices: 8", "`devices`: write auto, or keys and values below it, not 8"),
        (
            "devices: {vitrual: {}}",
            "remove or correct `devices.vitrual`: there is no such key; did you mean `virtual`?",
        ),
        ("devices: {expected: 0}", "`devices.expected`: write a number of at least 1, not 0"),
        ("devices: {memory: 0}", "`devices.memory`: write a size above 0, for example 1GiB"),
        ("devices: {require_fabric: 1}", "`devices.require_fabric`: write true or false, not 1"),
        ("devices: {numa: on}", "`devices.numa`: write auto or off, not true"),
        (
            "devices: {host_memory: most}",
            "`devices.host_memory`: write a size such as 64MiB, 80GB or a plain number of bytes, not 'most', or auto",
        ),
        (
            "devices: {virtual: {count: 2, memory: 2GiB}, expected: 2}",
            "`devices.expected`: remove this key, which is about GPUs, or `devices.virtual`, which has none",
        ),
        (
            "devices: {virtual: {count: 2, memory: 2GiB}, numa: off}",
            "`devices.numa`: remove this key, which is about GPUs",
        ),
    ],
)
def test_a_wrong_key_of_the_node_is_answered_with_what_to_do(refused: Refused, text: str, sentence: str) -> None:
    found = refused(f"models: {{a: {{{OK}}}}}\n{text}" if not text.startswith("models") else text)
    assert len(found) == 1, found
    assert found[0].partition(": ")[2].startswith(sentence)


@pytest.mark.parametrize("name", ['"a,b"', '" a"', '"a "', '""', '"a\\tb"', '"a\\u2028b"', "__unknown__", "x" * 257])
def test_a_name_that_could_not_be_told_apart_elsewhere_is_refused(refused: Refused, name: str) -> None:
    found = refused(f"models:\n  ? {name}\n  : {{{OK}}}\n")
    assert len(found) == 1
    assert found[0].startswith("3: `models.")


def test_a_key_given_twice_is_refused_with_both_lines(refused: Refused) -> None:
    assert refused(f"models:\n  a: {{{OK}}}\n  b: {{{OK}}}\n  a: {{{OK}}}\n") == [
        "5: remove one of the two `a`: it stands on line 3 already"
    ]
    assert refused("http:\n  listen: 127.0.0.1:1\n  listen: 127.0.0.1:2\n") == [
        "4: remove one of the two `listen`: it stands on line 3 already"
    ]


def test_an_alias_that_stands_for_two_models_is_refused(refused: Refused) -> None:
    found = refused(f"""
        models:
          a: {{{OK}, aliases: [x, b]}}
          b: {{{OK}, aliases: [x, y, y]}}
        """)
    assert found == [
        "4: `models.a.aliases[2]`: choose another alias: b is the name of a model already",
        "5: `models.b.aliases[1]`: choose another alias: x is an alias of a already",
        "5: `models.b.aliases[3]`: choose another alias: y is an alias of b already",
    ]


def test_two_models_given_the_same_fixed_port_are_refused(refused: Refused) -> None:
    found = refused("""
        models:
          a: {command: [./serve, "{port}", --grpc-port, 9001], memory: 1GiB}
          b: {command: [./serve, "{port}", --grpc-port=9001], memory: 1GiB}
        """)
    remedy = "write {port} and let swapd choose one: port 9001 belongs to `models.a.command[4]` already"
    assert found == [f"5: `models.b.command[3]`: {remedy}"]


def test_a_fixed_port_in_place_of_the_placeholder_is_refused_even_once(refused: Refused) -> None:
    assert refused("models: {a: {command: [./serve, --port, 9001], memory: 1GiB}}") == [
        "2: `models.a.command`: put {port} where the program takes its port, because swapd chooses it"
    ]


def test_a_model_must_not_sit_on_a_port_of_the_daemon(refused: Refused) -> None:
    found = refused("""
        models:
          a: {command: [./serve, "{port}", --http-port, "8090"], memory: 1GiB}
          b: {engine: external, url: "http://127.0.0.1:9790", memory: 1GiB, pin: true}
        """)
    assert found == [
        "4: `models.a.command[4]`: write {port} and let swapd choose one: port 8090 belongs to `http.listen` already",
        "5: `models.b.url`: name another server: port 9790 belongs to `metrics.listen` already",
    ]


def test_pins_that_exclude_each_other_are_refused(refused: Refused) -> None:
    found = refused(f"""
        models:
          a: {{{OK}, pin: true, gpus: 3}}
          b: {{{OK}, pin: true, gpus: 2}}
        """)
    assert found == ["5: `models.b.pin`: unpin some of a, b: together they need 5 devices or more, and the node has 4"]


def test_pins_that_share_devices_are_refused_only_when_their_bytes_cannot_fit(
    refused: Refused, understood: Callable[[str], object]
) -> None:
    def text(memory: str) -> str:
        shared = f'command: [./serve, "{{port}}"], memory: {memory}, exclusive: false, pin: true, gpus: 4'
        return f"models: {{a: {{{shared}}}, b: {{{shared}}}}}"

    understood(text("4GiB"))
    assert refused(text("5GiB")) == [
        "2: `models.b.pin`: unpin some of a, b: together they need 5 devices or more, and the node has 4"
    ]


def test_pinning_what_thrashes_needs_a_limit(refused: Refused, understood: Callable[[str], object]) -> None:
    remedy = "add `scheduling.max_pinned_gpus`: without a limit nothing may be pinned"
    assert refused("scheduling: {on_thrash: pin}") == [f"2: `scheduling.on_thrash`: {remedy}"]
    understood("scheduling: {on_thrash: pin, max_pinned_gpus: 1}")


def test_more_pins_than_the_node_allows_are_refused(refused: Refused) -> None:
    found = refused(f"""
        scheduling: {{max_pinned_gpus: 1}}
        models: {{a: {{{OK}, pin: true}}, b: {{{OK}, pin: true}}}}
        """)
    remedy = "unpin some of a, b or raise `scheduling.max_pinned_gpus`"
    assert found == [f"4: `models.b.pin`: {remedy}: they need 2 devices or more, and 1 are allowed"]


def test_a_model_that_the_pins_leave_no_room_for_is_refused(refused: Refused) -> None:
    found = refused(f"""
        models:
          a: {{{OK}, pin: true}}
          b: {{{OK}, gpus: 3}}
          c: {{{OK}, gpus: 4}}
        """)
    assert found == ["6: `models.c.gpus`: lower it or unpin a model: the pins of a leave 3 of 4 devices"]


def test_where_gpus_are_still_to_be_found_nothing_is_refused_for_their_number_or_size(
    understood: Callable[[str], object],
) -> None:
    understood(f"""
        devices: auto
        models:
          a: {{<<: {{{OK}}}, gpus: 64, memory: 1TiB, pin: true}}
          b: {{{OK}, gpus: 4}}
        """)


def test_an_expected_number_of_gpus_is_counted_with(refused: Refused) -> None:
    found = refused(f"""
        devices: {{expected: 8}}
        models:
          a: {{{OK}, gpus: 16}}
          b: {{{OK}, gpus: 2, pin: true}}
          c: {{{OK}, gpus: 8}}
        """)
    assert found == [
        "4: `models.a.gpus`: write at most 8, the number of the node's devices, not 16",
        "6: `models.c.gpus`: lower it or unpin a model: the pins of b leave 6 of 8 devices",
    ]


def test_pins_are_held_to_their_limit_before_any_gpu_is_known(refused: Refused) -> None:
    found = refused(f"""
        devices: auto
        scheduling: {{max_pinned_gpus: 3}}
        models: {{a: {{{OK}, pin: true, gpus: 2}}, b: {{{OK}, pin: true, gpus: 2}}}}
        """)
    remedy = "unpin some of a, b or raise `scheduling.max_pinned_gpus`"
    assert found == [f"4: `models.b.pin`: {remedy}: they need 4 devices or more, and 3 are allowed"]


def test_a_model_that_takes_more_host_memory_than_there_is_is_refused(refused: Refused) -> None:
    found = refused(f"""
        devices: {{host_memory: 16GiB}}
        models: {{a: {{{OK}, host_memory: 17GiB}}, b: {{{OK}, host_memory: 16GiB}}}}
        """)
    assert found == ["3: `models.a.host_memory`: write at most 16 GiB, all of `devices.host_memory`, not 17 GiB"]


def test_a_model_that_names_its_own_gpus_is_refused_because_others_would_be_booked(
    refused: Refused, understood: Callable[[str], object]
) -> None:
    models = f"models:\n  a:\n    <<: {{{OK}}}\n    env:\n      CUDA_VISIBLE_DEVICES: 0\n"
    remedy = "remove it: swapd chooses the GPUs; narrow the choice with `gpu_name` if need be"
    assert refused(f"devices: auto\n{models}") == [f"6: `models.a.env.CUDA_VISIBLE_DEVICES`: {remedy}"]
    understood(models)  # on virtual devices, which CUDA knows nothing of


def test_a_directory_of_weights_that_is_no_models_own_is_refused(
    refused: Refused, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swapd.config.files.MAX_FILES", 3)
    for number in range(4):
        (directory / "models" / f"{number}").touch()
    found = refused(f"models: {{a: {{{OK}, weights: models}}}}")
    assert "name the model's own directory" in found[0]


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_weights_that_may_not_be_read_are_refused(refused: Refused, directory: Path) -> None:
    (directory / "models" / "m.gguf").chmod(0)
    assert "let the daemon's user read" in refused(f"models: {{a: {{{OK}, weights: models/m.gguf}}}}")[0]


def test_a_split_gguf_needs_all_its_parts(refused: Refused, directory: Path) -> None:
    for number in (1, 3):
        (directory / "models" / f"big-0000{number}-of-00003.gguf").touch()
    found = refused(f"models: {{a: {{{OK}, weights: models/big-00001-of-00003.gguf}}}}")
    assert "big-00002-of-00003.gguf does not exist" in found[0]


def test_a_missing_usual_program_is_told_where_to_go(refused: Refused, directory: Path) -> None:
    found = refused("models: {a: {engine: llama-server, weights: models, memory: 1GiB, env: {PATH: /none}}}")
    assert found == [
        "2: `models.a.engine`: install llama-server, which is not on PATH, or name it in `models.a.command`"
    ]
