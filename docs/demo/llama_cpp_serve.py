"""Serves one GGUF model with llama.cpp's own HTTP server, from the `xllamacpp` wheel: no compiler, no GPU.

Takes those options of `llama-server` that swapd uses. `/health` answers 503 while the model loads and 200 afterwards;
then the line `ready URL` is printed. Exit status: 0 after SIGTERM or SIGINT, 1 when the model cannot be loaded or the
port cannot be bound. A signal that comes before the `ready` line ends the process by itself, without a status.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import xllamacpp  # type: ignore[import-untyped]  # the wheel has no type stubs

CONTEXT_PER_SLOT = 512
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> NoReturn:
    """Load, serve until a signal ends the process."""
    options = parse()
    time.sleep(options.delay)
    # Loading holds the interpreter lock, so that no Python handler could run: the default actions end a load at once.
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_DFL)
    try:
        server = xllamacpp.Server(parameters(options))
    except RuntimeError as error:
        print(f"load failed: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    # Installed after the server, which may bring handlers of its own that do not end this process.
    for signum in STOP_SIGNALS:
        signal.signal(signum, leave)
    print("ready", server.listening_address, flush=True)
    while True:
        time.sleep(0.2)  # a signal that reaches another thread does not end a nap: keep naps short


def leave(_signum: int, _frame: FrameType | None) -> NoReturn:
    """End now. The server's destructor waits for running requests with the interpreter lock held, often for ever."""
    os._exit(0)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Serve one GGUF model with llama.cpp.", allow_abbrev=False)
    parser.add_argument("-m", "--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("-a", "--alias", help="public model name (default: the file's name)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-np", "--parallel", type=int, default=1, metavar="N", help="requests answered at once")
    parser.add_argument("-c", "--ctx-size", type=int, metavar="N", help="tokens of context, over all slots")
    parser.add_argument("-t", "--threads", type=int, default=1, metavar="N")
    parser.add_argument("--embedding", action="store_true", help="serve embeddings instead of text")
    parser.add_argument("--no-warmup", action="store_true", help="skip the server's own warm-up run")
    parser.add_argument("-lv", "--verbosity", type=int, default=2, metavar="N", help="log level")
    parser.add_argument("--delay", type=float, default=0.0, metavar="S", help="wait before the load, port closed")
    # llama-server's options that mean nothing here: no GPU, no pages, and the metrics are always on
    parser.add_argument("-ngl", "--gpu-layers", help=argparse.SUPPRESS)
    parser.add_argument("-fit", help=argparse.SUPPRESS)
    parser.add_argument("--no-ui", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--metrics", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def parameters(options: argparse.Namespace) -> xllamacpp.CommonParams:
    """Translate the options into llama.cpp's own."""
    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = {options.alias or options.model.name}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.ctx_size or CONTEXT_PER_SLOT * options.parallel
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.embedding = options.embedding
    params.warmup = not options.no_warmup
    params.endpoint_metrics = params.endpoint_props = params.endpoint_slots = True
    params.verbosity = options.verbosity
    return params


if __name__ == "__main__":
    main()
