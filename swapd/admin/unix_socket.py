"""Binds the admin socket: owner and group only, never over a living daemon, never over a file that is no socket."""

import contextlib
import os
import socket
import stat
from pathlib import Path
from typing import Final

SOCKET_MODE: Final = 0o660
DIRECTORY_MODE: Final = 0o750
_MAX_PATH_BYTES: Final = 107
"""``sun_path`` on Linux, without its final NUL."""


class AdminSocketError(Exception):
    """The socket cannot be had; one sentence that says what to do."""


def bind(path: Path) -> socket.socket:
    """Return a listening socket at ``path``; a dead daemon's socket is replaced. Raises AdminSocketError.

    It is made under another name, restricted, and moved into place, so that it is never open to others, and so that a
    client finds the old one or the new one.
    """
    making = path.with_name(f"{path.name}.{os.getpid()}")
    if len(os.fsencode(making)) > _MAX_PATH_BYTES:
        raise AdminSocketError(f"the path of the admin socket {path} is too long; choose a shorter one in admin.socket")
    try:
        path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        _refuse_living(path)
        making.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(os.fspath(making))
            making.chmod(SOCKET_MODE)
            listener.listen()
            listener.settimeout(0)
            making.rename(path)
        except BaseException:
            listener.close()
            with contextlib.suppress(OSError):
                making.unlink()
            raise
    except OSError as error:
        raise AdminSocketError(
            f"the admin socket {path} cannot be made: {error.strerror or error}; choose another path in admin.socket"
        ) from error
    return listener


def unlink(path: Path, inode: int) -> None:
    """Remove the socket at ``path`` if it is still the one with this inode number."""
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == inode:
            path.unlink()


def _refuse_living(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AdminSocketError(f"{path} is no socket; move it away, or choose another path in admin.socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)  # a unix socket connects at once or not at all
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except BlockingIOError:
            pass  # its backlog is full: it lives
    raise AdminSocketError(f"another swapd answers on {path}; stop it, or choose another path in admin.socket")
