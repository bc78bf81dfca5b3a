"""Where socket, state and logs lie."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from swapd.config import Loaded
from swapd.config import paths as places
from swapd.config.paths import PathError, admin_socket, find_admin_socket, log_dir, state_path
from swapd.config.schema import Settings

Understood = Callable[[str], Loaded]


@pytest.fixture
def settings(understood: Understood) -> Settings:
    return understood("").settings


@pytest.fixture(autouse=True)
def no_system_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_RUN", tmp_path / "no-run")
    monkeypatch.setattr(places, "_VAR_LIB", tmp_path / "no-lib")


def test_a_configured_path_is_taken_and_its_directory_made(understood: Understood, directory: Path) -> None:
    settings = understood("admin: {socket: run/a.sock}\nstate: {path: var/s.db}").settings
    assert admin_socket(settings, {"RUNTIME_DIRECTORY": "/elsewhere"}) == directory / "run" / "a.sock"
    assert state_path(settings, {"STATE_DIRECTORY": "/elsewhere"}) == directory / "var" / "s.db"
    assert log_dir(settings, {}) == directory / "var" / "logs"
    assert (directory / "run").is_dir()
    assert (directory / "var" / "logs").is_dir()


def test_a_service_managers_directories_come_first(settings: Settings, tmp_path: Path) -> None:
    environ = {
        "RUNTIME_DIRECTORY": "/run/x:/run/x/scratch",
        "STATE_DIRECTORY": "/var/lib/x",
        "LOGS_DIRECTORY": str(tmp_path / "log"),
        "XDG_RUNTIME_DIR": "/run/user/1",
    }
    assert admin_socket(settings, environ) == Path("/run/x/admin.sock")
    assert state_path(settings, environ) == Path("/var/lib/x/state.db")
    assert log_dir(settings, environ) == tmp_path / "log"


def test_the_systems_directories_come_next_if_they_can_be_written(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_RUN", tmp_path)
    monkeypatch.setattr(places, "_VAR_LIB", tmp_path)
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    assert admin_socket(settings, environ) == tmp_path / "admin.sock"
    assert state_path(settings, environ) == tmp_path / "state.db"


def test_a_user_without_a_service_manager_has_places_of_their_own(settings: Settings, tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    assert admin_socket(settings, environ) == tmp_path / "swapd" / "admin.sock"
    assert state_path(settings, environ) == tmp_path / ".local" / "state" / "swapd" / "state.db"
    assert (tmp_path / "swapd").stat().st_mode & 0o777 == 0o700


def test_the_last_resort_is_a_private_directory_in_the_temporary_one(settings: Settings, tmp_path: Path) -> None:
    environ = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "none")}
    path = admin_socket(settings, environ)
    assert path.parent.parent == tmp_path
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert admin_socket(settings, environ) == path


def test_a_temporary_directory_that_others_can_enter_is_refused(settings: Settings, tmp_path: Path) -> None:
    environ = {"TMPDIR": str(tmp_path)}
    private = admin_socket(settings, environ).parent
    private.chmod(0o755)
    with pytest.raises(PathError, match="not a directory for this user alone"):
        admin_socket(settings, environ)
    private.rmdir()
    private.symlink_to(tmp_path)
    with pytest.raises(PathError, match="not a directory for this user alone"):
        admin_socket(settings, environ)


def test_a_directory_that_cannot_be_made_is_named(understood: Understood, directory: Path) -> None:
    with pytest.raises(PathError, match=r"note.*Not a directory"):
        state_path(understood("state: {path: note/deep/s.db}").settings, {})


def test_the_command_line_believes_what_it_is_told(tmp_path: Path) -> None:
    environ = {"SWAPD_ADMIN": "/b.sock", "RUNTIME_DIRECTORY": str(tmp_path)}
    assert find_admin_socket(Path("/a.sock"), environ) == (Path("/a.sock"),)
    assert find_admin_socket(None, environ) == (Path("/b.sock"),)


def test_the_command_line_finds_the_socket_wherever_the_daemon_puts_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_RUN", tmp_path / "run")
    (tmp_path / "runtime").mkdir()
    environs = [
        {"RUNTIME_DIRECTORY": str(tmp_path / "runtime")},
        {"XDG_RUNTIME_DIR": str(tmp_path)},
        {"TMPDIR": str(tmp_path)},
    ]
    for environ in environs:
        assert find_admin_socket(None, environ) == ()
        path = admin_socket(settings, environ)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            assert find_admin_socket(None, environ) == (path,)
        path.unlink()
