"""Speaks HTTP to the daemon over its admin socket; synchronous, standard library only, so that commands start fast."""

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import click
from typing_extensions import override

F = TypeVar("F", bound=Callable[..., Any])

ANSWER_S: Final = 10.0
"""How long a living daemon may take for an answer that waits for nothing."""

_PLACES: Final = "$RUNTIME_DIRECTORY, /run/swapd, $XDG_RUNTIME_DIR/swapd or the user's temporary directory"

_NDJSON: Final = "application/x-ndjson"
_CSV: Final = "text/csv"

REFUSED: Final = 1
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130

Json = dict[str, Any]

admin_option: Callable[[F], F] = click.option(
    "--admin",
    envvar="SWAPD_ADMIN",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Admin socket of the daemon. [default: $SWAPD_ADMIN, else the usual places, see swapd --help]",
)


class RefusedError(click.ClickException):
    """The daemon has refused, or failed to do, what was asked."""

    exit_code = REFUSED


class UnreachableError(click.ClickException):
    """No daemon answers."""

    exit_code = UNREACHABLE


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket that is already connected."""

    def __init__(self, connected: socket.socket, path: Path) -> None:
        super().__init__("localhost")
        self.sock = connected
        self.stream = connected  # stays when the last response takes the connection over
        self.path = path

    @override
    def connect(self) -> None:
        raise ConnectionError("the connection was closed")


def order(admin: Path | None, path: str, body: Json | None = None, *, method: str = "POST") -> str:
    """Give an order, wait as long as it takes, return the daemon's sentence. Raises RefusedError, UnreachableError."""
    answer = _ordered(admin, method, path, body)
    if not answer["ok"]:
        raise RefusedError(printable(answer["detail"]))
    return printable(answer["detail"])


def prefetch(admin: Path | None, models: Iterable[str]) -> Json:
    """Order fetches, wait for their end, return the answer: ``models`` holds each one's. Raises UnreachableError."""
    return _ordered(admin, "POST", "/v1/prefetch", {"models": list(models)})


def cache(admin: Path | None) -> Json:
    """Return the document of the weight cache. Raises RefusedError, UnreachableError."""
    return _document(admin, "/v1/cache", "copies")


def status(admin: Path | None) -> Json:
    """Return the status document. Raises RefusedError, UnreachableError."""
    return _document(admin, "/v1/status", "models")


def topology(admin: Path | None) -> Json:
    """Return what placers are told of the node. Raises RefusedError, UnreachableError."""
    return _document(admin, "/v1/topology", "topology")


def report(admin: Path | None) -> Json:
    """Return the promotion report. Raises RefusedError, UnreachableError."""
    return _document(admin, "/v1/report", "models")


def timeline(admin: Path | None, model: str | None) -> Json:
    """Return the timelines of a model's last loads, or of everybody's. Raises RefusedError, UnreachableError."""
    of_model = "" if model is None else f"/{quote(model, safe='/')}"
    return _document(admin, f"/v1/timeline{of_model}", "loads")


def events(admin: Path | None) -> Iterator[bytes]:
    """Yield the daemon's events, one JSON line each, until it ends. Raises RefusedError, UnreachableError."""
    with (
        contextlib.closing(_connect(admin)) as connection,
        _response(connection, "GET", "/v1/events", None) as response,
    ):
        if response.headers.get_content_type() != _NDJSON:
            answer = _json(connection, response)
            raise RefusedError(printable(answer["detail"])) if "detail" in answer else _stranger(connection)
        connection.stream.settimeout(None)
        # an error is the end as well: the daemon has gone
        with contextlib.suppress(OSError, http.client.HTTPException):
            while line := response.readline():
                yield line


def text(admin: Path | None, path: str) -> str:
    """Return a CSV text of the daemon, however long it is. Raises RefusedError, UnreachableError."""
    with (
        contextlib.closing(_connect(admin)) as connection,
        _response(connection, "GET", path, None) as response,
    ):
        if response.headers.get_content_type() != _CSV:
            answer = _json(connection, response)
            raise RefusedError(printable(answer["detail"])) if "detail" in answer else _stranger(connection)
        try:
            return response.read().decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise _broken(connection, error) from None


def model_path(model: str, verb: str) -> str:
    """Return the path of an order for a model; slashes in names stay readable."""
    return f"/v1/models/{quote(model, safe='/')}/{verb}"


def printable(text: object) -> str:
    """Return text that cannot move the cursor or colour the terminal, whatever an engine has written to its log."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in str(text))


def _connect(admin: Path | None) -> _Connection:
    from swapd.config.paths import find_admin_socket

    tried = []
    for path in find_admin_socket(admin, os.environ):
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connecting.settimeout(ANSWER_S)
        try:
            connecting.connect(str(path))
        except OSError as error:
            connecting.close()
            tried.append(f"{path} ({(error.strerror or str(error)).lower()})")
        else:
            return _Connection(connecting, path)
    places = f"tried {', '.join(tried)}" if tried else f"there is no admin.sock in {_PLACES}"
    raise UnreachableError(
        f"no swapd answers on its admin socket: {places}; start it with swapd serve, or name the socket with --admin"
    )


def _ordered(admin: Path | None, method: str, path: str, body: Json | None) -> Json:
    with contextlib.closing(_connect(admin)) as connection:
        try:
            answer = _ask(connection, method, path, body, wait_s=None)
        except KeyboardInterrupt:
            click.echo("the order stands; swapd status shows what comes of it", err=True)
            raise SystemExit(INTERRUPTED) from None
        if not {"ok", "detail"} <= answer.keys():
            raise _stranger(connection)
    return answer


def _document(admin: Path | None, path: str, key: str) -> Json:
    """Return a document that has this key and waits for nothing."""
    with contextlib.closing(_connect(admin)) as connection:
        answer = _ask(connection, "GET", path, None, wait_s=ANSWER_S)
        if answer.get("ok") is False:
            raise RefusedError(printable(answer["detail"]))
        if key not in answer:
            raise _stranger(connection)
    return answer


def _ask(connection: _Connection, method: str, path: str, body: Json | None, *, wait_s: float | None) -> Json:
    connection.stream.settimeout(wait_s)
    with _response(connection, method, path, body) as response:
        return _json(connection, response)


def _response(connection: _Connection, method: str, path: str, body: Json | None) -> http.client.HTTPResponse:
    content = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, body=content, headers={"Content-Type": "application/json"})
        return connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise _broken(connection, error) from None


def _json(connection: _Connection, response: http.client.HTTPResponse) -> Json:
    if response.status >= http.client.INTERNAL_SERVER_ERROR:
        raise RefusedError(f"the daemon failed to answer (status {response.status}); its log says why")
    try:
        answer = json.loads(response.read())
    except (OSError, http.client.HTTPException) as error:
        raise _broken(connection, error) from None
    except ValueError:
        raise _stranger(connection) from None
    if not isinstance(answer, dict):
        raise _stranger(connection)
    return answer


def _broken(connection: _Connection, error: Exception) -> UnreachableError:
    if isinstance(error, TimeoutError):
        return UnreachableError(f"the swapd on {connection.path} does not answer within {ANSWER_S:g} s")
    what = " ".join(printable(error).split()) or type(error).__name__
    return UnreachableError(f"the swapd on {connection.path} broke the connection off: {what}")


def _stranger(connection: _Connection) -> UnreachableError:
    return UnreachableError(f"what answers on {connection.path} is no swapd of this version")
