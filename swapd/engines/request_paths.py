"""Decides which paths of an engine may be reached from outside through ``/upstream/{model}/…``.

An allow list of inference and read-only routes per engine; what is not on it does not exist. Engines have routes that
sleep, wake, reload, profile or end them, and none of those may be reachable, however it is written. So a path is
compared as it came: nothing is decoded or repaired here, hence nothing can be repaired differently further on. A name
in it is plain, too: no escapes, no parameters, no dot at either end.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

_ANY_SEGMENT: Final = r"[A-Za-z0-9_~@:+-](?:[A-Za-z0-9_~@:+.-]*[A-Za-z0-9_~@:+-])?"

_COMMON = """
GET / /health /ping /version /metrics /v1/models /v1/models/{} /v1/realtime /ws
POST /v1/chat/completions /v1/completions /v1/embeddings /v1/responses /v1/messages /v1/messages/count_tokens
POST /v1/rerank /v1/score /v1/moderations /rerank /score /tokenize /detokenize
POST /v1/audio/transcriptions /v1/audio/translations /v1/audio/speech
POST /v1/images/generations /v1/images/edits /v1/images/variations
"""

_LLAMA_CPP = """
GET /v1/health /props
POST /completion /completions /chat/completions /embedding /embeddings /infill /apply-template /reranking /v1/reranking
"""

_VLLM = """
GET /load
POST /ping /pooling /classify /v2/rerank /invocations
"""

_OTHERS = """
GET /ready /info /model_info /v1/loads /api/tags /api/version /api/ps
GET /v2 /v2/health/live /v2/health/ready /v2/models/{} /v2/models/{}/ready /v2/models/{}/config /v2/models/{}/stats
GET /v2/models/{}/versions/{} /v2/models/{}/versions/{}/ready
POST /api/chat /api/generate /api/embed /api/embeddings /api/show
POST /v2/models/{}/infer /v2/models/{}/generate /v2/models/{}/generate_stream
POST /v2/models/{}/versions/{}/infer /v2/models/{}/versions/{}/generate /v2/models/{}/versions/{}/generate_stream
POST /generate /generate_stream /chat_tokenize /encode /embed /embed_all /embed_sparse /predict /similarity /inference
"""


def allowed(engine: str, method: str, path: str) -> bool:
    """Whether a request may be forwarded; ``path`` as the client sent it, without query. An unknown engine has none."""
    rules = _RULES.get(engine)
    if rules is None:
        return False
    rule = rules.get("GET" if method == "HEAD" else method)
    return rule is not None and rule.fullmatch(path) is not None


def _compile(*tables: str) -> Mapping[str, re.Pattern[str]]:
    patterns: dict[str, list[str]] = {}
    for line in "".join(tables).split("\n"):
        method, *paths = line.split() or [""]
        patterns.setdefault(method, []).extend(_pattern(path) for path in paths)
    return {method: _any_of(paths) for method, paths in patterns.items() if method}


def _pattern(path: str) -> str:
    return re.escape(path).replace(re.escape("{}"), _ANY_SEGMENT)


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_ANYTHING: Final = _compile(_COMMON, _LLAMA_CPP, _VLLM, _OTHERS)
_RULES: Final[Mapping[str, Mapping[str, re.Pattern[str]]]] = {
    "llama-server": _compile(_COMMON, _LLAMA_CPP),
    "vllm": _compile(_COMMON, _VLLM),
    # whatever server it is: all the safe routes that are known
    "command": _ANYTHING,
    "external": _ANYTHING,
}
