"""The demo as a user meets it: real models, a held request, a stream, and Ctrl-C."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.fakes.daemon import DEADLINE_S, ROOT, chat, free_port, until


def copy_of_the_demo(directory: Path) -> tuple[list[str], str]:
    """Copy the demo and give it free ports; return the command that runs it, and its host and port."""
    there = directory / "docs" / "demo"
    shutil.copytree(ROOT / "docs" / "demo", there)
    http, config = f"127.0.0.1:{free_port()}", there / "swapd.yaml"
    text = config.read_text().replace("127.0.0.1:8090", http).replace("127.0.0.1:9790", f"127.0.0.1:{free_port()}")
    config.write_text(text.replace("20000-29999", "30000-30999"))
    return [sys.executable, str(there / "run.py")], http


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path, str]]:
    """Run a copy of the demo; yields its process, its output and its base URL."""
    command, http = copy_of_the_demo(tmp_path)
    output = tmp_path / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=tmp_path)
    yield process, output, f"http://{http}"
    for survivor in _of(tmp_path):
        survivor.kill()
    process.wait()
    sys.stdout.write(output.read_text())


def _of(directory: Path) -> list[psutil.Process]:
    """List the processes whose command line names the directory."""
    found = []
    for process in psutil.process_iter():
        try:
            named = str(directory) in " ".join(process.cmdline()) and process.pid != os.getpid()
        except psutil.Error:
            continue
        if named and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


async def test_the_demo_holds_swaps_and_streams_and_ends_on_one_interrupt_with_no_process_left(
    demo: tuple[subprocess.Popen[bytes], Path, str], tmp_path: Path
) -> None:
    process, output, url = demo
    await until(
        lambda: "Ctrl-C ends the demo" in output.read_text(), "the demo says what to try", deadline_s=DEADLINE_S
    )
    async with aiohttp.ClientSession(url) as client:
        for model in ("m01", "m02", "m03"):
            async with client.post("/v1/chat/completions", json=chat(model)) as answer:
                assert answer.headers["x-swapd-cold-start"] == "1"
                assert f"I am {model} ." in (await answer.json())["choices"][0]["message"]["content"]
        async with client.post("/v1/chat/completions", json=chat("smollm2", stream=True)) as answer:
            lines = [line.decode().strip() async for line in answer.content]
        assert [line for line in lines if line][-1] == "data: [DONE]"
        async with client.get("/v1/models") as answer:
            listed = {model["id"] for model in json.loads(await answer.read())["data"]}
        assert {"smollm2", "m01", "m12"} <= listed
    process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0
    await until(lambda: not _of(tmp_path), "no process of the demo is left")


def test_the_demo_says_in_one_sentence_that_its_port_is_taken(tmp_path: Path) -> None:
    command, http = copy_of_the_demo(tmp_path)
    with socket.create_server(("127.0.0.1", int(http.rpartition(":")[2]))):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1] == (
        f"The demo needs {http}, which another program uses: stop that program first."
    )
