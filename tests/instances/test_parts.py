"""The parts on their own: ports, process table, listeners, log files, progress, small HTTP, sentences."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from swapd.core.ids import SECOND
from swapd.engines.base import LaunchSpec
from swapd.instances import sentences
from swapd.instances.http import Reply, UnreachableError, accepts, request
from swapd.instances.output import Output
from swapd.instances.owner import Owner, owner_of
from swapd.instances.ports import NoPortError, Ports
from swapd.instances.processes import Family, Process, become_subreaper, read, reap, send, table
from swapd.instances.progress import Progress


def free_range(size: int) -> int:
    """Return the first of so many consecutive free ports."""
    for first in range(31_000, 32_700, size):
        try:
            for port in range(first, first + size):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free range")


def test_ports_are_distinct_inside_the_range_and_never_reserved_ones() -> None:
    first = free_range(6)
    ports = Ports(first, first + 5, reserved=frozenset({first + 2}), rng=random.Random(1))
    assert {ports.take() for _ in range(5)} == set(range(first, first + 6)) - {first + 2}
    with pytest.raises(NoPortError):
        ports.take()


def test_a_port_given_back_is_not_given_out_again_soon_but_rather_than_none() -> None:
    first = free_range(4)
    ports = Ports(first, first + 3, reserved=frozenset(), rng=random.Random(1))
    one, two = ports.take(), ports.take()
    ports.give_back(one)
    rest = {ports.take(), ports.take()}
    assert one not in rest
    assert two not in rest
    assert ports.take() == one


def test_a_port_with_a_foreign_listener_is_never_given_out() -> None:
    first = free_range(3)
    with socket.create_server(("", first + 1)):
        ports = Ports(first, first + 2, reserved=frozenset())
        assert {ports.take(), ports.take()} == {first, first + 2}
        with pytest.raises(NoPortError):
            ports.take()


def test_a_port_on_which_only_old_connections_linger_is_better_than_none() -> None:
    first = free_range(1)
    address = ("127.0.0.1", first)
    with socket.create_server(address) as server, socket.create_connection(address) as client:
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first keeps the port in TIME_WAIT
        assert client.recv(1) == b""
    ports = Ports(first, first, reserved=frozenset())
    assert ports.take() == first


def test_a_port_that_was_never_taken_is_not_taken_back() -> None:
    ports = Ports(1, 0, reserved=frozenset())
    ports.give_back(80)
    with pytest.raises(NoPortError):
        ports.take()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_the_process_table_knows_us_and_our_children(sleeper: subprocess.Popen[bytes]) -> None:
    everyone = table()
    assert everyone[sleeper.pid].parent == os.getpid()
    assert everyone[os.getpid()].start <= everyone[sleeper.pid].start
    assert read(2**22 + 1) is None


def test_a_process_id_that_now_is_another_process_is_not_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    known = table()[sleeper.pid]
    other = Process(known.pid, known.state, known.parent, known.group, known.session, known.start - 1)
    send([other], signal.SIGKILL)
    assert sleeper.poll() is None
    send([known], signal.SIGKILL)
    assert sleeper.wait(60) == -signal.SIGKILL
    send([known], signal.SIGKILL)


def test_a_process_once_seen_is_remembered_when_nothing_else_tells_whose_it_is() -> None:
    become_subreaper()
    with subprocess.Popen(["sh", "-c", "env -i setsid sleep 1000 & wait"], start_new_session=True) as leader:
        family = Family(leader.pid, "no mark")
        deadline = time.monotonic() + 60
        while "sleep" not in [name(process) for process in family.living()] and time.monotonic() < deadline:
            time.sleep(0.01)
        leader.kill()
        leader.wait()
        (left,) = family.living()
        assert (name(left), left.session == leader.pid) == ("sleep", False)
        send([left], signal.SIGKILL)
        while family.living() and time.monotonic() < deadline:
            time.sleep(0.01)
        reap(family.members())
        assert family.members() == ()


def name(process: Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/comm").read_text().strip()
    except OSError:
        return ""


def us() -> Process:
    process = read(os.getpid())
    assert process is not None
    return process


@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_the_holder_of_a_listening_socket_is_its_owner(address: str, sleeper: subprocess.Popen[bytes]) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        assert owner_of(port, [us()]) is Owner.OURS
        stranger = table()[sleeper.pid]
        assert owner_of(port, [stranger]) is Owner.FOREIGN
        assert owner_of(port, [stranger, us()]) is Owner.OURS
    assert owner_of(port, [us()]) is Owner.UNKNOWN


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_the_more_specific_listener_is_the_one_that_counts() -> None:
    code = (
        "import socket, sys; at = ('::', int(sys.argv[1])); "
        "server = socket.create_server(at, family=socket.AF_INET6); print(); input()"
    )
    with socket.create_server(("127.0.0.1", 0)) as here:
        port = here.getsockname()[1]
        command = [sys.executable, "-c", code, str(port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"\n"
            assert owner_of(port, [us()]) is Owner.OURS
            other.kill()


def test_the_tail_survives_partial_huge_and_binary_lines(tmp_path: Path) -> None:
    output = Output(tmp_path, "org/model", limit=1_000_000)
    output.begin()
    with output.writable() as descriptor:
        os.write(descriptor, b"\xff\xfe\x00binary\n" + b"y" * 100_000 + b"\n10%\r50%\r100%\n\x1b[31mred\x1b[0m\nno end")
    assert output.path.name == "org%2Fmodel.log"
    assert output.tail(3) == ("100%", "red", "no end")
    assert output.tail(4)[0] == "y" * 2_000
    assert output.tail(0) == ()


def test_a_large_log_is_moved_aside_at_the_start_and_its_lines_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "m.log").write_bytes(b"old\n" * 100)
    output = Output(tmp_path, "m", limit=100)
    output.begin()
    assert (tmp_path / "m.log.1").read_bytes() == b"old\n" * 100
    assert output.tail(5) == ()
    with output.writable() as descriptor:
        os.write(descriptor, b"new\n")
    assert output.tail(5) == ("new",)


def test_a_log_that_grows_is_emptied_in_place_and_its_writer_goes_on(tmp_path: Path) -> None:
    output = Output(tmp_path, "m", limit=100)
    output.begin()
    with output.writable() as descriptor:
        os.write(descriptor, b"a\n" * 60)
        assert output.fresh() == b"a\n" * 60
        assert output.path.stat().st_size == 0
        os.write(descriptor, b"b\n")
        assert output.fresh() == b"b\n"
        assert output.fresh() == b""
    assert output.tail(3) == ("a", "a", "b")


def test_only_what_is_new_and_not_about_our_own_probe_is_progress() -> None:
    progress = Progress("/health")
    assert not progress.advanced(b"", ())
    assert progress.advanced(b"loading shard 1\n", ())
    assert not progress.advanced(b'"GET /health HTTP/1.1" 503\n\n', ())


def test_bytes_read_are_progress_without_a_word_in_the_log() -> None:
    progress = Progress("/health")
    progress.advanced(b"", (us(),))
    assert not progress.advanced(b"", (us(),))
    with Path("/dev/zero").open("rb", buffering=0) as zeros:
        zeros.read(10**6)
    assert progress.advanced(b"", (us(),))


@asynccontextmanager
async def answering(raw: bytes) -> AsyncIterator[int]:
    """Serve one fixed answer, whatever is asked, and close."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("raw", "reply"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", Reply(200, b"hi")),
        (b"HTTP/1.0 503 Busy\r\n\r\nuntil the end", Reply(503, b"until the end")),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1;x=y\r\n!\r\n0\r\n\r\n",
            Reply(200, b"hi!"),
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000, Reply(200, b"x" * 65_536)),
    ],
)
async def test_an_answer_is_read_in_every_form_and_bounded(raw: bytes, reply: Reply) -> None:
    async with answering(raw) as port:
        assert await request("127.0.0.1", port, method="GET", path="/") == reply


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi",
        b"x" * 200_000,
    ],
)
async def test_what_is_not_a_complete_answer_is_unreachable(raw: bytes) -> None:
    async with answering(raw) as port:
        with pytest.raises(UnreachableError):
            await request("127.0.0.1", port, method="GET", path="/")


async def test_a_closed_port_accepts_nothing() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert not await accepts("127.0.0.1", bound.getsockname()[1])
        bound.listen()
        assert await accepts("127.0.0.1", bound.getsockname()[1])


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exited with status 0"),
        (-9, "was ended by SIGKILL"),
        (-200, "was ended by signal 200"),
        (None, "ended after"),
    ],
)
def test_an_ending_is_said_in_words(status: int | None, words: str) -> None:
    assert words in sentences.exited("m01", status, SECOND, loading=False)


def test_a_program_that_may_not_run_is_a_permanent_failure(tmp_path: Path) -> None:
    error = PermissionError(13, "Permission denied", "engine")
    spec = LaunchSpec(("engine",), {}, str(tmp_path))
    assert sentences.not_started("m01", error, spec) == ("m01 could not be started: engine is not executable", True)
    busy = OSError(11, "Resource temporarily unavailable")
    assert sentences.not_started("m01", busy, spec)[1] is False
