"""Writes an error in the words of the API that the client speaks, as a body and as the last event of a stream.

SDKs parse these shapes; a bare string where an object is expected breaks them. What is wrong stands in ``errors.py``.
"""

import enum
from typing import Any, Final, assert_never

import msgspec

from swapd.proxy.failure import Failure


class Dialect(enum.Enum):
    """Whose error form a route uses."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"
    TGI = "tgi"
    TRITON = "triton"


_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _anthropic_type(status: int) -> str:
    return _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def error_object(dialect: Dialect, failure: Failure, request_id: str) -> dict[str, Any]:
    """Return the error as a JSON object of the dialect."""
    match dialect:
        case Dialect.OPENAI:
            return {
                "error": {
                    "message": failure.message,
                    "type": failure.type,
                    "param": failure.param,
                    "code": failure.code,
                }
            }
        case Dialect.ANTHROPIC:
            error = {"type": _anthropic_type(failure.status), "message": failure.message}
            return {"type": "error", "error": error, "request_id": request_id}
        case Dialect.TGI:
            return {"error": failure.message, "error_type": failure.code}
        case Dialect.OLLAMA | Dialect.TRITON:
            return {"error": failure.message}
        case _:
            assert_never(dialect)


def error_body(dialect: Dialect, failure: Failure, request_id: str) -> bytes:
    """Return the error as a JSON body of the dialect."""
    return msgspec.json.encode(error_object(dialect, failure, request_id))


def stream_error(dialect: Dialect, failure: Failure, request_id: str) -> bytes:
    """Return the error as the last event of a server-sent event stream, or as the last line of NDJSON for Ollama.

    It starts with an empty line where the dialect allows it, so that it is an event of its own even when the engine
    broke off in the middle of one.
    """
    body = error_body(dialect, failure, request_id)
    match dialect:
        case Dialect.ANTHROPIC:
            return b"\n\nevent: error\ndata: " + body + b"\n\n"
        case Dialect.OPENAI | Dialect.TGI | Dialect.TRITON:
            return b"\n\ndata: " + body + b"\n\n"
        case Dialect.OLLAMA:
            return b"\n" + body + b"\n"
        case _:
            assert_never(dialect)
