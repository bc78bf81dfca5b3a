"""The commands: what they ask of the daemon, what they print, how they end."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from swapd import __version__
from swapd.admin.control import Result
from swapd.cli import client
from swapd.cli.root import swapd
from swapd.core.commands import Transitioned
from swapd.core.ids import SECOND, GpuSet, InstanceId, ModelName
from swapd.core.reasons import Rejection, State
from tests.cli.command import invoke, node

CLIENTS = {
    "status": (),
    "load": ("m01",),
    "unload": ("m01",),
    "pin": ("m01",),
    "unpin": ("m01",),
    "drain": (),
    "undrain": (),
    "reload": (),
    "events": (),
    "topology": (),
    "report": (),
    "timeline": (),
    "release-gpus": (),
    "trace": (),
    "prefetch": ("m01",),
    "cache": (),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "admin.sock"


# ── help ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", sorted(swapd.commands))
def test_the_help_of_every_command_tells_purpose_exit_codes_and_options(name: str) -> None:
    shown = invoke(name, "--help", env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    lines = [line.strip() for line in shown.output.splitlines()]
    assert [
        start for start in ("Example:  swapd ", "Exit codes: 0 ") if not any(x.startswith(start) for x in lines)
    ] == []
    command = swapd.commands[name]
    assert command.short_help
    assert [param.name for param in command.params if isinstance(param, click.Option) and not param.help] == []
    assert max(map(len, shown.output.splitlines())) <= 100


def test_the_help_lists_every_command_and_exit_code() -> None:
    shown = invoke("--help").output
    assert [name for name in swapd.commands if f"  {name} " not in shown] == []
    assert set(CLIENTS) | {"serve", "check", "simulate"} == set(swapd.commands)
    for code in ("0  done", "1  refused", "2  wrong usage", "3  no daemon", "130  Ctrl-C"):
        assert code in shown


def test_the_help_is_quick_because_no_room_is_loaded_for_it() -> None:
    heavy = (
        "aiohttp",
        "asyncio",
        "pydantic",
        "prometheus_client",
        "rich",
        "structlog",
        "yaml",
        "swapd.agent",
        "swapd.core",
    )
    script = f"import sys, swapd.cli.root; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_version_is_told() -> None:
    command = [Path(sys.executable).with_name("swapd"), "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"swapd {__version__}\n"


# ── standard output ──────────────────────────────────────────────────────────────────────────────────────────────────


RECORD = b"unix_s,model,service_s\n1700000000,m01,1\n"
PRINTING = pytest.mark.parametrize("command", ["status", "trace"])


async def printed_into(output: int, path: Path, command: str, closing: str = "") -> tuple[int | None, str]:
    """Run a command as a process of its own; return its status and its complaints."""
    async with node(path) as daemon:
        daemon.control.recorded = [RECORD]
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", f'exec "$@" {closing}', "sh"),
            *(Path(sys.executable).with_name("swapd"), command, "--admin", path),
            stdout=output,
            stderr=asyncio.subprocess.PIPE,
        )
        _, complaints = await process.communicate()
    return process.returncode, complaints.decode()


@PRINTING
async def test_an_output_that_cannot_be_written_is_told_in_one_sentence(path: Path, command: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        ended = await printed_into(full, path, command)
    finally:
        os.close(full)
    assert ended == (1, "Error: standard output cannot be written: No space left on device\n")


@PRINTING
async def test_nothing_is_said_to_a_reader_that_has_seen_enough(path: Path, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = await printed_into(writer, path, command)
    finally:
        os.close(writer)
    assert ended == (1, "")


async def test_a_terminal_without_our_characters_is_no_trouble(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert await printed_into(asyncio.subprocess.DEVNULL, path, "status") == (0, "")


@PRINTING
async def test_an_output_that_was_closed_is_no_trouble(path: Path, command: str) -> None:
    assert await printed_into(asyncio.subprocess.DEVNULL, path, command, ">&-") == (0, "")


# ── orders ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("load", "tiny"), ("load", "m01")),
        (("load", "org/model-7b"), ("load", "org/model-7b")),
        (("unload", "m01"), ("unload", "m01", None)),
        (("unload", "m01", "--timeout", "1m30s"), ("unload", "m01", 90 * SECOND)),
        (("unload", "m01", "--timeout", "0"), ("unload", "m01", 0)),
        (("pin", "m01"), ("pin", "m01", True)),
        (("unpin", "m01"), ("pin", "m01", False)),
        (("drain",), ("drain", None)),
        (("drain", "--timeout", "500ms"), ("drain", SECOND // 2)),
        (("undrain",), ("undrain",)),
        (("reload",), ("reload",)),
        (("release-gpus",), ("release_gpus",)),
        (("release-gpus", "--take-back"), ("acquire_gpus",)),
    ],
)
async def test_an_order_is_carried_out_and_its_sentence_printed(
    path: Path, arguments: tuple[str, ...], asked: tuple[object, ...]
) -> None:
    async with node(path) as daemon:
        daemon.control.result = Result(ok=True, detail="m01 is resident on GPU 0.")
        done = await daemon.swapd(*arguments)
        assert (done.exit_code, done.output) == (0, "m01 is resident on GPU 0.\n")
        assert daemon.control.asked == [asked]


async def test_a_refused_order_ends_with_1_and_the_reason_on_standard_error(path: Path) -> None:
    async with node(path) as daemon:
        daemon.control.result = Result(ok=False, detail="everything else is pinned", reason=Rejection.ALL_PINNED)
        done = await daemon.swapd("load", "m01")
        assert (done.exit_code, done.stdout, done.stderr) == (1, "", "Error: everything else is pinned\n")
        done = await daemon.swapd("load", "nope")
        assert (done.exit_code, done.stderr) == (1, "Error: no model and no alias is named 'nope'; see swapd status\n")


@pytest.mark.parametrize("command", ["load", "timeline"])
async def test_an_empty_name_is_no_models(path: Path, command: str) -> None:
    async with node(path) as daemon:
        done = await daemon.swapd(command, "")
    assert (done.exit_code, done.stderr) == (1, "Error: no model and no alias is named ''; see swapd status\n")


async def test_names_with_any_character_reach_the_daemon_unchanged(path: Path) -> None:
    name = "../a b?c#d%2f[red]é:1"
    async with node(path) as daemon:
        daemon.control.names[name] = "m01"
        assert (await daemon.swapd("load", name)).exit_code == 0


async def test_an_order_waits_as_long_as_it_takes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load may take minutes: the limit for quick answers does not apply to it."""
    monkeypatch.setattr(client, "ANSWER_S", 0.05)
    async with node(path) as daemon:
        daemon.control.gate = asyncio.Event()
        order = asyncio.ensure_future(daemon.swapd("load", "m01"))
        await daemon.control.entered.wait()
        done, _ = await asyncio.wait((order,), timeout=0.2)
        assert not done
        daemon.control.gate.set()
        assert (await order).exit_code == 0


async def test_ctrl_c_ends_the_waiting_and_not_the_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(client.http.client.HTTPConnection, "getresponse", interrupted)
    async with node(path) as daemon:
        done = await daemon.swapd("drain")
        await daemon.control.entered.wait()
    assert (done.exit_code, done.stderr) == (130, "the order stands; swapd status shows what comes of it\n")


@pytest.mark.parametrize("value", ["5", "soon", "-1s", "1s1h"])
def test_a_timeout_without_meaning_is_wrong_usage(value: str) -> None:
    done = invoke("drain", "--timeout", value)
    assert done.exit_code == 2
    assert "Invalid value for '--timeout'" in done.stderr


@pytest.mark.parametrize("arguments", [("load",), ("nothing",), ("status", "--nothing"), ("serve",)])
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2


# ── finding the daemon ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("command", "arguments"), CLIENTS.items())
def test_without_a_daemon_every_command_ends_with_3_and_names_the_sockets_it_tried(
    path: Path, command: str, arguments: tuple[str, ...]
) -> None:
    done = invoke(command, *arguments, "--admin", str(path))
    assert (done.exit_code, done.stdout) == (3, "")
    assert f"tried {path} (no such file or directory)" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_any_socket_the_usual_places_are_named() -> None:
    done = invoke("status")
    assert done.exit_code == 3
    assert "there is no admin.sock in $RUNTIME_DIRECTORY, /run/swapd" in done.stderr


async def test_the_daemon_is_found_in_the_usual_places_and_dead_sockets_are_passed_over(tmp_path: Path) -> None:
    for directory in ("dead", "xdg/swapd"):
        (tmp_path / directory).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead" / "admin.sock"))
    async with node(tmp_path / "xdg" / "swapd" / "admin.sock") as daemon:
        env: dict[str, str | None] = {
            "RUNTIME_DIRECTORY": str(tmp_path / "dead"),
            "XDG_RUNTIME_DIR": str(tmp_path / "xdg"),
        }
        assert (await daemon.swapd("undrain", env=env)).exit_code == 0


async def test_the_option_comes_before_the_environment(path: Path) -> None:
    async with node(path) as daemon:
        done = await daemon.swapd("undrain", "--admin", str(path), env={"SWAPD_ADMIN": "/nonexistent/admin.sock"})
        assert done.exit_code == 0


async def test_a_daemon_that_fails_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(path) as daemon:

        def fail() -> dict[str, object]:
            raise RuntimeError("a bug")

        monkeypatch.setattr(daemon.control, "status", fail)
        done = await daemon.swapd("status")
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == "Error: the daemon failed to answer (status 500); its log says why\n"


@pytest.fixture
def stranger(path: Path) -> Iterator[list[bytes]]:
    """Something else listens on the socket and answers every connection with the given bytes."""
    answers: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answers[0])

    thread = threading.Thread(target=serve)
    thread.start()
    yield answers
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"", "broke the connection off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "broke the connection off"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "broke the connection off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "is no swapd of this version"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "is no swapd of this version"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "is no swapd of this version"),
    ],
)
def test_whatever_else_answers_is_told_in_one_sentence(
    path: Path, stranger: list[bytes], answer: bytes, sentence: str
) -> None:
    stranger.append(answer)
    for arguments in (("status",), ("topology",), ("topology", "--json"), ("undrain",), ("events",)):
        done = invoke(*arguments, "--admin", str(path))
        assert (done.exit_code, done.stdout) == (3, "")
        assert len(done.stderr.splitlines()) == 1
        assert sentence in done.stderr


def test_a_daemon_that_hangs_is_not_waited_for_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.1)
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(path))
        hanging.listen()
        done = invoke("status", "--admin", str(path))
    assert done.exit_code == 3
    assert f"the swapd on {path} does not answer within" in done.stderr


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_events_are_printed_as_they_happen_until_the_daemon_ends(path: Path) -> None:
    async with node(path) as daemon:
        following = asyncio.ensure_future(daemon.swapd("events"))
        async with asyncio.timeout(60):
            while len(daemon.hub) == 0:
                await asyncio.sleep(0.005)
        for number in (1, 2):
            note = Transitioned(InstanceId(number), ModelName("m01"), GpuSet(1), None, State.RESERVED, "[red]why")
            daemon.hub.publish(note)
        daemon.hub.close()
        done = await following
    assert done.exit_code == 0
    shown: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["event"], line["instance"], line["why"]) for line in shown] == [
        ("transitioned", 1, "[red]why"),
        ("transitioned", 2, "[red]why"),
    ]


# ── serve ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "log_format", "log_level"),
    [((), "json", "info"), (("--log-format", "console", "--log-level", "debug"), "console", "debug")],
)
def test_serve_hands_over_to_the_daemon_and_ends_with_its_status(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], log_format: str, log_level: str
) -> None:
    called: list[object] = []

    def run(config: Path, **given: str) -> int:
        called.append((config, given))
        return 70

    monkeypatch.setattr("swapd.agent.app.run", run)
    assert invoke("serve", "swapd.yaml", *options).exit_code == 70
    assert called == [(Path("swapd.yaml"), {"log_format": log_format, "log_level": log_level})]
