"""Declares the node's part of the configuration file: one class per section, one field per key.

The text under a field says what the key means, its unit, and why its default is what it is; the reference page and the
JSON Schema for editors are made from it. Fields hold parsed values (durations in nanoseconds, sizes in bytes). What one
model may say stands in ``model``, what it is placed on in ``devices``, where its weights are kept in ``cache``, checks
that need more than one key in ``checks``.
"""

import enum
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from swapd.config import fields, units
from swapd.config.cache import Cache
from swapd.config.devices import Devices, DevicesOrAuto
from swapd.config.model import Model
from swapd.config.section import Section
from swapd.core.catalog import Mode, OnThrash, PolicyName
from swapd.core.ids import SECOND, Bytes, Duration

_MIB = 1 << 20


class Http(Section):
    """The listener for inference requests."""

    listen: fields.Listen = units.Listen("127.0.0.1", 8090)
    """Address and port for clients. Loopback by default, because nobody is asked for a key; port 0 takes any free
    port. Restart to change it."""

    auth: Literal["none"] = "none"
    """Who may send requests: `none` lets everybody who can connect. A listener that other machines can reach needs it
    written out, so that an open node is a decision."""

    max_body: fields.Size = Bytes(64 * _MIB)
    """Largest request body; a longer one is answered with 413. 64 MiB holds a long chat with several images."""

    max_buffered: fields.Size = Bytes(512 * _MIB)
    """Bytes of all request bodies held at the same time; beyond it new requests are answered with 429. Keeps the
    daemon's memory bounded whatever the queues hold."""

    sse_keepalive: fields.DurationOrOff = None
    """How often a streaming request that waits for its model is sent a comment line, for proxies that drop silent
    connections. Off by default, because the first byte commits the answer to status 200; 15s suits most proxies."""

    fast_path: fields.Flag = True
    """Serve requests of plain form, which are nearly all, without the HTTP library: the same answers for a fraction of
    the CPU. `false` sends everything through the library, should the fast path be suspected of a fault. Connections
    that are open keep to what they began with."""


class Metrics(Section):
    """The listener for metrics and health probes."""

    listen: fields.Listen = units.Listen("127.0.0.1", 9790)
    """Address and port of `/metrics`, `/livez` and `/readyz`; read-only. Loopback by default, so that opening it to a
    scraper is a decision. Restart to change it."""


class Admin(Section):
    """The socket through which the command line speaks to the daemon."""

    socket: fields.FilePathOrAuto = None
    """Path of the Unix socket. `auto` takes `admin.sock` in the first that exists of `$RUNTIME_DIRECTORY`,
    `/run/swapd` and `$XDG_RUNTIME_DIR/swapd`, else in a private directory below the temporary one; the command line
    looks in the same places. Restart to change it."""


class State(Section):
    """What survives a restart."""

    path: fields.FilePathOrAuto = None
    """Path of the SQLite file with load times, footprints and demand. `auto` takes `state.db` in the first that can be
    written of `$STATE_DIRECTORY`, `/var/lib/swapd` and `~/.local/state/swapd`. One daemon per file. Restart to change
    it."""


class OnExit(enum.StrEnum):
    """What becomes of the engines when the daemon exits."""

    STOP = "stop"
    KEEP = "keep"


class Engines(Section):
    """What all engines have in common."""

    ports: fields.Ports = units.PortRange(20_000, 29_999)
    """Ports that the engines get, on loopback only; the daemon's own ports and ports written into a model are left
    out. The default lies below the range from which Linux takes outgoing connections. Restart to change it."""

    on_exit: OnExit = OnExit.STOP
    """`stop` ends every engine with the daemon; `keep` lets engines outlive it, for a service manager that restarts
    the daemon alone. A daemon does not take over an earlier one's engines yet: with `keep`, and when the daemon was
    ended by SIGKILL, end them before it starts again. `stop` by default, so that nothing is left behind."""


class Scheduling(Section):
    """By which rules models come and go."""

    policy: PolicyName = PolicyName.GDSF
    """Order in which idle models are evicted: `gdsf` (frequency × load time per GPU, with ageing), `lru`,
    `cheapest-reload`. `gdsf` gave the shortest waits on the traces it was chosen by."""

    protect: fields.DurationOrAuto = None
    """A model is not evicted within this time of its last use. `auto` is the model's own load time, at most 120s: a
    model must not cost more time loading than it was spared; 0 evicts in plain order."""

    protect_max_wait: fields.DurationOrNever = Duration(15 * SECOND)
    """Once a request has waited this long, protection no longer holds up its model; earlier where the model's
    `max_wait` demands it. Short, because absolute protection (`never`) makes waits longer than no protection."""

    min_residency: fields.MinResidency = units.MinResidency()
    """Least time between ready and eviction, absolute or as a multiple of the load time: `1x` bounds loading to half
    of the time when two models take turns. 0 by default, because `protect` already covers ordinary traffic."""

    drain_after: fields.AnyDuration = Duration(120 * SECOND)
    """Once a request has waited this long, the models that stand in its way get no new requests until it is served.
    Earlier where the model's `max_wait` demands it. Long enough that ordinary streams end by themselves. After half as
    long again no new load begins in its way either."""

    drain_timeout: fields.DurationOrNull = None
    """How long a draining model's running requests may go on before they are cut. No limit by default, because
    cutting answers is the operator's decision; at the daemon's exit two minutes, so that it does end."""

    max_concurrent_loads: fields.Count = 2
    """Models that load at the same time. Two keep the node busy while one waits for its disk; more compete for it."""

    frequency_half_life: fields.PositiveDuration = Duration(86_400 * SECOND)
    """After this time a past request counts half in the order of eviction. A day remembers the daily rhythm."""

    release_timeout: fields.PositiveDuration = Duration(30 * SECOND)
    """How long a stopped engine's memory may take to come free before it is set aside and reported. Drivers usually
    need a second or two, rarely ten."""

    idle_unload: fields.DurationOrNever = None
    """Unload a model this long after its last request has ended. `never` by default, because an idle model costs
    nothing until another needs its room."""

    mode: Mode = Mode.AUTO
    """`auto` loads and unloads on demand; with `manual` nothing loads or unloads unless an operator says so."""

    max_pinned_gpus: fields.CountOrNull = None
    """Most GPUs that pinned models may take together. No limit by default; a warning is given above a quarter."""

    on_thrash: OnThrash = OnThrash.REPORT
    """What to do about a model that thrashes: `report` says so, and what would help (`swapd report`); `pin` also pins
    it, within `max_pinned_gpus`, which must then be set, until its demand is gone. `report` by default, because a pin
    takes room from all other models, and that is the operator's decision. An operator's unpin counts over it."""


class Defaults(Section):
    """What holds for each model that does not say otherwise."""

    max_wait: fields.PositiveDuration = Duration(300 * SECOND)
    """Default of `models.*.max_wait`. Five minutes, because clients commonly give up after ten."""

    max_queue: fields.Count = 512
    """Default of `models.*.max_queue`. More waiting requests than most engines work off within `max_wait`."""

    concurrency: fields.Count = 16
    """Default of `models.*.concurrency`. Enough to fill the batch of a common engine."""

    load_timeout: fields.PositiveDuration = Duration(600 * SECOND)
    """Default of `models.*.load_timeout`. Ten minutes cover compiling and graph capture of a cold engine."""

    load_stall: fields.PositiveDuration = Duration(120 * SECOND)
    """Default of `models.*.load_stall`. Two minutes, because engines can be silent while they compile."""

    request_timeout: fields.PositiveDurationOrNever = None
    """Default of `models.*.request_timeout`. `never`, because no length of an answer is wrong for every model."""


def _present(value: Any) -> Any:
    """Leave out empty sections: ``models:`` with nothing below it means no models."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


class Settings(Section):
    """A whole configuration file: the sections and the models.

    Made by ``load``; ``defaults`` are then already in every model and paths are absolute.
    """

    http: Http = Http()
    """The listener for inference requests."""

    metrics: Metrics = Metrics()
    """The listener for metrics and health probes."""

    admin: Admin = Admin()
    """The socket through which the command line speaks to the daemon."""

    state: State = State()
    """What survives a restart."""

    cache: Cache = Cache()
    """The node's cache of weights that come from elsewhere."""

    engines: Engines = Engines()
    """What all engines have in common."""

    devices: DevicesOrAuto = Devices()
    """What models are placed on. `auto`, the default, takes the GPUs that NVML finds."""

    scheduling: Scheduling = Scheduling()
    """By which rules models come and go."""

    defaults: Defaults = Defaults()
    """What holds for each model that does not say otherwise."""

    models: dict[fields.Name, Model] = Field(default_factory=dict)
    """The models this node serves, by name. Clients use the name; it may hold a slash, as in `Qwen/Qwen3-8B`."""

    _directory: Path = PrivateAttr(default_factory=Path.cwd)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, value: Any) -> Any:
        """Drop empty sections and give each model what ``defaults`` says and it does not."""
        value = _present(value)
        if not isinstance(value, dict) or not isinstance(value.get("models"), dict):
            return value
        given = _present(value.get("defaults", {}))
        given = {key: given[key] for key in Defaults.model_fields if key in given} if isinstance(given, dict) else {}
        models = {
            name: {**given, **model} if isinstance(model, dict) else model for name, model in value["models"].items()
        }
        return {**value, "models": models}

    @property
    def directory(self) -> Path:
        """Where the configuration file lies: relative paths start there, and engines run there."""
        return self._directory
