"""Holds the example configuration that opens the reference: every key that most nodes need, with a word on each."""

from typing import Final

EXAMPLE: Final = """\
http:
  listen: 127.0.0.1:8090        # where clients send requests
  auth: none                    # must be written out before other machines can reach the listener
  max_body: 64MiB
  max_buffered: 512MiB
  sse_keepalive: 15s            # or off
metrics:
  listen: 127.0.0.1:9790        # /metrics, /livez, /readyz
admin:
  socket: auto                  # the command line finds it by itself
state:
  path: auto                    # measured load times survive a restart
cache:
  path: auto                    # weights that come from elsewhere are kept there …
  keep_free: 10%                # … as long as the disk has room
engines:
  ports: 20000-29999            # each engine gets a free one, on loopback
  on_exit: stop                 # or keep
devices: auto                   # the GPUs that NVML finds; without any, {virtual: {count: 2, memory: 2GiB}}
scheduling:
  policy: gdsf
  protect: auto                 # an idle model is spared for as long as it took to load …
  protect_max_wait: 15s         # … unless somebody has waited this long for its room
  drain_after: 120s
  idle_unload: never
defaults:                       # what holds for each model that does not say otherwise
  max_wait: 300s
  concurrency: 16
models:
  m01:
    engine: command             # any program that serves HTTP on {port}
    command: [python, serve.py, --model, "{weights}", --port, "{port}"]
    weights: models/m01.gguf    # relative to this file
    memory: 1GiB                # on each of its GPUs
    aliases: [tiny-one]
    concurrency: 8              # sent to the engine at once; the rest wait
    max_wait: 90s               # the cold-start promise of this model
    env: {OMP_NUM_THREADS: "1"}
    health: {path: /health, timeout: 2s}
    warmup: auto                # ready means that a real answer came back
    stop: {signal: SIGTERM, grace: 10s}
  Qwen/Qwen3-8B:
    engine: external            # a server that something else manages
    url: http://127.0.0.1:8000
    memory: 2GiB
    stop: {command: [python, stop_server.py]}   # how to evict it
    priority: low
"""
