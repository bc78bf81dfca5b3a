"""Lists every path of the data port: method, dialect, and where the model's name stands.

One table; the documentation's table is the same list. Paths are compared as received, without decoding: an encoded
form of a known path is an unknown path.
"""

import enum
import re
from dataclasses import dataclass
from typing import Final

from swapd.proxy.dialects import Dialect


class Kind(enum.Enum):
    """What is done with a request on a route."""

    #: forwarded to the engine of the model that the request names
    INFERENCE = "inference"
    #: as inference, with the model and the engine's own path in the path
    UPSTREAM = "upstream"
    #: as inference, over a WebSocket
    WEBSOCKET = "websocket"
    #: answered by swapd itself, from memory
    HEALTH = "health"
    MODELS = "models"
    MODEL = "model"
    OLLAMA_TAGS = "ollama_tags"
    OLLAMA_VERSION = "ollama_version"
    TRITON_MODEL = "triton_model"
    TRITON_READY = "triton_ready"


FORWARDED: Final = frozenset((Kind.INFERENCE, Kind.UPSTREAM, Kind.WEBSOCKET))
"""What goes to an engine."""


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table."""

    kind: Kind
    #: empty: any
    methods: tuple[str, ...]
    dialect: Dialect
    #: the answer to ``"stream": true`` is a server-sent event stream
    sse: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """A route found for a path."""

    route: Route
    #: raw model name out of the path; for ``/upstream/`` the whole raw rest
    path_name: str | None = None


def _inference(dialect: Dialect, *, sse: bool = False) -> Route:
    return Route(Kind.INFERENCE, ("POST",), dialect, sse=sse)


def _own(kind: Kind, dialect: Dialect = Dialect.OPENAI) -> Route:
    return Route(kind, ("GET", "HEAD"), dialect)


_OPENAI_STREAMING: Final = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/audio/transcriptions"),
    *("/v1/images/generations", "/v1/images/edits"),
    *("/completion", "/completions", "/infill"),
)
_OPENAI_PLAIN: Final = (
    *("/v1/embeddings", "/v1/rerank", "/v1/reranking", "/v1/score", "/v1/moderations"),
    *("/v1/audio/translations", "/v1/audio/speech", "/v1/images/variations"),
    *("/rerank", "/reranking", "/score", "/tokenize", "/detokenize", "/embedding", "/embeddings"),
)
_OLLAMA: Final = ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings")

EXACT: Final[dict[str, Route]] = {
    **{path: _inference(Dialect.OPENAI, sse=True) for path in _OPENAI_STREAMING},
    **{path: _inference(Dialect.OPENAI) for path in _OPENAI_PLAIN},
    "/v1/messages": _inference(Dialect.ANTHROPIC, sse=True),
    "/v1/messages/count_tokens": _inference(Dialect.ANTHROPIC),
    **{path: _inference(Dialect.OLLAMA) for path in _OLLAMA},
    "/generate": _inference(Dialect.TGI, sse=True),
    "/generate_stream": _inference(Dialect.TGI),
    "/v1/realtime": Route(Kind.WEBSOCKET, ("GET",), Dialect.OPENAI),
    "/v1/models": _own(Kind.MODELS),
    "/health": _own(Kind.HEALTH),
    "/api/tags": _own(Kind.OLLAMA_TAGS, Dialect.OLLAMA),
    "/api/version": _own(Kind.OLLAMA_VERSION, Dialect.OLLAMA),
}

_MATCHES: Final = {path: Match(route) for path, route in EXACT.items()}
_TARGETS: Final = {path.encode(): (path, match) for path, match in _MATCHES.items()}

_TRITON: Final = r"/v2/models/(?P<name>[^/]+)(?:/versions/[^/]+)?"
PATTERNS: Final[tuple[tuple[re.Pattern[str], Route], ...]] = (
    (re.compile(_TRITON + r"/(?:infer|generate|generate_stream)"), _inference(Dialect.TRITON)),
    (re.compile(_TRITON + r"/ready"), _own(Kind.TRITON_READY, Dialect.TRITON)),
    (re.compile(_TRITON), _own(Kind.TRITON_MODEL, Dialect.TRITON)),
    (re.compile(r"/v1/models/(?P<name>.+)"), _own(Kind.MODEL)),
    (re.compile(r"/upstream/(?P<name>.+)"), Route(Kind.UPSTREAM, (), Dialect.OPENAI)),
)


def find(path: str) -> Match | None:
    """Return the route of a raw path (without query), ``None`` if there is none."""
    match = _MATCHES.get(path)
    if match is not None:
        return match
    for pattern, patterned in PATTERNS:
        found = pattern.fullmatch(path)
        if found is not None:
            return Match(patterned, found["name"])
    return None


def find_target(target: bytes) -> tuple[str, Match | None]:
    """Return the raw path of a request's target, without the query, and its route."""
    known = _TARGETS.get(target)
    if known is not None:
        return known
    path = target.partition(b"?")[0].decode("ascii")
    return path, find(path)


def dialect_of(path: str) -> Dialect:
    """Return the dialect in which an error on this path is told, also for a path that does not exist."""
    match = find(path)
    if match is not None:
        return match.route.dialect
    if path.startswith("/v1/messages"):
        return Dialect.ANTHROPIC
    if path.startswith("/api/"):
        return Dialect.OLLAMA
    if path.startswith("/v2/"):
        return Dialect.TRITON
    return Dialect.OPENAI
