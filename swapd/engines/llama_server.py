"""Describes llama.cpp's ``llama-server`` with one model.

It answers its health route with 503 while it loads, and serves any model name under the one model it has.
"""

from swapd.engines.assemble import serving_plan
from swapd.engines.base import LOOPBACK, Assignment, EngineError, EnginePlan
from swapd.engines.environment import environment, has_gpus
from swapd.engines.fill import fill
from swapd.engines.warmup import chat, embedding, llama_completion

_EXECUTABLE = ("llama-server",)


class LlamaServer:
    """One GGUF file, one server."""

    def plan(self, given: Assignment) -> EnginePlan:
        """Add model, name, port and slots to the executable."""
        options = given.options
        if options.weights is None:
            raise EngineError(f"model {options.name} needs weights: the GGUF file that llama-server loads")
        argv = (
            *fill(options.command or _EXECUTABLE, given),
            *("-m", options.weights, "-a", options.name),
            *("--host", LOOPBACK, "--port", str(given.port)),
            *("-np", str(options.concurrency)),
            # all layers on the GPU; the server would otherwise fit itself to what a neighbour leaves it
            *(("-ngl", "999", "-fit", "off") if has_gpus(given.devices) else ()),
            *("--metrics", "--no-ui"),
            *fill(options.args, given),
        )
        auto = (chat(options.name), embedding(options.name), llama_completion(options.name))
        return serving_plan(given, argv=argv, env=environment(given), auto=auto)
