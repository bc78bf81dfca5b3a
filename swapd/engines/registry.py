"""Knows every engine by the name that the configuration uses; a new one is one file and one line here."""

from collections.abc import Mapping
from typing import Final

from swapd.engines.base import Assignment, Binding, Engine, EngineError, EngineOptions, EnginePlan
from swapd.engines.command import Command
from swapd.engines.external import External
from swapd.engines.llama_server import LlamaServer
from swapd.engines.vllm import Vllm

ENGINES: Final[Mapping[str, Engine]] = {
    "command": Command(),
    "external": External(),
    "llama-server": LlamaServer(),
    "vllm": Vllm(),
}


_ANYWHERE: Final = Binding()


def plan(
    options: EngineOptions,
    *,
    port: int,
    devices: tuple[str, ...],
    environ: Mapping[str, str],
    binding: Binding = _ANYWHERE,
) -> EnginePlan:
    """Describe one instance of a model on a port and devices, started from the daemon's ``environ``.

    Raises ``EngineError`` with one sentence when the options do not suffice.
    """
    engine = ENGINES.get(options.engine)
    if engine is None:
        raise EngineError(
            f"model {options.name} has the unknown engine {options.engine!r}; use one of {', '.join(ENGINES)}"
        )
    given = Assignment(options=options, port=port, devices=devices, environ=environ, binding=binding)
    return engine.plan(given)
