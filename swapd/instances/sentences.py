"""Writes the one sentence that an operator and every waiting client get when an engine fails.

It never holds the command's environment, and secrets that were given through it or as arguments are blotted out of
log lines.
"""

import errno
import re
import signal
from collections.abc import Iterable, Iterator

from swapd.core.ids import SECOND, Duration
from swapd.engines.base import LaunchSpec
from swapd.instances.output import LogFileError

TAIL_LINES = 5
_TAIL_CHARS = 600
_SECRET_NAME = re.compile("KEY|TOKEN(?!I[SZ]ER)|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
#: a shorter value is a number or a word that log lines are full of
_SECRET_CHARS = 6


def exited(model: str, status: int | None, after: Duration, *, loading: bool) -> str:
    """Say that the leading process has ended."""
    sentence = f"{model} {_ending(status)} after {after / SECOND:.1f} s"
    if loading and status == 0:
        return (
            f"{sentence}, before it was ready: its command must stay in the foreground while the server runs "
            "(exec the server in a start script), or use engine: external with hooks"
        )
    return sentence


def hook_failed(model: str, status: int | None, after: Duration) -> str:
    """Say that the start hook of an external server did not succeed."""
    return f"the start command of {model} {_ending(status)} after {after / SECOND:.1f} s"


def not_started(model: str, error: OSError, spec: LaunchSpec) -> tuple[str, bool]:
    """Say why a process could not be started, and whether trying again is useless."""
    program = spec.argv[0]
    if spec.cwd is not None and error.filename == spec.cwd:
        return f"{model} could not be started: its working directory {spec.cwd} cannot be entered", True
    match error.errno:
        case errno.ENOENT:
            return f"{model} could not be started: {program} is not there (not found on PATH)", True
        case errno.EACCES:
            return f"{model} could not be started: {program} is not executable", True
        case _:
            return f"{model} could not be started: {program}: {error.strerror or error}", False


def log_not_writable(model: str, error: LogFileError) -> str:
    """Say that nothing was started because its output could not be kept."""
    return f"{model} could not be started: its log file {error.filename} cannot be written: {error.strerror}"


def foreign_server(model: str, port: int) -> str:
    """Say that somebody else answers on the port."""
    return (
        f"{model} is not what answers on port {port}: the listening socket belongs to none of its processes "
        "(for a server in a container, configure stop.command)"
    )


def secret_values(specs: Iterable[LaunchSpec]) -> frozenset[str]:
    """Return what no sentence may hold of what these processes were given.

    These are the values of variables and arguments with a telling name, and of every variable that the model's
    configuration names.
    """
    found: set[str] = set()
    for spec in specs:
        found.update(value for name, value in spec.env.items() if _SECRET_NAME.search(name))
        found.update(spec.own_env.values())
        found.update(_secret_arguments(spec.argv))
    return frozenset(value for value in found if len(value) >= _SECRET_CHARS)


def with_log(sentence: str, tail: Iterable[str], hidden: Iterable[str]) -> str:
    """Add the last lines of the log without what is ``hidden``, at most 600 characters of them."""
    text = " | ".join(tail)
    for value in sorted(hidden, key=len, reverse=True):  # one may be part of another
        text = text.replace(value, "***")
    if not text:
        return f"{sentence}; its log is empty"
    return f"{sentence}; last lines of its log: {text[-_TAIL_CHARS:]}"


def _secret_arguments(argv: Iterable[str]) -> Iterator[str]:
    """Find values in ``--api-key X Y``, ``--api-key=X`` and ``HF_TOKEN=X`` (as ``env`` and ``docker -e`` take it)."""
    awaited = False
    for argument in argv:
        option = argument.startswith("-")
        if awaited and not option:
            yield argument
            continue
        name, assigned, value = argument.partition("=")
        telling = _SECRET_NAME.search(name) is not None
        if assigned and telling:
            yield value
        awaited = option and telling and not assigned


def _ending(status: int | None) -> str:
    if status is None:
        return "ended"
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
