"""Refuses what no single key shows: models that contradict their engine, each other, or the node.

Each check takes the whole settings and yields place and sentence of everything it finds; it refuses only what can
never work. What merely looks unwise is in ``advice``; what the disk says is in ``presence``.
"""

from collections.abc import Callable, Iterator
from typing import Final, assert_never

from swapd.config import ports, room
from swapd.config.devices import GPU_KEYS, Devices
from swapd.config.explain import Finding, at, dotted, suggestion
from swapd.config.model import EngineKind, Model
from swapd.config.placeholders import PLACEHOLDERS, uses
from swapd.config.schema import Settings
from swapd.config.source import Where
from swapd.config.units import approximate_size
from swapd.core.catalog import OnThrash
from swapd.core.ids import Bytes

#: the kernel's limit for the path of a Unix socket, less its final NUL
_MAX_SOCKET_PATH: Final = 107
#: the variable that tells CUDA its GPUs
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def check(settings: Settings) -> Iterator[Finding]:
    """Yield everything that makes the settings unusable."""
    for one in _CHECKS:
        yield from one(settings)


def _engines(settings: Settings) -> Iterator[Finding]:
    for name, model in settings.models.items():
        where: Where = ("models", name)
        match model.engine:
            case EngineKind.COMMAND:
                yield from _command_engine(where, model)
            case EngineKind.LLAMA_SERVER | EngineKind.VLLM:
                yield from _refused(where, model, url="engine: external")
                if model.weights is None:
                    yield where, f"add `{dotted(where)}.weights`, the file or directory that {model.engine} is to serve"
            case EngineKind.EXTERNAL:
                yield from _refused(where, model, args="engine: llama-server and vllm")
                if model.url is None:
                    yield where, f"add `{dotted(where)}.url`, the address of the server, as in http://127.0.0.1:8000"
                elif model.stop.command is None and not model.pin:
                    yield where, f"add `{dotted(where)}.stop.command`, or `pin: true` if nothing is to stop the server"
            case _:
                assert_never(model.engine)


def _command_engine(where: Where, model: Model) -> Iterator[Finding]:
    others = "engine: llama-server and vllm; put the words into `command`"
    yield from _refused(where, model, url="engine: external", args=others)
    if not model.command:
        yield where, f'add `{dotted(where)}.command`, for example [python, serve.py, --port, "{{port}}"]'
    elif "port" not in uses(model.command):
        yield at((*where, "command"), "put {port} where the program takes its port, because swapd chooses it")


def _refused(where: Where, model: Model, **kinds: str) -> Iterator[Finding]:
    for key, kind in kinds.items():
        if key in model.model_fields_set:
            yield at((*where, key), f"remove this key: it is for {kind}")


def _placeholders(settings: Settings) -> Iterator[Finding]:
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    for place, name, used in _used(settings):
        if used not in PLACEHOLDERS:
            yield at(place, f"there is no {{{used}}}{suggestion(used, list(PLACEHOLDERS))}; possible are {known}")
        elif used == "weights" and settings.models[name].weights is None:
            yield at(place, f"add `models.{name}.weights`, because {{weights}} is used here")


def _used(settings: Settings) -> Iterator[tuple[Where, str, str]]:
    """Yield place, model and name of each placeholder."""
    for name, model in settings.models.items():
        programs: list[tuple[Where, tuple[str, ...]]] = [
            (("models", name, "command"), model.command),
            (("models", name, "args"), model.args),
            (("models", name, "stop", "command"), model.stop.command or ()),
        ]
        for where, program in programs:
            for position, word in enumerate(program):
                for used in uses((word,)):
                    yield (*where, position), name, used


def _names(settings: Settings) -> Iterator[Finding]:
    taken: dict[str, str] = dict.fromkeys(settings.models, "the name of a model")
    for name, model in settings.models.items():
        for position, alias in enumerate(model.aliases):
            if alias in taken:
                place: Where = ("models", name, "aliases", position)
                yield at(place, f"choose another alias: {alias} is {taken[alias]} already")
            taken.setdefault(alias, f"an alias of {name}")


def _devices(settings: Settings) -> Iterator[Finding]:
    devices = settings.devices
    if devices.virtual is None:
        return
    for key in GPU_KEYS:
        if getattr(devices, key) != Devices.model_fields[key].default:
            yield at(("devices", key), "remove this key, which is about GPUs, or `devices.virtual`, which has none")


def _environments(settings: Settings) -> Iterator[Finding]:
    """Refuse what would put a model on other GPUs than those that are booked for it."""
    for name, model in settings.models.items():
        if settings.devices.virtual is None and _VISIBLE in model.env:
            where: Where = ("models", name, "env", _VISIBLE)
            yield at(where, "remove it: swapd chooses the GPUs; narrow the choice with `gpu_name` if need be")


def _footprints(settings: Settings) -> Iterator[Finding]:
    count, memory = room.devices(settings)
    host = settings.devices.host_memory
    for name, model in settings.models.items():
        where: Where = ("models", name)
        if count is not None and model.gpus > count:
            yield at((*where, "gpus"), f"write at most {count}, the number of the node's devices, not {model.gpus}")
        if memory is not None and model.memory > memory:
            sizes = f"{approximate_size(memory)}, the memory of a device, not {approximate_size(model.memory)}"
            yield at((*where, "memory"), f"write at most {sizes}")
        if isinstance(host, int) and model.host_memory > host:
            sizes = f"{approximate_size(host)}, all of `devices.host_memory`, not {approximate_size(model.host_memory)}"
            yield at((*where, "host_memory"), f"write at most {sizes}")


def _pins(settings: Settings) -> Iterator[Finding]:
    pins, limit = room.pinned(settings), settings.scheduling.max_pinned_gpus
    count, memory = room.devices(settings)
    if not pins or any(_oversized(model, count, memory) for model in pins.values()):
        return  # nothing pinned, or refused already
    names, least, last = ", ".join(pins), room.least_gpus(pins, memory), next(reversed(pins))
    where: Where = ("models", last, "pin")
    if count is not None and least > count:
        yield at(where, f"unpin some of {names}: together they need {least} devices or more, and the node has {count}")
        return
    if limit is not None and least > limit:
        yield at(
            where,
            f"unpin some of {names} or raise `scheduling.max_pinned_gpus`: they need {least} devices or more, "
            f"and {limit} are allowed",
        )
    if count is None:
        return
    for name, model in settings.models.items():
        free = count - (least if model.exclusive else room.exclusive_gpus(pins))
        if not model.pin and free < model.gpus <= count:
            place: Where = ("models", name, "gpus")
            yield at(place, f"lower it or unpin a model: the pins of {names} leave {free} of {count} devices")


def _on_thrash(settings: Settings) -> Iterator[Finding]:
    scheduling = settings.scheduling
    if scheduling.on_thrash is OnThrash.PIN and scheduling.max_pinned_gpus is None:
        yield at(("scheduling", "on_thrash"), "add `scheduling.max_pinned_gpus`: without a limit nothing may be pinned")


def _oversized(model: Model, count: int | None, memory: Bytes | None) -> bool:
    return (count is not None and model.gpus > count) or (memory is not None and model.memory > memory)


def _listeners(settings: Settings) -> Iterator[Finding]:
    http, socket = settings.http, settings.admin.socket
    if not http.listen.loopback and "auth" not in http.model_fields_set:
        yield at(
            ("http", "listen"),
            "write `auth: none` beside it if everybody who reaches this address may use it, or listen on 127.0.0.1",
        )
    if socket is not None and len(str(socket).encode()) > _MAX_SOCKET_PATH:
        yield at(("admin", "socket"), f"choose a path of at most {_MAX_SOCKET_PATH} bytes, the system's limit")


_CHECKS: Final[tuple[Callable[[Settings], Iterator[Finding]], ...]] = (
    _engines,
    _placeholders,
    _names,
    _devices,
    _environments,
    _footprints,
    _pins,
    _on_thrash,
    ports.clashes,
    _listeners,
)
