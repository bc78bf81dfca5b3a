"""Runs `swapd serve` as a real process for end-to-end tests: free ports, a temporary config, nothing left behind.

    async with running(tmp_path, models=tiny_models(tmp_path, ["m01", "m02"])) as daemon:
        async with daemon.client() as http:
            answer = await http.post("/v1/chat/completions", json=chat("m01"))

Leaving the block stops the daemon and asserts that it ended with status 0 and that no process of it survives. When
the block fails, the daemon's log is printed. The daemon knows nothing of the test but its config and environment.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "docs" / "demo"
MARK = "SWAPD_TEST_MARK"
#: the machine may be shared with other test runs: a deadline only has to be finite
DEADLINE_S = 60.0


@dataclass(slots=True)
class Daemon:
    """One running `swapd serve`."""

    process: subprocess.Popen[bytes]
    config_path: Path
    config: dict[str, Any]
    log_path: Path
    socket_path: Path
    #: random word in the environment of the daemon and (inherited) of its engines
    mark: str
    #: set once the test has ended the daemon itself
    stopped: bool = field(default=False)

    @property
    def url(self) -> str:
        """Base URL of the data listener, without a slash at the end."""
        return f"http://{self.config['http']['listen']}"

    @property
    def metrics_url(self) -> str:
        """Base URL of the metrics listener."""
        return f"http://{self.config['metrics']['listen']}"

    def client(self, **options: Any) -> aiohttp.ClientSession:
        """Make an HTTP client of the data listener without a limit on connections."""
        options.setdefault("timeout", aiohttp.ClientTimeout(total=DEADLINE_S))
        return aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(limit=0), **options)

    def log(self) -> str:
        """Everything the daemon has written so far."""
        return self.log_path.read_text(errors="replace")

    def write_config(self, config: dict[str, Any]) -> None:
        """Replace the config file in one step, as editors and configuration tools do."""
        self.config = config
        write_config(self.config_path, config)

    async def cli(self, *arguments: str, check: bool = True) -> str:
        """Run `swapd ARGUMENTS` against this daemon; return its standard output."""
        environment = {**os.environ, "SWAPD_ADMIN": str(self.socket_path)}
        command = [swapd_executable(), *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, env=environment, timeout=DEADLINE_S, check=False
        )
        if check:
            assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    async def status(self) -> dict[str, Any]:
        """Return what `swapd status --json` prints."""
        answer: dict[str, Any] = json.loads(await self.cli("status", "--json"))
        return answer

    async def metrics(self) -> dict[str, float]:
        """Scrape /metrics; keys are series as printed: `name` or `name{label="value",…}`."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.metrics_url}/metrics") as answer:
            assert answer.status == 200
            text = await answer.text()
        lines = (line for line in text.splitlines() if line and not line.startswith("#"))
        return {series: float(value) for series, value in (line.rsplit(" ", 1) for line in lines)}

    def processes(self) -> list[psutil.Process]:
        """Every live process of this daemon, itself included: marked by environment, or its descendant."""
        found = {process.pid: process for process in descendants(self.process.pid)}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark or str(self.config_path.parent) in " ".join(
                    process.cmdline()
                ):
                    found[process.pid] = process
        found.pop(os.getpid(), None)
        return [process for process in found.values() if alive(process)]

    async def stop(self, signum: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, return the exit status."""
        self.process.send_signal(signum)
        return await self.wait()

    async def wait(self) -> int:
        """Wait for the end of the daemon; return its exit status."""
        await until(lambda: self.process.poll() is not None, "the daemon ends")
        self.stopped = True
        return self.process.returncode


def total(metrics: Mapping[str, float], name: str, **labels: str) -> float:
    """Add up all series of a metric that carry these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        value
        for series, value in metrics.items()
        if series.partition("{")[0] == name and all(pair in series for pair in wanted)
    )


def chat(model: str, *, stream: bool = False, max_tokens: int = 8, **more: Any) -> dict[str, Any]:
    """Make the body of a chat completion."""
    messages = [{"role": "user", "content": "Who are you?"}]
    return {"model": model, "messages": messages, "stream": stream, "max_tokens": max_tokens, **more}


def tiny_models(
    directory: Path, names: Iterable[str], *, loop: bool = False, **settings: Any
) -> dict[str, dict[str, Any]]:
    """Write one tiny GGUF for each name and return the `models:` part that serves them with a real llama.cpp."""
    (directory / "models").mkdir(exist_ok=True)
    models = {}
    for name in names:
        weights = directory / "models" / f"{name}.gguf"
        if not weights.exists():
            command = [sys.executable, str(DEMO / "tiny_gguf.py"), str(weights), "--name", name]
            subprocess.run([*command, *(["--loop"] if loop else [])], check=True, capture_output=True)
        models[name] = {**llama_cpp_model(weights), **settings}
    return models


def llama_cpp_model(weights: Path, *options: str) -> dict[str, Any]:
    """Describe a model served by llama.cpp's own server, as in the demo."""
    serve = [sys.executable, str(DEMO / "llama_cpp_serve.py")]
    placeholders = ["--model", "{weights}", "--port", "{port}", "--alias", "{name}"]
    return {
        "engine": "command",
        "command": [*serve, *placeholders, "--no-warmup", *options],
        "weights": str(weights),
        "memory": "1GiB",
    }


@contextlib.asynccontextmanager
async def running(
    directory: Path,
    *,
    models: Mapping[str, Mapping[str, Any]],
    environment: Mapping[str, str] | None = None,
    arguments: tuple[str, ...] = (),
    program: tuple[str, ...] = (),
    wait: bool = True,
    **sections: Mapping[str, Any],
) -> AsyncIterator[Daemon]:
    """Run a daemon with these models; `sections` (http, scheduling, …) are laid over the defaults key by key.

    An empty section leaves the defaults of the program itself. `program` stands for the installed command; without
    `wait` the block is entered before the daemon is ready.
    """
    with tempfile.TemporaryDirectory(prefix="swapd-") as short:  # a socket's path has at most 107 bytes
        socket_path = Path(short) / "admin.sock"
        config = node_config(directory, socket_path, models=models, sections=sections)
        daemon = start(
            directory, config, socket_path, environment=environment or {}, arguments=arguments, program=program
        )
        try:
            if wait:
                await until_ready(daemon)
            yield daemon
            if not daemon.stopped:
                assert await daemon.stop() == 0
            await until(lambda: not daemon.processes(), "no process of the daemon is left")
        except BaseException:
            sys.stdout.write(f"--- daemon's log ({daemon.log_path})\n{daemon.log()[-20_000:]}")
            raise
        finally:
            for process in daemon.processes():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            daemon.process.wait()


def node_config(
    directory: Path,
    socket_path: Path,
    *,
    models: Mapping[str, Mapping[str, Any]],
    sections: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Make the config of a node with two virtual devices, everything below `directory`."""
    first_port = 10_000 + secrets.randbelow(20) * 1000
    config: dict[str, Any] = {
        "http": {"listen": f"127.0.0.1:{free_port()}"},
        "metrics": {"listen": f"127.0.0.1:{free_port()}"},
        "admin": {"socket": str(socket_path)},
        "state": {"path": str(directory / "state.sqlite")},
        "engines": {"ports": f"{first_port}-{first_port + 999}"},
        "devices": {"virtual": {"count": 2, "memory": "2GiB"}},
        "models": {name: dict(model) for name, model in models.items()},
    }
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section} if section else {}
    return config


def start(
    directory: Path,
    config: dict[str, Any],
    socket_path: Path,
    *,
    environment: Mapping[str, str],
    arguments: tuple[str, ...],
    program: tuple[str, ...] = (),
) -> Daemon:
    """Write the config and start the daemon, its output in a file; does not wait."""
    config_path, log_path, mark = directory / "swapd.yaml", directory / "daemon.log", secrets.token_hex(8)
    write_config(config_path, config)
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*(program or (swapd_executable(),)), "serve", str(config_path), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment, MARK: mark},
            cwd=directory,
            start_new_session=True,
        )
    return Daemon(process, config_path, config, log_path, socket_path, mark)


async def until_ready(daemon: Daemon) -> None:
    """Wait until the daemon says that it is ready; fail at once if it ends instead."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    async with aiohttp.ClientSession() as http:
        while True:
            assert daemon.process.poll() is None, f"the daemon ended with {daemon.process.returncode}"
            assert asyncio.get_running_loop().time() < deadline, "the daemon was not ready in time"
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with http.get(f"{daemon.metrics_url}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.02)


async def until(condition: Callable[[], bool], what: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Poll a condition until it holds; fail with its description at the deadline."""
    end = asyncio.get_running_loop().time() + deadline_s
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"not within {deadline_s:g} s: {what}"
        await asyncio.sleep(0.02)


async def eventually(
    condition: Callable[[], Coroutine[Any, Any, bool]], what: str, *, deadline_s: float = DEADLINE_S
) -> None:
    """Poll a condition that has to be awaited until it holds; fail with its description at the deadline."""
    end = asyncio.get_running_loop().time() + deadline_s
    while not await condition():
        assert asyncio.get_running_loop().time() < end, f"not within {deadline_s:g} s: {what}"
        await asyncio.sleep(0.02)


def write_config(path: Path, config: dict[str, Any]) -> None:
    """Write YAML beside the file, then rename it over."""
    draft = path.with_suffix(".new")
    draft.write_text(yaml.safe_dump(config, sort_keys=False))
    draft.replace(path)


def free_port() -> int:
    """Return a loopback port that is free, and that no other test run on this machine is given while this one lives.

    From below the range of outgoing connections: there, who polls a port that nobody listens on yet can be connected
    to itself, and so take the port. The reservation is a locked file that is never closed.
    """
    directory = Path(tempfile.gettempdir(), f"swapd-test-ports-{os.getuid()}")
    directory.mkdir(exist_ok=True)
    while True:
        port = 30_000 + secrets.randbelow(2_768)
        reservation = os.open(directory / str(port), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(reservation, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            os.close(reservation)
        else:
            return port


def swapd_executable() -> str:
    """Return the path of the installed `swapd` command that belongs to this interpreter."""
    return str(Path(sys.executable).with_name("swapd"))


def descendants(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants, as far as they are alive."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def alive(process: psutil.Process) -> bool:
    """Tell whether a process still runs; a zombie does not."""
    try:
        running_now: bool = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    return running_now
