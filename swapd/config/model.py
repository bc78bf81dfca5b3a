"""Declares what the configuration may say of one model, and refuses keys that contradict its engine.

The text under a field is its documentation (see ``schema``). Whether files and programs exist, and whether the model
fits the node, is checked in ``files`` and ``checks``.
"""

import enum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Field, PlainSerializer, PlainValidator, Tag, WithJsonSchema

from swapd.config import fields
from swapd.config.cache import Weights, WeightsSource
from swapd.config.section import Section
from swapd.config.units import show
from swapd.core.catalog import NvlinkUse, Priority
from swapd.core.ids import SECOND, Bytes, Duration


class EngineKind(enum.StrEnum):
    """Which kind of model server a model needs."""

    COMMAND = "command"
    LLAMA_SERVER = "llama-server"
    VLLM = "vllm"
    EXTERNAL = "external"


class OnClientAbort(enum.StrEnum):
    """What happens to a running request whose client has left."""

    CANCEL = "cancel"
    FINISH = "finish"


class Health(Section):
    """How to find out whether the engine answers."""

    path: fields.RequestPath = "/health"
    """Path that answers 200 once the engine is ready. Must be cheap; it is asked often while the model loads."""

    timeout: fields.PositiveDuration = Duration(2 * SECOND)
    """How long one probe may take. Short, because a probe that hangs must not hold up the next one."""


class WarmupRequest(Section):
    """A request of the user's own that proves that the engine answers."""

    path: fields.RequestPath
    """Path the request is sent to, with POST."""

    body: fields.JsonBody
    """JSON body of the request."""


class Stop(Section):
    """How the engine is ended."""

    signal: fields.Signal = "SIGTERM"
    """Signal that asks the engine to leave, sent to its leading process."""

    grace: fields.AnyDuration = Duration(10 * SECOND)
    """Time from the signal to the kill of everything the engine has started. Most engines need well under a second."""

    command: fields.ProgramOrNull = None
    """Program that is run to its end before any signal, for example to stop a container. For `engine: external` it is
    the only way to stop. None by default, because a signal is enough for a plain process."""


def _warmup_kind(value: object) -> str:
    return "request" if isinstance(value, dict | WarmupRequest) else "word"


Warmup = Annotated[
    Annotated[Literal["auto", "none"], Tag("word")] | Annotated[WarmupRequest, Tag("request")],
    Discriminator(_warmup_kind),
]


def _read_priority(value: object) -> Priority:
    for priority in Priority:
        if value in (priority, priority.name.lower()) and not isinstance(value, bool):
            return priority
    raise ValueError(f"write high, normal or low, not {show(value)}")


PriorityName = Annotated[
    Priority,
    PlainValidator(_read_priority),
    PlainSerializer(lambda priority: priority.name.lower(), return_type=str),
    WithJsonSchema({"enum": [priority.name.lower() for priority in Priority]}),
]


class Model(Section):
    """One model and the server that runs it."""

    engine: EngineKind = EngineKind.COMMAND
    """Which kind of server the model needs. `command`: any program that serves HTTP on `{port}`; `llama-server` and
    `vllm` (0.24 or later, which reads the UUIDs of GPUs): started with the right arguments by themselves; `external`: a
    server managed elsewhere, at `url`."""

    command: fields.Program = ()
    """Program and arguments, one item per word; no shell is involved. `{port}`, `{weights}`, `{name}` and `{devices}`
    are filled in. A program with a slash in it is relative to the configuration file, any other is looked up on PATH;
    it runs in the configuration file's directory. For `llama-server` and `vllm` it replaces the program (and what
    stands before the arguments); for `external` it is an optional start hook that ends at once."""

    args: fields.Program = ()
    """Further arguments, for `llama-server` and `vllm`; the placeholders of `command` are filled in here too."""

    url: fields.LoopbackUrl | None = None
    """Base URL of the server, for `external` only; on this machine's loopback. A path in it is asked instead of
    `health.path`."""

    weights: Weights | None = None
    """The model's weights: a file or directory of this machine, relative to the configuration file, or the keys below
    for weights that come from elsewhere. Their size sets the first guess of the load time and lengthens
    `load_timeout`; when they change, the model is loaded again."""

    gpus: fields.Count = 1
    """How many GPUs the model needs."""

    memory: fields.Size
    """Memory the model takes on each of its GPUs, the engine's working memory included."""

    exclusive: fields.Flag = True
    """Whether the model needs its GPUs for itself. Models share a GPU only if each of them says `false` and their
    memory fits. True by default, because many engines size their caches by the memory they find free."""

    host_memory: fields.AnySize = Bytes(0)
    """Host memory the model takes while it is loaded, for example for offloaded weights or cache; it is loaded only
    where `devices.host_memory` has that much left. 0 by default: nothing is booked."""

    nvlink: NvlinkUse = NvlinkUse.PREFERRED
    """What NVLink means to a model on several GPUs: `required` takes only GPUs that NVLink joins in a ring; `preferred`
    the best joined ones that can be had; `ignore` those whose loss hurts the other models least."""

    gpu_name: fields.GpuNameOrNull = None
    """Only GPUs whose whole product name matches this pattern, with `*` and `?`, in either case: `"*H100*"` (in quotes,
    because of the `*`). `null`: any. A model never gets GPUs of two products."""

    min_compute_capability: fields.ComputeCapabilityOrNull = None
    """Only GPUs of at least this CUDA compute capability, for example 8.0 for engines that need bfloat16. `null`:
    any."""

    aliases: tuple[fields.Name, ...] = ()
    """Further names under which clients may ask for the model."""

    pin: fields.Flag = False
    """Keep the model loaded: it is never evicted, and loaded again whenever it is absent."""

    concurrency: fields.Count = 16
    """Requests sent to the engine at once; the rest wait in the daemon. Default: `defaults.concurrency`."""

    max_queue: fields.Count = 512
    """Requests that may wait for the model; the next one is answered with 429. Default: `defaults.max_queue`."""

    max_wait: fields.PositiveDuration = Duration(300 * SECOND)
    """The model's cold-start promise: longest time a request waits before it is answered or refused with 503.
    Default: `defaults.max_wait`."""

    load_timeout: fields.PositiveDuration = Duration(600 * SECOND)
    """A load that has taken this long has failed. 1 s per 100 MB of weights is added, so that heavy models need no
    setting of their own. Default: `defaults.load_timeout`."""

    load_stall: fields.PositiveDuration = Duration(120 * SECOND)
    """A load that has shown no progress (log or I/O) for this long has failed. Default: `defaults.load_stall`."""

    request_timeout: fields.PositiveDurationOrNever = None
    """A request that has been at its engine for this long is ended: with 504 if no byte of the answer has come, else by
    a visible break. It ends requests that an engine holds although its health probe is green; a WebSocket is one
    request. `never` by default, because long answers are ordinary. Default: `defaults.request_timeout`."""

    load_estimate: fields.PositiveDuration | None = None
    """Expected load time until one has been measured. By default 2 s plus the weights at 2 GB/s, about what local
    disks deliver."""

    env: fields.Environment = Field(default_factory=dict)
    """Environment variables for the engine, on top of the daemon's own. `CUDA_VISIBLE_DEVICES` is swapd's to set: it
    names the GPUs by their UUIDs, and a value written here is refused unless the devices are virtual."""

    health: Health = Health()
    """How to find out whether the engine answers."""

    warmup: Warmup = "auto"
    """A trial request before the first client is let in: `auto` sends what the engine understands, `none` trusts the
    health probe alone, or give `path` and `body`. `auto` by default, because engines can be
    healthy before they can answer."""

    stop: Stop = Stop()
    """How the engine is ended."""

    on_client_abort: OnClientAbort = OnClientAbort.CANCEL
    """When a client leaves in the middle of an answer: `cancel` closes the connection to the engine, `finish` reads the
    answer to its end, for engines that a broken connection upsets."""

    priority: PriorityName = Priority.NORMAL
    """`high`, `normal` or `low`: which waiting model is loaded first; age decides within a class."""

    @property
    def local_weights(self) -> Path | None:
        """Where on this machine the weights lie; ``None``: they come through the cache, or there are none."""
        return self.weights if isinstance(self.weights, Path) else None

    @property
    def source(self) -> WeightsSource | None:
        """Where the weights are fetched from; ``None``: they are not."""
        return self.weights if isinstance(self.weights, WeightsSource) else None
