"""Inference and read-only paths of an engine can be reached; its control paths cannot, however they are written."""

import itertools
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.engines.registry import ENGINES
from swapd.engines.request_paths import allowed

CONTROL = [
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("POST", "/wakeup"),
    ("GET", "/is_sleeping"),
    ("POST", "/collective_rpc"),
    ("GET", "/server_info"),
    ("GET", "/get_server_info"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/pause_generation"),
    ("POST", "/continue_generation"),
    ("POST", "/update_weights"),
    ("POST", "/update_weights_from_disk"),
    ("POST", "/init_weights_update_group"),
    ("POST", "/release_memory"),
    ("POST", "/resume_memory"),
    ("POST", "/release_memory_occupation"),
    ("POST", "/resume_memory_occupation"),
    ("POST", "/release_kv_cache_memory"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/load_lora_adapter"),
    ("POST", "/lora-adapters"),
    ("GET", "/lora-adapters"),
    ("POST", "/models/load"),
    ("POST", "/models/unload"),
    ("GET", "/models/sse"),
    ("POST", "/props"),
    ("POST", "/slots"),
    ("POST", "/slots/0"),
    ("POST", "/metrics"),
    ("POST", "/api/create"),
    ("POST", "/api/pull"),
    ("POST", "/api/push"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/m/load"),
    ("POST", "/v2/repository/models/m/unload"),
    ("POST", "/terminate"),
    ("POST", "/abort_request"),
    ("POST", "/flush_cache"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/start_profile"),
    ("POST", "/stop_profile"),
    ("DELETE", "/v1/models/m"),
    ("PUT", "/v1/models/m"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("TRACE", "/health"),
    ("CONNECT", "/health"),
]
INFERENCE = [
    ("GET", "/"),
    ("GET", "/health"),
    ("HEAD", "/health"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/m01"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/tokenize"),
    ("GET", "/v1/realtime"),
]


@pytest.mark.parametrize(("method", "path"), INFERENCE)
def test_inference_and_read_only_paths_are_reachable_on_every_engine(method: str, path: str) -> None:
    assert all(allowed(engine, method, path) for engine in ENGINES)


@pytest.mark.parametrize(
    ("engine", "method", "path", "expected"),
    [
        ("llama-server", "POST", "/infill", True),
        ("llama-server", "GET", "/props", True),
        ("vllm", "POST", "/infill", False),
        ("vllm", "POST", "/pooling", True),
        ("command", "POST", "/infill", True),
        ("command", "POST", "/api/chat", True),
        ("command", "POST", "/v2/models/m01/versions/3/infer", True),
        ("vllm", "POST", "/api/chat", False),
        ("llama-server", "GET", "/v1/chat/completions", False),
        ("nothing", "GET", "/health", False),
    ],
)
def test_each_engine_has_its_own_paths(engine: str, method: str, path: str, expected: bool) -> None:
    assert allowed(engine, method, path) is expected


@pytest.mark.parametrize(("method", "path"), CONTROL)
def test_control_paths_are_unreachable_on_every_engine(method: str, path: str) -> None:
    assert not any(allowed(engine, method, path) for engine in ENGINES)


def disguises(path: str) -> set[str]:
    """Write a path in every way that some server might take for it."""
    name = path[1:]
    return {
        "//" + name,
        path.replace("/", "//"),
        path + "/",
        path + "//",
        path + ".",
        path + "/.",
        path + "/..",
        path + ";x=1",
        path + "%00",
        path + "%20",
        path + " ",
        path + "\t",
        path + "\r\n",
        path + "#",
        path + "?",
        path + "?x=1",
        "/." + path,
        "/./" + name,
        "/v1/.." + path,
        "/v1/models/.." + path,
        "/v1/models/../.." + path,
        "/v1/chat/completions/../../.." + path,
        "/v1/models/%2e%2e/.." + path,
        "/v1/models/%2E%2E%2F%2E%2E" + path,
        "/health/.." + path,
        "/\\" + name,
        path.replace("/", "\\"),
        path.replace("/", "%2F"),
        path.replace("/", "%2f"),
        "/" + quote(quote(name, safe=""), safe=""),
        "/" + "".join(f"%{ord(char):02X}" for char in name),
        path.upper(),
        path.title(),
        name,
        "http://127.0.0.1" + path,
        "/\u2025" + path,
        path.replace("s", "\uff53"),
        "/x/../" + name,
    } - {path}


@pytest.mark.parametrize("path", sorted({path for _, path in CONTROL}))
def test_no_disguise_opens_a_control_path(path: str) -> None:
    methods = ("GET", "POST", "PUT", "DELETE", "HEAD", "get", "Post", "")
    opened = [
        (engine, method, written)
        for engine, method, written in itertools.product(ENGINES, methods, disguises(path))
        if allowed(engine, method, written)
    ]
    assert opened == []


@pytest.mark.parametrize(
    "path",
    [
        *("/v1//models", "/v1/models/", "/V1/models", "/v1/models/..", "/v1/models/.", "/v1/models/a."),
        *("/v1/models/.a", "/v1/models/a%20b", "/v1/models/a%2Fb", "/v1/models/a;b", "/v1/models/a\n"),
    ],
)
def test_an_allowed_path_must_be_canonical_too(path: str) -> None:
    assert not allowed("command", "GET", path)


@given(st.text(alphabet="/.%2fFeEaA_-:;\\?#svm01 \x00", max_size=24))
def test_whatever_is_allowed_is_canonical(tail: str) -> None:
    path = "/v1/models" + tail
    if allowed("command", "GET", path):
        segments = path.split("/")[1:]
        assert all(segment.strip(".") == segment and segment for segment in segments)
        assert set("%\\;?# \x00").isdisjoint(path)
