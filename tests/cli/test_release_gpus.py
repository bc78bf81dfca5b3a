"""A command that borrows the GPUs: they are taken back whatever becomes of it, and its exit status is kept.

The commands run in a process of their own, because signals are what this is about.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from swapd.admin.control import Result
from tests.cli.command import NOWHERE, Node, invoke, node

SWAPD = str(Path(sys.executable).with_name("swapd"))
REFUSED = Result(ok=False, detail="a call has not come back for 40 s")


@dataclass
class Done:
    status: int | None
    out: str
    err: list[str]


async def start(daemon: Node, *command: str) -> asyncio.subprocess.Process:
    env = {**os.environ, **{name: value for name, value in NOWHERE.items() if value}, "SWAPD_ADMIN": str(daemon.path)}
    return await asyncio.create_subprocess_exec(
        SWAPD, "release-gpus", "--", *command, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def end(process: asyncio.subprocess.Process) -> Done:
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return Done(process.returncode, out.decode(), err.decode().splitlines())


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Node]:
    async with node(tmp_path / "admin.sock") as made:
        yield made


def orders(daemon: Node) -> list[object]:
    return [asked[0] for asked in daemon.control.asked]


async def test_the_command_runs_between_release_and_taking_back(daemon: Node) -> None:
    daemon.control.results["release_gpus"] = Result(ok=True, detail="released; m01 still holds its GPUs")
    done = await end(await start(daemon, "sh", "-c", "echo reset; echo $0 $1", "-i", "--take-back"))
    assert (done.status, done.out) == (0, "reset\n-i --take-back\n")
    assert done.err == ["released; m01 still holds its GPUs", "done"]
    assert orders(daemon) == ["release_gpus", "acquire_gpus"]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -KILL $$"), 137),
        (("/nonexistent/nvidia-smi",), 127),
        (("/",), 126),
    ],
)
async def test_the_gpus_are_taken_back_from_a_command_that_fails_and_its_status_is_kept(
    daemon: Node, command: tuple[str, ...], status: int
) -> None:
    done = await end(await start(daemon, *command))
    assert done.status == status
    assert orders(daemon) == ["release_gpus", "acquire_gpus"]
    if status > 125 and status < 128:
        assert any(line.startswith(f"Error: {command[0]} cannot be run: ") for line in done.err)


async def test_a_command_is_not_run_when_the_gpus_are_not_released(daemon: Node) -> None:
    """The daemon may have let go and found something open: it is asked to take back, and only the first is told."""
    daemon.control.results["release_gpus"] = REFUSED
    done = await end(await start(daemon, "echo", "reset"))
    assert (done.status, done.out, done.err) == (1, "", [f"Error: {REFUSED.detail}"])
    assert orders(daemon) == ["release_gpus", "acquire_gpus"]


@pytest.mark.parametrize(("command", "status"), [("exit 0", 1), ("exit 7", 7)])
async def test_gpus_that_cannot_be_taken_back_are_an_error_even_after_a_good_command(
    daemon: Node, command: str, status: int
) -> None:
    daemon.control.results["acquire_gpus"] = REFUSED
    done = await end(await start(daemon, "sh", "-c", command))
    assert done.status == status
    assert done.err[1:] == [
        f"Error: {REFUSED.detail}",
        "The GPUs are not taken back; swapd release-gpus --take-back tries again.",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_is_for_the_command_and_the_gpus_are_taken_back_after_it(
    daemon: Node, number: signal.Signals
) -> None:
    process = await start(daemon, "sh", "-c", "trap 'exit 3' TERM HUP; echo waiting; while :; do sleep 0.01; done")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"waiting\n"
    process.send_signal(number)
    done = await end(process)
    assert done.status == 3
    assert orders(daemon) == ["release_gpus", "acquire_gpus"]


async def test_an_interrupt_from_the_terminal_ends_the_command_and_not_the_taking_back(daemon: Node) -> None:
    process = await start(daemon, "sh", "-c", "echo $$; exec sleep 60")
    assert process.stdout is not None
    child = int(await process.stdout.readline())
    process.send_signal(signal.SIGINT)  # a terminal sends it to both
    os.kill(child, signal.SIGINT)
    done = await end(process)
    assert done.status == 130
    assert orders(daemon) == ["release_gpus", "acquire_gpus"]


async def test_a_signal_before_the_command_has_begun_is_its_end(daemon: Node) -> None:
    daemon.control.gate = asyncio.Event()
    process = await start(daemon, "echo", "reset")
    await daemon.control.entered.wait()
    process.send_signal(signal.SIGTERM)
    daemon.control.gate.set()
    done = await end(process)
    assert (done.status, done.out) == (143, "")
    assert orders(daemon) == ["release_gpus", "acquire_gpus"]


def test_taking_back_and_a_command_do_not_go_together() -> None:
    done = invoke("release-gpus", "--take-back", "--", "true")
    assert done.exit_code == 2
    assert "taken back after the command by itself" in done.stderr
