"""Warns of settings that work but that the operator may come to regret."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from swapd.config import room
from swapd.config.compile import load_estimate
from swapd.config.explain import Finding, at
from swapd.config.schema import Settings
from swapd.config.units import format_duration, is_loopback
from swapd.core.catalog import OnThrash
from swapd.core.ids import SECOND, Duration


def advise(settings: Settings) -> Iterator[Finding]:
    """Yield place and sentence of each warning."""
    yield from _slow_loads(settings)
    yield from _pins(settings)
    yield from _uneven(settings)
    yield from _own_pins(settings)
    yield from _unproven(settings)
    if settings.scheduling.protect_max_wait is None:
        reason = "with never, models in steady use keep others waiting without end"
        yield at(("scheduling", "protect_max_wait"), f"consider a duration such as 15s: {reason}")


def _slow_loads(settings: Settings) -> Iterator[Finding]:
    for name, model in settings.models.items():
        estimate = load_estimate(model)
        if estimate > model.max_wait:
            about, allowed = format_duration(_whole_seconds(estimate)), format_duration(model.max_wait)
            yield at(
                ("models", name, "max_wait"),
                f"raise it or pin {name}: loading takes about {about}, and a request may wait {allowed}",
            )


def _pins(settings: Settings) -> Iterator[Finding]:
    pins, devices = room.pinned(settings), settings.devices.virtual
    if not pins or devices is None:
        return  # what GPUs there are shows later, see ``fit``
    names, where = ", ".join(pins), ("models", next(reversed(pins)), "pin")
    least = room.least_gpus(pins, devices.memory)
    if least * 4 > devices.count:
        share = f"{'takes' if len(pins) == 1 else 'take'} {least} of {devices.count} devices"
        yield at(where, f"consider fewer pins: {names} {share}, and above a quarter all other models wait longer")
    if not room.arrangeable(pins, devices.count, devices.memory):
        yield at(where, f"consider fewer pins: no way was found to keep all of {names} loaded at once")


def _own_pins(settings: Settings) -> Iterator[Finding]:
    """Warn of pins by the node itself that would leave too little to everybody else."""
    scheduling, devices = settings.scheduling, settings.devices.virtual
    most = scheduling.max_pinned_gpus
    if scheduling.on_thrash is not OnThrash.PIN or most is None or devices is None:
        return
    quarter = max(1, devices.count // 4)
    if most > quarter:
        share = f"the node may pin {most} of {devices.count} devices by itself"
        reason = f"{share}, and above a quarter all other models wait longer"
        yield at(("scheduling", "max_pinned_gpus"), f"consider {quarter}: {reason}")


def _uneven(settings: Settings) -> Iterator[Finding]:
    """Warn of numbers of GPUs that an engine's tensor parallelism rarely divides a model by."""
    for name, model in settings.models.items():
        if settings.devices.virtual is None and model.gpus & (model.gpus - 1):
            more = 1 << model.gpus.bit_length()
            reason = f"few models divide evenly by {model.gpus}, and NVLink domains are cut into halves"
            yield at(("models", name, "gpus"), f"consider {more // 2} or {more}: {reason}")


def _unproven(settings: Settings) -> Iterator[Finding]:
    """Warn of weights that anybody on the way could exchange: engines run what is in some of them."""
    for name, model in settings.models.items():
        source = model.source
        if source is None or source.sha256 is not None or not source.source.startswith("http://"):
            continue
        if not is_loopback(urlsplit(source.source).hostname or ""):
            where = ("models", name, "weights", "source")
            yield at(where, "write https://, or add `sha256`: nothing else proves that nobody has changed the file")


def _whole_seconds(duration: Duration) -> Duration:
    return Duration(-(-duration // SECOND) * SECOND)
