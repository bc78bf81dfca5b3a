"""Decides where admin socket, state, engines' logs and weight cache lie when the configuration says ``auto``.

The daemon chooses the first place it can use and makes directories of its own private to the user; the command line
looks in all the places in which a daemon could have put its socket.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from swapd.config.schema import Settings

SOCKET_NAME: Final = "admin.sock"
STATE_NAME: Final = "state.db"
_RUN: Final = Path("/run/swapd")
_VAR_LIB: Final = Path("/var/lib/swapd")
_VAR_CACHE: Final = Path("/var/cache/swapd")


class PathError(OSError):
    """No usable place was found, or the one found belongs to somebody else; one sentence that says what to do."""


def admin_socket(settings: Settings, environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the daemon's admin socket goes; its directory exists then. Raises PathError."""
    if settings.admin.socket is not None:
        return _in_own(settings.admin.socket)
    if given := _first(environ, "RUNTIME_DIRECTORY"):
        return given / SOCKET_NAME
    if _writable(_RUN):
        return _RUN / SOCKET_NAME
    if (runtime := _xdg_runtime(environ)) is not None and _writable(runtime.parent):
        return _in_own(runtime / SOCKET_NAME)
    return _in_private(_temporary(environ)) / SOCKET_NAME


def find_admin_socket(option: Path | None, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the sockets to try, in order: the one the command line was told, else every candidate that exists."""
    if option is not None:
        return (option,)
    if given := environ.get("SWAPD_ADMIN"):
        return (Path(given),)
    directories = [_first(environ, "RUNTIME_DIRECTORY"), _RUN, _xdg_runtime(environ), _temporary(environ)]
    candidates = [directory / SOCKET_NAME for directory in directories if directory is not None]
    return tuple(dict.fromkeys(path for path in candidates if path.is_socket()))


def state_path(settings: Settings, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the state's SQLite file; its directory exists then. Raises PathError."""
    if settings.state.path is not None:
        return _in_own(settings.state.path)
    if given := _first(environ, "STATE_DIRECTORY"):
        return given / STATE_NAME
    if _writable(_VAR_LIB):
        return _VAR_LIB / STATE_NAME
    return _in_own(_home(environ) / ".local" / "state" / "swapd" / STATE_NAME)


def log_dir(settings: Settings, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of the engines' logs, which exists then. Raises PathError."""
    directory = _first(environ, "LOGS_DIRECTORY") or state_path(settings, environ).parent / "logs"
    _make(directory)
    return directory


def cache_dir(settings: Settings, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the weight cache; it is made only when a model needs it."""
    if settings.cache.path is not None:
        return settings.cache.path
    if given := _first(environ, "CACHE_DIRECTORY"):
        return given
    if not _writable(_VAR_CACHE):
        with contextlib.suppress(PathError):  # without a home, whoever makes the folder finds out
            return _home(environ) / ".cache" / "swapd"
    return _VAR_CACHE


def _first(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the first directory of a service manager's list (colon-separated)."""
    value = environ.get(name, "").partition(":")[0]
    return Path(value) if value else None


def _xdg_runtime(environ: Mapping[str, str]) -> Path | None:
    value = environ.get("XDG_RUNTIME_DIR", "")
    return Path(value) / "swapd" if value else None


def _temporary(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("TMPDIR") or tempfile.gettempdir()) / f"swapd-{os.getuid()}"


def _home(environ: Mapping[str, str]) -> Path:
    try:
        return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    except RuntimeError:
        raise PathError("set state.path in the configuration: the daemon's user has no home directory") from None


def _writable(directory: Path) -> bool:
    return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)


def _in_own(file: Path) -> Path:
    _make(file.parent)
    return file


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PathError(f"choose a directory that can be made instead of {directory}: {error.strerror}") from None


def _in_private(directory: Path) -> Path:
    """Make a directory in a place where anybody could have made it first; refuse it if somebody has."""
    _make(directory)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PathError(f"remove {directory} or set admin.socket: it is not a directory for this user alone")
    return directory
