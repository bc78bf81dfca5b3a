"""Names every reason, stage and state once; HTTP, metrics, logs and docs use these names and no others."""

import enum


class Rejection(enum.StrEnum):
    """Why a request is refused. The HTTP form of each stands in ``proxy/errors.py``."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN_MODEL = "forbidden_model"
    UNKNOWN_MODEL = "unknown_model"
    MANUAL_MODE = "manual_mode"
    BODY_TOO_LARGE = "body_too_large"
    QUEUE_FULL = "queue_full"
    BUFFER_FULL = "buffer_full"
    KEY_LIMIT = "key_limit"
    NO_CAPACITY = "no_capacity"
    ALL_PINNED = "all_pinned"
    ETA_EXCEEDS_MAX_WAIT = "eta_exceeds_max_wait"
    WAIT_TIMEOUT = "wait_timeout"
    LOAD_FAILED = "load_failed"
    COOLING_DOWN = "cooling_down"
    DRAINING = "draining"
    DEGRADED = "degraded"
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_TIMEOUT = "upstream_timeout"


class WaitingFor(enum.StrEnum):
    """What a queued request waits for."""

    ROOM = "room"
    VICTIMS = "victims"
    WEIGHTS = "weights"
    LOAD = "load"
    ENGINE_SLOT = "engine_slot"


class Stage(enum.StrEnum):
    """One part of a cold start; together they are the time from arrival to first byte."""

    QUEUED = "queued"
    DRAIN = "drain"
    STOP = "stop"
    SLEEP = "sleep"
    RELEASE = "release"
    FETCH = "fetch"
    PAGE_CACHE = "page_cache"
    SPAWN = "spawn"
    WAKE = "wake"
    LOAD = "load"
    WARMUP = "warmup"
    FIRST_BYTE = "first_byte"


class State(enum.StrEnum):
    """Where an instance is in its life; the transitions stand in ``lifecycle.py``."""

    RESERVED = "reserved"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    SLEEPING = "sleeping"
    ASLEEP = "asleep"
    WAKING = "waking"
    UNLOADING = "unloading"
    LEAKED = "leaked"
    GONE = "gone"


class Outcome(enum.StrEnum):
    """How a request ended, as the shell saw it."""

    #: answered in full (by the engine, whatever the status code)
    SERVED = "served"
    #: the client left, in the queue or in the middle of an answer
    CANCELLED = "cancelled"
    #: refused by the core; the shell confirms that the refusal went out
    REJECTED = "rejected"
    #: the engine broke off before or in the middle of its answer
    UPSTREAM_FAILED = "upstream_failed"
    #: cut by a drain deadline
    CUT = "cut"


class LoadFailure(enum.StrEnum):
    """What ended a load."""

    #: the engine's process ended before it was ready
    EXITED = "exited"
    #: the process could not be started at all
    SPAWN = "spawn"
    #: the warm-up request was answered with an error
    WARMUP = "warmup"
    #: something else answers on the engine's port
    FOREIGN_SERVER = "foreign_server"
    #: longer than the load timeout
    DEADLINE = "deadline"
    #: no progress in log or I/O for the stall window
    STALLED = "stalled"


class FetchFailure(enum.StrEnum):
    """What ended a fetch of weights."""

    #: nobody wants it any more
    CANCELLED = "cancelled"
    #: the source refuses, or has not what is asked for; trying again cannot help
    REFUSED = "refused"
    #: the source does not answer, or breaks off again and again
    UNREACHABLE = "unreachable"
    #: what came has another checksum than the source promised, twice
    CORRUPT = "corrupt"
    #: the copy is larger than the cache may ever be
    TOO_LARGE = "too_large"
    #: the disk refuses
    DISK = "disk"


class LoadResult(enum.StrEnum):
    """How a load ended."""

    READY = "ready"
    FAILED = "failed"
    ABORTED = "aborted"


class UnloadCause(enum.StrEnum):
    """Why an instance leaves the GPUs."""

    EVICTED = "evicted"
    IDLE = "idle"
    OPERATOR = "operator"
    REMOVED = "removed"
    CHANGED = "changed"
    LOAD_FAILED = "load_failed"
    LOAD_ABORTED = "load_aborted"
    EXITED = "exited"
    UNRESPONSIVE = "unresponsive"
    #: one of its GPUs has failed or was lost
    GPU_FAILED = "gpu_failed"
    SHUTDOWN = "shutdown"


class EvictionBlock(enum.StrEnum):
    """Why a resident model could not be a victim just now."""

    PROTECTED = "protected"
    PINNED = "pinned"
    IN_FLIGHT = "in_flight"


class PlacementQuality(enum.StrEnum):
    """How good a set of GPUs is, among all of its size on this node."""

    #: one GPU: all are alike
    SINGLE = "single"
    #: in the top class of its size on this node
    TOP = "top"
    #: an NVLink ring passes through it, but there are better sets
    LINKED = "linked"
    #: no ring; inside one NUMA node
    LOCAL = "local"
    #: no ring; across NUMA nodes, or not known
    SPREAD = "spread"


class ReleaseEvidence(enum.StrEnum):
    """What told that the memory of a stopped instance is free."""

    #: the driver shows as much free memory as there should be
    FREE = "free"
    #: the driver listed its processes before and lists them no more
    PROCESSES = "processes"
    #: no driver tells (virtual devices, lost GPUs, memory that cannot be measured)
    ACCOUNTS = "accounts"


class Verdict(enum.StrEnum):
    """Whether swapping a model is sensible."""

    UNKNOWN = "unknown"
    OK = "ok"
    MARGINAL = "marginal"
    THRASHING = "thrashing"


class PinnedBy(enum.StrEnum):
    """Who has pinned a model."""

    CONFIG = "config"
    OPERATOR = "operator"
    #: the node itself, because the model thrashed (``on_thrash: pin``)
    ON_THRASH = "on_thrash"


class ThrashPin(enum.StrEnum):
    """What ``on_thrash: pin`` has done about a thrashing model."""

    PINNED = "pinned"
    #: its pin would break a limit, or leave another model without room
    REFUSED = "refused"
    #: its demand is gone, or the limits have changed
    LIFTED = "lifted"


class Move(enum.StrEnum):
    """Where a model had better be than swapped in the shared pool."""

    #: where it is
    STAY = "stay"
    #: pinned on this node: resident for good
    PIN = "pin"
    #: on GPUs of its own
    DEDICATED = "dedicated"
