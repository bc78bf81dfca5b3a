"""Disks that are really full or read-only: a file system of a few megabytes, in a name space of its own."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.weights.caches import MIB, noise

ROOT = Path(__file__).parents[2]
UNSHARED = ["unshare", "--user", "--map-root-user", "--mount"]
DEADLINE_S = 60.0

try:
    _able = subprocess.run([*UNSHARED, "mount", "-t", "tmpfs", "none", "/tmp"], check=False).returncode == 0
except FileNotFoundError:
    _able = False
pytestmark = pytest.mark.skipif(not _able, reason="no file systems can be mounted here")


async def on_a_disk(tmp_path: Path, size: str, script: str) -> str:
    """Run a job of `fetching` on a disk of its own at `cache`; `script` is put before it."""
    command = f"mount -t tmpfs -o size={size} none {tmp_path}/cache && cd {ROOT} && {script}"
    (tmp_path / "cache").mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *UNSHARED, "sh", "-c", command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    return output.decode()


def job(tmp_path: Path, name: str) -> str:
    return f"{sys.executable} -m tests.weights.fetching {tmp_path}/cache/c file://{tmp_path}/{name} --job wait"


async def test_a_model_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(noise(6 * MIB))
    output = await on_a_disk(tmp_path, "5m", job(tmp_path, "m"))
    assert "FetchFailed" in output
    assert "it takes 6.3 MB on the disk, and the cache never has more than 4.2 MB" in output


async def test_a_disk_that_others_have_filled_makes_a_fetch_wait_until_they_leave(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(noise(3 * MIB))
    filled = f"head -c {4 * MIB} /dev/zero > {tmp_path}/cache/other; "
    output = await on_a_disk(tmp_path, "6m", filled + job(tmp_path, "m") + f" --then-remove {tmp_path}/cache/other")
    assert "FetchWaits" in output
    assert "part of the disk to keep free leaves 1.0 MB too little" in output
    assert output.strip().endswith("whole"), output


async def test_a_disk_that_becomes_full_in_the_middle_of_a_fetch_lets_it_go_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    (tmp_path / "m").write_bytes(noise(8 * MIB))
    # inodes and folders take room that the file system does not tell of: it is full before it says so
    filler = f"head -c 4000000 /dev/zero > {tmp_path}/cache/other"
    output = await on_a_disk(
        tmp_path, "10m", job(tmp_path, "m") + f" --fill '{filler}' --then-remove {tmp_path}/cache/other"
    )
    assert "FetchWaits" in output, output
    assert output.strip().endswith("whole"), output


async def test_a_read_only_folder_fails_the_fetch_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(noise(MIB))
    script = f"mount -o remount,ro {tmp_path}/cache; {job(tmp_path, 'm')}"
    output = await on_a_disk(tmp_path, "6m", script)
    assert "FetchFailed" in output
    assert "the disk of the cache refuses: [Errno 30] Read-only file system" in output


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="no prlimit")
async def test_a_limit_on_the_size_of_files_fails_the_fetch(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(noise(3 * MIB))
    output = await on_a_disk(tmp_path, "20m", f"prlimit --fsize={MIB} {job(tmp_path, 'm')}")
    assert "the disk of the cache refuses: [Errno 27] File too large" in output
