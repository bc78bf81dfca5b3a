"""Describes any server that a command line starts and that speaks HTTP on the port it is given."""

from swapd.engines.assemble import serving_plan
from swapd.engines.base import Assignment, EngineError, EnginePlan
from swapd.engines.environment import environment
from swapd.engines.fill import fill
from swapd.engines.warmup import chat, completion, embedding, llama_completion


class Command:
    """The whole command comes from the configuration."""

    def plan(self, given: Assignment) -> EnginePlan:
        """Fill in the command; nothing is added to it but ``args``."""
        options = given.options
        if not options.command:
            raise EngineError(f"model {options.name} needs a command")
        return serving_plan(
            given,
            argv=fill((*options.command, *options.args), given),
            env=environment(given),
            auto=(
                chat(options.name),
                completion(options.name),
                embedding(options.name),
                llama_completion(options.name),
            ),
        )
