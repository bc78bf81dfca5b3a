"""Refuses settings that name programs or weights this machine does not have."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from swapd.config.cache import WeightsSource
from swapd.config.explain import Finding, at, dotted
from swapd.config.files import MAX_FILES, TooManyFilesError, find_program, weigh
from swapd.config.model import EngineKind, Model
from swapd.config.placeholders import uses
from swapd.config.schema import Settings
from swapd.config.source import Where
from swapd.config.units import show

#: what is started when a model gives no command of its own
USUAL_PROGRAMS: Final = {EngineKind.LLAMA_SERVER: "llama-server", EngineKind.VLLM: "vllm"}

#: the package that reads a kind of source, and what brings it
_READERS: Final = {
    "hf": ("huggingface_hub", "swapd[hf]"),
    "s3": ("s3fs", "swapd[s3]"),
    "gs": ("gcsfs", "gcsfs"),
    "az": ("adlfs", "adlfs"),
}


def check(settings: Settings) -> Iterator[Finding]:
    """Yield place and sentence of everything that is not there."""
    for name, model in settings.models.items():
        where: Where = ("models", name)
        yield from _weights((*where, "weights"), model.local_weights)
        yield from _reader((*where, "weights", "source"), model.source)
        if model.command:
            yield from _program((*where, "command"), model.command[0], model, settings.directory)
        elif model.engine in USUAL_PROGRAMS:
            yield from _program((*where, "engine"), USUAL_PROGRAMS[model.engine], model, settings.directory)
        if model.stop.command:
            yield from _program((*where, "stop", "command"), model.stop.command[0], model, settings.directory)


def _weights(where: Where, path: Path | None) -> Iterator[Finding]:
    if path is None:
        return
    try:
        weigh(path)
    except FileNotFoundError as error:
        yield at(where, f"put the weights there or correct the path: {error.filename} does not exist")
    except OSError as error:
        yield at(where, f"make the weights readable: {error.filename}: {error.strerror}")
    except TooManyFilesError:
        yield at(where, f"name the model's own directory: {path} holds over {MAX_FILES:,} files")
    else:
        if not os.access(path, os.R_OK):
            yield at(where, f"let the daemon's user read {path}")


def _reader(where: Where, weights: WeightsSource | None) -> Iterator[Finding]:
    scheme = "" if weights is None else weights.source.partition("://")[0]
    needed, extra = _READERS.get(scheme, ("", ""))
    if needed and importlib.util.find_spec(needed) is None:
        yield at(where, f"install {extra}: {scheme}:// needs {needed}, which is not there")


def _program(where: Where, program: str, model: Model, directory: Path) -> Iterator[Finding]:
    if model.local_weights is not None:
        program = program.replace("{weights}", str(model.local_weights))
    if uses((program,)) or find_program(program, directory, model.env.get("PATH")) is not None:
        return
    if "/" in program:
        yield at(where, f"correct the path or make the file executable: there is no program {show(program)}")
    elif (directory / program).is_file():
        yield at(where, f"write ./{program}: it lies beside the configuration file, but not on PATH")
    elif where[-1] == "engine":
        yield at(where, f"install {program}, which is not on PATH, or name it in `{dotted(where[:-1])}.command`")
    else:
        yield at(where, f"install {show(program)}, which is not on PATH, or write its path")
