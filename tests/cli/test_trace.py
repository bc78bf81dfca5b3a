"""`swapd trace`: what the daemon has recorded becomes a trace that the simulator reads."""

import time
from pathlib import Path

from tests.cli.command import invoke, node

HEADER = b"unix_s,model,service_s\n"


async def test_the_record_becomes_a_trace_in_order_of_time_from_zero(tmp_path: Path) -> None:
    async with node(tmp_path / "admin.sock") as running:
        running.control.recorded = [HEADER, b"1700000060.500,m01,2.250\n1700000000.000,m02,7.000\n"]
        done = await running.swapd("trace")
    assert done.stdout == "t_s,model,service_s\n0.000,m02,7.000\n60.500,m01,2.250\n"


async def test_who_was_never_granted_gets_the_usual_service_time_of_its_model_or_of_all(tmp_path: Path) -> None:
    lines = b"1,a,2\n2,a,4\n3,a,9\n4,a,\n5,b,\n"
    async with node(tmp_path / "admin.sock") as running:
        running.control.recorded = [HEADER, lines]
        done = await running.swapd("trace")
    assert done.stdout.splitlines()[-2:] == ["3.000,a,4.000", "4.000,b,4.000"]


async def test_a_line_that_a_crash_has_torn_is_left_out(tmp_path: Path) -> None:
    async with node(tmp_path / "admin.sock") as running:
        running.control.recorded = [HEADER, b"1700\n", b"1,a,2\n", b"3,half-a-na\n", b"17000000"]
        done = await running.swapd("trace")
    assert done.stdout == "t_s,model,service_s\n0.000,a,2.000\n"


async def test_what_is_no_number_of_seconds_is_left_out(tmp_path: Path) -> None:
    async with node(tmp_path / "admin.sock") as running:
        running.control.recorded = [HEADER, b"nan,a,1\n1,a,2\ninf,a,1\n3,a,nan\n4,a,-inf\n"]
        done = await running.swapd("trace")
    assert done.stdout == "t_s,model,service_s\n0.000,a,2.000\n"


async def test_only_the_last_hours_are_written_if_asked_for_and_nothing_of_the_future(tmp_path: Path) -> None:
    now = int(time.time())
    lines = "".join(f"{now + after},a,1\n" for after in (-9000, -3000, -1000, 90_000))
    async with node(tmp_path / "admin.sock") as running:
        running.control.recorded = [HEADER, lines.encode()]
        done = await running.swapd("trace", "--since", "1h")
        none = await running.swapd("trace", "--since", "1m")
    assert done.stdout.splitlines()[1:] == ["0.000,a,1.000", "2000.000,a,1.000"]
    assert (none.exit_code, none.stdout) == (1, "")
    assert "no request of that time is on record" in none.stderr


async def test_an_empty_record_is_no_trace(tmp_path: Path) -> None:
    async with node(tmp_path / "admin.sock") as running:
        running.control.recorded = [HEADER]
        done = await running.swapd("trace")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no request is on record yet" in done.stderr


async def test_the_models_are_written_as_the_simulator_reads_them(tmp_path: Path) -> None:
    async with node(tmp_path / "admin.sock") as running:
        done = await running.swapd("trace", "--models")
    assert done.stdout == "model,gpus,load_s\nm01,2,18.7\n"


def test_without_a_daemon_there_is_nothing_to_write() -> None:
    assert invoke("trace").exit_code == 3
