"""Starts what swapd's relay is compared with, and compiles the engine and the load generator, which are no limit."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.tools import HERE
from tests.fakes.daemon import free_port

NATIVE = HERE / "native"
_NGINX = """
worker_processes 1; daemon off; pid {here}/nginx.pid; error_log /dev/null; events {{ worker_connections 16384; }}
http {{ access_log off; keepalive_requests 1000000000; client_max_body_size 200m; client_body_buffer_size 64m;
client_body_temp_path {here}/b; proxy_temp_path {here}/p; fastcgi_temp_path {here}/f; uwsgi_temp_path {here}/u;
scgi_temp_path {here}/s;
upstream engine {{ server 127.0.0.1:{engine}; keepalive 4096; keepalive_requests 1000000000; }}
server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://engine; proxy_http_version 1.1;
proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 1h; }} }} }}
"""


def compiled(name: str, directory: Path) -> str:
    """Compile a program of `native/`; return its path."""
    target = directory / name
    subprocess.run(["cc", "-O2", "-o", target, NATIVE / f"{name}.c"], check=True)
    return str(target)


def nginx_executable() -> str:
    """Return nginx, installed from the distribution if it is missing."""
    where = os.pathsep.join((os.environ["PATH"], "/usr/sbin"))
    if shutil.which("nginx", path=where) is None:
        for command in (["update", "-qq"], ["install", "-y", "-qq", "nginx-light"]):
            subprocess.run(["apt-get", *command], check=True, stdout=subprocess.DEVNULL)
    found = shutil.which("nginx", path=where)
    assert found is not None
    return found


@contextmanager
def nginx(directory: Path, engine: int) -> Iterator[tuple[int, int]]:
    """Run nginx before an engine's port; yields the worker's pid and the port."""
    port, config = free_port(), directory / "nginx.conf"
    config.write_text(_NGINX.format(here=directory, engine=engine, port=port))
    process = subprocess.Popen([nginx_executable(), "-c", config], stderr=subprocess.DEVNULL)
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not children.read_text():
            assert process.poll() is None, "nginx did not start"
        yield int(children.read_text().split()[0]), port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def python_proxy(module: str, engine: int) -> Iterator[tuple[int, int]]:
    """Run `naive` or `bare` before an engine's port; yields its pid and port."""
    port = free_port()
    command = [sys.executable, "-m", f"benchmarks.{module}", "--port", str(port), "--engine", str(engine)]
    process = subprocess.Popen(command)
    try:
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


def request_file(directory: Path, body: Mapping[str, Any]) -> Path:
    """Write a request to a file for the load generator."""
    path, text = directory / "request", json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    path.write_bytes(head + b"content-length: %d\r\n\r\n%b" % (len(text), text))
    return path


async def generate(program: str, port: int, request: Path, *, connections: int, requests: int) -> dict[str, float]:
    """Run the load generator on the last CPU; every request must succeed. Returns what it has seen."""
    command = [program, str(port), str(connections), str(requests), str(request)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    pin(process.pid, max(os.sched_getaffinity(0)))
    output, _ = await process.communicate()
    assert process.returncode == 0, "the load generator failed; it says why above"
    seen: dict[str, float] = json.loads(output)
    assert seen["failures"] == 0, seen
    return seen


@contextmanager
def engine(program: str) -> Iterator[int]:
    """Run the compiled engine by itself; yields its port."""
    port = free_port()
    process = subprocess.Popen([program, str(port)])
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def pin(pid: int, cpu: int) -> None:
    """Keep all threads of a process on one CPU."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {cpu})


async def listening(port: int) -> None:
    """Wait until something listens on the port."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
