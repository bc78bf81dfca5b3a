"""Describes vLLM's OpenAI server.

Its port opens only after the load. It knows its model by the served names alone and answers 404 to any other. While
a request is open its default shutdown waits for the client for ever, so it gets a shutdown limit below the grace.
Versions before 0.24 cannot read the UUIDs of GPUs.
"""

from swapd.core.ids import SECOND
from swapd.engines.assemble import serving_plan
from swapd.engines.base import LOOPBACK, Assignment, EngineError, EnginePlan
from swapd.engines.environment import environment
from swapd.engines.fill import fill
from swapd.engines.warmup import chat, completion, embedding

_EXECUTABLE = ("vllm", "serve")
_VARIABLES = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


class Vllm:
    """One checkpoint over all the GPUs of the instance, by tensor parallelism."""

    def plan(self, given: Assignment) -> EnginePlan:
        """Add weights, names, port and parallelism to the executable."""
        options = given.options
        if options.weights is None:
            raise EngineError(f"model {options.name} needs weights: the directory that vLLM loads")
        shutdown_s = max(1, options.stop_grace // SECOND - 1)
        argv = (
            *fill(options.command or _EXECUTABLE, given),
            options.weights,
            *("--host", LOOPBACK, "--port", str(given.port)),
            *("--served-model-name", options.name, *options.aliases),
            *("--tensor-parallel-size", str(max(1, len(given.devices)))),
            *("--shutdown-timeout", str(shutdown_s)),
            *("--enable-server-load-tracking", "--disable-uvicorn-access-log"),
            *fill(options.args, given),
        )
        auto = (chat(options.name), completion(options.name), embedding(options.name))
        return serving_plan(given, argv=argv, env=environment(given, _VARIABLES), auto=auto)
